/* Declarations that the core's files share: the handles of an attached ring, of its producers and of its
 * consumers; the clocks; and each file's functions for the others. Inline functions that call these are in
 * cells.h, takes.h, wake.h, waiter.h and holder.h. */
#ifndef SHMRING_CORE_H
#define SHMRING_CORE_H

#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#include "atomics.h"
#include "layout.h"
#include "shmring.h"

struct lock_file; /* locks.c */

enum { LABEL_BYTES = 256 }; /* room for the text that names a ring in messages: label_of() */

struct shmring {
	uint64_t owned; /* 0 in every forked child: see ring_new() and is_owned() */
	struct cursors *cursors;
	struct seat *seats;
	struct control *control;
	uint8_t *slots; /* mapped twice, back to back: a message may go on from the last slot to the first */
	uint64_t capacity;
	uint64_t mask;
	uint32_t seat_count;
	uint32_t options;
	pid_t owner; /* process that made the handle; 0 if the kernel wipes `owned` in children */
	struct lock_file *locks; /* file opened for the locks only; the map has its own open file, see attach.c */
	bool read_only;
	bool copied; /* the ring was read into private memory, see copy_ring() */
	bool asymmetric; /* kind of the barriers, see light_barrier() in atomics.h */
	uint32_t
	    seat; /* this handle's own seat, or NOBODY; only seat_abandon() changes it without the admin lock */
	bool lent; /* a producer or a consumer uses the handle's seat now */
	void *seatless; /* mapped page that holds the lock of a handle without a seat, see handle_seatless() */
	void *held[MAX_PARTICIPANTS]; /* mapped pages that hold the seats' locks (locks.c); NULL: not our seat */
	uint8_t *base;
	size_t mapped_bytes; /* bytes mapped at `base`: the file, then the slots a second time */
	struct older_map *older_maps; /* earlier maps of the slots, with copies, see copies.c; NULL: none */
	uint32_t copies; /* number of copies in older maps that are still read */
	char name[LABEL_BYTES];
	struct header header; /* checked copy of the file's header, which is not read again */
};

/* Record of the last wait of a producer or consumer. Threads that share a consumer share its record. */
struct wait_memory {
	int64_t took_ns; /* duration of the last wait; IN_VAIN if the wait brought nothing */
	int64_t since_ns; /* beginning of the series of waits that have brought nothing */
	int64_t look_ns; /* duration of this waiter's last look for dead participants */
	bool looks; /* this waiter made the last look for dead participants, so it makes the next */
	bool lost; /* the file has lost its name, so no wait can succeed: the next try returns the error */
};

/* A consumer's distance from the producers: how long it keeps away from the ring before a wait (wait.c). */
struct distance {
	uint32_t away_ns; /* time to keep away before each wait; 0: not at all */
	uint32_t waits; /* waits since the consumer last stopped keeping away from the ring */
	uint32_t failures; /* times in a row that keeping away did not pay off */
	uint64_t taken; /* position of the branch when the consumer last kept away */
};

/* Record of the last claim or take that another handle won (contention.c). */
struct contention {
	uint64_t messages; /* messages that this handle had pushed or taken when it lost */
	uint64_t ns; /* time for which the handle then paused */
};

struct shmring_producer {
	shmring *ring;
	struct seat *seat;
	uint32_t seat_index;
	uint64_t floor; /* cached floor; the ring's floor is the same or higher */
	uint64_t claim_lo;
	uint64_t claim_n; /* number of slots of the open claim; 0 if no claim is open */
	uint64_t looked; /* sequence of the claim that last checked the file's name */
	uint64_t began; /* sequence where the stream began: `claim` at the opening, or the end of the last end
			   marker */
	bool interrupted; /* shmring_producer_interrupt() is on: waits return at once */
	struct wait_memory wait;
	struct contention contention;
};

/* Entry of a table of released runs (deferred.c): `at` is the first or the end sequence of a run, and `other` is
 * the run's other boundary. */
struct boundary {
	uint64_t at;
	uint64_t other;
};
struct deferred {
	struct boundary *table;
	size_t room; /* number of entries that `table` has: a power of two, or 0 */
	size_t used; /* number of entries in use: two for each run */
	size_t cursor; /* entry at which deferred_take_any() looks next */
};

struct shmring_consumer {
	shmring *ring;
	struct seat *seat;
	struct branch *branch;
	uint32_t seat_index;
	uint32_t branch_index;
	uint32_t ranges_used; /* upper limit: no entry of `range` from this index on is in use */
	uint32_t graph_changes; /* value of `graph.changes` when upstream_released was computed */
	uint64_t upstream_released; /* cached sequence up to which the upstream branches have released */
	uint64_t heard; /* ends of the stream that this consumer has reported, or that came before it joined */
	uint64_t found; /* new value of `heard` when this consumer takes the next end marker as a message */
	bool takes_ends; /* end markers are delivered as messages: shmring_consumer_take_ends() */
	uint32_t max_deliveries; /* deliveries of a message before it goes to `dead_letters` */
	shmring_producer *dead_letters; /* producer of another ring; NULL: messages are delivered for ever */
	/* set_aside() of nack.c: returns true if it set the lease's message aside; if not, *status is the result
	 * of the take */
	bool (*set_aside)(shmring_consumer *consumer, const struct shmring_lease *lease, int *status);
	uint64_t overrun_first;
	uint64_t overrun_end;
	struct deferred deferred; /* releases that await a free entry of `range` */
	struct deferred returned; /* messages handed back and still held, because no seat was free */
	bool gives_again; /* `returned` is not empty */
	uint64_t lost_below; /* inherited messages below this sequence are lost: producers may overwrite them */
	bool woken; /* this consumer was woken: if it takes nothing, it has to wake another consumer */
	uint32_t waiting; /* number of threads that wait for messages in this consumer now */
	bool interrupted; /* shmring_consumer_interrupt() is on: waits return at once */
	struct wait_memory wait;
	struct distance distance;
	struct contention contention;
	int64_t adopt_after_ns; /* time of the next try to adopt */
	int64_t adopt_pause_ns; /* pause before the next try to adopt; doubles when a try adopts nothing */
	uint32_t adopt_seat; /* the orphan from which this consumer adopted last */
	struct range range[LEASES]; /* this consumer's ranges; its seat has a copy for other processes (takes.c) */
};

/* --- the clocks ------------------------------------------------------------------- */

static inline uint64_t now_ns(int clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static inline int64_t monotonic(void)
{
	return (int64_t)now_ns(CLOCK_MONOTONIC);
}

/* --- functions, by file ----------------------------------------------------------- */

/* Returns from the calling function with the status of `call`, unless that is SHMRING_OK. */
#define RETURN_NOT_OK(call)                                                                                       \
	do {                                                                                                      \
		int status_of_call = (call);                                                                      \
		if (__builtin_expect(status_of_call != SHMRING_OK, 0))                                            \
			return status_of_call;                                                                    \
	} while (0)

/* error.c */
int fail(int status, const char *format, ...) __attribute__((cold, format(printf, 2, 3)));
int fail_errno(const char *what, const char *name) __attribute__((cold));
int fail_forked(const char *name) __attribute__((cold));
int fail_entry(const char *name, uint64_t sequence, uint32_t run, uint32_t length) __attribute__((cold));
int not_now(int status);

/* A text that is written in parts. A part that does not fit is cut; the text always ends in a null byte. */
struct text {
	char *at; /* address at which the next part is written */
	size_t room; /* bytes from `at` to the end of the buffer, at least 1 */
};

void say(struct text *t, const char *format, ...) __attribute__((cold, format(printf, 2, 3)));
/* Writes a command of `shmring` for a ring, quoted for a shell. The argument may be NULL; if it begins with "-",
 * "--" stands before it. */
void say_command(struct text *t, const char *verb, const char *ring, const char *argument) __attribute__((cold));

/* locks.c */
/* Time that a process waits for the admin byte. Joins, leaves and recovery take microseconds: a process
 * that has the byte for longer is stopped (SIGSTOP, a debugger), not dead. */
#define ADMIN_TIMEOUT_S 5
#define ADMIN_TIMEOUT_NS (ADMIN_TIMEOUT_S * INT64_C(1000000000))

bool lock_byte(int fd, off_t offset);
void unlock_byte(int fd, off_t offset);
int fail_admin_taken(int fd, const char *name);
int open_above_standard(const char *path, int flags);
struct lock_file *lock_file_open(shmring *ring, const char *path, int flags);
void lock_file_close(struct lock_file *file);
void lock_file_forget(struct lock_file *file);
void lock_file_name(struct lock_file *file, const char *path);
int lock_file_number(const struct lock_file *file); /* returns -1 if other code has closed the descriptor */
bool lock_file_is(const struct lock_file *file, int fd);
/* Returns true if the file has lost its name. Then sets *remade to whether another file has the name. */
bool lock_file_removed(const struct lock_file *file, bool *remade);
/* Returns true if this process has waited for the admin byte in vain, and has not got the byte since. */
bool lock_file_given_up(const struct lock_file *file);
void lock_file_set_given_up(const struct lock_file *file, bool given_up);
int lock_file_enter(struct lock_file *file);
void lock_file_leave(struct lock_file *file);
bool lock_file_locked(struct lock_file *file, off_t offset);
int lock_file_hold(const struct lock_file *file, off_t offset, void **page);
void lock_file_drop(void *page);

/* file.c */
const char *label_of(const char *path);
int check_path(const char *path);
void lay_out(struct header *header);
uint32_t header_crc(const struct header *header);
ssize_t header_load(int fd, struct header *header);
int open_flags(bool read_only);
int open_checked(const char *path, const char *name, uint32_t flags, int how, int *fd_out, struct header *h);
int map_ring(shmring *ring, int fd);
int copy_ring(shmring *ring, int fd);
int copy_range(shmring *ring, int fd, uint64_t offset, uint64_t bytes);
bool is_others(int fd);

/* deferred.c */
/* Takes out all runs that touch [*lo, *hi), and sets [*lo, *hi) to the union. */
void deferred_join(struct deferred *deferred, uint64_t *lo, uint64_t *hi);
bool deferred_reserve(struct deferred *deferred); /* makes room for one run; false: no memory */
void deferred_put(struct deferred *deferred, uint64_t lo, uint64_t hi);
bool deferred_take_any(struct deferred *deferred, uint64_t *lo, uint64_t *hi);
bool deferred_take_lowest(struct deferred *deferred, uint64_t *lo, uint64_t *hi);
bool deferred_overlaps(const struct deferred *deferred, uint64_t lo, uint64_t hi);
void deferred_free(struct deferred *deferred);

/* seats.c: seats and the admin lock. Only seat_alive(), read_seat(), seat_stopped(), name_store() and
 * name_load() may be called without the lock. */
/* The name of a handle's own seat while no producer or consumer uses the seat. */
#define ATTACHED_NAME "attached"

/* The owner of a seat. Another owner, or the same process in another role, has another joined_ns. */
struct seat_owner {
	uint32_t state;
	uint32_t pid;
	uint64_t start_time;
	uint64_t joined_ns;
};

int admin_enter(shmring *ring);
int admin_enter_to_leave(shmring *ring);
bool admin_is_worth_waiting(const shmring *ring, int64_t since_ns, bool leaving);
bool admin_try(shmring *ring);
void admin_leave(shmring *ring);
int seat_try(shmring *ring, uint32_t role, const char *name, uint32_t branch, uint32_t *index, uint32_t *barred);
bool seat_lend(shmring *ring, uint32_t role, const char *name, uint32_t branch, uint32_t *index);
bool seat_inherit(shmring *ring, uint32_t index, const char *name);
void seat_prepare(struct seat *seat, uint32_t branch);
bool handle_without_seat(shmring *ring);
bool handle_seatless(const shmring *ring);
void handle_seated(shmring *ring, uint32_t index, bool lent);
void seat_abandon(shmring *ring, uint32_t index);
void seat_give_back(shmring *ring, uint32_t index);
bool seat_alive(const shmring *ring, uint32_t index);
bool read_seat(const shmring *ring, uint32_t index, struct seat_owner *owner,
	       struct shmring_participant_info *info);
bool seat_stopped(const struct seat_owner *owner);
void name_store(char *to, const char *name, size_t size);
void name_load(char *to, const char *from, size_t size);

static inline bool seat_is_own(const shmring *ring, uint32_t index)
{
	return load_relaxed(&ring->held[index]) != NULL;
}

/* copies.c */
int copy_in_place(shmring *ring, uint64_t first, uint64_t end, const void *at, struct shmring_copy *copy);
void copies_close(shmring *ring);

/* floor.c */
uint64_t walk_runs(const shmring *ring, uint64_t from, uint64_t target);
uint64_t branch_released(const shmring *ring, const struct branch *branch, bool holds_only);
uint64_t upstream_released(const shmring *ring, uint64_t upstream);
uint64_t floor_advance(shmring *ring, uint64_t need);
bool nobody_gates(const shmring *ring);
bool everybody_released(const shmring *ring, uint64_t sequence);

/* Returns true if only the holds of the branch's consumers hold producers back, and its position does not. */
static inline bool gates_by_holds_only(const struct branch *branch)
{
	return load_relaxed(&branch->d.options) & BRANCH_DROP_OLDEST ||
	       load_acquire(&branch->d.state) == BRANCH_DROPPED;
}

/* contention.c */
/* Pauses for a moment, after another handle won a claim or a take. `messages` is the number of messages that this
 * handle has pushed or taken so far. */
void keep_out(struct contention *contention, uint64_t messages) __attribute__((cold));

/* claims.c */
int kind_check_reserved(const shmring *ring, uint8_t kind, const uint8_t *data, uint64_t length);
void publish_aborted(shmring *ring, uint64_t lo, uint64_t n, uint8_t seat);
bool settle_claim(shmring *ring, struct seat *seat, uint32_t index); /* the seat's owner must be dead */

/* branches.c: calls that change a branch need the admin lock. */
void graph_repair(shmring *ring);
void derive(shmring *ring);
unsigned living_consumers(const shmring *ring, uint32_t id);
void branch_drop(shmring *ring, uint32_t id);
void branch_consumer_left(shmring *ring, uint32_t id);
void count_orphans(shmring *ring, uint32_t id);

static inline struct branch *branch_at(const shmring *r, uint32_t id)
{
	return &r->cursors->branch[id];
}

static inline uint64_t bit(uint32_t id)
{
	return UINT64_C(1) << id;
}

static inline bool is_active(const shmring *r, uint32_t id)
{
	return load_acquire(&branch_at(r, id)->d.state) == BRANCH_ACTIVE;
}

/* recovery.c. The caller holds the admin lock. */
unsigned recover_dead_seats(shmring *ring);
bool recover_seat(shmring *ring, uint32_t index);

/* end.c */
bool consumer_is_ended(const shmring_consumer *consumer, uint64_t t);
bool end_has_to_wait(const shmring_consumer *consumer);
bool consumer_at_end(shmring_consumer *consumer, uint64_t seen, uint64_t end, uint64_t limit, bool *as_message);
bool consumer_pass_over(shmring_consumer *consumer, uint64_t seen, uint64_t end, bool marker);
void consumer_has_end(shmring_consumer *consumer);
void consumer_begins(shmring_consumer *consumer);

/* participants.c */
int handle_seat(shmring *ring);
bool orphans_have_seats(const shmring *ring);
int seat_take(shmring *ring, uint32_t role, const char *name, uint32_t branch, uint32_t *index);

/* adopt.c */
bool may_adopt(const shmring_consumer *consumer);
bool leases_move(shmring_consumer *consumer);
void leases_moved(shmring_consumer *consumer);
bool consumer_take_again(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
			 struct shmring_lease *lease, int *status);
bool consumer_adopt(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
		    struct shmring_lease *lease, int *status);

/* graph.c */
/* The caller holds the admin lock. */
bool has_orphans(const shmring *ring, const char *name);
int subscribe_locked(shmring *ring, const char *name, const struct shmring_branch_options *options, bool joining,
		     uint32_t *id);

/* attach.c */
int attach_draft(const char *path, const char *name, shmring **ring);
void attach_by_name(shmring *ring, const char *path);

/* unlink.c */
bool draft_path(char *path, size_t size, const char *beside, int folder_bytes, const uint8_t *uuid);

#endif
