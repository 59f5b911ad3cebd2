/* A ring as it is attached here, and who takes part in it. */
#ifndef SHMRING_HANDLES_H
#define SHMRING_HANDLES_H

#include <stddef.h>
#include <sys/types.h>

#include "atomics.h"
#include "layout.h"
#include "shmring.h"

struct lock_file; /* locks.c */

struct shmring {
	uint64_t owned; /* 0 in a child, whatever made it: see handle_new() and is_owned() */
	struct header header; /* the checked copy; the file's own is not read again */
	struct cursors *cursors;
	struct seat *seats;
	struct control *control;
	uint8_t *slots; /* mapped twice, back to back */
	uint64_t capacity;
	uint64_t mask;
	unsigned log2_capacity;
	uint32_t seat_count;
	uint32_t options;
	pid_t owner; /* where the kernel does not wipe `owned` for children; 0: it does */
	struct lock_file *locks; /* the mapping was made from another description */
	bool read_only;
	bool asymmetric; /* barriers, see atomics.h */
	uint32_t seat; /* this handle's own, or NOBODY; changed under the admin lock, but for seat_abandon() */
	bool lent; /* that seat is a producer's or a consumer's for now */
	void *seatless; /* what holds the lock of a handle that has no seat, see handle_seatless() */
	void *held[MAX_PARTICIPANTS]; /* what holds the lock of each of this handle's seats */
	uint8_t *base;
	uint8_t *reserved; /* addresses: the file, the slots again, and alignment */
	size_t reserved_bytes;
	char name[256];
};

/* What a waiter remembers of its last wait; threads may share a consumer, and this. */
struct wait_memory {
	int64_t took_ns; /* INT64_MAX: nothing came */
	int64_t since_ns; /* when the waits began of which none brought anything */
	int64_t look_ns; /* what a look for the dead costs here */
	bool looks; /* this one looked last: it does so again */
};

/* How far behind the producers a consumer waits: distance.c, stays_away(). */
struct distance {
	uint32_t waits;
	bool away;
	uint64_t taken; /* on the branch, when the episode began */
	uint64_t since_ns;
	uint64_t near_slots; /* taken in the episode before, and in what time */
	uint64_t near_ns;
};

/* When a claim or a take was last lost to another one: contention.c. */
struct contention {
	uint64_t messages; /* that this one had got by then */
	uint64_t ns; /* that it kept out for */
};

struct shmring_producer {
	shmring *ring;
	struct seat *seat;
	uint32_t seat_index;
	uint64_t floor; /* cached; the shared one is never lower */
	uint64_t claim_lo;
	uint64_t claim_n; /* 0: no open claim */
	uint64_t began; /* the run: `claim` when it was opened, or behind its last end marker */
	bool interrupted; /* waits are not to sleep */
	struct wait_memory wait;
	struct contention contention;
};

/* deferred.c: runs of sequences; releases that await a free entry */
struct boundary {
	uint64_t at;
	uint64_t other;
};
struct deferred {
	struct boundary *table;
	size_t room; /* a power of two, or 0 */
	size_t used;
	size_t cursor;
};

struct shmring_consumer {
	shmring *ring;
	struct seat *seat;
	struct branch *branch;
	uint32_t seat_index;
	uint32_t branch_index;
	uint32_t ranges_used; /* entries of `range` below this may be in use */
	uint32_t graph_changes; /* upstream_released was computed in this state of the graph */
	uint64_t upstream_released; /* cached */
	uint64_t heard; /* of so many ends of the stream */
	uint64_t found; /* ends, with the one that is about to be taken as a message */
	bool takes_ends; /* as messages */
	uint64_t overrun_first;
	uint64_t overrun_end;
	struct deferred deferred;
	struct deferred returned; /* is held for whom it is delivered to again: no seat was free */
	bool gives_again; /* there is such a thing */
	bool woken; /* and has to see to it that no work is left beside sleepers */
	uint32_t waiting; /* threads that wait for messages at this moment */
	bool interrupted; /* waits are not to sleep */
	struct wait_memory wait;
	struct distance distance;
	struct contention contention;
	int64_t adopt_after_ns; /* no try to adopt before that */
	int64_t adopt_pause_ns;
	uint32_t adopt_seat; /* the orphan from which this consumer adopted last */
	struct range range[LEASES]; /* what is held; the seat's ranges say it to others, see takes.c */
};

#endif
