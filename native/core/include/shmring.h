/* shmring: a shared-memory ring of 300-byte slots between processes.
 *
 * A ring is one mapped file. Producers claim slots, fill them in place and
 * commit; a branch is a named reader position and sees every message; the
 * consumers of a branch share its work. See docs/protocol.md.
 *
 * Conventions. Functions return SHMRING_OK (0) or a negative status; the two
 * answers SHMRING_UNAVAILABLE (full or empty) and SHMRING_CONTENDED (lost a
 * race: try again) are not errors. Results go through pointers. For an error
 * shmring_error_message() says what happened, to which ring and what to do, and
 * for an answer what it means; the text belongs to the calling thread until its
 * next call that does not return SHMRING_OK.
 *
 * Threads. A ring may be used by many threads. A producer or a consumer may be
 * used by one thread at a time, except for the _wait functions, in which other
 * threads may wait meanwhile. Handles do not survive fork() or clone(): in the child every
 * call answers SHMRING_E_FORKED.
 */
#ifndef SHMRING_H
#define SHMRING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SHMRING_API __attribute__((visibility("default")))
#else
#define SHMRING_API
#endif

#define SHMRING_VERSION "0.2.0" /* everything else that has a version reads it here */

#define SHMRING_SLOT_BYTES 300
#define SHMRING_MAX_BRANCHES 64
#define SHMRING_MAX_PARTICIPANTS 248 /* of attached processes, producers and consumers */
#define SHMRING_NAME_BYTES 56 /* of a participant's or a branch's name, its terminating zero included */

enum shmring_status {
	SHMRING_OK = 0,
	SHMRING_UNAVAILABLE = -1, /* full, or empty */
	SHMRING_CONTENDED = -2, /* lost a race: try again */
	SHMRING_AGAIN = -3, /* a wait's slice is over, or a signal came: look, and wait again */
	SHMRING_TIMEOUT = -4,
	SHMRING_OVERRUN = -5, /* the branch lost messages, see shmring_consumer_overrun */
	SHMRING_ENDED = -6, /* the stream has ended; the next take goes on behind the end */

	SHMRING_E_INVALID = -10,
	SHMRING_E_NOT_FOUND = -11,
	SHMRING_E_EXISTS = -12,
	SHMRING_E_NOT_A_RING = -13,
	SHMRING_E_VERSION = -14,
	SHMRING_E_DAMAGED = -15,
	SHMRING_E_PERMISSION = -16,
	SHMRING_E_NO_SPACE = -17,
	SHMRING_E_TOO_LARGE = -18,
	SHMRING_E_SECOND_PRODUCER = -19,
	SHMRING_E_SECOND_CONSUMER = -20,
	SHMRING_E_LIMIT = -21,
	SHMRING_E_LEASES = -22,
	SHMRING_E_CLAIM_OPEN = -23,
	SHMRING_E_NO_BRANCH = -24,
	SHMRING_E_DROPPED = -25,
	SHMRING_E_CLOSED = -26,
	SHMRING_E_FORKED = -27,
	SHMRING_E_SYSTEM = -28,
	SHMRING_E_NO_MEMORY = -29,
};

/* What happened in this thread's last call that was not SHMRING_OK; never NULL. */
SHMRING_API const char *shmring_error_message(void);

/* --- rings -------------------------------------------------------------- */

typedef struct shmring shmring;

enum shmring_clock {
	SHMRING_CLOCK_COARSE = 0, /* the kernel's tick, 1 to 4 ms; about 3 ns a read */
	SHMRING_CLOCK_PRECISE = 1, /* about 20 ns a read */
	SHMRING_CLOCK_OFF = 2,
};

struct shmring_options {
	uint64_t slots; /* power of two, at least 1024 */
	uint32_t participants; /* seats; 0 means 128; at most SHMRING_MAX_PARTICIPANTS */
	bool single_producer; /* refuse a second living producer */
	bool scattered; /* neighbours in sequence lie far apart; one-slot messages only */
	bool checksum; /* CRC32C of every message */
	bool prefault; /* whoever attaches maps every page at once */
	bool lock_memory; /* whoever attaches locks it into memory (mlock) */
	bool huge_pages; /* ask for transparent huge pages */
	bool temporary; /* for as long as somebody is attached, its maker first; see shmring_reap() */
	uint8_t clock; /* enum shmring_clock */
	uint32_t mode; /* 0 means 0600 */
	uint64_t first_sequence;
	const void *schema; /* Arrow schema as an IPC message, or NULL */
	size_t schema_bytes;
};

struct shmring_info {
	uint64_t slots;
	uint32_t participants;
	uint32_t layout_major;
	uint32_t layout_minor;
	bool single_producer;
	bool scattered;
	bool checksum;
	uint8_t clock;
	uint64_t file_bytes;
	uint64_t first_sequence;
	uint64_t created_ns;
	uint8_t uuid[16];
	uint32_t owner_uid;
	uint32_t mode;
	const void *schema; /* in the mapping; NULL if there is none */
	uint64_t schema_bytes;
};

enum shmring_attach_flags {
	SHMRING_READ_ONLY = 1, /* for info, stat and table: is no participant, disturbs nobody */
	SHMRING_FOREIGN_OWNER = 2, /* accept a ring that another user owns */
};

/* A named ring is the file /dev/shm/shmring.NAME; all others are known by their
 * paths. Room for the longest of the former: */
#define SHMRING_PATH_BYTES 256

/* The path of the ring with this name: 1 to 200 of the characters A-Z a-z 0-9 . _ -
 * and none of . and - at the beginning; SHMRING_E_INVALID for others. */
SHMRING_API int shmring_path_of(const char *name, char *path, size_t size);

/* Makes a ring at `path` and attaches to it; with `ring` NULL it is only made. The
 * file gets its name when it is finished, in one step: whoever finds the ring can
 * use it, and a maker that is killed leaves none. SHMRING_E_EXISTS if something is
 * there, which stays what it is. The caller owns *ring until shmring_close(). */
SHMRING_API int shmring_create(const char *path, const struct shmring_options *options, shmring **ring);

/* `flags` of enum shmring_attach_flags; SHMRING_E_INVALID for others.
 * Maps the ring at `path` after checking all of its header against the file.
 * The caller owns *ring until shmring_close(). */
SHMRING_API int shmring_attach(const char *path, uint32_t flags, shmring **ring);

/* Attaches to the ring at `path`, or makes it if there is none. Both ends of a pipe
 * may call this at once; a ring that is there stays as it is. */
SHMRING_API int shmring_open_or_create(const char *path, const struct shmring_options *options, shmring **ring);

/* Gives up the handle. Its producers and consumers must have been closed. */
SHMRING_API void shmring_close(shmring *ring);

SHMRING_API void shmring_get_info(const shmring *ring, struct shmring_info *info);

/* Sequences as they stand: next to be claimed, and lowest still held. */
SHMRING_API uint64_t shmring_claimed(const shmring *ring);
SHMRING_API uint64_t shmring_floor(const shmring *ring);

/* Clears away dead participants; their holes are aborted, their leases made
 * ready for redelivery. *count (may be NULL) is how many participants were dead.
 * SHMRING_CONTENDED if another process is at it right now. */
SHMRING_API int shmring_recover(shmring *ring, unsigned *count);

/* Unlinks the ring at `path`; with `uuid` (of shmring_get_info) only if it is that
 * one. Who is attached goes on with it. A damaged ring and one of another version
 * go too, any other file stays: SHMRING_E_NOT_A_RING. `remove` takes the name away
 * and returns a status; NULL: unlink(2). */
SHMRING_API int shmring_unlink(const char *path, const uint8_t uuid[16],
			       int (*remove)(const char *path, void *context), void *context);

/* Unlinks the ring at `path` if no participant lives, and at least one died here or
 * the ring is temporary; also the draft at `path` of a ring whose maker was killed
 * (docs/layout.md). 1: it was unlinked, 0: it was not (somebody lives, it was
 * closed in order, or there is none). Files that are no rings stay. */
SHMRING_API int shmring_reap(const char *path);

/* What shmring_reap() would answer now; nothing is removed. */
SHMRING_API int shmring_reapable(const char *path);

/* --- producers ---------------------------------------------------------- */

typedef struct shmring_producer shmring_producer;

SHMRING_API int shmring_producer_open(shmring *ring, const char *name, shmring_producer **producer);

/* Aborts an open claim and gives the seat back. */
SHMRING_API void shmring_producer_close(shmring_producer *producer);

/* What a message is: a mark that travels with it. Numbers from SHMRING_KIND_USER
 * to 255 are the ring's users'; of those below, these three and BYTES may be
 * published, each only by what it names. SHMRING_E_INVALID for any other. */
enum shmring_kind {
	SHMRING_KIND_BYTES = 0,
	SHMRING_KIND_END = 2, /* ends a run of the stream for every consumer of every branch; length 0 */
	SHMRING_KIND_ARROW_BATCH = 3, /* one encapsulated IPC record batch message of the ring's schema */
	SHMRING_KIND_ARROW_STREAM = 4, /* encapsulated IPC messages: schema, dictionaries, batch */
	SHMRING_KIND_USER = 16,
};

/* Claims `slots` contiguous slots: returns the first sequence, or a negative
 * status. One claim at a time: publish or abort it before the next. */
SHMRING_API int64_t shmring_next(shmring_producer *producer, uint32_t slots);

/* Publishes the open claim as one message of `length` bytes at `shift`. */
SHMRING_API int shmring_publish(shmring_producer *producer, uint32_t length, uint8_t kind, uint8_t shift);

/* Publishes the open claim, up to and including `last`, as one-slot messages
 * whose lengths are in `lengths` (or all `length` where that is NULL). What
 * was claimed beyond `last` is aborted. */
SHMRING_API int shmring_publish_ones(shmring_producer *producer, uint64_t last, const uint32_t *lengths,
				     uint32_t length);

/* Copies `length` bytes of a file, from `offset` on, to byte `at` of the open
 * claim. Several threads may fill one claim. */
SHMRING_API int shmring_fill(const shmring_producer *producer, uint64_t at, int fd, uint64_t offset,
			     uint64_t length);

struct shmring_part {
	uint32_t slots;
	uint32_t length;
	uint8_t shift;
	uint8_t kind;
};

/* Publishes the open claim as `count` messages by one store: readers see all of
 * them or none, also if this process is killed. Their slots make up the claim. */
SHMRING_API int shmring_publish_parts(shmring_producer *producer, const struct shmring_part *parts,
				      uint32_t count);

/* Gives the open claim up: readers step over it. */
SHMRING_API int shmring_abort(shmring_producer *producer);

/* SP only: how far the producer may go without asking again (exclusive). */
SHMRING_API int64_t shmring_producer_available(shmring_producer *producer);

/* Copies `length` bytes into a new message. *message_id is its number; NULL if it is not wanted. */
SHMRING_API int shmring_push(shmring_producer *producer, const void *data, size_t length, uint8_t kind,
			     uint64_t *message_id);

/* Publishes `count` one-slot messages by one store. Row i begins at
 * rows + i * stride and has lengths[i] (or `length`) bytes. *message_id is the
 * first one's number; NULL if it is not wanted. */
SHMRING_API int shmring_push_many(shmring_producer *producer, const void *rows, size_t stride, uint32_t count,
				  const uint32_t *lengths, uint32_t length, uint64_t *message_id);

/* Slots that a message of `length` bytes takes; with `aligned`, one whose
 * first byte must lie on a 64-byte boundary wherever it falls. */
SHMRING_API uint64_t shmring_slots_for(uint64_t length, bool aligned);

/* Where `sequence` lies in memory. */
SHMRING_API void *shmring_slot(const shmring *ring, uint64_t sequence);

/* --- branches ----------------------------------------------------------- */

enum shmring_start {
	SHMRING_EARLIEST = 0, /* what is still held, also of an earlier run, with its end */
	SHMRING_LATEST = 1, /* behind the last message that is published by now */
	SHMRING_AT_SEQUENCE = 2, /* the first message at or after it */
};

struct shmring_branch_options {
	uint8_t start; /* enum shmring_start; for a branch that is there already it is not looked at */
	uint64_t sequence;
	bool exclusive; /* one consumer only: SC */
	bool ephemeral; /* dropped with its last consumer */
	bool drop_oldest; /* loses the oldest rather than hold producers; what a living consumer holds is kept */
	uint64_t upstream; /* bit i: follow branch i; 0: follow the producer */
};

struct shmring_branch_info {
	uint32_t id;
	char name[SHMRING_NAME_BYTES];
	bool exclusive;
	bool ephemeral;
	bool drop_oldest;
	uint64_t upstream;
	uint64_t position; /* next sequence to be taken */
	uint64_t released; /* everything below has been released */
	uint64_t ends; /* of the stream, that the branch has come to */
	uint32_t consumers;
	uint32_t orphans; /* seats of consumers that died or handed back, whose leases await redelivery */
};

/* Makes the branch unless it is there. *id is its number; NULL if it is not wanted. An ephemeral branch
 * is made by shmring_join only: it never exists without a consumer. */
SHMRING_API int shmring_subscribe(shmring *ring, const char *name, const struct shmring_branch_options *options,
				  uint32_t *id);

/* Drops the branch: it gates no longer; its consumers' next take answers
 * SHMRING_E_DROPPED; what they hold stays theirs until they release it. */
SHMRING_API int shmring_unsubscribe(shmring *ring, const char *name);

/* Lets branch `id` see only what all of `upstream` (bit i: branch i) have released,
 * beside what it follows already. SHMRING_E_INVALID for a cycle. */
SHMRING_API int shmring_follow(shmring *ring, uint32_t id, uint64_t upstream);

/* Lets it wait for these no longer; with none left it follows the producer. */
SHMRING_API int shmring_unfollow(shmring *ring, uint32_t id, uint64_t upstream);

SHMRING_API int shmring_find_branch(const shmring *ring, const char *name, uint32_t *id);

/* SHMRING_E_NO_BRANCH if there is none with this number. */
SHMRING_API int shmring_branch_info(const shmring *ring, uint32_t id, struct shmring_branch_info *info);

/* --- consumers ------------------------------------------------------------ */

typedef struct shmring_consumer shmring_consumer;

/* Joins `branch`; makes it first, in the same step, unless it is there. A new
 * consumer of a branch whose former consumers died gets their unreleased messages. */
SHMRING_API int shmring_join(shmring *ring, const char *branch, const struct shmring_branch_options *options,
			     const char *name, shmring_consumer **consumer);

/* The branch this consumer has joined. */
SHMRING_API uint32_t shmring_consumer_branch(const shmring_consumer *consumer);

/* The lowest sequence this consumer holds; UINT64_MAX if it holds nothing. */
SHMRING_API uint64_t shmring_consumer_hold(const shmring_consumer *consumer);

/* Releases whatever is still held and gives the seat back. With something handed back
 * that nobody has got yet it is shmring_consumer_abandon(). */
SHMRING_API void shmring_consumer_close(shmring_consumer *consumer);

struct shmring_message {
	uint64_t message_id;
	uint64_t time; /* ns since 1970; 0 where the ring keeps no time */
	const void *data;
	uint32_t length;
	uint32_t slots;
	uint32_t checksum; /* CRC32C; 0 where the ring keeps none */
	uint8_t kind;
};

/* A hold on [first, end): nobody overwrites these slots until they are
 * released. Aborted runs may lie between the messages. */
struct shmring_lease {
	uint64_t first;
	uint64_t end;
	uint32_t messages;
	bool redelivered; /* a consumer that died, or handed it back, held it before */
};

/* Takes up to `max_messages` messages that follow each other, in at most
 * `max_slots` slots (one message is taken whatever its size).
 *
 * SHMRING_ENDED: the branch has come to an end marker; nothing is held. Each
 * consumer that had joined by then is told so once, after what it has taken before
 * and before anything that lies behind. Markers that are there together, with
 * nothing between them, are one end. */
SHMRING_API int shmring_take(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
			     struct shmring_lease *lease);

/* Takes one message and reads it: shmring_take() and shmring_read() in one. A damaged one is
 * released, so that the next call goes on behind it. */
SHMRING_API int shmring_take_one(shmring_consumer *consumer, struct shmring_lease *lease,
				 struct shmring_message *message);

/* For who passes markers on, or hands them back: the end marker that this consumer
 * comes to first is a message, of kind SHMRING_KIND_END and leased alone. Of those
 * that other consumers have come to it is told as ever. */
SHMRING_API void shmring_consumer_take_ends(shmring_consumer *consumer, bool as_messages);

/* Lets this consumer be told of the ends that came since the branch had come to `since` of
 * them (shmring_branch_info), as if it had joined then: for who reads on where another
 * consumer has failed, or was expected to join before. Once, before the first take. */
SHMRING_API void shmring_consumer_hear_ends(shmring_consumer *consumer, uint64_t since);

/* Leaves as if this process had died: what the consumer holds is delivered again
 * to the branch's other consumers, or to the next one that joins. */
SHMRING_API void shmring_consumer_abandon(shmring_consumer *consumer);

/* Reads the message at or after `*position` in a range the caller holds, and
 * moves *position behind it. SHMRING_UNAVAILABLE at `end`. Every length is
 * checked before it is followed: SHMRING_E_DAMAGED. */
SHMRING_API int shmring_read(const shmring *ring, uint64_t *position, uint64_t end,
			     struct shmring_message *message);

/* Where [first, end), which the caller holds, is one array of rows of
 * SHMRING_SLOT_BYTES, a message each: its first row. NULL where it is not, or
 * where each message has a checksum to be compared. Looks at one entry a run. */
SHMRING_API const void *shmring_rows(const shmring *ring, uint64_t first, uint64_t end);

/* How far a take from `from` on would reach that may go up to `limit`, without
 * taking anything: for a branch whose position says what is done with, and which
 * therefore takes late. Nobody may have released what lies at `from`. */
SHMRING_API int shmring_measure(const shmring *ring, uint64_t from, uint64_t limit, uint32_t max_messages,
				uint64_t max_slots, uint64_t *end, uint32_t *messages);

/* Releases [first, end); in any order, from any thread that is alone with this
 * consumer. SHMRING_E_INVALID, and nothing has changed, if any of it is not held or
 * if it begins or ends inside a message. */
SHMRING_API int shmring_release(shmring_consumer *consumer, uint64_t first, uint64_t end);

/* Hands [first, end) back, which must be held: it is delivered again, marked as
 * redelivered, to whoever takes next on the branch, this consumer included. That needs a
 * free seat; while there is no room for another participant this consumer's next take gets it, and others do if
 * this consumer leaves before. For the branches that follow this one it is not released.
 * On an error it stays held: SHMRING_E_INVALID as of shmring_release; SHMRING_CONTENDED:
 * another process is joining or recovering (or is stopped in that): try again;
 * SHMRING_E_LEASES: no room to keep a piece on each side of it. */
SHMRING_API int shmring_nack(shmring_consumer *consumer, uint64_t first, uint64_t end);

/* Whether to try that again, which has been SHMRING_CONTENDED since `since_ns` (CLOCK_MONOTONIC):
 * for 5 s, but only for a moment where this process has waited that long for the same ring in
 * vain and has not had its turn since. */
SHMRING_API bool shmring_nack_again(const shmring_consumer *consumer, int64_t since_ns);

/* Exclusive: the branch's next slots up to this sequence are one message each,
 * and stay so until the branch has released them. Ends before the first aborted
 * claim, end marker or message of several slots, and where the branches that this
 * one follows have not come. On a branch with drop_oldest: where the branch stands. */
SHMRING_API uint64_t shmring_consumer_available(shmring_consumer *consumer);

/* How far takes would reach now: behind the last message, whatever it is. */
SHMRING_API uint64_t shmring_consumer_reach(shmring_consumer *consumer);

/* After SHMRING_OVERRUN: the lost sequences [*first, *end). */
SHMRING_API void shmring_consumer_overrun(const shmring_consumer *consumer, uint64_t *first, uint64_t *end);

/* --- waiting ------------------------------------------------------------ */

enum shmring_wait_strategy {
	SHMRING_WAIT_DEFAULT = 0, /* spin for a short while, then sleep on a futex */
	SHMRING_WAIT_SPIN = 1,
	SHMRING_WAIT_YIELD = 2,
	SHMRING_WAIT_SLEEP = 3, /* nanosleep: polls, never wakes anybody */
	SHMRING_WAIT_FUTEX = 4,
	SHMRING_WAIT_STRATEGIES /* so many */
};

/* Wait until it is worth trying again: SHMRING_OK. After at most 50 ms,
 * or about 20 ms for each one that sleeps on the ring, but no more than was waited
 * already, they return SHMRING_AGAIN, so that the caller can look at signals (one
 * that arrives ends the wait); one of those who wait looks for dead peers every
 * 50 ms. deadline_ns is on CLOCK_MONOTONIC, INT64_MAX is never: SHMRING_TIMEOUT.
 * After SHMRING_AGAIN nothing has to be tried: the next wait sees all that is worth it. */
SHMRING_API int shmring_wait_space(shmring_producer *producer, uint64_t slots, int64_t deadline_ns,
				   uint8_t strategy);
SHMRING_API int shmring_wait_message(shmring_consumer *consumer, int64_t deadline_ns, uint8_t strategy);

/* Of several, each a consumer that waits for a message or a producer that waits for `slots`. */
struct shmring_wait {
	shmring_consumer *consumer; /* one of the two, */
	shmring_producer *producer; /* the other is NULL */
	uint64_t slots;
	bool ready; /* answer: it is worth trying, or tells why not (an end, a dropped branch) */
};

/* Waits until one of them is ready: SHMRING_OK, and each says in `ready` whether it is; else
 * SHMRING_AGAIN, SHMRING_TIMEOUT and the rest as above, by one thread for all of them, of any rings.
 * Asleep it looks at up to 127 at once, or at one where the kernel has no futex_waitv(2) (before Linux 5.16);
 * of more than that it looks at each every few milliseconds.
 * bell : NULL, or a word that ends the wait, SHMRING_AGAIN, once it is no longer `rung`
 * Who has been told that a consumer is ready takes from it, waits again, or declines. */
SHMRING_API int shmring_wait_any(struct shmring_wait *waits, uint32_t count, const uint32_t *bell, uint32_t rung,
				 int64_t deadline_ns, uint8_t strategy);
/* Adds one to the word, and wakes who waits with it. */
SHMRING_API void shmring_ring_bell(uint32_t *bell);
/* After a wait: nothing is going to be taken, though there was something; another consumer
 * of the branch may have it at once, which slept meanwhile. NULL is nobody. */
SHMRING_API void shmring_consumer_decline(shmring_consumer *consumer);

/* While `on`, waits of this producer or consumer return SHMRING_AGAIN at once, and those
 * under way do. From any thread and from signal handlers: for a thread that closes what
 * another one waits in, or that wants that one to look at something. */
SHMRING_API void shmring_producer_interrupt(shmring_producer *producer, bool on);
SHMRING_API void shmring_consumer_interrupt(shmring_consumer *consumer, bool on);

/* The same until a branch has released everything below `sequence`, e.g. until
 * a journal has it on disk. SHMRING_E_NO_BRANCH if the branch is gone, or was
 * made (again, perhaps, while this waited) behind `sequence` - 1. */
SHMRING_API int shmring_wait_released(shmring *ring, uint32_t branch, uint64_t sequence, int64_t deadline_ns,
				      uint8_t strategy);

/* --- looking on --------------------------------------------------------- */

struct shmring_participant_info {
	uint32_t seat;
	uint32_t state; /* 1 in use, 2 dead with leases to deliver again */
	uint32_t role; /* 0 attached, 1 producer, 2 consumer */
	uint32_t branch;
	uint32_t pid;
	bool alive; /* asked of the kernel; true for read-only handles of own seats too */
	bool stopped; /* alive, but by SIGSTOP or a debugger not running */
	uint64_t joined_ns;
	char name[SHMRING_NAME_BYTES];
	uint64_t claim; /* first slot of the open claim, UINT64_MAX: none */
	uint64_t hold; /* lowest sequence held, UINT64_MAX: none */
	uint64_t messages;
	uint64_t bytes;
	uint64_t full_waits;
	uint64_t empty_waits;
	uint64_t contended;
	uint64_t recovered;
	uint64_t overrun;
	uint64_t dropped;
};

/* SHMRING_UNAVAILABLE: the seat is free. */
SHMRING_API int shmring_participant_info(const shmring *ring, uint32_t seat,
					 struct shmring_participant_info *info);

enum shmring_holder_kind {
	SHMRING_HELD_BY_NOBODY = 0,
	SHMRING_HELD_BY_CLAIM = 1, /* a producer's claim is open */
	SHMRING_HELD_BY_LEASE = 2, /* a consumer has taken it and not released it */
	SHMRING_HELD_BY_CONSUMERS = 3, /* the branch has living consumers, none of which has taken it */
	SHMRING_HELD_BY_NO_CONSUMER = 4, /* the branch has no living consumer */
};

/* Who keeps the lowest sequence that is still held. */
struct shmring_holder {
	uint8_t kind; /* enum shmring_holder_kind */
	bool alive; /* the participant */
	bool stopped; /* as in struct shmring_participant_info */
	int32_t branch; /* -1: none, a claim is in the way */
	int32_t seat; /* -1: no participant */
	uint32_t pid;
	uint32_t consumers; /* of the branch, living; counted where they hold nothing */
	uint64_t sequence;
	uint64_t slots; /* from there to the producers */
	int64_t age_ns; /* since that message was published; -1: the ring cannot say */
	char branch_name[SHMRING_NAME_BYTES];
	char name[SHMRING_NAME_BYTES]; /* the participant's; of several consumers the first's */
};

/* Whom producers on a full ring wait for. Is no participant, disturbs nobody.
 * SHMRING_UNAVAILABLE: nobody holds anything. */
SHMRING_API int shmring_find_holder(const shmring *ring, struct shmring_holder *holder);

/* The same in words, for an error: who holds what since when, and what to do. `text`
 * is cut to `size` bytes. Whom producers wait for; whom this branch's followers (or who
 * waits for its releases) wait for; whom this consumer waits for. */
SHMRING_API void shmring_explain_full(const shmring *ring, char *text, size_t size);
SHMRING_API void shmring_explain_branch(const shmring *ring, uint32_t branch, char *text, size_t size);
SHMRING_API void shmring_explain_empty(const shmring_consumer *consumer, char *text, size_t size);

struct shmring_row {
	uint64_t slot;
	uint64_t message_id;
	uint64_t time;
	uint32_t length;
	uint32_t reference_count; /* branches that still have to release it */
	uint8_t kind;
	bool filled; /* false: the slot holds no message now */
};

/* One row of the queue table: copies slot `index` and up to `capacity` bytes
 * of the message that begins there. Works on live, dead and damaged rings,
 * read-only, and never returns a torn message. */
SHMRING_API int shmring_table_row(const shmring *ring, uint64_t index, struct shmring_row *row, void *message,
				  size_t capacity);

/* Counts a message given up because the ring was full. */
SHMRING_API void shmring_count_dropped(shmring_producer *producer);

/* CRC32C (Castagnoli) of `length` bytes, continuing from `crc` (0 to begin). */
SHMRING_API uint32_t shmring_crc32c(uint32_t crc, const void *data, size_t length);

#ifdef __cplusplus
}
#endif

#endif
