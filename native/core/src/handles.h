/* The handles of an attached ring, of its producers and of its consumers. */
#ifndef SHMRING_HANDLES_H
#define SHMRING_HANDLES_H

#include <stddef.h>
#include <sys/types.h>

#include "atomics.h"
#include "layout.h"
#include "shmring.h"

struct lock_file; /* locks.c */

struct shmring {
	uint64_t owned; /* 0 in every forked child: see handle_new() and is_owned() */
	struct header header; /* the checked copy; the file's own is not read again */
	struct cursors *cursors;
	struct seat *seats;
	struct control *control;
	uint8_t *slots; /* mapped twice, back to back */
	uint64_t capacity;
	uint64_t mask;
	uint32_t seat_count;
	uint32_t options;
	pid_t owner; /* set if the kernel does not wipe `owned` for children; 0: it does */
	struct lock_file *locks; /* the mapping was made from another description */
	bool read_only;
	bool copied; /* read into private memory, see copy_ring() */
	bool asymmetric; /* barriers, see atomics.h */
	uint32_t seat; /* this handle's own, or NOBODY; changed under the admin lock, but for seat_abandon() */
	bool lent; /* that seat is a producer's or a consumer's for now */
	void *seatless; /* the page with the lock of a handle that has no seat, see handle_seatless() */
	void *held[MAX_PARTICIPANTS]; /* the pages with the locks of this handle's seats */
	uint8_t *base;
	size_t mapped_bytes; /* from there: the file, and the slots again */
	char name[256];
};

/* A waiter's record of its last wait; threads that share a consumer share it, too. */
struct wait_memory {
	int64_t took_ns; /* INT64_MAX: nothing came */
	int64_t since_ns; /* beginning of the waits that have brought nothing */
	int64_t look_ns; /* the time that a look for the dead takes here */
	bool looks; /* this waiter looked last: it does so again */
	bool lost; /* it has waited at a file that has no name any more: the next try says so */
};

/* How far behind the producers a consumer waits: wait.c. */
struct distance {
	uint32_t away_ns; /* before each wait; 0: not at all */
	uint32_t waits; /* since then */
	uint32_t failures; /* tries in a row that did not pay */
	uint64_t taken; /* on the branch, when it kept away the last time */
};

/* When a claim or a take was last lost to another one: contention.c. */
struct contention {
	uint64_t messages; /* number that this handle had got by then */
	uint64_t ns; /* for which it kept out */
};

struct shmring_producer {
	shmring *ring;
	struct seat *seat;
	uint32_t seat_index;
	uint64_t floor; /* cached; the shared one is never lower */
	uint64_t claim_lo;
	uint64_t claim_n; /* 0: no open claim */
	uint64_t looked; /* where it last looked for the file's name */
	uint64_t began; /* of the run: `claim` when it was opened, or behind its last end marker */
	bool interrupted; /* waits must not sleep */
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
	uint64_t heard; /* ends of the stream that it no longer has to report */
	uint64_t found; /* ends, with the one that is about to be taken as a message */
	bool takes_ends; /* takes ends as messages */
	uint32_t max_deliveries; /* before a message goes to `dead_letters` */
	shmring_producer *dead_letters; /* of another ring; NULL: messages are delivered for ever */
	/* nack.c: true if the message of this lease was set aside; else *status is the take's answer */
	bool (*set_aside)(shmring_consumer *consumer, const struct shmring_lease *lease, int *status);
	uint64_t overrun_first;
	uint64_t overrun_end;
	struct deferred deferred;
	struct deferred returned; /* handed back and still held, because no seat was free */
	bool gives_again; /* `returned` is not empty */
	bool woken; /* it must not leave work undone while others sleep */
	uint32_t waiting; /* threads that wait for messages now */
	bool interrupted; /* waits must not sleep */
	struct wait_memory wait;
	struct distance distance;
	struct contention contention;
	int64_t adopt_after_ns; /* time of the next try to adopt */
	int64_t adopt_pause_ns;
	uint32_t adopt_seat; /* the orphan from which this consumer adopted last */
	struct range range[LEASES]; /* its own record of its ranges; the seat has them for others, see takes.c */
};

#endif
