/* Waiters: each describes one wait of a producer, of a consumer, or for a branch's releases. */
#ifndef SHMRING_WAITER_H
#define SHMRING_WAITER_H

#include <sched.h>
#include <time.h>

#include "core.h"

/* Longest time without a look for dead participants: half of the promised 100 ms. */
#define SLICE_NS (50 * 1000 * 1000LL)
/* Longest sleep of a producer on a ring where no branch gates: nobody wakes it when the claim of
 * another producer, which is in its way, is published. A choice. */
#define UNTOLD_NS (1000 * 1000LL)
/* wait_memory.took_ns after a wait in which nothing came */
#define IN_VAIN INT64_MAX

struct waiter {
	shmring *ring;
	struct seat *seat; /* seat of the waiting participant; NULL: a ring's handle waits */
	struct shmring_consumer *consumer; /* consumer that waits for a message; else NULL */
	const struct branch *releasing; /* branch, if this is a wait for the branch's releases; else NULL. If
					   `consumer` and `releasing` are NULL, a producer waits for
					   free slots */
	uint64_t slots; /* slots the producer needs; for a release wait, the target sequence */
	uint64_t batch; /* free slots that a producer on a full ring waits for first, for BATCH_NS at most; then it
			   waits for `slots`. Never less than `slots`; in other waits equal to it */
	const bool *interrupted;
	struct wait_memory *memory;
};

bool is_interrupted(const struct waiter *waiter);
bool ready(const struct waiter *waiter, uint64_t slots);
bool find_lost(const struct waiter *waiter);
bool is_alone(const shmring_consumer *consumer);
uint32_t *announce_sleep(const struct waiter *waiter, uint64_t slots, uint32_t *seen);
bool sleep_once(const struct waiter *waiter, uint64_t slots, int64_t ns);
void look_for_all(const struct waiter *waiter, int64_t interval);
int64_t slice_end(const struct waiter *waiter, int64_t start);

extern const struct shmring_wait_strategy_info wait_strategies[];

/* CHANGE: edit this for a new wait strategy */
/* Pauses once, for strategies that poll instead of sleeping on a futex. Returns false if a signal interrupted it.
 */
static inline bool pause_between_looks(enum shmring_look look)
{
	if (look == SHMRING_LOOK_NAP)
		return nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL) == 0;
	if (look == SHMRING_LOOK_SPIN)
		spin_hint();
	else
		sched_yield();
	return true;
}

static inline struct waiter space_waiter(shmring_producer *p, uint64_t slots, uint64_t batch)
{
	return (struct waiter){.ring = p->ring,
			       .seat = p->seat,
			       .slots = slots,
			       .batch = slots > batch ? slots : batch,
			       .interrupted = &p->interrupted,
			       .memory = &p->wait};
}

static inline struct waiter message_waiter(shmring_consumer *consumer)
{
	return (struct waiter){.ring = consumer->ring,
			       .seat = consumer->seat,
			       .consumer = consumer,
			       .slots = 1,
			       .batch = 1,
			       .interrupted = &consumer->interrupted,
			       .memory = &consumer->wait};
}

#endif
