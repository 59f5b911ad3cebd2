/* Waiting: every strategy, time-outs, signals, and no wake-up lost. */
#include <linux/futex.h>
#include <pthread.h>

#include "check.h"
#include "syscalls.h"

#define MS INT64_C(1000000)

/* While it is set a sleep ends by a wake-up or a signal only, so that one that is lost
 * hangs the test, however fast the machine. Sleeps of a millisecond are meant to end. */
static bool endless;

static bool intercept(long number, long argument[6])
{
	const struct timespec *timeout = number == SYS_futex ? (const struct timespec *)argument[3] : NULL;

	if (load_relaxed(&endless) && timeout && (int)argument[1] == FUTEX_WAIT &&
	    (timeout->tv_sec || timeout->tv_nsec > 2 * MS))
		argument[3] = 0;
	return false;
}

/* The status with which a wait ends whose slices may be over before. */
#define WAITED(call)                                                                                              \
	({                                                                                                        \
		int64_t soon = clock_ns() + 5 * MS;                                                               \
		int waited;                                                                                       \
		do                                                                                                \
			waited = (call);                                                                          \
		while (waited == SHMRING_AGAIN);                                                                  \
		waited;                                                                                           \
	})

RING_TEST(timeouts_are_kept)
{
	for (uint8_t strategy = 0; strategy < SHMRING_WAIT_STRATEGIES; strategy++) {
		for (int64_t ms = 0; ms <= 20; ms += 10) {
			int64_t start = clock_ns(), took;
			int status;

			do
				status = shmring_wait_message(m, start + ms * MS, strategy);
			while (status == SHMRING_AGAIN);
			took = clock_ns() - start;
			CHECK_IS(status, SHMRING_TIMEOUT);
			CHECK(took >= ms * MS);
		}
		CHECK_IS(shmring_wait_message(m, 0, strategy), SHMRING_TIMEOUT);
		CHECK_IS(shmring_wait_message(m, INT64_MIN, strategy), SHMRING_TIMEOUT);
		CHECK_IS(shmring_wait_message(m, INT64_MAX, strategy), SHMRING_AGAIN); /* after a slice */
	}
	while (push_number(p, 1) == SHMRING_OK)
		;
	for (uint8_t strategy = 0; strategy < SHMRING_WAIT_STRATEGIES; strategy++) {
		CHECK_IS(WAITED(shmring_wait_space(p, 1, soon, strategy)), SHMRING_TIMEOUT);
		CHECK_IS(shmring_wait_space(p, 1, INT64_MIN, strategy), SHMRING_TIMEOUT);
		CHECK_IS(shmring_wait_message(m, 0, strategy), SHMRING_OK);
	}
	CHECK_IS(pop_number(m), 1);
	CHECK_IS(shmring_wait_space(p, 1, 0, 0), SHMRING_OK);
	CHECK_IS(shmring_wait_space(p, 2, 0, 0), SHMRING_TIMEOUT);
}

/* --- ping-pong: each side sleeps for the other in every round -------------------- */

struct side {
	shmring *ring;
	const char *in;
	shmring_producer *out;
	uint64_t rounds;
	uint8_t strategy;
	bool begins;
};

static uint64_t wait_and_pop(shmring_consumer *m, uint8_t strategy)
{
	for (;;) {
		int64_t n = pop_number(m);

		if (n >= 0)
			return (uint64_t)n;
		(void)shmring_wait_message(m, INT64_MAX, strategy);
	}
}

static void *play(void *argument)
{
	struct side *s = argument;
	shmring_consumer *m = consumer_of(s->ring, s->in);

	for (uint64_t i = 0; i < s->rounds; i++) {
		if (s->begins)
			NEED(push_number(s->out, i) == SHMRING_OK);
		NEED(wait_and_pop(m, s->strategy) == i);
		if (!s->begins)
			NEED(push_number(s->out, i) == SHMRING_OK);
	}
	shmring_consumer_close(m);
	return NULL;
}

TEST(no_wake_up_is_lost_between_two_who_sleep_for_each_other)
{
	/* CHANGE: edit this for a new wait strategy */
	static const uint64_t fewer[SHMRING_WAIT_STRATEGIES] = {
	    [SHMRING_WAIT_SPIN] = 100, [SHMRING_WAIT_YIELD] = 500, [SHMRING_WAIT_SLEEP] = 100};
	char path[80];

	store_relaxed(&endless, true);
	for (uint8_t strategy = 0; strategy < SHMRING_WAIT_STRATEGIES; strategy++) {
		shmring *there = ring_new(), *back = NULL;
		struct side ping = {.ring = NULL, .in = "b", .begins = true}, pong = {.in = "b"};
		pthread_t threads[2];
		struct shmring_branch_options o = {.start = SHMRING_EARLIEST};

		snprintf(path, sizeof path, "%s.back", ring_path());
		unlink(path);
		NEED(shmring_create(path, &(struct shmring_options){.slots = 1024}, NULL) == SHMRING_OK);
		back = ring_again(path);
		NEED(shmring_subscribe(there, "b", &o, NULL) == 0 && shmring_subscribe(back, "b", &o, NULL) == 0);
		ping.ring = back, ping.out = producer_of(there);
		pong.ring = there, pong.out = producer_of(back);
		ping.strategy = pong.strategy = strategy;
		ping.rounds = pong.rounds = (fewer[strategy] ? fewer[strategy] : 1000) * stress();
		pthread_create(&threads[0], NULL, play, &ping);
		pthread_create(&threads[1], NULL, play, &pong);
		pthread_join(threads[0], NULL);
		pthread_join(threads[1], NULL);
		end_all();
	}
	store_relaxed(&endless, false);
}

/* --- a smaller wish is not forgotten for a bigger one -------------------------------- */

struct wish {
	shmring *ring;
	uint64_t slots;
};

static void *wait_for_space(void *argument)
{
	struct wish *w = argument;
	shmring_producer *p = producer_of(w->ring);

	while (shmring_wait_space(p, w->slots, INT64_MAX, SHMRING_WAIT_FUTEX) != SHMRING_OK)
		;
	shmring_producer_close(p);
	return NULL;
}

struct acknowledged {
	shmring *ring;
	shmring_producer *out;
	uint32_t branch;
	uint64_t rounds;
};

static void *push_and_await_release(void *argument)
{
	struct acknowledged *a = argument;

	for (uint64_t i = 0; i < a->rounds; i++) {
		uint64_t id;
		int status;

		NEED(shmring_push(a->out, &i, sizeof i, 0, &id) == SHMRING_OK);
		do
			status =
			    shmring_wait_released(a->ring, a->branch, id + 1, INT64_MAX, SHMRING_WAIT_DEFAULT);
		while (status == SHMRING_AGAIN);
		NEED(status == SHMRING_OK);
	}
	return NULL;
}

TEST(no_wake_up_is_lost_by_who_waits_for_a_release)
{
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "journal");
	struct acknowledged a = {r, producer_of(r), shmring_consumer_branch(m), 1000 * stress()};
	pthread_t thread;

	store_relaxed(&endless, true);
	pthread_create(&thread, NULL, push_and_await_release, &a);
	for (uint64_t i = 0; i < a.rounds; i++)
		NEED(wait_and_pop(m, SHMRING_WAIT_DEFAULT) == i);
	pthread_join(thread, NULL);
	store_relaxed(&endless, false);

	CHECK_IS(WAITED(shmring_wait_released(r, a.branch, a.rounds + 1, soon, 0)), SHMRING_TIMEOUT);
	CHECK_IS(shmring_wait_released(r, a.branch + 1, 0, INT64_MAX, 0), SHMRING_E_NO_BRANCH);
	CHECK_IS(shmring_wait_released(r, 64, 0, INT64_MAX, 0), SHMRING_E_NO_BRANCH);
	shmring_consumer_close(m);
	CHECK_IS(shmring_unsubscribe(r, "journal"), SHMRING_OK);
	CHECK_IS(shmring_wait_released(r, a.branch, a.rounds + 1, INT64_MAX, 0), SHMRING_E_NO_BRANCH);
}

PRODUCER_TEST(a_branch_made_behind_a_message_never_counts_as_having_released_it)
{
	struct shmring_branch_options earliest = {.start = SHMRING_EARLIEST}, latest = {.start = SHMRING_LATEST};
	uint32_t branch, again;
	uint64_t id;

	CHECK_IS(shmring_subscribe(r, "journal", &earliest, &branch), SHMRING_OK);
	CHECK_IS(shmring_push(p, "x", 1, 0, &id), SHMRING_OK);
	CHECK_IS(WAITED(shmring_wait_released(r, branch, id + 1, soon, 0)), SHMRING_TIMEOUT);
	CHECK_IS(shmring_unsubscribe(r, "journal"), SHMRING_OK);
	CHECK_IS(shmring_subscribe(r, "journal", &latest, &again), SHMRING_OK);
	CHECK_IS(again, branch);
	CHECK_IS(shmring_wait_released(r, branch, id + 1, INT64_MAX, 0), SHMRING_E_NO_BRANCH);
	CHECK_IS(shmring_unsubscribe(r, "journal"), SHMRING_OK);

	/* In front of the message it is waited for as before. */
	CHECK_IS(shmring_push(p, "y", 1, 0, &id), SHMRING_OK);
	CHECK_IS(shmring_subscribe(r, "journal",
				   &(struct shmring_branch_options){.start = SHMRING_AT_SEQUENCE, .sequence = id},
				   &again),
		 SHMRING_OK);
	CHECK_IS(again, branch);
	CHECK_IS(WAITED(shmring_wait_released(r, branch, id + 1, soon, 0)), SHMRING_TIMEOUT);
}

TEST(a_producer_with_a_small_wish_is_woken_before_one_with_a_big_wish)
{
	store_relaxed(&endless, true);
	for (int round = 0; round < 5; round++) {
		shmring *r = ring_new();
		shmring_producer *p = producer_of(r);
		shmring_consumer *m = consumer_of(r, "b");
		struct wish small = {r, 1}, big = {r, 1000};
		pthread_t threads[2];

		while (push_number(p, 1) == SHMRING_OK)
			;
		pthread_create(&threads[0], NULL, wait_for_space, &small);
		nap_ms(5);
		pthread_create(&threads[1], NULL, wait_for_space, &big);
		nap_ms(10);
		CHECK_IS(pop_number(m), 1);
		pthread_join(threads[0], NULL); /* the big one sleeps on */
		while (pop_number(m) >= 0)
			;
		pthread_join(threads[1], NULL);
		end_all();
	}
	store_relaxed(&endless, false);
}

/* The sleeper is played by its words: that they change is the wake-up. */
TEST(a_release_wakes_who_waits_for_more_than_a_branch_that_gates_by_its_holds_only_has_taken)
{
	for (int dropped = 0; dropped < 2; dropped++) {
		shmring *r = ring_new();
		shmring_producer *p = producer_of(r);
		struct shmring_branch_options drop_oldest = {.start = SHMRING_EARLIEST, .drop_oldest = true};
		shmring_consumer *m = dropped ? consumer_of(r, "b") : consumer_with(r, "b", &drop_oldest);
		struct shmring_lease lease;

		CHECK_IS(push_number(p, 1), SHMRING_OK);
		CHECK_IS(shmring_take(m, 1, 1, &lease), SHMRING_OK);
		if (dropped)
			CHECK_IS(shmring_unsubscribe(r, "b"), SHMRING_OK);
		r->cursors->producers.wanted = lease.end + 10;
		r->cursors->producers.futex = 1;
		CHECK_IS(shmring_release(m, lease.first, lease.end), SHMRING_OK);
		CHECK_IS(r->cursors->producers.futex, 2);
		end_all();
	}
}

/* --- signals --------------------------------------------------------------------- */

/* Where each wait brings one message, whether a consumer had better keep away is tried. */
RING_TEST(who_keeps_away_for_a_trial_gets_each_message)
{
	uint32_t trials = 0;

	for (int64_t i = 0; i < 40000; i++) {
		NEED(push_number(p, (uint64_t)i) == SHMRING_OK);
		CHECK_IS(shmring_wait_message(m, INT64_MAX, SHMRING_WAIT_SPIN), SHMRING_OK);
		trials += m->distance.away_ns > 0;
		CHECK_IS(pop_number(m), i);
	}
	CHECK_IS(trials, 11); /* after 16 waits, 32, ... 16,384 */
}
