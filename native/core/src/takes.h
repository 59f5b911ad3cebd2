/* Functions that read and change the records of takes: the ranges and the hold of a seat, and `taken`, the
 * position of a branch. */
#ifndef SHMRING_TAKES_H
#define SHMRING_TAKES_H

#include "wake.h"

/* Destination of a lease: a seat, and an entry in it, that orphan_find() has found (orphans.c). All later steps
 * use this one result, because a stray write may change the seat meanwhile. */
struct destination {
	uint32_t seat; /* seat that gets the lease; NOBODY: no seat has room */
	uint32_t entry; /* index of a range in the seat */
	uint32_t before; /* number of times that the lease's messages were delivered before */
	enum { GROW_DOWN, GROW_UP, NEW_RANGE, NEW_ORPHAN } how;
};

struct destination orphan_find(const shmring *ring, uint32_t branch, uint64_t lo, uint64_t hi, uint32_t before);
void orphan_record(shmring *ring, struct seat *seat, uint32_t branch, const struct destination *destination,
		   uint64_t lo, uint64_t hi);
void orphan_merge(shmring *ring, struct seat *seat, uint32_t index, uint32_t branch);

/* The next functions are defined in takes.c. */
void confirm(shmring_consumer *consumer, uint32_t last, uint64_t t);
int ranges_free_entry(const struct range *known, uint32_t *used);
bool ranges_remove(struct seat *seat, struct range *known, uint32_t *used, uint64_t lo, uint64_t hi);
uint64_t ranges_lowest(const struct range *known, uint32_t used);
void seat_read_ranges(const struct seat *seat, struct range known[LEASES]);
void seat_join_ranges(struct seat *seat, bool touching);
uint64_t seat_lowest(const struct seat *seat);
int scan_messages(const shmring *ring, uint64_t at, uint64_t limit, uint32_t max_messages, uint64_t max_slots,
		  uint64_t *end, uint32_t *messages, bool *marker);
int consumer_check_held(const shmring_consumer *consumer, uint64_t first, uint64_t end);
int fail_returned(const shmring_consumer *consumer, uint64_t first, uint64_t end);
int consumer_record(shmring_consumer *consumer, uint64_t lo, uint64_t hi, uint32_t before);
uint32_t consumer_delivered_before(const shmring_consumer *consumer, uint64_t lo, uint64_t hi);
uint64_t consumer_end_of_count(const shmring_consumer *consumer, uint64_t lo, uint64_t hi);
void consumer_gives_again(shmring_consumer *consumer, uint64_t lo, uint64_t hi);
void consumer_count_delivery(shmring_consumer *consumer, uint64_t lo, uint64_t hi, uint32_t before);
void consumer_raise_hold(shmring_consumer *consumer);
uint64_t consumer_limit(shmring_consumer *consumer, uint64_t t);
uint64_t consumer_stake(shmring_consumer *consumer, uint64_t at);
int consumer_overrun(shmring_consumer *consumer, uint64_t first, uint64_t end);
/* Finishes or undoes what the dead owner of a seat had begun: a take, or a move of a lease between two seats. */
void settle_take(shmring *ring, struct seat *seat, uint32_t index, struct branch *branch);

/* Moves `taken` from `seen` to `end`, with this consumer's seat. Returns false if another consumer has moved
 * `taken` since this consumer read `seen`. */
static inline bool move_taken(shmring_consumer *consumer, uint64_t seen, uint64_t end)
{
	struct branch *b = consumer->branch;
	uint64_t me = consumer->seat_index;
	uint32_t last = (uint32_t)(seen & 255);

	if (last != me && last < consumer->ring->seat_count)
		confirm(consumer, last, seen >> 8);
	if (load_relaxed(&b->d.options) & BRANCH_EXCLUSIVE) {
		store_release(&b->taken.v, end << 8 | me); /* no CAS: an exclusive branch has one consumer */
		return true;
	}
	/* Release: a process that acquires this `taken` also sees this consumer's hold, range and take_end. The
	 * process sees what earlier takers stored, too, because the caller has loaded `seen` with acquire. */
	return cas_release(&b->taken.v, &seen, end << 8 | me);
}

/* Raises the consumer's hold to `low`. The release keeps this consumer's reads of the payload before the store,
 * and pairs with the acquire in branch_released(). */
static inline void raise_hold(shmring_consumer *consumer, uint64_t low)
{
	store_release(&consumer->seat->lease.hold, low);
	wake_after_release(consumer->ring, consumer->branch, low);
}

#endif
