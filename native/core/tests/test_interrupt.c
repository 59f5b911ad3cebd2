/* Waits that are to end although nothing has come. */
#include <linux/futex.h>
#include <pthread.h>

#include "check.h"
#include "syscalls.h"

#define MS INT64_C(1000000)

/* --- sleeps, and what happens to them ----------------------------------------------- */

static bool without_end; /* a sleep ends by a wake-up or a signal only */
static void (*before_a_sleep)(const struct timespec *);
static uint32_t sleeps;

static bool intercept(long number, long argument[6])
{
	if (number == SYS_futex && argument[1] == FUTEX_WAIT) {
		if (before_a_sleep)
			before_a_sleep((const struct timespec *)argument[3]);
		if (without_end)
			argument[3] = 0;
		__atomic_fetch_add(&sleeps, 1, __ATOMIC_SEQ_CST);
	}
	return false;
}

/* Of many who sleep, and one that has waited for long. */
static void tire(shmring *r, struct wait_memory *memory)
{
	store_relaxed(&r->cursors->look.v, LOOK_TIME((uint64_t)clock_ns()) | 248);
	memory->took_ns = INT64_MAX;
	memory->since_ns = 0;
}

/* --- from another thread -------------------------------------------------------------- */

struct waiting {
	shmring_consumer *m;
	shmring_producer *p;
	uint8_t strategy;
	pthread_t thread;
	int status;
};

static void *wait_there(void *argument)
{
	struct waiting *w = argument;

	do
		w->status = w->m ? shmring_wait_message(w->m, INT64_MAX, w->strategy)
				 : shmring_wait_space(w->p, 8, INT64_MAX, w->strategy);
	while (w->status == SHMRING_AGAIN && !load_acquire(w->m ? &w->m->interrupted : &w->p->interrupted));
	return NULL;
}

static void interrupt(const struct waiting *w, bool on)
{
	if (w->m)
		shmring_consumer_interrupt(w->m, on);
	else
		shmring_producer_interrupt(w->p, on);
}

/* At any instant: before the wait, in it, asleep. */
static void check_interruptions(shmring *r, struct waiting *w)
{
	for (w->strategy = SHMRING_WAIT_DEFAULT; w->strategy <= SHMRING_WAIT_FUTEX; w->strategy++)
		for (long us = 0; us < 2000; us += us / 4 + 1) {
			tire(r, w->m ? &w->m->wait : &w->p->wait);
			pthread_create(&w->thread, NULL, wait_there, w);
			nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
			interrupt(w, true);
			pthread_join(w->thread, NULL); /* never, if it is missed */
			CHECK_IS(w->status, SHMRING_AGAIN);
			interrupt(w, false);
		}
}

TEST(a_wait_is_ended_by_another_thread_at_any_instant)
{
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
	shmring_consumer *m = consumer_of(r, "b");

	without_end = true;
	sleeps = 0;
	check_interruptions(r, &(struct waiting){.m = m});
	CHECK(sleeps > 0);
	for (uint64_t i = 0; i < 1024; i++)
		NEED(push_number(p, i) == SHMRING_OK);
	sleeps = 0;
	check_interruptions(r, &(struct waiting){.p = p});
	CHECK(sleeps > 0);
	without_end = false;
	CHECK_IS(pop_number(m), 0);
	CHECK_IS(shmring_wait_space(p, 1, INT64_MAX, SHMRING_WAIT_FUTEX), SHMRING_OK);
	END(r, p, m);
}

TEST(while_it_is_interrupted_a_wait_does_not_sleep)
{
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
	shmring_consumer *m = consumer_of(r, "b");

	without_end = true;
	shmring_consumer_interrupt(m, true);
	for (uint8_t strategy = SHMRING_WAIT_DEFAULT; strategy <= SHMRING_WAIT_FUTEX; strategy++)
		CHECK_IS(shmring_wait_message(m, INT64_MAX, strategy), SHMRING_AGAIN);
	CHECK_IS(shmring_wait_message(m, clock_ns() - 1, SHMRING_WAIT_FUTEX), SHMRING_TIMEOUT);
	NEED(push_number(p, 1) == SHMRING_OK);
	CHECK_IS(shmring_wait_message(m, INT64_MAX, SHMRING_WAIT_FUTEX), SHMRING_OK); /* there is one */
	without_end = false;
	END(r, p, m);
}

/* --- a signal --------------------------------------------------------------------------- */

static int64_t began, signals, too_long;

static void count_signal(int unused)
{
	(void)unused;
	signals++;
}

/* The signal comes after the caller has looked for one: the sleep does not end by it. */
static void signal_too_early(const struct timespec *timeout)
{
	int64_t waited = clock_ns() - began, length = timeout->tv_sec * 1000 * MS + timeout->tv_nsec;

	raise(SIGUSR1);
	too_long += length > 50 * MS && length > waited;
}

TEST(a_signal_just_before_a_sleep_is_not_slept_over_for_longer_than_was_waited_before)
{
	struct sigaction old, action = {.sa_handler = count_signal};
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "b");

	NEED(sigaction(SIGUSR1, &action, &old) == 0);
	before_a_sleep = signal_too_early;
	began = clock_ns();
	while (signals < 6) {
		store_relaxed(&r->cursors->look.v, LOOK_TIME((uint64_t)clock_ns()) | 248);
		CHECK_IS(shmring_wait_message(m, INT64_MAX, SHMRING_WAIT_DEFAULT), SHMRING_AGAIN);
	}
	CHECK_IS(too_long, 0);
	before_a_sleep = NULL;
	NEED(sigaction(SIGUSR1, &old, NULL) == 0);
	shmring_consumer_close(m);
	ring_end(r);
}

int main(void)
{
	return run_tests();
}
