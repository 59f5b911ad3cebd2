/* Waiting, and waking those who wait.
 *
 * A sleeper announces itself, passes a heavy barrier, looks once more, and
 * sleeps; whoever changes something passes a light barrier and looks for
 * sleepers (internal.h, wake_readers). Should a waker die between its change
 * and the wake-up, the sleep ends by itself after SLICE_NS.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Half of the promised 100 ms: a waiter who was woken for nothing just before
 * his slice ended looks for the dead at the end of the next one. */
#define SLICE_NS (50 * 1000 * 1000LL)
/* Where no branch gates, nobody tells a producer that another's claim, which
 * is in its way, has been published. */
#define UNTOLD_NS (1000 * 1000LL)
/* A spinning waiter asks the kernel for the dead this often: a question costs
 * about a microsecond a seat. */
#define SPIN_RECOVER_NS (500 * 1000LL)
/* The default: a few microseconds of spinning; and up to HOPEFUL_NS, about what
 * a sleep and its wake-up cost both sides, if the wait before was no longer than
 * that. A stream of 1 MB batches runs 1.35 x as fast for it. */
#define DEFAULT_SPINS 256
#define DEFAULT_YIELDS 4
#define HOPEFUL_NS (50 * 1000LL)
/* An answer that comes within a microsecond is not to wait for the clock. */
#define CLOCKLESS_SPINS 32
#define BATCH_NS (1000 * 1000LL) /* how long a producer insists on a batch of free slots */

bool asymmetric_barriers_available(void)
{
	/* Registering again is cheap and harmless. */
	return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void heavy_barrier(bool asymmetric)
{
	if (asymmetric)
		syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
	else
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void wake_branches(shmring *r, uint64_t mask)
{
	uint64_t woken = fetch_and_seq_cst(&r->cursors->asleep.v, ~mask) & mask;

	for (; woken; woken &= woken - 1) {
		uint32_t *word = &r->cursors->branch[__builtin_ctzll(woken)].futex.v;

		fetch_add_seq_cst(word, 1);
		futex(word, FUTEX_WAKE, INT_MAX, NULL);
	}
}

void wake_producers(shmring *r)
{
	uint32_t *word = &r->cursors->producers.futex;
	uint32_t seen;

	light_barrier(r->asymmetric); /* pairs with the heavy one in sleep_once() */
	seen = load_acquire(word);
	/* Adding one to an odd word clears the bit and counts the wake-up. The
	 * wish goes first: a sleeper lowers it after setting the bit, so that it
	 * either stands or this CAS fails, and then he is woken too. */
	while (seen & 1) {
		store_relaxed(&r->cursors->producers.wanted, NONE);
		if (cas32_seq_cst(word, &seen, seen + 1)) {
			futex(word, FUTEX_WAKE, INT_MAX, NULL);
			break;
		}
	}
}

struct waiter {
	shmring *ring;
	struct shmring_member *member; /* who waits for a message */
	const struct branch *releasing; /* who waits for what this branch releases; neither: a producer */
	uint64_t slots; /* that a producer needs; what is to be released */
	uint64_t batch; /* what a producer would rather have, see below */
	int64_t *last_ns; /* how long the handle's last wait took */
};

static uint64_t floor_needed(const struct waiter *w, uint64_t slots)
{
	uint64_t end = load_acquire(&w->ring->cursors->claim.v) + slots;

	if (w->releasing)
		return slots;
	return end > w->ring->capacity ? end - w->ring->capacity : 0;
}

static bool ready(const struct waiter *w, uint64_t slots)
{
	shmring *r = w->ring;

	if (w->member) {
		const struct branch *b = w->member->branch;
		uint64_t t = load_acquire(&b->taken.v) >> 8;
		uint64_t upstream = load_relaxed(&b->d.upstream);

		if (load_relaxed(&b->d.state) != BRANCH_ACTIVE || load_relaxed(&b->d.orphans))
			return true;
		if (member_is_ended(w->member, t))
			return true;
		if (load_relaxed(&b->d.options) & BRANCH_LAPSE && load_acquire(&r->cursors->floor_next.v) > t)
			return true;
		if (upstream)
			return upstream_released(r, upstream) > t && is_published(r, t);
		return is_published(r, t);
	}
	if (w->releasing)
		return load_relaxed(&w->releasing->d.state) != BRANCH_ACTIVE ||
		       branch_released(r, w->releasing, false) >= slots;

	uint64_t need = floor_needed(w, slots);

	return load_acquire(&r->cursors->floor.v) >= need || floor_advance(r, need) >= need;
}

static void lower_to(uint64_t *word, uint64_t value)
{
	uint64_t seen = load_relaxed(word);

	while (seen > value && !cas_seq_cst(word, &seen, value))
		;
}

/* False if a signal ended it. */
static bool sleep_once(const struct waiter *w, uint64_t slots, int64_t ns)
{
	struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
	struct cursors *c = w->ring->cursors;
	uint32_t *word;
	uint32_t seen;

	if (ns <= 0)
		return true;
	if (w->member) {
		word = &w->member->branch->futex.v;
		seen = load_acquire(word);
		fetch_or_seq_cst(&c->asleep.v, UINT64_C(1) << w->member->branch_index);
	} else {
		word = &c->producers.futex;
		seen = fetch_or_seq_cst(word, 1) | 1;
		lower_to(&c->producers.wanted, floor_needed(w, slots)); /* the least wish of all */
	}
	heavy_barrier(w->ring->asymmetric);
	return ready(w, slots) || futex(word, FUTEX_WAIT, seen, &timeout) == 0 || errno != EINTR;
}

static void look_for_the_dead(shmring *r)
{
	store_relaxed(&r->looked_ns, now_ns(CLOCK_MONOTONIC));
	(void)shmring_recover(r, NULL);
}

/* By the clock and not by the slice: short time-outs, and wake-ups by messages
 * behind a hole, must not keep a waiter from ever looking. */
static void look_at_times(shmring *r)
{
	if (now_ns(CLOCK_MONOTONIC) - load_relaxed(&r->looked_ns) >= SLICE_NS)
		look_for_the_dead(r);
}

static int64_t monotonic(void)
{
	return (int64_t)now_ns(CLOCK_MONOTONIC);
}

/* Spins (or yields, or naps) until ready, a deadline, or `until`. */
static bool poll_until(const struct waiter *w, uint8_t strategy, int64_t until)
{
	int64_t look = monotonic() + SPIN_RECOVER_NS;

	for (unsigned i = 1;; i++) {
		if (ready(w, w->slots))
			return true;
		if (strategy == SHMRING_WAIT_SPIN)
			spin_hint();
		else if (strategy == SHMRING_WAIT_YIELD)
			sched_yield();
		else
			nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
		if (strategy != SHMRING_WAIT_SPIN || i % 64 == 0) {
			int64_t now = monotonic();

			if (now >= until)
				return false;
			if (now >= look) {
				look_for_the_dead(w->ring);
				look = monotonic() + SPIN_RECOVER_NS;
			}
		}
	}
}

static bool spin(const struct waiter *w, uint64_t slots, int times)
{
	for (int i = 0; i < times; i++) {
		spin_hint();
		if (ready(w, slots))
			return true;
	}
	return false;
}

static bool spin_before_sleeping(const struct waiter *w, int64_t start)
{
	bool hopeful = *w->last_ns < HOPEFUL_NS;

	if (ready(w, w->batch) || spin(w, w->batch, DEFAULT_SPINS))
		return true;
	for (int i = 0; i < DEFAULT_YIELDS || (hopeful && monotonic() - start < HOPEFUL_NS); i++) {
		sched_yield(); /* to the other side, should there be more processes than cores */
		if (spin(w, w->batch, 8))
			return true;
	}
	return false;
}

static int wait_until(const struct waiter *w, int64_t deadline, uint8_t strategy)
{
	int status = check_usable(w->ring);
	bool interrupted = false;
	int64_t start, until;
	bool done;

	if (status)
		return status;
	if (strategy > SHMRING_WAIT_FUTEX)
		return fail(SHMRING_E_INVALID, "ring \"%s\": there is no wait strategy %u", w->ring->name,
			    strategy);
	if (ready(w, w->slots) || (strategy == SHMRING_WAIT_SPIN && spin(w, w->slots, CLOCKLESS_SPINS)))
		return SHMRING_OK;
	start = monotonic();
	until = deadline < start + SLICE_NS ? deadline : start + SLICE_NS;
	if (strategy == SHMRING_WAIT_SPIN || strategy == SHMRING_WAIT_YIELD || strategy == SHMRING_WAIT_SLEEP) {
		done = poll_until(w, strategy, until);
	} else {
		/* A full ring and a steady reader: a producer waits for a sixteenth
		 * of the ring, not for each slot; but it does not insist for long. */
		done = strategy == SHMRING_WAIT_DEFAULT && spin_before_sleeping(w, start);
		if (!done && !w->member && !w->releasing && until > start) {
			interrupted =
			    !sleep_once(w, w->batch, until - start < BATCH_NS ? until - start : BATCH_NS);
			done = ready(w, w->slots);
			if (nobody_gates(w->ring) && until > start + UNTOLD_NS)
				until = start + UNTOLD_NS;
		}
		if (!done && !interrupted && monotonic() < until) {
			(void)sleep_once(w, w->slots, until - monotonic());
			done = ready(w, w->slots);
		}
	}
	*w->last_ns = monotonic() - start;
	if (done)
		return SHMRING_OK;
	look_at_times(w->ring);
	return not_now(monotonic() >= deadline ? SHMRING_TIMEOUT : SHMRING_AGAIN);
}

int shmring_wait_space(shmring_producer *p, uint64_t slots, int64_t deadline_ns, uint8_t strategy)
{
	uint64_t batch = p->ring->capacity / 16;
	struct waiter w = {
	    .ring = p->ring, .slots = slots, .batch = slots > batch ? slots : batch, .last_ns = &p->last_wait_ns};

	return wait_until(&w, deadline_ns, strategy);
}

int shmring_wait_message(shmring_member *m, int64_t deadline_ns, uint8_t strategy)
{
	struct waiter w = {.ring = m->ring, .member = m, .slots = 1, .batch = 1, .last_ns = &m->last_wait_ns};
	int status = wait_until(&w, deadline_ns, strategy);

	if (status || !load_relaxed(&m->branch->d.orphans))
		return status;
	/* An orphan's messages are for who gets the admin lock. Its holder may be
	 * stopped for good: then there is something to take, and no take succeeds. */
	if (admin_try(m->ring)) {
		admin_leave(m->ring);
		return SHMRING_OK;
	}
	nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	return not_now(monotonic() >= deadline_ns ? SHMRING_TIMEOUT : SHMRING_AGAIN);
}

int shmring_wait_released(shmring *r, uint32_t branch, uint64_t sequence, int64_t deadline_ns, uint8_t strategy)
{
	int64_t last_ns = INT64_MAX;
	struct waiter w = {.ring = r, .slots = sequence, .batch = sequence, .last_ns = &last_ns};
	int status;

	if (r->read_only)
		return fail(SHMRING_E_PERMISSION, "ring \"%s\" was attached read-only", r->name);
	if (branch < BRANCHES) {
		w.releasing = &r->cursors->branch[branch];
		status = wait_until(&w, deadline_ns, strategy);
		/* What was seen as released may be another branch's by now. Its `first`
		 * was stored before its `state`: whoever sees the one sees the other. */
		if (status || (load_acquire(&w.releasing->d.state) == BRANCH_ACTIVE &&
			       load_relaxed(&w.releasing->d.first) < sequence))
			return status;
	}
	return fail(SHMRING_E_NO_BRANCH, "ring \"%s\" has no branch number %u that had to release this", r->name,
		    branch);
}
