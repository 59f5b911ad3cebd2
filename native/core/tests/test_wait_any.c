/* One thread waits for several: by one sleep where the kernel has it, else in turns. */
#include <linux/futex.h>
#include <pthread.h>

#include "check.h"
#include "syscalls.h"

#define MS INT64_C(1000000)
enum { MANY = 300 };

static bool old_kernel; /* before Linux 5.16 */
static uint64_t sleeps_on_several, sleeps_on_one;

static bool intercept(long number, long argument[6])
{
	if (number == SYS_futex_waitv && old_kernel) {
		errno = ENOSYS;
		return true;
	}
	if (number == SYS_futex_waitv && argument[1])
		__atomic_fetch_add(&sleeps_on_several, 1, __ATOMIC_RELAXED);
	if (number == SYS_futex && argument[1] == FUTEX_WAIT)
		__atomic_fetch_add(&sleeps_on_one, 1, __ATOMIC_RELAXED);
	return false;
}

static int wait_for(struct shmring_wait *waits, uint32_t n, int64_t deadline, uint8_t strategy)
{
	int status;

	do
		status = shmring_wait_any(waits, n, NULL, 0, deadline, strategy);
	while (status == SHMRING_AGAIN);
	return status;
}

static void check_answers(void);
static void check_ping_pong(uint64_t rounds);
static void check_bell(void);
static void check_many(void);

/* --- where the kernel has no sleep on several words ------------------------------------ */

static int on_an_old_kernel(void *unused)
{
	(void)unused;
	old_kernel = true;
	check_answers();
	check_bell();
	check_many();
	check_ping_pong(200);
	CHECK_IS(sleeps_on_several, 0);
	CHECK(sleeps_on_one > 0);
	return 0;
}

/* The first test: what the kernel lacks a process asks once. */
TEST(without_futex_waitv_it_sleeps_in_turns)
{
	CHECK_IS(reap(spawn(on_an_old_kernel, NULL)), 0);
}

/* --- each strategy ------------------------------------------------------------------- */

static void check_answers(void)
{
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
	shmring_consumer *a = consumer_of(r, "a"), *b;
	struct shmring_wait waits[3] = {{.consumer = a}, {.producer = p, .slots = 1024}};

	NEED(push_number(p, 1) == SHMRING_OK);
	b = consumer_with(r, "b", &(struct shmring_branch_options){.start = SHMRING_LATEST});
	waits[2].consumer = b;
	for (uint8_t strategy = 0; strategy < SHMRING_WAIT_STRATEGIES; strategy++) {
		int64_t start = clock_ns();

		CHECK_IS(shmring_wait_any(waits, 3, NULL, 0, INT64_MAX, strategy), SHMRING_OK);
		CHECK(waits[0].ready && !waits[1].ready && !waits[2].ready);
		CHECK_IS(wait_for(&waits[1], 2, start + 20 * MS, strategy), SHMRING_TIMEOUT);
		CHECK(clock_ns() - start >= 20 * MS);
		CHECK_IS(shmring_wait_any(&waits[1], 2, NULL, 0, INT64_MIN, strategy), SHMRING_TIMEOUT);
		CHECK_IS(shmring_wait_any(&waits[1], 2, NULL, 0, INT64_MAX, strategy), SHMRING_AGAIN);
	}
	CHECK_IS(pop_number(a), 1);
	CHECK_IS(wait_for(waits, 3, INT64_MAX, 0), SHMRING_OK);
	CHECK(!waits[0].ready && waits[1].ready && !waits[2].ready);
	push_end(p);
	CHECK_IS(wait_for(waits, 3, INT64_MAX, 0), SHMRING_OK);
	CHECK(waits[0].ready && !waits[1].ready && waits[2].ready);
	CHECK_IS(pop_number(a), SHMRING_ENDED);
	CHECK_IS(pop_number(b), SHMRING_ENDED);
	NEED(shmring_unsubscribe(r, "b") == SHMRING_OK);
	CHECK_IS(wait_for(&waits[2], 1, INT64_MAX, 0), SHMRING_OK);
	CHECK_IS(pop_number(b), SHMRING_E_DROPPED);
	end_all();
}

TEST(it_says_which_of_them_have_something)
{
	check_answers();
}

PRODUCER_TEST(what_is_no_wait_is_refused)
{
	shmring_consumer *m = consumer_of(r, "a");
	struct shmring_wait both = {.consumer = m, .producer = p}, none = {0}, one = {.consumer = m};

	CHECK_IS(shmring_wait_any(&both, 1, NULL, 0, 0, 0), SHMRING_E_INVALID);
	CHECK_IS(shmring_wait_any(&none, 1, NULL, 0, 0, 0), SHMRING_E_INVALID);
	CHECK_IS(shmring_wait_any(&one, 0, NULL, 0, 0, 0), SHMRING_E_INVALID);
	CHECK_IS(shmring_wait_any(&one, 1, NULL, 0, 0, SHMRING_WAIT_STRATEGIES), SHMRING_E_INVALID);
	shmring_consumer_decline(NULL);
}

/* --- two threads wake each other over two rings ----------------------------------------- */

struct side {
	shmring_producer *out;
	shmring_consumer *in, *idle;
	uint64_t rounds;
	bool begins;
};

static void *play(void *argument)
{
	struct side *s = argument;

	for (uint64_t i = 0; i < s->rounds; i++) {
		struct shmring_wait waits[] = {{.consumer = s->idle}, {.consumer = s->in}};

		if (s->begins)
			NEED(push_number(s->out, i) == SHMRING_OK);
		NEED(wait_for(waits, 2, INT64_MAX, SHMRING_WAIT_FUTEX) == SHMRING_OK);
		NEED(waits[1].ready && !waits[0].ready && pop_number(s->in) == (int64_t)i);
		if (!s->begins)
			NEED(push_number(s->out, i) == SHMRING_OK);
	}
	return NULL;
}

static shmring *ring_beside(const char *suffix)
{
	char path[80];
	shmring *r = NULL;

	snprintf(path, sizeof path, "%s.%s", ring_path(), suffix);
	NEED(shmring_create(path, &(struct shmring_options){.slots = 1024}, &r) == SHMRING_OK);
	NEED(shmring_unlink(path, NULL, NULL, NULL) == SHMRING_OK);
	opened(OPEN_RINGS, r);
	return r;
}

static void check_ping_pong(uint64_t rounds)
{
	shmring *there = ring_new(), *back = ring_beside("back"), *quiet = ring_beside("quiet");
	struct side a = {.out = producer_of(there),
			 .in = consumer_of(back, "a"),
			 .idle = consumer_of(quiet, "a"),
			 .rounds = rounds,
			 .begins = true};
	struct side b = {.out = producer_of(back),
			 .in = consumer_of(there, "b"),
			 .idle = consumer_of(quiet, "b"),
			 .rounds = rounds};
	pthread_t thread;

	pthread_create(&thread, NULL, play, &b);
	play(&a);
	pthread_join(thread, NULL);
	end_all();
}

TEST(threads_wake_each_other_over_two_rings)
{
	sleeps_on_several = sleeps_on_one = 0;
	check_ping_pong(5000 * stress());
	CHECK((kernel_is_old() ? sleeps_on_one : sleeps_on_several) > 0);
}

/* --- the bell ------------------------------------------------------------------------------ */

struct called {
	struct shmring_wait wait;
	uint32_t *bell;
	int status;
};

static void *wait_for_the_bell(void *argument)
{
	struct called *c = argument;

	do
		c->status = shmring_wait_any(&c->wait, 1, c->bell, 0, INT64_MAX, SHMRING_WAIT_FUTEX);
	while (load_acquire(c->bell) == 0);
	return NULL;
}

static void check_bell(void)
{
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
	shmring_consumer *m = consumer_of(r, "a");

	for (long us = 0; us < 2000; us += us / 4 + 1) {
		uint32_t bell = 0;
		struct called c = {.wait = {.consumer = m}, .bell = &bell};
		pthread_t thread;

		pthread_create(&thread, NULL, wait_for_the_bell, &c);
		nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
		shmring_ring_bell(&bell);
		pthread_join(thread, NULL);
		CHECK_IS(c.status, SHMRING_AGAIN);
		CHECK_IS(shmring_wait_any(&c.wait, 1, &bell, 0, INT64_MAX, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	}
	end_all();
}

TEST(the_bell_ends_a_wait_at_any_instant)
{
	check_bell();
}

/* --- more than the kernel takes at once ------------------------------------------------------ */

static void check_many(void)
{
	shmring *rings[MANY / 50];
	shmring_producer *producers[MANY / 50];
	struct shmring_wait waits[MANY] = {0};
	char name[8];

	for (uint32_t k = 0; k < MANY / 50; k++) {
		rings[k] = ring_beside("many");
		producers[k] = producer_of(rings[k]);
		for (uint32_t i = 0; i < 50; i++) {
			snprintf(name, sizeof name, "b%u", i);
			waits[k * 50 + i].consumer = consumer_of(rings[k], name);
		}
	}
	CHECK_IS(wait_for(waits, MANY, clock_ns() + 20 * MS, SHMRING_WAIT_FUTEX), SHMRING_TIMEOUT);
	for (uint32_t k = 0; k < MANY / 50; k++) {
		uint32_t found = 0;

		NEED(push_number(producers[k], k) == SHMRING_OK);
		CHECK_IS(wait_for(waits, MANY, INT64_MAX, SHMRING_WAIT_FUTEX), SHMRING_OK);
		for (uint32_t i = 0; i < MANY; i++)
			if (waits[i].ready) {
				found++;
				CHECK_IS(pop_number(waits[i].consumer), k);
			}
		CHECK_IS(found, 50);
	}
	for (uint32_t i = 0; i < MANY; i++)
		shmring_consumer_close(waits[i].consumer);
	for (uint32_t k = 0; k < MANY / 50; k++) {
		shmring_producer_close(producers[k]);
		shmring_close(rings[k]);
	}
}

TEST(more_are_waited_for_than_the_kernel_takes_at_once)
{
	check_many();
}

/* --- the dead ---------------------------------------------------------------------------------- */

static int die_with_a_lease(void *argument)
{
	shmring *r = ring_again(argument);
	shmring_consumer *m = consumer_of(r, "b");

	(void)lease_of(m, 1);
	_exit(0);
}

/* In one ring there is always something: the other one's dead are found nevertheless. */
TEST(the_dead_are_found_while_another_ring_is_busy)
{
	shmring *quiet = ring_new(), *busy = ring_beside("busy");
	shmring_producer *p = producer_of(quiet), *q;
	shmring_consumer *m = consumer_of(quiet, "b");
	struct shmring_wait waits[2] = {{.consumer = m}};
	char path[64];

	strcpy(path, ring_path()); /* the child's is another one */
	q = producer_of(busy);
	waits[1].consumer = consumer_of(busy, "b");
	NEED(push_number(p, 7) == SHMRING_OK && push_number(q, 8) == SHMRING_OK);
	NEED(reap(spawn(die_with_a_lease, path)) == 0);
	do
		NEED(shmring_wait_any(waits, 2, NULL, 0, INT64_MAX, SHMRING_WAIT_FUTEX) == SHMRING_OK);
	while (!waits[0].ready);
	CHECK_IS(pop_number(m), 7);
}

/* --- consumers that share a branch ---------------------------------------------------------------- */

static void *pop_one(void *argument)
{
	struct called *c = argument;

	while ((c->status = (int)pop_number(c->wait.consumer)) == SHMRING_UNAVAILABLE)
		(void)shmring_wait_message(c->wait.consumer, INT64_MAX, SHMRING_WAIT_FUTEX);
	return NULL;
}

PRODUCER_TEST(who_declines_leaves_it_to_another_consumer)
{
	shmring_consumer *m = consumer_of(r, "a"), *other = consumer_of(r, "a");

	for (uint64_t i = 0; i < 200; i++) {
		struct shmring_wait wait = {.consumer = m};
		struct called c = {.wait = {.consumer = other}};
		pthread_t thread;

		pthread_create(&thread, NULL, pop_one, &c);
		NEED(push_number(p, i) == SHMRING_OK);
		(void)shmring_wait_any(&wait, 1, NULL, 0, INT64_MAX, SHMRING_WAIT_FUTEX);
		shmring_consumer_decline(m);
		pthread_join(thread, NULL);
		CHECK_IS(c.status, i);
	}
}
