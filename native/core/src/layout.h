/* The format of a ring file, and nothing else. docs/layout.md explains it.
 *
 *   header | schema | cursors | seats | control | slots
 *
 * Every region begins at a page boundary. Integers are little-endian. The slots are the last
 * region, and are mapped twice, back to back: so a message that continues from the last slot
 * in slot 0 is contiguous in memory.
 */
#ifndef SHMRING_LAYOUT_H
#define SHMRING_LAYOUT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || !defined(__linux__) || __SIZEOF_POINTER__ != 8
#error "shmring needs 64-bit little-endian Linux"
#endif

#define LAYOUT_MAGIC UINT64_C(0x0a474e524d485389) /* "\x89SHMRNG\n" */
/* CHANGE: edit this for a new version of the layout */
#define LAYOUT_MAJOR 1
#define LAYOUT_MINOR 0 /* a higher number gives `reserved` bytes a meaning that older libraries may ignore */

enum {
	CELL = 128, /* bytes: two cache lines, because the prefetcher loads pairs of lines */
	HEADER_BYTES = 4096,
	SLOT_BYTES = 300,
	CONTROL_BYTES = 32,
	BRANCHES = 64,
#ifdef SHMRING_EXPLORE /* two ranges only: small test cases fill a seat, and the explorer has fewer reads */
	LEASES = 2,
#else
	LEASES = 48, /* number of separate ranges of sequences that one consumer can hold */
#endif
	NAME_BYTES = 56,
	MIN_SLOTS = 1024,
	MAX_PARTICIPANTS = 248, /* the number of a seat has to fit into 8 bits of `taken` */
	NOBODY = 255, /* means "no seat" in place of a seat's number */
	BODY_ALIGN = 64,
};

#define MAX_SLOTS (UINT64_C(1) << 31)
#define NONE UINT64_MAX

/* CHANGE: edit this for a new option of a ring */
/* Region 1. Written before the file gets its name; never changed afterwards. */
struct header {
	uint64_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t crc; /* CRC32C of this struct, `reserved` included, with magic and crc zero */
	uint64_t slots;
	uint32_t slot_bytes;
	uint32_t control_bytes;
	uint32_t seats;
	uint32_t seat_bytes;
	uint32_t branches;
	uint32_t page_bytes; /* page size of the creator's machine; regions are aligned to it */
	uint64_t schema_offset;
	uint64_t schema_bytes; /* 0: no schema */
	uint32_t schema_crc;
	uint32_t options; /* OPT_* */
	uint64_t cursors_offset;
	uint64_t seats_offset;
	uint64_t control_offset;
	uint64_t slots_offset;
	uint64_t file_bytes;
	uint64_t first_sequence;
	uint64_t created_ns; /* CLOCK_REALTIME */
	uint8_t uuid[16];
	uint32_t owner_uid;
	uint32_t mode;
	uint8_t reserved[HEADER_BYTES - 152]; /* room for fields of later minor versions; zero in this version */
};

/* CHANGE: edit this for a new option of a ring */
enum header_option {
	OPT_SINGLE_PRODUCER = 1,
	OPT_CHECKSUM = 2,
	OPT_CLOCK_PRECISE = 4,
	OPT_CLOCK_OFF = 8,
	OPT_FENCES = 16, /* all processes use full fences, because the creator's kernel has no membarrier(2) */
	OPT_PREFAULT = 32, /* every handle maps all pages when it attaches */
	OPT_TEMPORARY = 64, /* gc may remove the ring when no living process is attached */
	OPT_ALL = OPT_SINGLE_PRODUCER | OPT_CHECKSUM | OPT_CLOCK_PRECISE | OPT_CLOCK_OFF | OPT_FENCES |
	    OPT_PREFAULT | OPT_TEMPORARY,
};

/* An integer that changes often. It has cache lines of its own, so that writes to it do not slow down readers of
 * other integers. */
struct cell64 {
	_Alignas(CELL) uint64_t v;
};
struct cell32 {
	_Alignas(CELL) uint32_t v;
};

enum branch_state {
	BRANCH_FREE = 0,
	BRANCH_ACTIVE = 1,
	BRANCH_DROPPING = 2, /* no new take begins; the branch holds producers back as before */
	BRANCH_DROPPED = 3, /* no take is under way; only leases still hold producers back */
};

enum branch_option {
	BRANCH_EXCLUSIVE = 1, /* at most one consumer at a time */
	BRANCH_EPHEMERAL = 2, /* dropped when its last consumer leaves or dies */
	BRANCH_DROP_OLDEST = 4, /* producers do not wait for the branch, which loses its oldest messages */
	BRANCH_LATER = 8, /* the branch's position was set below its `first`; consumers pass over the messages
			     before `first` */
};

struct branch_descriptor {
	uint32_t state;
	uint32_t options;
	uint64_t upstream; /* bit i: this branch follows branch i; 0: it follows the producers */
	uint64_t followers; /* bit i: branch i follows this one */
	uint64_t consumers[4]; /* one bit for each seat: set for the branch's consumers and orphans */
	uint32_t orphans; /* number of orphans: seats without an owner, whose leases await adoption */
	uint32_t moves; /* counts leases moved between seats; after a move, branch_released() reads holds again */
	char name[NAME_BYTES - 8];
	uint64_t first; /* sequence at which the branch begins: it never gets messages of lower sequences */
};

struct branch {
	_Alignas(CELL) struct branch_descriptor d;
	struct {
		_Alignas(CELL) uint64_t v; /* (next sequence to take) << 8 | seat of the last taker */
		/* (sequence after the last end marker that the branch has reached) << 8 | `ends` modulo 256 */
		uint64_t ended;
		uint64_t ends; /* number of end markers that the branch has reached */
	} taken;
	struct cell32 futex; /* counts wake-ups of this branch */
};

/* CHANGE: edit this for a new version of the layout */
/* Region 3. */
struct cursors {
	struct cell64 claim; /* next sequence to claim */
	struct cell64 floor; /* lowest sequence still held: producers may overwrite all lower ones */
	struct cell64 floor_next; /* next value of `floor`, announced before `floor` moves: floor.c */
	struct {
		_Alignas(CELL) uint64_t active; /* bit i: branch i holds producers back or has leases */
		uint64_t roots; /* bit i: branch i is active and follows the producers */
		uint32_t single_producer; /* seat + 1 of the producer, if the ring has OPT_SINGLE_PRODUCER */
		uint32_t changes; /* counts new branches, and changes of the branches' upstreams */
		uint32_t adopter; /* seat + 1 of the consumer that moves leases to or from an orphan; 0: none */
	} graph;
	struct cell64 asleep; /* bit i: consumers of branch i sleep */
	struct {
		_Alignas(CELL) uint64_t wanted; /* lowest floor for which a sleeping producer waits */
		uint32_t futex; /* bit 0: a producer sleeps; the other bits count wake-ups */
	} producers;
	struct cell64 look; /* time of the last look for dead participants, and number of sleepers then */
	struct cell32 unlinked; /* the file was unlinked on purpose while it was in use: shmring_unlink() */
	struct branch branch[BRANCHES];
};

enum seat_state {
	SEAT_FREE = 0,
	SEAT_ACTIVE = 1,
	SEAT_ORPHAN = 2, /* no owner; records messages of a dead consumer, or handed back, to deliver again */
};

enum seat_role {
	ROLE_ATTACHED = 0,
	ROLE_PRODUCER = 1,
	ROLE_CONSUMER = 2,
};

enum seat_wait {
	WAIT_NONE = 0,
	WAIT_ASLEEP = 1, /* asleep on a futex */
};

struct range {
	uint64_t lo; /* NONE: unused */
	/* RANGE_WORD(): end of the range; top 8 bits: how often its messages were delivered before */
	uint64_t hi;
};
#define RANGE_WORD(end, before) ((end) | (uint64_t)(before) << 56)
#define RANGE_END(word) ((word) & (MAX_SEQUENCE - 1))
#define RANGE_BEFORE(word) ((uint32_t)((word) >> 56))

#define ADOPT_AWAY UINT64_C(256) /* bit of adopt_from: the lease moves to the named seat, not from it */
/* `take_end`: end of the take << 7 | branch << 1 | 1 while the take is pending. `take_end` names the
 * branch, because the seat may serve another branch when the take of its former owner
 * is confirmed. */
#define TAKE_PENDING UINT64_C(1)
#define TAKE_WORD(end, branch) ((end) << 7 | (uint64_t)(branch) << 1)
#define TAKE_END(word) ((word) >> 7)

#define ENDED_AT(word) ((word) >> 8)
/* `cursors.look`: CLOCK_MONOTONIC time in ns, with its lowest 8 bits replaced by the number of sleepers. */
#define LOOK_TIME(word) ((word) & ~UINT64_C(255))
#define LOOK_SLEEPERS(word) ((word) & 255)

/* Sequences have 56 bits, because `taken` and `take_end` hold other bits besides. */
#define MAX_SEQUENCE (UINT64_C(1) << 56)

/* CHANGE: edit this for a new counter that each participant has */
/* A new counter takes the first of the `reserved` words, so that no word moves. Older libraries do not know the
 * new counter: they set it to zero, like all `reserved` words, when a participant joins. */
struct seat_counters {
	uint64_t messages;
	uint64_t bytes;
	uint64_t full_waits;
	uint64_t empty_waits;
	uint64_t contended;
	uint64_t recovered; /* dead seats that this owner cleared away */
	uint64_t overrun; /* slots lost to drop_oldest */
	uint64_t dropped; /* messages that the producer gave up because the ring was full */
	uint64_t redelivered; /* messages taken that had been delivered before */
	uint64_t synced_ns; /* time that the consumer of a journal spent writing to disk */
	uint64_t reserved[5]; /* room for counters of later minor versions; zero in this version */
};

/* Region 4. One seat per handle. The owner holds a write lock (F_OFD_SETLK) on the
 * first byte of its seat; the kernel drops it when the owner dies. */
struct seat {
	struct {
		_Alignas(CELL) uint32_t state;
		uint32_t role;
		uint32_t branch;
		uint32_t pid;
		uint64_t start_time; /* when the owner's process started: field 22 of /proc/PID/stat */
		uint64_t joined_ns;
		char name[NAME_BYTES];
	} id;
	struct {
		_Alignas(CELL) uint64_t lo; /* first sequence of the claim; NONE: no claim */
		uint64_t n;
	} intent;
	struct {
		_Alignas(CELL) uint64_t hold; /* lowest sequence held; NONE: nothing */
		uint64_t take_lo; /* first sequence of the take under way, or of the last take */
		uint64_t take_end; /* end and branch of the take at `take_lo`, packed by TAKE_WORD(); bit
				      TAKE_PENDING is set while the take is under way */
		uint64_t adopt_from; /* 0, except while a lease moves: then 1 + the seat from which the lease
					comes, or with ADOPT_AWAY 1 + the seat to which it goes */
		uint64_t adopt_lo;
		uint64_t adopt_hi;
	} lease;
	_Alignas(CELL) struct seat_counters counters;
	uint32_t waits; /* whether the owner sleeps now: enum seat_wait */
	_Alignas(CELL) struct range range[LEASES];
};

enum control_kind {
	KIND_BYTES = 0,
	KIND_ABORTED = 1,
	KIND_END = 2,
	KIND_ARROW_BATCH = 3,
	KIND_ARROW_STREAM = 4,
};

enum control_flag {
	FLAG_ONES = 1, /* the run consists of one-slot messages */
	FLAG_CHECKSUM = 2, /* `crc` is the payload's checksum */
};

/* Region 5. One entry per slot; meaningful at the first slot of a message. */
struct control {
	uint64_t published; /* message_id + 1, stored last, with release; 0: never published */
	uint64_t time; /* ns, CLOCK_REALTIME */
	union { /* `payload` overlays `length` and `crc`, so that one access reads or writes both */
		struct {
			uint32_t length; /* bytes of payload */
			uint32_t crc; /* CRC32C of the payload; for an end marker: slots since its stream began */
		};
		uint64_t payload;
	};
	union { /* `description` overlays all fields of the struct, so that one access reads or writes them */
		struct {
			uint32_t run; /* slots from here to the end of the run */
			uint8_t seat; /* seat of the producer */
			uint8_t kind;
			uint8_t flags;
			uint8_t shift; /* bytes from the beginning of the slot to the payload */
		};
		uint64_t description;
	};
};

/* Offsets of lock bytes; the other locks are on the first bytes of seats. */
#define DRAFT_LOCK_OFFSET 0 /* locked while the ring is being made, under the name of a draft */
#define ADMIN_LOCK_OFFSET 8 /* admin lock: joins, leaves, subscriptions and recovery, one at a time */

/* CHANGE: edit this for a new version of the layout */
static_assert(sizeof(struct header) == HEADER_BYTES, "header");
static_assert(sizeof(struct branch_descriptor) == 120, "descriptor fits its cell");
static_assert(sizeof(struct branch) == 3 * CELL, "branch");
static_assert(offsetof(struct cursors, branch) == 8 * CELL, "cursors");
static_assert(sizeof(struct cursors) == 8 * CELL + BRANCHES * 3 * CELL, "cursors");
static_assert(offsetof(struct seat, range) == 4 * CELL, "seat");
static_assert(sizeof(struct seat) % CELL == 0 &&
		  sizeof(struct seat) - 4 * CELL - sizeof(struct range[LEASES]) < CELL,
	      "seat");
static_assert(sizeof(struct control) == CONTROL_BYTES, "control");

#endif
