/* shmring: a shared-memory ring of 300-byte slots between processes.
 *
 * A ring is one mapped file. Producers claim slots, fill them in place and
 * commit; a branch is a named reader position and sees every message; the
 * consumers of a branch share its messages. See docs/protocol.md.
 *
 * Conventions. Functions return SHMRING_OK (0) or a negative status; the two
 * answers SHMRING_UNAVAILABLE (full or empty) and SHMRING_CONTENDED (lost a
 * race: try again) are not errors. Results go through pointers. After an error
 * shmring_error_message() says what happened, to which ring, and what to do; after
 * an answer it explains the answer. The text belongs to the calling thread until
 * its next call that does not return SHMRING_OK.
 *
 * Threads. A ring may be used by many threads. A producer or a consumer may be
 * used by one thread at a time, except for the _wait functions: other threads may
 * be in them meanwhile. Handles do not survive fork() or clone(): in the child
 * every call returns SHMRING_E_FORKED.
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

#define SHMRING_VERSION "0.2.0" /* all other version numbers are read from here */

#define SHMRING_SLOT_BYTES 300
#define SHMRING_SLOT_FILE_BYTES 332 /* of the file, for each slot */
#define SHMRING_MAX_BRANCHES 64
#define SHMRING_MAX_PARTICIPANTS 248 /* of attached processes, producers and consumers */
#define SHMRING_NAME_BYTES 56 /* of a participant's or a branch's name, its terminating zero included */

enum shmring_status {
	SHMRING_OK = 0,
	SHMRING_UNAVAILABLE = -1, /* full, or empty */
	SHMRING_CONTENDED = -2, /* lost a race: try again */
	SHMRING_AGAIN = -3, /* a wait's time slice is over, or a signal came: wait again */
	SHMRING_TIMEOUT = -4,
	SHMRING_OVERRUN = -5, /* the branch lost messages, see shmring_consumer_overrun */
	SHMRING_ENDED = -6, /* the stream has ended; the next take continues after the end */

	/* CHANGE: a new error */
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

/* The text of this thread's last call that did not return SHMRING_OK; never NULL. */
SHMRING_API const char *shmring_error_message(void);

/* --- rings -------------------------------------------------------------- */

typedef struct shmring shmring;

enum shmring_clock {
	SHMRING_CLOCK_COARSE = 0, /* the kernel's tick, 1 to 4 ms; about 3 ns a read */
	SHMRING_CLOCK_PRECISE = 1, /* about 20 ns a read */
	SHMRING_CLOCK_OFF = 2,
};

/* CHANGE: a new option of a ring */
struct shmring_options {
	uint64_t slots; /* power of two, at least 1024 */
	uint32_t participants; /* seats; 0 means 128; at most SHMRING_MAX_PARTICIPANTS */
	bool single_producer; /* refuse a second living producer */
	bool checksum; /* CRC32C of every message */
	bool prefault; /* attaching maps every page at once */
	bool temporary; /* lasts while a process is attached, the creator first; see shmring_reap() */
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
	SHMRING_READ_ONLY = 1, /* for info, stat and table: not a participant, changes nothing */
	SHMRING_FOREIGN_OWNER = 2, /* accept a ring that another user owns */
	/* With READ_ONLY: accept any user's ring, and read one that others may write as it stands
	 * now, into private memory. They could shorten its file: a mapping would end this process
	 * then (SIGBUS). Payload reads as zeros, and so do more than 64 MB of the table's entries. */
	SHMRING_FOREIGN_COPY = 4,
};

/* A named ring is the file /dev/shm/shmring.NAME; all others are known by their
 * paths. This is room for the longest path of a named ring: */
#define SHMRING_PATH_BYTES 256

/* The path of the ring with this name: 1 to 200 of the characters A-Z a-z 0-9 . _ -
 * and none of . and - at the beginning; SHMRING_E_INVALID for others. */
SHMRING_API int shmring_path_of(const char *name, char *path, size_t size);

/* Makes a ring at `path` and attaches to it; with `ring` NULL it only makes it. The
 * finished file gets its name in one step: a ring that is found can be used, and a
 * creator that is killed leaves none. SHMRING_E_EXISTS if `path` exists; it stays
 * unchanged. The caller owns *ring until shmring_close(). */
SHMRING_API int shmring_create(const char *path, const struct shmring_options *options, shmring **ring);

/* Maps the ring at `path` after checking all of its header against the file.
 * `flags` of enum shmring_attach_flags; SHMRING_E_INVALID for others.
 * The caller owns *ring until shmring_close(). */
SHMRING_API int shmring_attach(const char *path, uint32_t flags, shmring **ring);

/* Attaches to the ring at `path`, or makes it if there is none. Several processes
 * may call this at once; an existing ring does not change. */
SHMRING_API int shmring_open_or_create(const char *path, const struct shmring_options *options, shmring **ring);

/* Gives up the handle. Its producers and consumers must have been closed. */
SHMRING_API void shmring_close(shmring *ring);

SHMRING_API void shmring_get_info(const shmring *ring, struct shmring_info *info);

/* Two sequences: the next to be claimed, and the lowest that is still held. */
SHMRING_API uint64_t shmring_claimed(const shmring *ring);
SHMRING_API uint64_t shmring_floor(const shmring *ring);

/* Clears away dead participants: aborts their open claims, and makes their leases
 * ready for redelivery. *count (may be NULL) is the number of dead participants.
 * SHMRING_CONTENDED if another process is recovering now. */
SHMRING_API int shmring_recover(shmring *ring, unsigned *count);

/* Unlinks the ring at `path`; with `uuid` (of shmring_get_info) only that ring.
 * Attached processes continue to use it. Damaged rings and rings of another version
 * are unlinked too; any other file stays: SHMRING_E_NOT_A_RING. `remove` removes
 * the name and returns a status; NULL: unlink(2). */
SHMRING_API int shmring_unlink(const char *path, const uint8_t uuid[16],
			       int (*remove)(const char *path, void *context), void *context);

/* Unlinks the ring at `path` if no participant lives, and one has died here or the
 * ring is temporary; also the draft at `path` of a ring whose creator was killed
 * (docs/layout.md). Returns 1 if it was unlinked, 0 if not (a participant lives, all
 * have closed it in order, or there is no ring). Other files stay, and so does a ring
 * without a living participant in which rubbish stands for some: SHMRING_E_DAMAGED. */
SHMRING_API int shmring_reap(const char *path);

/* Returns what shmring_reap() would return now, and removes nothing. */
SHMRING_API int shmring_reapable(const char *path);

/* --- producers ---------------------------------------------------------- */

typedef struct shmring_producer shmring_producer;

SHMRING_API int shmring_producer_open(shmring *ring, const char *name, shmring_producer **producer);

/* Aborts an open claim and leaves the ring. */
SHMRING_API void shmring_producer_close(shmring_producer *producer);

/* The kind of a message, which travels with it. Numbers from SHMRING_KIND_USER to
 * 255 are for the ring's users. Of the lower numbers only these four may be
 * published, and only for messages that are what the kind says: else
 * SHMRING_E_INVALID. */
enum shmring_kind {
	SHMRING_KIND_BYTES = 0,
	SHMRING_KIND_END = 2, /* ends a run of the stream for every consumer of every branch; length 0 */
	SHMRING_KIND_ARROW_BATCH = 3, /* one encapsulated IPC record batch message of the ring's schema */
	SHMRING_KIND_ARROW_STREAM = 4, /* encapsulated IPC messages: schema, dictionaries, batch */
	SHMRING_KIND_USER = 16,
};

/* Claims `slots` contiguous slots; returns the first sequence, or a negative
 * status. One claim at a time: publish or abort it before the next one. */
SHMRING_API int64_t shmring_next(shmring_producer *producer, uint32_t slots);

/* Publishes the open claim as one message of `length` bytes at `shift`. */
SHMRING_API int shmring_publish(shmring_producer *producer, uint32_t length, uint8_t kind, uint8_t shift);

/* Publishes the open claim, up to and including `last`, as one-slot messages with
 * these `lengths` (all of `length` if it is NULL). Slots beyond `last` are
 * aborted. */
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
 * them or none, also if this process is killed. Their slots are the whole claim. */
SHMRING_API int shmring_publish_parts(shmring_producer *producer, const struct shmring_part *parts,
				      uint32_t count);

/* Gives the open claim up: readers step over it. */
SHMRING_API int shmring_abort(shmring_producer *producer);

/* Single-producer rings: the sequence behind the last one that can be claimed now. */
SHMRING_API int64_t shmring_producer_available(shmring_producer *producer);

/* Copies `length` bytes into a new message. *message_id is its number; may be NULL. */
SHMRING_API int shmring_push(shmring_producer *producer, const void *data, size_t length, uint8_t kind,
			     uint64_t *message_id);

/* Publishes `count` one-slot messages by one store. Row i begins at
 * rows + i * stride and has lengths[i] (or `length`) bytes. *message_id is the
 * number of the first one; may be NULL. */
SHMRING_API int shmring_push_many(shmring_producer *producer, const void *rows, size_t stride, uint32_t count,
				  const uint32_t *lengths, uint32_t length, uint64_t *message_id);

/* The slots that a message of `length` bytes takes; with `aligned` also if its
 * first byte has to lie on a 64-byte boundary, wherever its slot begins. */
SHMRING_API uint64_t shmring_slots_for(uint64_t length, bool aligned);

/* The memory of slot `sequence`. */
SHMRING_API void *shmring_slot(const shmring *ring, uint64_t sequence);

/* --- branches ----------------------------------------------------------- */

enum shmring_start {
	SHMRING_EARLIEST = 0, /* with the messages still held, also of an earlier run, with its end */
	SHMRING_LATEST = 1, /* after the last message that is published now */
	SHMRING_AT_SEQUENCE = 2, /* with the first message at or after it */
};

struct shmring_branch_options {
	uint8_t start; /* enum shmring_start; ignored for an existing branch */
	uint64_t sequence;
	bool exclusive; /* one consumer only: SC */
	bool ephemeral; /* dropped with its last consumer */
	bool drop_oldest; /* loses its oldest messages instead of holding producers; leases are kept */
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
	uint64_t ends; /* number of ends of the stream that the branch has reached */
	uint32_t consumers;
	uint32_t orphans; /* seats of consumers that died or handed back, whose leases await redelivery */
};

/* Makes the branch unless it exists. *id is its number; may be NULL. Only shmring_join makes an ephemeral
 * branch, which never exists without a consumer. */
SHMRING_API int shmring_subscribe(shmring *ring, const char *name, const struct shmring_branch_options *options,
				  uint32_t *id);

/* Drops the branch: it no longer holds the producers, and its consumers' next take
 * returns SHMRING_E_DROPPED. They keep their leases until they release them. */
SHMRING_API int shmring_unsubscribe(shmring *ring, const char *name);

/* Makes branch `id` follow all of `upstream` (bit i: branch i), in addition to those
 * it follows: it sees what they have released. SHMRING_E_INVALID for a cycle. */
SHMRING_API int shmring_follow(shmring *ring, uint32_t id, uint64_t upstream);

/* Makes branch `id` stop following these; with none left it follows the producer. */
SHMRING_API int shmring_unfollow(shmring *ring, uint32_t id, uint64_t upstream);

SHMRING_API int shmring_find_branch(const shmring *ring, const char *name, uint32_t *id);

/* SHMRING_E_NO_BRANCH if there is none with this number. */
SHMRING_API int shmring_branch_info(const shmring *ring, uint32_t id, struct shmring_branch_info *info);

/* --- consumers ------------------------------------------------------------ */

typedef struct shmring_consumer shmring_consumer;

/* Joins `branch`; makes it in the same step if it does not exist. If consumers of
 * the branch have died, a new consumer gets their unreleased messages. */
SHMRING_API int shmring_join(shmring *ring, const char *branch, const struct shmring_branch_options *options,
			     const char *name, shmring_consumer **consumer);

/* The branch this consumer has joined. */
SHMRING_API uint32_t shmring_consumer_branch(const shmring_consumer *consumer);

/* The lowest sequence this consumer holds; UINT64_MAX if it holds nothing. */
SHMRING_API uint64_t shmring_consumer_hold(const shmring_consumer *consumer);

/* Releases everything that is still held and leaves the branch. If the consumer has
 * handed messages back that wait to be delivered, it does as shmring_consumer_abandon(). */
SHMRING_API void shmring_consumer_close(shmring_consumer *consumer);

struct shmring_message {
	uint64_t message_id;
	uint64_t time; /* ns since 1970; 0 if the ring keeps no time */
	const void *data;
	uint32_t length;
	uint32_t slots;
	uint32_t checksum; /* CRC32C; 0 if the ring keeps none */
	uint8_t kind;
};

/* A hold on [first, end): producers do not overwrite these slots until they are
 * released. Aborted runs may lie between the messages. */
struct shmring_lease {
	uint64_t first;
	uint64_t end;
	uint32_t messages;
	uint8_t redelivered; /* how often it was delivered before, to consumers that died or handed it back: 0
				for the first time, 255 for 255 times and more */
};

/* Takes up to `max_messages` consecutive messages, in at most `max_slots` slots (it
 * takes one message of any size).
 *
 * SHMRING_ENDED: the branch has reached an end marker; nothing is held. Each
 * consumer that had joined by then gets this answer once, after the messages that it
 * took before and before any message behind the marker. Markers side by side, with
 * nothing between them, are one end. */
SHMRING_API int shmring_take(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
			     struct shmring_lease *lease);

/* Takes one message and reads it: shmring_take() and shmring_read() in one. It releases a
 * damaged message, so that the next call continues after it. */
SHMRING_API int shmring_take_one(shmring_consumer *consumer, struct shmring_lease *lease,
				 struct shmring_message *message);

/* For programs that pass end markers on: a marker that this consumer reaches first is
 * a message of kind SHMRING_KIND_END, in a lease of its own. For markers that other
 * consumers have reached first, the consumer still gets SHMRING_ENDED. */
SHMRING_API void shmring_consumer_take_ends(shmring_consumer *consumer, bool as_messages);

/* Reports to this consumer the ends since the branch had reached `since` of them
 * (shmring_branch_info), as if the consumer had joined then: for a program that continues
 * after another consumer has failed. Call it once, before the first take. */
SHMRING_API void shmring_consumer_hear_ends(shmring_consumer *consumer, uint64_t since);

/* Leaves as if this process had died: the branch delivers the consumer's messages
 * again, to its other consumers or to the next one that joins. */
SHMRING_API void shmring_consumer_abandon(shmring_consumer *consumer);

/* Reads the message at or after `*position` in a range that the caller holds, and
 * moves *position behind it. SHMRING_UNAVAILABLE at `end`. Every length is
 * checked before it is used: SHMRING_E_DAMAGED. */
SHMRING_API int shmring_read(const shmring *ring, uint64_t *position, uint64_t end,
			     struct shmring_message *message);

/* If [first, end), which the caller holds, is one array of rows of
 * SHMRING_SLOT_BYTES with one message each: returns its first row. NULL if it is
 * not, or if messages have checksums to compare. Reads one entry for each run. */
SHMRING_API const void *shmring_rows(const shmring *ring, uint64_t first, uint64_t end);

/* Where the slots lie in this process, twice end to end, until shmring_close(): what a
 * GPU's runtime is to pin, as one region. A message may lie across the two. */
SHMRING_API void *shmring_memory(const shmring *ring, size_t *bytes);

/* Measures, without taking, how far a take from `from` up to `limit` would reach:
 * for a branch that takes messages only when they are done. The message at `from`
 * must not be released yet. */
SHMRING_API int shmring_measure(const shmring *ring, uint64_t from, uint64_t limit, uint32_t max_messages,
				uint64_t max_slots, uint64_t *end, uint32_t *messages);

/* Releases [first, end); in any order, from any thread that is alone with this
 * consumer. SHMRING_E_INVALID, without any change, if a part of it is not held or if
 * it begins or ends inside a message. */
SHMRING_API int shmring_release(shmring_consumer *consumer, uint64_t first, uint64_t end);

struct shmring_copy {
	void *at;
	size_t bytes;
};

/* Releases [first, end), which must be held, and leaves a copy of it in memory of this process, at the same
 * addresses: its readers read on, and producers get the slots. `at` is the address of one of its messages, as
 * shmring_read() has given it. Messages that are read later lie in another map of the slots, so shmring_memory()
 * changes. No other thread may use the ring's handle or its consumers meanwhile. On an error the range stays
 * held: SHMRING_E_INVALID as for shmring_release; SHMRING_E_NO_MEMORY: no memory, or no addresses. */
SHMRING_API int shmring_release_copied(shmring_consumer *consumer, uint64_t first, uint64_t end, const void *at,
				       struct shmring_copy *copy);

/* Frees a copy that nobody reads any more. */
SHMRING_API void shmring_drop_copy(shmring *ring, const struct shmring_copy *copy);

/* Hands [first, end) back, which must be held: the branch delivers it again, marked as
 * redelivered, to the next consumer that takes, or to this one. This needs a free seat: if
 * the ring has no room for another participant, this consumer's next take gets the messages,
 * or another consumer if this one leaves before. For branches that follow this one the
 * messages are not released. On an error they stay held: SHMRING_E_INVALID as for
 * shmring_release; SHMRING_CONTENDED: another process is joining or recovering, or was
 * stopped while it did so: try again; SHMRING_E_LEASES: no room to keep the pieces on both
 * sides. */
SHMRING_API int shmring_nack(shmring_consumer *consumer, uint64_t first, uint64_t end);

/* Messages that were delivered max_deliveries times, 1 to 255, are not delivered again: a take pushes them with
 * `producer`, of another ring, and releases them. `producer` is this consumer's alone, and stays open for as
 * long. Before each push, if that ring has no branch that keeps messages (one that is neither ephemeral nor drops
 * the oldest), "default" is made, or "dead-letters". A consumer that is killed in between pushes a message twice,
 * and loses none. If the push fails, the take does (SHMRING_E_NO_SPACE: that ring is full; SHMRING_E_NOT_FOUND:
 * its file was removed), the message stays, and the next take tries again. Messages that were delivered before
 * come one at a time. End markers are delivered for ever. SHMRING_E_INVALID for the consumer's own ring, for one
 * without its Arrow schema, and for one with fewer slots. Call it before the first take. */
SHMRING_API int shmring_consumer_dead_letters(shmring_consumer *consumer, uint32_t max_deliveries,
					      shmring_producer *producer);

/* Whether to try shmring_nack() again, which has returned SHMRING_CONTENDED since `since_ns`
 * (CLOCK_MONOTONIC): for 5 s; only for a moment if this process has waited 5 s for the same ring
 * in vain before, and has not succeeded since. If not, the error text says who has the lock. The
 * messages stay held: closing the consumer hands them back. */
SHMRING_API bool shmring_nack_again(const shmring_consumer *consumer, int64_t since_ns);

/* Exclusive branches: all slots from the branch's position up to this sequence hold
 * one message each, until the branch has released them. The range ends before the
 * first aborted claim, end marker or message of several slots, and before messages that
 * upstream branches have not released. With drop_oldest it is the branch's position. */
SHMRING_API uint64_t shmring_consumer_available(shmring_consumer *consumer);

/* The sequence that takes would reach now: behind the last message of any size. */
SHMRING_API uint64_t shmring_consumer_reach(shmring_consumer *consumer);

/* After SHMRING_OVERRUN: the lost sequences [*first, *end). */
SHMRING_API void shmring_consumer_overrun(const shmring_consumer *consumer, uint64_t *first, uint64_t *end);

/* --- waiting ------------------------------------------------------------ */

/* CHANGE: a new wait strategy */
enum shmring_wait_strategy {
	SHMRING_WAIT_DEFAULT = 0, /* spin for a short while, then sleep on a futex */
	SHMRING_WAIT_SPIN = 1,
	SHMRING_WAIT_YIELD = 2,
	SHMRING_WAIT_SLEEP = 3, /* nanosleep: polls, never wakes others */
	SHMRING_WAIT_FUTEX = 4,
	SHMRING_WAIT_STRATEGIES /* their number */
};

/* How a wait looks again. */
enum shmring_look {
	SHMRING_LOOK_SPIN, /* at once */
	SHMRING_LOOK_YIELD, /* when others have had the processor */
	SHMRING_LOOK_NAP, /* after a nap */
	SHMRING_LOOK_NEVER /* it sleeps until it is woken */
};

struct shmring_wait_strategy_info {
	const char *name; /* as Python and the command line have it */
	enum shmring_look look; /* before it sleeps, if it does */
	bool sleeps; /* on a futex, until it is woken */
};

/* Describes a strategy; NULL if there is none of this number. */
SHMRING_API const struct shmring_wait_strategy_info *shmring_describe_wait(uint8_t strategy);

/* These wait until another try may succeed, and then return SHMRING_OK. They return
 * SHMRING_AGAIN when a signal arrives, and after a time slice, so that the caller can
 * handle signals. The slice is 50 ms at most, or if many sleep on the ring about 20 ms for
 * each, but not more than the time waited so far. One of the waiters looks for dead
 * participants every 50 ms. If the ring's file was removed (not by shmring_unlink()) and made anew, or
 * nobody is attached to what is waited for, a wait of more than a second ends with SHMRING_OK, and the
 * next try returns SHMRING_E_NOT_FOUND. A producer that never waits gets this within
 * a round of the ring. deadline_ns is on CLOCK_MONOTONIC, INT64_MAX is never; at the deadline they return
 * SHMRING_TIMEOUT. After SHMRING_AGAIN the caller may wait again without a try: the next wait misses nothing. */
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
 * of more than that it looks at each every few milliseconds. A signal whose handler has SA_RESTART does
 * not end a sleep on several, the bell included: where the process has such a handler, none exceeds 50 ms.
 * bell : NULL, or a word that ends the wait, SHMRING_AGAIN, once it is no longer `rung`
 * Who has been told that a consumer is ready takes from it, waits again, or declines. */
SHMRING_API int shmring_wait_any(struct shmring_wait *waits, uint32_t count, const uint32_t *bell, uint32_t rung,
				 int64_t deadline_ns, uint8_t strategy);
/* Adds one to the word, and wakes who waits with it. */
SHMRING_API void shmring_ring_bell(uint32_t *bell);
/* After a wait: nothing is going to be taken, though there was something; another consumer
 * of the branch may have it at once, which slept meanwhile. NULL is nobody. */
SHMRING_API void shmring_consumer_decline(shmring_consumer *consumer);

/* While `on`, waits of this producer or consumer return SHMRING_AGAIN at once, also those
 * under way. Any thread and any signal handler may call this, to close a handle in which
 * another thread waits, or to get that thread's attention. */
SHMRING_API void shmring_producer_interrupt(shmring_producer *producer, bool on);
SHMRING_API void shmring_consumer_interrupt(shmring_consumer *consumer, bool on);

/* Waits in the same way until a branch has released everything below `sequence`, e.g.
 * until a journal has it on disk. SHMRING_E_NO_BRANCH if the branch is gone, or if a
 * branch that was made later begins behind `sequence` - 1. */
SHMRING_API int shmring_wait_released(shmring *ring, uint32_t branch, uint64_t sequence, int64_t deadline_ns,
				      uint8_t strategy);

/* --- observing ---------------------------------------------------------- */

/* CHANGE: a new counter of participants */
struct shmring_participant_info {
	uint32_t seat;
	uint32_t state; /* 1 in use, 2 dead with leases to deliver again */
	uint32_t role; /* 0 attached, 1 producer, 2 consumer */
	uint32_t branch;
	uint32_t pid;
	bool alive; /* the kernel's answer; true also for own seats seen by a read-only handle */
	bool stopped; /* alive, but stopped by SIGSTOP or a debugger */
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
	uint64_t redelivered; /* of the messages that it took: those that were taken before */
	uint64_t synced_ns; /* see shmring_count_synced() */
	uint64_t most_delivered; /* of what it holds, what was delivered most often: the first, UINT64_MAX: none */
	uint32_t deliveries; /* how often; 256 for more than 255 */
};

/* All of it belongs to one participant, also where the seat changes hands meanwhile.
 * SHMRING_UNAVAILABLE: the seat is free. */
SHMRING_API int shmring_participant_info(const shmring *ring, uint32_t seat,
					 struct shmring_participant_info *info);

enum shmring_holder_kind {
	SHMRING_HELD_BY_NOBODY = 0,
	SHMRING_HELD_BY_CLAIM = 1, /* a producer's claim is open */
	SHMRING_HELD_BY_LEASE = 2, /* a consumer has taken it and not released it */
	SHMRING_HELD_BY_CONSUMERS = 3, /* the branch has living consumers, none of which has taken it */
	SHMRING_HELD_BY_NO_CONSUMER = 4, /* the branch has no living consumer */
};

/* The holder of the lowest sequence that is still held. */
struct shmring_holder {
	uint8_t kind; /* enum shmring_holder_kind */
	bool alive; /* the participant */
	bool stopped; /* as in struct shmring_participant_info */
	int32_t branch; /* -1: none, a claim is in the way */
	int32_t seat; /* -1: no participant */
	uint32_t pid;
	uint32_t consumers; /* living ones of the branch; counted if they hold nothing */
	uint64_t sequence;
	uint64_t slots; /* from this sequence to the producers */
	int64_t age_ns; /* since that message was published; -1: the ring cannot say */
	char branch_name[SHMRING_NAME_BYTES];
	char name[SHMRING_NAME_BYTES]; /* of the participant, or of the first of several consumers */
};

/* Finds the participant or branch for which producers on a full ring wait. Works on a
 * read-only ring. SHMRING_UNAVAILABLE: nothing is held. */
SHMRING_API int shmring_find_holder(const shmring *ring, struct shmring_holder *holder);

/* These describe the holder in a sentence for an error: who holds what since when, and
 * what to do. The holder for which producers wait; the one for which followers of this
 * branch wait; the one for which this consumer waits. `text` is cut to `size` bytes. */
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
 * of the message that begins there. Works read-only on live, dead and damaged
 * rings, and never returns a torn message. */
SHMRING_API int shmring_table_row(const shmring *ring, uint64_t index, struct shmring_row *row, void *message,
				  size_t capacity);

/* Counts the messages that a branch has still to take, up to the first claim that is not
 * committed, without end markers, and the messages that it delivers again, because a consumer died
 * with them or handed them back. Exact up to 65,536 steps, where a run of one-slot messages
 * that was published at once is one step; the rest is estimated from these. Works on a
 * read-only ring. SHMRING_E_NO_BRANCH if there is none with this number. */
SHMRING_API int shmring_count_waiting(const shmring *ring, uint32_t branch, uint64_t *messages);

/* Counts a message that was dropped because the ring was full. */
SHMRING_API void shmring_count_dropped(shmring_producer *producer);

/* Counts the time in which this consumer wrote messages to disk, for those who look on. */
SHMRING_API void shmring_count_synced(shmring_consumer *consumer, uint64_t ns);

/* CRC32C (Castagnoli) of `length` bytes, continuing from `crc` (0 to begin). */
SHMRING_API uint32_t shmring_crc32c(uint32_t crc, const void *data, size_t length);

#ifdef __cplusplus
}
#endif

#endif
