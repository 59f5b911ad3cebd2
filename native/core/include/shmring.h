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

#define SHMRING_VERSION "0.1.0" /* the builds of the wheel and of the jar read the version from this line */

#define SHMRING_SLOT_BYTES 300
#define SHMRING_SLOT_FILE_BYTES 332 /* file bytes per slot: 300 of payload and 32 of control data */
#define SHMRING_MAX_BRANCHES 64
#define SHMRING_MAX_PARTICIPANTS 248 /* limit of attached rings, producers and consumers together */
#define SHMRING_NAME_BYTES 56 /* room for a participant's or a branch's name and its terminating zero */

enum shmring_status {
	SHMRING_OK = 0,
	SHMRING_UNAVAILABLE = -1, /* the ring is full, or the branch is empty */
	SHMRING_CONTENDED = -2, /* lost a race: try again */
	SHMRING_AGAIN = -3, /* a wait's time slice is over, or a signal came: wait again */
	SHMRING_TIMEOUT = -4,
	SHMRING_OVERRUN = -5, /* the branch lost messages, see shmring_consumer_overrun */
	SHMRING_ENDED = -6, /* the stream has ended; the next take continues after the end */

	/* CHANGE: edit this for a new error */
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
	SHMRING_CLOCK_COARSE = 0, /* a clock that the kernel advances every 1 to 4 ms; reading it takes 3 ns */
	SHMRING_CLOCK_PRECISE = 1, /* the precise clock; reading it takes about 20 ns */
	SHMRING_CLOCK_OFF = 2, /* messages get no time of publication */
};

/* CHANGE: edit this for a new option of a ring */
struct shmring_options {
	uint64_t slots; /* power of two, at least 1024 */
	uint32_t participants; /* number of seats; 0 means 128; at most SHMRING_MAX_PARTICIPANTS */
	bool single_producer; /* refuse a second living producer */
	bool checksum; /* keep a CRC32C of every message */
	bool prefault; /* attaching maps every page at once */
	bool temporary; /* shmring_reap() removes a ring that no process is attached to; the creator must attach */
	uint8_t clock; /* enum shmring_clock */
	uint32_t mode; /* permissions of the file; 0 means 0600 */
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
	const void *schema; /* Arrow schema, in the mapping; NULL: the ring has no schema */
	uint64_t schema_bytes;
};

enum shmring_attach_flags {
	SHMRING_READ_ONLY = 1, /* the handle only observes (info, stat, table): it is no participant */
	SHMRING_FOREIGN_OWNER = 2, /* accept a ring that another user owns */
	/* With READ_ONLY: accept any user's ring. If other users may write its file, copy the ring as it
	 * stands now into private memory. Otherwise another user could shorten the file, and the next read of
	 * the mapping would end this process (SIGBUS). The copy has zeros in place of payload, and also in place
	 * of the messages' control entries if these entries take more than 64 MB. */
	SHMRING_FOREIGN_COPY = 4,
};

/* Bytes of the longest path of a named ring. A named ring is the file /dev/shm/shmring.NAME;
 * all other rings are known by their paths. A path has to end in the name of a file: all functions return
 * SHMRING_E_INVALID for "a/", "a/." and "a/..". */
#define SHMRING_PATH_BYTES 256

/* Writes the path of the ring with this name to `path`. A name has 1 to 200 of the characters
 * A-Z a-z 0-9 . _ - and does not begin with . or -; SHMRING_E_INVALID for other names. */
SHMRING_API int shmring_path_of(const char *name, char *path, size_t size);

/* Makes a ring at `path` and attaches to it; if `ring` is NULL, only makes the ring. The
 * finished file gets its name in one step: a ring that can be found can be used, and a
 * killed creator leaves no file at `path`. SHMRING_E_EXISTS if `path` exists; that file stays
 * unchanged. The caller owns *ring until shmring_close(). */
SHMRING_API int shmring_create(const char *path, const struct shmring_options *options, shmring **ring);

/* Maps the ring at `path` after checking all of its header against the file.
 * `flags` combines values of enum shmring_attach_flags; SHMRING_E_INVALID for other bits.
 * The caller owns *ring until shmring_close(). */
SHMRING_API int shmring_attach(const char *path, uint32_t flags, shmring **ring);

/* Attaches to the ring at `path`, or makes it if there is none. Several processes may call this at once. An
 * existing ring does not change: SHMRING_E_EXISTS if it has fewer slots than `options` say. */
SHMRING_API int shmring_open_or_create(const char *path, const struct shmring_options *options, shmring **ring);

/* Gives up the handle. Its producers and consumers must have been closed. */
SHMRING_API void shmring_close(shmring *ring);

SHMRING_API void shmring_get_info(const shmring *ring, struct shmring_info *info);

/* shmring_claimed() returns the next sequence that a producer will claim, shmring_floor() the lowest sequence that
 * is still held. */
SHMRING_API uint64_t shmring_claimed(const shmring *ring);
SHMRING_API uint64_t shmring_floor(const shmring *ring);

/* Clears away dead participants: aborts their open claims, and makes their leases
 * ready for redelivery. *count (may be NULL) is the number of dead participants.
 * SHMRING_CONTENDED if another process is recovering now. */
SHMRING_API int shmring_recover(shmring *ring, unsigned *count);

/* Unlinks the ring at `path`; if `uuid` (from shmring_get_info) is not NULL, only if the ring has this uuid.
 * Attached processes continue to use it. Damaged rings and rings of another version
 * are unlinked too; any other file stays: SHMRING_E_NOT_A_RING. The function `remove`
 * removes the name and returns a status; NULL means unlink(2). */
SHMRING_API int shmring_unlink(const char *path, const uint8_t uuid[16],
			       int (*remove)(const char *path, void *context), void *context);

/* Unlinks the ring at `path` if it has no living participant, and a participant has died or the
 * ring is temporary. Also unlinks the draft at `path` of a ring whose creator was killed
 * (docs/layout.md). Returns 1 if the file was unlinked, 0 if not: a participant lives, or all
 * participants of a ring that is not temporary have closed their handles, or there is no ring. Other files
 * stay. A ring without a living participant, but with a damaged seat, stays, too: SHMRING_E_DAMAGED. */
SHMRING_API int shmring_reap(const char *path);

/* Returns what shmring_reap() would return now, and removes nothing. */
SHMRING_API int shmring_reapable(const char *path);

/* --- producers ---------------------------------------------------------- */

typedef struct shmring_producer shmring_producer;

SHMRING_API int shmring_producer_open(shmring *ring, const char *name, shmring_producer **producer);

/* Aborts an open claim and leaves the ring. */
SHMRING_API void shmring_producer_close(shmring_producer *producer);

/* The kind of a message, which travels with it. Numbers from SHMRING_KIND_USER to
 * 255 are for the ring's users. Below SHMRING_KIND_USER only the four kinds here may be
 * published, and only with messages of the format that the kind names: else
 * SHMRING_E_INVALID. */
enum shmring_kind {
	SHMRING_KIND_BYTES = 0,
	SHMRING_KIND_END = 2, /* ends the producer's stream for every consumer of every branch; length 0 */
	SHMRING_KIND_ARROW_BATCH = 3, /* one encapsulated IPC record batch message of the ring's schema */
	SHMRING_KIND_ARROW_STREAM = 4, /* an Arrow IPC stream: schema, dictionaries (if any) and one batch */
	SHMRING_KIND_USER = 16,
};

/* Claims `slots` contiguous slots; returns the first sequence, or a negative
 * status. One claim at a time: publish or abort it before the next one. */
SHMRING_API int64_t shmring_next(shmring_producer *producer, uint32_t slots);

/* Publishes the open claim as one message of `length` bytes, which begins at byte `shift` of
 * the claim's first slot. */
SHMRING_API int shmring_publish(shmring_producer *producer, uint32_t length, uint8_t kind, uint8_t shift);

/* Publishes the slots of the open claim up to and including `last` as one-slot messages.
 * `lengths` has the length of each; if it is NULL, each has `length` bytes. Slots beyond
 * `last` are aborted. In a single-producer ring, `last` may lie beyond the claim, below
 * shmring_producer_available(): the claim grows up to `last`. */
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
 * them or none, also if this process is killed. The slots of the parts together must be the
 * whole claim. */
SHMRING_API int shmring_publish_parts(shmring_producer *producer, const struct shmring_part *parts,
				      uint32_t count);

/* Gives up the open claim: readers step over its slots. */
SHMRING_API int shmring_abort(shmring_producer *producer);

/* For single-producer rings: returns the first sequence that cannot be claimed yet. */
SHMRING_API int64_t shmring_producer_available(shmring_producer *producer);

/* Copies `length` bytes into a new message. Stores the message's number in *message_id unless
 * `message_id` is NULL. */
SHMRING_API int shmring_push(shmring_producer *producer, const void *data, size_t length, uint8_t kind,
			     uint64_t *message_id);

/* Publishes `count` one-slot messages by one store. Row i begins at
 * rows + i * stride and has lengths[i] bytes, or `length` bytes if `lengths` is NULL. Stores
 * the number of the first message in *message_id unless `message_id` is NULL. */
SHMRING_API int shmring_push_many(shmring_producer *producer, const void *rows, size_t stride, uint32_t count,
				  const uint32_t *lengths, uint32_t length, uint64_t *message_id);

/* Returns the number of slots for a message of `length` bytes. With `aligned`, the slots have
 * room to move the first byte to a 64-byte boundary, wherever the first slot begins. */
SHMRING_API uint64_t shmring_slots_for(uint64_t length, bool aligned);

/* The memory of slot `sequence`. */
SHMRING_API void *shmring_slot(const shmring *ring, uint64_t sequence);

/* --- branches ----------------------------------------------------------- */

enum shmring_start {
	SHMRING_EARLIEST =
	    0, /* begin with the oldest message still held; the branch also gets the end markers after it */
	SHMRING_LATEST = 1, /* begin after the last message that is published now */
	SHMRING_AT_SEQUENCE = 2, /* begin with the first message at or after shmring_branch_options.sequence */
};

struct shmring_branch_options {
	uint8_t start; /* enum shmring_start; ignored for an existing branch */
	uint64_t sequence;
	bool exclusive; /* allows one consumer at a time ("SC" in the docs) */
	bool ephemeral; /* the branch is dropped when its last consumer leaves */
	bool drop_oldest; /* instead of waiting, producers overwrite the branch's oldest messages not on lease */
	uint64_t upstream; /* bit i: follow branch i; no bit set: follow the producers */
};

struct shmring_branch_info {
	uint32_t id;
	char name[SHMRING_NAME_BYTES];
	bool exclusive;
	bool ephemeral;
	bool drop_oldest;
	uint64_t upstream;
	uint64_t position; /* next sequence to be taken */
	uint64_t released; /* the branch has released everything below this sequence */
	uint64_t ends; /* number of ends of the stream that the branch has reached */
	uint32_t consumers;
	uint32_t orphans; /* seats with leases to redeliver, of consumers that died or handed messages back */
};

/* Makes the branch unless it exists. Stores the branch's number in *id unless `id` is NULL. Does not make an
 * ephemeral branch, because an ephemeral branch never exists without a consumer: shmring_join makes it. */
SHMRING_API int shmring_subscribe(shmring *ring, const char *name, const struct shmring_branch_options *options,
				  uint32_t *id);

/* Drops the branch: it no longer holds up the producers, and the next take of each of its
 * consumers returns SHMRING_E_DROPPED. The consumers keep their leases until they release them. */
SHMRING_API int shmring_unsubscribe(shmring *ring, const char *name);

/* Makes branch `id` follow all branches of `upstream` (bit i: branch i), in addition to those
 * that it follows already: it sees only messages that all of them have released.
 * SHMRING_E_INVALID for a cycle. */
SHMRING_API int shmring_follow(shmring *ring, uint32_t id, uint64_t upstream);

/* Makes branch `id` stop following the branches of `upstream`. A branch that follows no other
 * branch follows the producers. */
SHMRING_API int shmring_unfollow(shmring *ring, uint32_t id, uint64_t upstream);

SHMRING_API int shmring_find_branch(const shmring *ring, const char *name, uint32_t *id);

/* Describes branch `id`. SHMRING_E_NO_BRANCH if no branch has this number. */
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
 * handed messages back that wait to be delivered, it leaves like shmring_consumer_abandon(). */
SHMRING_API void shmring_consumer_close(shmring_consumer *consumer);

struct shmring_message {
	uint64_t message_id;
	uint64_t time; /* time of publication in ns since 1970; 0 if the ring keeps no times */
	const void *data;
	uint32_t length;
	uint32_t slots;
	uint32_t checksum; /* CRC32C; 0 if the ring keeps no checksums */
	uint8_t kind;
};

/* A hold on [first, end): producers do not overwrite these slots until they are
 * released. Aborted runs may lie between the messages. */
struct shmring_lease {
	uint64_t first;
	uint64_t end;
	uint32_t messages;
	uint8_t redelivered; /* earlier deliveries, to consumers that died or handed the messages back; 255 means
				255 or more */
};

/* Takes up to `max_messages` consecutive messages, in at most `max_slots` slots. The first
 * message is taken even if it alone has more slots.
 *
 * SHMRING_ENDED: the branch has reached an end marker, and no message was taken. Each
 * consumer that had joined by then gets this answer once, before it takes any message
 * behind the marker. Two markers without a message between them count as one end if the
 * producer of the second marker began its stream before the first marker. */
SHMRING_API int shmring_take(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
			     struct shmring_lease *lease);

/* Takes one message and reads it: shmring_take() and shmring_read() in one. It releases a
 * damaged message, so that the next call continues after it. */
SHMRING_API int shmring_take_one(shmring_consumer *consumer, struct shmring_lease *lease,
				 struct shmring_message *message);

/* Delivers end markers as messages, for programs that pass them on: a marker that this consumer
 * reaches first is a message of kind SHMRING_KIND_END, in a lease of its own. For markers that
 * other consumers have reached first, the consumer still gets SHMRING_ENDED. */
SHMRING_API void shmring_consumer_take_ends(shmring_consumer *consumer, bool as_messages);

/* Makes this consumer report all ends of the stream except the branch's first `since` ends, as if the
 * consumer had joined when the branch had reached that number (`ends` of shmring_branch_info()). For a
 * program that continues after another consumer has failed. Call it once, before the first take. */
SHMRING_API void shmring_consumer_hear_ends(shmring_consumer *consumer, uint64_t since);

/* Leaves as if this process had died: the branch delivers the consumer's messages
 * again, to its other consumers or to the next one that joins. */
SHMRING_API void shmring_consumer_abandon(shmring_consumer *consumer);

/* Reads the message at or after `*position` in a range that the caller holds, and
 * moves *position behind it. SHMRING_UNAVAILABLE at `end`. SHMRING_E_DAMAGED if a
 * length cannot be right: every length is checked before it is used. */
SHMRING_API int shmring_read(const shmring *ring, uint64_t *position, uint64_t end,
			     struct shmring_message *message);

/* Returns the first slot of [first, end), which the caller holds, if each slot there is one
 * message of SHMRING_SLOT_BYTES, so that the range is one array of rows. Returns NULL for
 * any other range, and if messages have checksums to compare. Reads one control entry for each
 * run, not for each message. */
SHMRING_API const void *shmring_rows(const shmring *ring, uint64_t first, uint64_t end);

/* Returns the memory of the slots in this process, valid until shmring_close(). The slots are mapped
 * twice, back to back, and *bytes counts both mappings: a GPU's runtime has to pin them as one region,
 * because a message may reach from the first mapping into the second. */
SHMRING_API void *shmring_memory(const shmring *ring, size_t *bytes);

/* Measures how far a take from `from` up to `limit` would reach, without taking: for a program
 * that handles messages first and takes them afterwards. The message at `from` must not be
 * released yet. */
SHMRING_API int shmring_measure(const shmring *ring, uint64_t from, uint64_t limit, uint32_t max_messages,
				uint64_t max_slots, uint64_t *end, uint32_t *messages);

/* Releases [first, end). Releases may come in any order, and from any thread, one at a time.
 * SHMRING_E_INVALID, without any change, if a part of the range is not held or if the range
 * begins or ends inside a message. */
SHMRING_API int shmring_release(shmring_consumer *consumer, uint64_t first, uint64_t end);

struct shmring_copy {
	void *at;
	size_t bytes;
};

/* Releases [first, end), which must be held, and leaves a copy of its messages in memory of this process, at the
 * same addresses: readers of the messages go on, and producers get the slots. `at` is the address of one of the
 * messages, from shmring_read(). Messages that are read later lie in another mapping of the slots, so
 * shmring_memory() changes. No other thread may use the ring's handle or its consumers during the call. On an
 * error the range stays held: SHMRING_E_INVALID as for shmring_release; SHMRING_E_NO_MEMORY if there is no memory
 * or no address space. */
SHMRING_API int shmring_release_copied(shmring_consumer *consumer, uint64_t first, uint64_t end, const void *at,
				       struct shmring_copy *copy);

/* Frees a copy that nobody reads any more. */
SHMRING_API void shmring_drop_copy(shmring *ring, const struct shmring_copy *copy);

/* Hands back [first, end), which must be held: the branch delivers the messages again, marked as
 * redelivered, to the next consumer that takes, which may be this one. A free seat keeps the
 * messages meanwhile. If the ring has no free seat, this consumer's next take gets the messages,
 * or another consumer does if this one leaves before. For branches that follow this branch the
 * messages are not released. On an error the messages stay held. SHMRING_E_INVALID: as for
 * shmring_release. SHMRING_CONTENDED: another process is joining or recovering, or was
 * stopped while it did so: try again. SHMRING_E_LEASES: there is no room to record the two
 * pieces of the lease that lie before and behind the range. */
SHMRING_API int shmring_nack(shmring_consumer *consumer, uint64_t first, uint64_t end);

/* Sets aside messages that were delivered max_deliveries times, 1 to 255: a take pushes such a message into
 * another ring with `producer`, and releases it, instead of delivering it again. Only this consumer may use
 * `producer`, which must stay open as long as the consumer is. Before each push, if the other ring has no branch
 * that keeps messages (a branch that is neither ephemeral nor drops the oldest), the take makes the branch
 * "default", or "dead-letters" if "default" exists. A consumer that is killed between push and release pushes a
 * message twice, and loses none. If the push fails, the take fails (SHMRING_E_NO_SPACE: the other ring is full;
 * SHMRING_E_NOT_FOUND: its file was removed), the message stays, and the next take tries again. Takes return
 * redelivered messages one at a time. End markers are delivered without a limit. SHMRING_E_INVALID if the other
 * ring is the consumer's own ring, lacks its Arrow schema, or has fewer slots. Call it before the first take. */
SHMRING_API int shmring_consumer_dead_letters(shmring_consumer *consumer, uint32_t max_deliveries,
					      shmring_producer *producer);

/* Returns true if the caller should call shmring_nack() again after SHMRING_CONTENDED. `since_ns`
 * (CLOCK_MONOTONIC) is the time of the caller's first try. The result is true for 5 s after that time,
 * but only for 1 ms if this process has already waited for the ring's admin lock in vain, and has not
 * got the lock since. If the result is false, the error text says why the lock cannot be taken, and
 * the messages stay held: closing the consumer hands them back. */
SHMRING_API bool shmring_nack_again(const shmring_consumer *consumer, int64_t since_ns);

/* For exclusive branches: returns the end of the one-slot messages that follow the branch's
 * position. Each slot from the position up to that sequence holds one message, until the branch
 * has released it. The range ends before the first aborted claim, end marker or message of
 * several slots, and before messages that upstream branches have not released. For a branch with
 * drop_oldest the range is empty: the result is the branch's position. */
SHMRING_API uint64_t shmring_consumer_available(shmring_consumer *consumer);

/* Returns the sequence behind the last message, of any size, that takes could reach now. */
SHMRING_API uint64_t shmring_consumer_reach(shmring_consumer *consumer);

/* Stores the lost sequences [*first, *end) after SHMRING_OVERRUN. */
SHMRING_API void shmring_consumer_overrun(const shmring_consumer *consumer, uint64_t *first, uint64_t *end);

/* --- waiting ------------------------------------------------------------ */

/* CHANGE: edit this for a new wait strategy */
enum shmring_wait_strategy {
	SHMRING_WAIT_DEFAULT = 0, /* spin for a short while, then sleep on a futex */
	SHMRING_WAIT_SPIN = 1, /* poll without a pause */
	SHMRING_WAIT_YIELD = 2, /* poll, and let other threads run in between */
	SHMRING_WAIT_SLEEP = 3, /* poll, with a nap of nanosleep(2) in between: needs no wake-up */
	SHMRING_WAIT_FUTEX = 4, /* sleep on a futex at once */
	SHMRING_WAIT_STRATEGIES /* number of strategies */
};

/* How a wait goes on after it has looked for a message or a free slot, and found none. */
enum shmring_look {
	SHMRING_LOOK_SPIN, /* looks again at once */
	SHMRING_LOOK_YIELD, /* looks again after other threads have had the processor */
	SHMRING_LOOK_NAP, /* looks again after a nap */
	SHMRING_LOOK_NEVER /* does not poll: sleeps until it is woken */
};

struct shmring_wait_strategy_info {
	const char *name; /* name of the strategy in Python and on the command line */
	enum shmring_look look; /* how the strategy polls, before it sleeps or instead of sleeping */
	bool sleeps; /* sleeps on a futex until it is woken */
};

/* Describes a strategy; NULL if no strategy has this number. */
SHMRING_API const struct shmring_wait_strategy_info *shmring_describe_wait(uint8_t strategy);

/* Wait until another try may succeed, and then return SHMRING_OK. Both functions return
 * SHMRING_AGAIN when a signal arrives, and after a time slice, so that the caller can
 * handle signals. One of the waiters looks for dead participants every 50 ms: its slices last at most
 * 50 ms. The slices of the other waiters begin like that and then grow, so that many sleepers do not wake
 * up often: to about 20 ms times the number of sleepers, but never beyond the time for which the
 * participant has already waited. A wait can become hopeless: the ring's file was removed (not by
 * shmring_unlink()), and either another ring was made at its path, or no attached participant could end
 * the wait. After a second, such a wait ends with SHMRING_OK, and the next try returns
 * SHMRING_E_NOT_FOUND. A producer that never waits gets this error within a lap. `deadline_ns` is a time of
 * CLOCK_MONOTONIC, at which the functions return SHMRING_TIMEOUT; INT64_MAX means never. After
 * SHMRING_AGAIN the caller may wait again without a try: no wake-up is lost. */
SHMRING_API int shmring_wait_space(shmring_producer *producer, uint64_t slots, int64_t deadline_ns,
				   uint8_t strategy);
SHMRING_API int shmring_wait_message(shmring_consumer *consumer, int64_t deadline_ns, uint8_t strategy);

/* One entry of shmring_wait_any(): a consumer that waits for a message, or a producer that waits for
 * `slots` free slots. */
struct shmring_wait {
	shmring_consumer *consumer; /* NULL for a producer */
	shmring_producer *producer; /* NULL for a consumer */
	uint64_t slots; /* slots that the producer needs */
	bool ready; /* result: the next try succeeds, or returns the reason why none can (e.g. a dropped branch) */
};

/* Waits with one thread for any of several consumers and producers, of any rings. Returns SHMRING_OK if at least
 * one of `waits` is ready, and sets `ready` in every ready entry. Otherwise returns SHMRING_AGAIN, SHMRING_TIMEOUT
 * or an error, like shmring_wait_message(). If a consumer is ready, the caller must take from it, wait again, or
 * call shmring_consumer_decline(): otherwise another consumer of the branch may sleep on, although a message is
 * there.
 *
 * `bell` is NULL, or points to a number that shmring_ring_bell() changes: the wait ends with SHMRING_AGAIN once
 * the number differs from `rung`, the value that the caller read before.
 *
 * One sleep watches up to 128 entries (the kernel's limit), the bell included. If the kernel has no futex_waitv(2)
 * (before Linux 5.16), one sleep watches one entry. If there are more entries, the function polls all every few
 * milliseconds. A signal whose handler has SA_RESTART does not end a sleep on several entries: if the process has
 * such a handler, no sleep exceeds 50 ms. */
SHMRING_API int shmring_wait_any(struct shmring_wait *waits, uint32_t count, const uint32_t *bell, uint32_t rung,
				 int64_t deadline_ns, uint8_t strategy);
/* Adds one to `*bell`, and wakes the threads that wait with this bell. */
SHMRING_API void shmring_ring_bell(uint32_t *bell);
/* Says after a wait that the caller takes nothing from this consumer. Passes the consumer's wake-up on to another
 * consumer of the branch that sleeps, which then takes the message. Does nothing if `consumer` is NULL. */
SHMRING_API void shmring_consumer_decline(shmring_consumer *consumer);

/* While `on` is set, waits of this producer or consumer return SHMRING_AGAIN at once, also waits
 * under way. Any thread and any signal handler may call this function, to close a handle in which
 * another thread waits, or to get that thread's attention. */
SHMRING_API void shmring_producer_interrupt(shmring_producer *producer, bool on);
SHMRING_API void shmring_consumer_interrupt(shmring_consumer *consumer, bool on);

/* Waits, like shmring_wait_message(), until a branch has released everything below `sequence`, e.g.
 * until a journal has written it to disk. SHMRING_E_NO_BRANCH if the branch is gone, or if a
 * later branch with this number begins at `sequence` or behind it. */
SHMRING_API int shmring_wait_released(shmring *ring, uint32_t branch, uint64_t sequence, int64_t deadline_ns,
				      uint8_t strategy);

/* --- observing ---------------------------------------------------------- */

/* CHANGE: edit this for a new counter that each participant has */
struct shmring_participant_info {
	uint32_t seat;
	uint32_t state; /* 1 in use, 2 an orphan: no owner, only messages to deliver again */
	uint32_t role; /* 0 attached, 1 producer, 2 consumer */
	uint32_t branch; /* a consumer's branch */
	uint32_t pid;
	bool alive; /* the owner, which may be this process, still has the lock of its seat */
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
	uint64_t redelivered; /* messages taken that had been delivered before */
	uint64_t synced_ns; /* see shmring_count_synced() */
	uint64_t most_delivered; /* message_id of the held message with the most deliveries, UINT64_MAX: none */
	uint32_t deliveries; /* number of deliveries of that message; 256 means 256 or more */
};

/* Describes the participant in a seat. All fields belong to one participant, even if the seat changes
 * hands during the call. SHMRING_UNAVAILABLE: the seat is free. */
SHMRING_API int shmring_participant_info(const shmring *ring, uint32_t seat,
					 struct shmring_participant_info *info);

enum shmring_holder_kind {
	SHMRING_HELD_BY_NOBODY = 0,
	SHMRING_HELD_BY_CLAIM = 1, /* a producer's claim is open */
	SHMRING_HELD_BY_LEASE = 2, /* a consumer has taken the message and not released it */
	SHMRING_HELD_BY_CONSUMERS = 3, /* the branch has living consumers, but none has taken the message */
	SHMRING_HELD_BY_NO_CONSUMER = 4, /* the branch has no living consumer */
};

/* The holder of the lowest sequence that is still held. */
struct shmring_holder {
	uint8_t kind; /* enum shmring_holder_kind */
	bool alive; /* the participant is alive */
	bool stopped; /* alive, but stopped by SIGSTOP or a debugger */
	int32_t branch; /* number of the branch; -1 if an open claim holds the sequence, not a branch */
	int32_t seat; /* seat of the participant; -1: none */
	uint32_t pid;
	uint32_t consumers; /* living consumers of the branch; counted only if no consumer holds the message */
	uint64_t sequence; /* lowest sequence held */
	uint64_t slots; /* slots from `sequence` to the next sequence that producers claim */
	int64_t age_ns; /* time since the message was published; -1: unknown */
	char branch_name[SHMRING_NAME_BYTES];
	char name[SHMRING_NAME_BYTES]; /* name of the participant, or of the first of several consumers */
};

/* Finds the participant or branch for which producers on a full ring wait. Works on a
 * read-only ring. SHMRING_UNAVAILABLE: nothing is held. */
SHMRING_API int shmring_find_holder(const shmring *ring, struct shmring_holder *holder);

/* Describe a holder in a sentence for an error: its process, the messages it holds, their age, and
 * what to do. shmring_explain_full() describes the holder for which producers wait, shmring_explain_branch()
 * the holder for which followers of a branch wait, and shmring_explain_empty() the holder for which a consumer
 * waits. `text` is cut to `size` bytes. */
SHMRING_API void shmring_explain_full(const shmring *ring, char *text, size_t size);
SHMRING_API void shmring_explain_branch(const shmring *ring, uint32_t branch, char *text, size_t size);
SHMRING_API void shmring_explain_empty(const shmring_consumer *consumer, char *text, size_t size);

struct shmring_row {
	uint64_t slot;
	uint64_t message_id;
	uint64_t time;
	uint32_t length;
	uint32_t reference_count; /* number of branches that still have to release the message */
	uint8_t kind;
	bool filled; /* false: the slot holds no message now */
};

/* Reads one row of the queue table: describes slot `index`, and copies up to `capacity` bytes
 * of the message that begins there. Works on live, dead and damaged rings, also through a
 * read-only handle, and never returns a torn message. */
SHMRING_API int shmring_table_row(const shmring *ring, uint64_t index, struct shmring_row *row, void *message,
				  size_t capacity);

/* Counts the messages that a branch has still to deliver: messages that it has not taken yet, up to
 * the first claim that is not committed, and messages that it has to deliver again, because a consumer
 * died with them or handed them back. End markers do not count. The count is exact for up to 65,536 steps; a step
 * is one message, or a run of one-slot messages that was published at once. The rest is estimated
 * from these steps. Works on a read-only ring. SHMRING_E_NO_BRANCH if no branch has this number. */
SHMRING_API int shmring_count_waiting(const shmring *ring, uint32_t branch, uint64_t *messages);

/* Counts a message that was dropped because the ring was full. */
SHMRING_API void shmring_count_dropped(shmring_producer *producer);

/* Adds `ns` to the time that this consumer has spent writing messages to disk (`synced_ns` of
 * shmring_participant_info()). */
SHMRING_API void shmring_count_synced(shmring_consumer *consumer, uint64_t ns);

/* CRC32C (Castagnoli) of `length` bytes, continuing from `crc` (0 to begin). */
SHMRING_API uint32_t shmring_crc32c(uint32_t crc, const void *data, size_t length);

#ifdef __cplusplus
}
#endif

#endif
