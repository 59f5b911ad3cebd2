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
static int64_t false_time; /* next time of the clock, which then moves on by a millisecond; 0: the real time */

int clock_gettime(clockid_t clock, struct timespec *time)
{
	if (!false_time)
		return (int)syscall(SYS_clock_gettime, clock, time);
	false_time += MS;
	*time = (struct timespec){.tv_sec = false_time / 1000 / MS, .tv_nsec = false_time % (1000 * MS)};
	return 0;
}

static bool sleep_by_false_time(const struct timespec *until)
{
	int64_t end = until->tv_sec * 1000 * MS + until->tv_nsec;

	false_time = end > false_time ? end : false_time;
	errno = ETIMEDOUT;
	return true;
}

static bool intercept(long number, long argument[6])
{
	static const struct timespec for_ever = {.tv_sec = INT32_MAX};

	if (number == SYS_futex_waitv && argument[1] && false_time)
		return sleep_by_false_time((const struct timespec *)argument[3]);
	if (number == SYS_futex_waitv && argument[1] && without_end)
		argument[3] = (long)&for_ever;
	if (number == SYS_futex && argument[1] == FUTEX_WAIT) {
		if (before_a_sleep)
			before_a_sleep((const struct timespec *)argument[3]);
		if (without_end) /* none at all, and the kernel starts it again after a signal */
			argument[3] = (long)&for_ever;
		__atomic_fetch_add(&sleeps, 1, __ATOMIC_SEQ_CST);
	}
	return false;
}

/* Makes a wait look like a long one beside many sleepers. */
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
	for (w->strategy = SHMRING_WAIT_DEFAULT; w->strategy < SHMRING_WAIT_STRATEGIES; w->strategy++)
		for (long us = 0; us < 2000; us += us / 4 + 1) {
			tire(r, w->m ? &w->m->wait : &w->p->wait);
			pthread_create(&w->thread, NULL, wait_there, w);
			nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
			while (w->strategy == SHMRING_WAIT_FUTEX && us > 1500 && !load_relaxed(&sleeps))
				nap_ms(1); /* it begins late on a busy machine */
			interrupt(w, true);
			pthread_join(w->thread, NULL); /* never, if it is missed */
			CHECK_IS(w->status, SHMRING_AGAIN);
			interrupt(w, false);
		}
}

RING_TEST(a_wait_is_ended_by_another_thread_at_any_instant)
{
	without_end = true;
	sleeps = 0;
	check_interruptions(r, &(struct waiting){.m = m});
	for (uint64_t i = 0; i < 1024; i++)
		NEED(push_number(p, i) == SHMRING_OK);
	sleeps = 0;
	check_interruptions(r, &(struct waiting){.p = p});
	without_end = false;
	CHECK_IS(pop_number(m), 0);
	CHECK_IS(shmring_wait_space(p, 1, INT64_MAX, SHMRING_WAIT_FUTEX), SHMRING_OK);
}

RING_TEST(while_it_is_interrupted_a_wait_does_not_sleep)
{
	without_end = true;
	shmring_consumer_interrupt(m, true);
	for (uint8_t strategy = SHMRING_WAIT_DEFAULT; strategy < SHMRING_WAIT_STRATEGIES; strategy++)
		CHECK_IS(shmring_wait_message(m, INT64_MAX, strategy), SHMRING_AGAIN);
	CHECK_IS(shmring_wait_message(m, clock_ns() - 1, SHMRING_WAIT_FUTEX), SHMRING_TIMEOUT);
	NEED(push_number(p, 1) == SHMRING_OK);
	CHECK_IS(shmring_wait_message(m, INT64_MAX, SHMRING_WAIT_FUTEX), SHMRING_OK); /* there is one */
	without_end = false;
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
}

/* --- a signal whose handler was installed with SA_RESTART --------------------------------- */

struct sender {
	pthread_t to, thread;
	uint32_t is_enough;
};

/* Again and again, as one that comes before the sleep does not end it. */
static void *send_signals(void *argument)
{
	struct sender *s = argument;

	while (!load_acquire(&s->is_enough)) {
		pthread_kill(s->to, SIGUSR1);
		nap_ms(1);
	}
	return NULL;
}

static int wait_one_way(int way, shmring_producer *p, shmring_consumer *m, uint8_t strategy)
{
	struct shmring_wait of_consumer = {.consumer = m}, of_producer = {.producer = p, .slots = 8};

	switch (way) {
	case 0:
		return shmring_wait_message(m, INT64_MAX, strategy);
	case 1:
		return shmring_wait_space(p, 8, INT64_MAX, strategy);
	case 2:
		return shmring_wait_released(p->ring, m->branch_index, 1024, INT64_MAX, strategy);
	case 3:
		return shmring_wait_any(&of_consumer, 1, NULL, 0, INT64_MAX, strategy);
	default:
		return shmring_wait_any(&of_producer, 1, NULL, 0, INT64_MAX, strategy);
	}
}

PRODUCER_TEST(a_sleep_is_ended_by_a_signal_whose_handler_restarts_calls)
{
	const struct sigaction restarts = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
	struct sigaction old;
	shmring_consumer *m = consumer_of(r, "full"), *empty;
	struct sender s = {.to = pthread_self()};

	NEED(sigaction(SIGUSR1, &restarts, &old) == 0);
	push_n(p, 0, 1024);
	empty = consumer_with(r, "empty", &(struct shmring_branch_options){.start = SHMRING_LATEST});
	without_end = true;
	pthread_create(&s.thread, NULL, send_signals, &s);
	for (int way = 0; way < 5; way++) {
		CHECK_IS(wait_one_way(way, p, way == 2 ? m : empty, SHMRING_WAIT_DEFAULT), SHMRING_AGAIN);
		CHECK_IS(wait_one_way(way, p, way == 2 ? m : empty, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	}
	store_release(&s.is_enough, 1);
	pthread_join(s.thread, NULL);
	without_end = false;
	NEED(sigaction(SIGUSR1, &old, NULL) == 0);
}

/* A sleep on several words the kernel starts again, and who polls is not told of a signal. */
PRODUCER_TEST(a_wait_that_no_signal_ends_lasts_50_ms_at_most_also_beside_many)
{
	shmring_consumer *a = consumer_of(r, "a"), *b = consumer_of(r, "b");
	struct shmring_wait waits[] = {{.consumer = a}, {.consumer = b}};
	const struct sigaction restarts = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
	struct sigaction old;
	uint32_t bell = 0;

	NEED(sigaction(SIGUSR1, &restarts, &old) == 0);
	for (uint8_t strategy = 0; strategy < SHMRING_WAIT_STRATEGIES; strategy++)
		for (int way = 0; way < 3; way++) {
			bool sleeps_on_one = shmring_describe_wait(strategy)->sleeps;
			int64_t start = clock_ns() + 1000 * 1000 * MS;

			if (way == 0 && sleeps_on_one)
				continue;
			tire(r, &a->wait);
			tire(r, &b->wait);
			store_relaxed(&r->cursors->look.v, LOOK_TIME((uint64_t)start) | 248);
			false_time = start;
			CHECK_IS(way == 0   ? shmring_wait_message(a, INT64_MAX, strategy)
				 : way == 1 ? shmring_wait_any(waits, 2, NULL, 0, INT64_MAX, strategy)
					    : shmring_wait_any(waits, 1, &bell, 0, INT64_MAX, strategy),
				 SHMRING_AGAIN);
			CHECK(false_time - start < 100 * MS);
			false_time = 0;
		}
	NEED(sigaction(SIGUSR1, &old, NULL) == 0);
}

static uint32_t naps;

int nanosleep(const struct timespec *time, struct timespec *left)
{
	if (!false_time)
		return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left) ? -1 : 0;
	naps++;
	errno = EINTR;
	return -1;
}

TEST(a_signal_ends_the_nap_of_a_wait_that_polls)
{
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "b");
	struct shmring_wait wait = {.consumer = m};

	naps = 0;
	false_time = clock_ns() + 1000 * 1000 * MS;
	CHECK_IS(shmring_wait_message(m, INT64_MAX, SHMRING_WAIT_SLEEP), SHMRING_AGAIN);
	CHECK_IS(naps, 1);
	CHECK_IS(shmring_wait_any(&wait, 1, NULL, 0, INT64_MAX, SHMRING_WAIT_SLEEP), SHMRING_AGAIN);
	CHECK_IS(naps, 2);
	false_time = 0;
}
