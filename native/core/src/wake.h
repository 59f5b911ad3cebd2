/* Functions that wake sleeping consumers and producers. */
#ifndef SHMRING_WAKE_H
#define SHMRING_WAKE_H

#include <time.h>

#include "core.h"

long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout);
void wake(struct branch *branch, int consumers);
void wake_followers(shmring *ring, uint64_t followers);
void wake_roots(shmring *ring);
void wake_branches(shmring *ring, uint64_t mask);
void wake_producers(shmring *ring);
void wake_producers_for(shmring *ring, const struct branch *branch, uint64_t low);
bool has_consumers(const struct branch *branch);
bool has_work(const shmring *ring, const struct branch *branch);
void pass_wake_up_on(shmring_consumer *consumer);

/* CHANGE: edit this for a new option of a ring */
/* Called after a publication. A consumer that goes to sleep announces itself, passes a heavy barrier
 * and checks once more (waiter.c). So the producer sees the announcement, or the consumer sees the message. */
static inline void wake_readers(shmring *ring, bool asymmetric)
{
	light_barrier(asymmetric);
	if (__builtin_expect(load_relaxed(&ring->cursors->asleep.v) != 0, 0))
		wake_roots(ring);
}

/* Called after a consumer has raised its hold to `low`: wakes producers and the branch's followers if they
 * wait for this release. A sleeping producer may need both this hold and the branch's position (`taken`) to
 * move. A take moves the position but wakes no producer, so the last release has to see all takes before it:
 * therefore wake_producers_for() reads `taken` after the barrier. */
static inline void wake_after_release(shmring *ring, const struct branch *branch, uint64_t low)
{
	uint64_t followers;

	light_barrier(ring->asymmetric);
	followers = load_relaxed(&branch->d.followers);
	if (__builtin_expect(load_relaxed(&ring->cursors->producers.futex) & 1, 0))
		wake_producers_for(ring, branch, low);
	if (__builtin_expect(followers && load_relaxed(&ring->cursors->asleep.v) & followers, 0))
		wake_followers(ring, followers);
}

#endif
