/* One slow participant must not stop the others, and many must not cost more than few. */
#include <pthread.h>

#include "death.h"

#define MS INT64_C(1000000)

/* --- the admin lock is held for good ------------------------------------------------- */

static uint64_t number_of(shmring *r, const struct shmring_lease *l)
{
	struct shmring_message message;
	uint64_t at = l->first, number = 0;

	NEED(shmring_read(r, &at, l->end, &message) == SHMRING_OK);
	memcpy(&number, message.data, 8);
	return number;
}

/* One dies with [0, 6). */
static void die_with_six(void)
{
	struct puppet *d = puppet_new(take_and_die);

	d->n = 3;
	puppet_die(d);
}

static pid_t stop_with_the_lock(struct puppet *c)
{
	pid_t pid = puppet_start(c);

	kill(pid, SIGSTOP);
	return pid;
}

/* Nothing but what the dead one held: a wait ends in time, and does not spin. */
static void wait_in_vain(shmring_consumer *m)
{
	struct shmring_lease l;
	unsigned vain = 0;

	for (uint8_t strategy = 0; strategy < SHMRING_WAIT_STRATEGIES; strategy++) {
		int64_t deadline = clock_ns() + 100 * MS;

		do {
			CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_UNAVAILABLE);
			vain++;
		} while (shmring_wait_message(m, deadline, strategy) != SHMRING_TIMEOUT);
	}
	CHECK(vain < 5 * 30);
}

static int wait_and_take(shmring_consumer *m, struct shmring_lease *l)
{
	int status;

	while ((status = shmring_take(m, 1, 1, l)) == SHMRING_UNAVAILABLE)
		(void)shmring_wait_message(m, INT64_MAX, SHMRING_WAIT_DEFAULT);
	return status;
}

static void take_the_six(shmring_consumer *m)
{
	struct shmring_lease l;

	for (uint64_t i = 0; i < 6; i++) {
		NEED(wait_and_take(m, &l) == SHMRING_OK);
		CHECK(l.redelivered);
		CHECK_IS(number_of(m->ring, &l), i);
		CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	}
}

/* Fresh messages follow; then somebody holds the admin lock. */
static void check_with_the_lock_held(bool exclusive)
{
	struct puppet *c = puppet_new(hold_the_admin_lock);
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .exclusive = exclusive};
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
	shmring_consumer *m;
	struct shmring_lease l;
	pid_t pid;

	NEED(shmring_subscribe(r, "b", &o, NULL) == SHMRING_OK);
	push_n(p, 0, 500);
	die_with_six();
	CHECK_IS(recover(r), 1);
	m = consumer_of(r, "b");
	pid = stop_with_the_lock(c);
	for (uint64_t i = 6; i < 500; i++) {
		CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_OK);
		CHECK(!l.redelivered);
		CHECK_IS(number_of(r, &l), i);
		CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	}
	wait_in_vain(m);
	puppet_kill(pid);
	take_the_six(m);
	CHECK_IS(m->branch->d.orphans, 0);
	check_works(r, m);
	end_all();
}

TEST(fresh_messages_are_taken_while_redelivery_has_to_wait)
{
	check_with_the_lock_held(false);
	check_with_the_lock_held(true);
}

/* The end does not overtake what the dead held, and whoever waits for it sleeps. */
RING_TEST(an_end_that_has_to_wait_for_redelivery_is_waited_for_asleep)
{
	struct puppet *c = puppet_new(hold_the_admin_lock);
	struct shmring_lease l;
	pid_t pid;

	push_n(p, 0, 6);
	push_end(p);
	die_with_six();
	CHECK_IS(recover(r), 1);
	pid = stop_with_the_lock(c);
	wait_in_vain(m);
	puppet_kill(pid);
	take_the_six(m);
	CHECK_IS(wait_and_take(m, &l), SHMRING_ENDED);
	check_works(r, m);
}

RING_TEST(what_the_dead_held_comes_before_fresh_messages)
{
	struct puppet *d = puppet_new(take_and_die);

	push_n(p, 0, 8);
	d->n = 1;
	puppet_die(d);
	CHECK_IS(recover(r), 1);
	for (int64_t i = 0; i < 8; i++)
		CHECK_IS(pop_number(m), i);
}

/* --- many sleep ------------------------------------------------------------------------ */

enum { CROWD = 24 };

struct sleeper {
	shmring_consumer *m;
	pthread_t thread;
	int status;
	bool over;
};

/* Makes a consumer look like one of many long sleepers: its next sleep is long. */
static void tire(shmring *r, shmring_consumer *m)
{
	store_relaxed(&r->cursors->look.v, LOOK_TIME((uint64_t)clock_ns()) | 248);
	store_relaxed(&m->wait.took_ns, INT64_MAX);
	store_relaxed(&m->wait.looks, false); /* the consumer that looked last sleeps short */
}

static void *sleep_through_a_slice(void *argument)
{
	struct sleeper *s = argument;

	tire(s->m->ring, s->m); /* here: a thread may begin late, and sleeps are short when the look is old */
	s->status = shmring_wait_message(s->m, INT64_MAX, SHMRING_WAIT_FUTEX);
	store_release(&s->over, true);
	return NULL;
}

/* False: its sleep is over already. */
static bool until_asleep(const struct sleeper *s, uint32_t sharing)
{
	while ((load_relaxed(&s->m->waiting) != sharing ||
		(!load_relaxed(&s->m->seat->waits) && !load_relaxed(&s->m->woken))) &&
	       !load_acquire(&s->over))
		nap_ms(1);
	nap_ms(5); /* from the word into the kernel */
	return !load_acquire(&s->over);
}

/* Until all sleep at one time, so many threads to a consumer: on a slow machine the first
 * are awake before the last one sleeps. */
static void put_to_sleep(struct sleeper *crowd, int n, uint32_t sharing)
{
	for (bool all = false; !all;) {
		all = true;
		for (int i = 0; i < n; i++) {
			crowd[i].over = false;
			pthread_create(&crowd[i].thread, NULL, sleep_through_a_slice, &crowd[i]);
		}
		for (int i = 0; i < n; i++)
			all &= until_asleep(&crowd[i], sharing);
		for (int i = 0; i < n; i++)
			all &= !load_acquire(&crowd[i].over);
		for (int i = 0; i < n && !all; i++)
			pthread_join(crowd[i].thread, NULL);
	}
}

PRODUCER_TEST(a_push_wakes_one_of_those_who_share_a_branch)
{
	struct sleeper crowd[CROWD];
	unsigned woken = 0;

	for (int i = 0; i < CROWD; i++)
		crowd[i] = (struct sleeper){.m = consumer_of(r, "b")};
	put_to_sleep(crowd, CROWD, 1);
	NEED(push_number(p, 1) == SHMRING_OK);
	for (int i = 0; i < CROWD; i++) {
		pthread_join(crowd[i].thread, NULL);
		woken += crowd[i].m->woken;
	}
	CHECK_IS(woken, 1);
	for (int i = 0; i < CROWD; i++)
		shmring_consumer_close(crowd[i].m);
}

/* A binding's threads share one consumer: while one is busy with what it has taken,
 * the others are not to sleep beside what is left. */
RING_TEST(threads_that_share_the_only_consumer_wake_each_other)
{
	struct sleeper crowd[2];
	struct shmring_lease l;

	for (int i = 0; i < 2; i++)
		crowd[i] = (struct sleeper){.m = m};
	put_to_sleep(crowd, 2, 2);
	NEED(push_number(p, 1) == SHMRING_OK && push_number(p, 2) == SHMRING_OK);
	while (load_relaxed(&m->waiting) == 2)
		nap_ms(1);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_OK);
	for (int i = 0; i < 2; i++) {
		pthread_join(crowd[i].thread, NULL);
		CHECK_IS(crowd[i].status, SHMRING_OK);
	}
	CHECK_IS(pop_number(m), 2);
	CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
}

struct waiter_thread {
	shmring_consumer *m;
	pthread_t thread;
	bool *over;
	int64_t got;
};

static void *wait_for_numbers(void *argument)
{
	struct waiter_thread *w = argument;

	while (!__atomic_load_n(w->over, __ATOMIC_ACQUIRE)) {
		int64_t n = pop_number(w->m);

		if (n >= 0)
			__atomic_store_n(&w->got, n, __ATOMIC_RELEASE);
		else
			(void)shmring_wait_message(w->m, INT64_MAX, SHMRING_WAIT_DEFAULT);
	}
	return NULL;
}

static void start_waiting(struct waiter_thread *w, shmring *r, bool *over)
{
	for (int i = 0; i < CROWD; i++) {
		w[i] = (struct waiter_thread){.m = consumer_of(r, "b"), .over = over, .got = -1};
		pthread_create(&w[i].thread, NULL, wait_for_numbers, &w[i]);
	}
}

static void stop_waiting(struct waiter_thread *w, bool *over)
{
	__atomic_store_n(over, true, __ATOMIC_RELEASE);
	for (int i = 0; i < CROWD; i++) {
		pthread_join(w[i].thread, NULL);
		shmring_consumer_close(w[i].m);
	}
}

static bool anybody_got(const struct waiter_thread *w, int64_t number)
{
	for (int i = 0; i < CROWD; i++)
		if (__atomic_load_n(&w[i].got, __ATOMIC_ACQUIRE) == number)
			return true;
	return false;
}

static uint64_t waits_in_vain(const struct waiter_thread *w)
{
	uint64_t n = 0;

	for (int i = 0; i < CROWD; i++)
		n += load_relaxed(&w[i].m->seat->counters.empty_waits);
	return n;
}

/* A slower machine wakes less often: the bound holds under any load. Without one
 * that looks for all it would be 24 x 20 wake-ups in a second. */
TEST(of_many_who_sleep_one_looks_for_all)
{
	struct waiter_thread w[CROWD];
	shmring *r = ring_new();
	bool over = false;
	uint64_t before;
	int64_t start;

	start_waiting(w, r, &over);
	while (LOOK_SLEEPERS(load_relaxed(&r->cursors->look.v)) < CROWD - 2)
		nap_ms(5);
	nap_ms(300); /* time for sleepers to finish a short slice that they had begun */
	before = waits_in_vain(w);
	start = clock_ns();
	nap_ms(1000);
	CHECK((int64_t)(waits_in_vain(w) - before) < 100 * ((clock_ns() - start) / MS) / 1000 + CROWD);
	stop_waiting(w, &over);
}

/* A message lies behind the hole of a producer that dies. */
PRODUCER_TEST(a_death_is_noticed_while_many_sleep)
{
	struct puppet *c = puppet_new(produce_and_die);
	struct waiter_thread w[CROWD];
	bool over = false;

	start_waiting(w, r, &over);
	for (int64_t i = 0; i < 5; i++) {
		pid_t pid;

		c->step = DIES_CLAIMED;
		c->n = 2;
		pid = puppet_start(c);
		NEED(push_number(p, 100 + (uint64_t)i) == SHMRING_OK);
		/* A process whose clock is ahead (a time namespace) may have looked. */
		if (i == 3)
			store_relaxed(&r->cursors->look.v,
				      LOOK_TIME((uint64_t)clock_ns() + UINT64_C(3600000000000)));
		nap_ms(60);
		puppet_kill(pid);
		while (!anybody_got(w, 100 + i))
			nap_ms(1);
	}
	stop_waiting(w, &over);
}

/* The waker died between the word of sleepers and the wake-up. */
PRODUCER_TEST(a_wake_up_that_never_came_is_made_good)
{
	struct waiter_thread w[CROWD];
	bool over = false;

	start_waiting(w, r, &over);
	for (uint64_t i = 0; i < 5; i++) {
		for (uint64_t n = 0; n < CROWD - 2;) {
			nap_ms(5);
			n = LOOK_SLEEPERS(load_relaxed(&r->cursors->look.v));
		}
		fetch_and_seq_cst(&r->cursors->asleep.v, 0);
		NEED(push_number(p, i) == SHMRING_OK);
		while (!anybody_got(w, (int64_t)i))
			nap_ms(1);
	}
	stop_waiting(w, &over);
}
