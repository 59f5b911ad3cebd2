/* Functions that find addresses in a mapped ring, and that write, publish and read entries. */
#ifndef SHMRING_CELLS_H
#define SHMRING_CELLS_H

#include <unistd.h>

#include "core.h"

static inline uint64_t index_of(const shmring *ring, uint64_t sequence)
{
	return sequence & ring->mask;
}

static inline struct control *control_at(const shmring *ring, uint64_t sequence)
{
	return &ring->control[index_of(ring, sequence)];
}

static inline uint8_t *slot_at(const shmring *ring, uint64_t sequence)
{
	return ring->slots + index_of(ring, sequence) * SLOT_BYTES;
}

/* Copies bytes that producers may be overwriting; the attribute tells ThreadSanitizer that this race is meant. */
__attribute__((no_sanitize("thread"))) static inline void copy_racy(uint8_t *to, const uint8_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = *(const volatile uint8_t *)(from + i);
}

/* --- an entry ----------------------------------------------------------------- */

/* One message's entry, read once and checked: later changes by a hostile peer
 * do not matter. */
struct entry {
	uint64_t next; /* sequence after the message's last slot */
	uint32_t run; /* slots from the message's first slot to the end of its run */
	uint32_t length;
	uint32_t crc;
	uint8_t kind;
	uint8_t flags;
	uint8_t shift;
};

/* Writes an entry. Its stores are relaxed, not plain, because table.c reads entries while they change. */
static inline void entry_fill(struct control *entry, uint64_t time, uint32_t length, uint32_t run, uint8_t seat,
			      uint8_t kind, uint8_t flags, uint8_t shift, uint32_t crc)
{
	store_relaxed(&entry->time, time);
	store_relaxed(&entry->payload, (uint64_t)crc << 32 | length);
	store_relaxed(&entry->description, (uint64_t)shift << 56 | (uint64_t)flags << 48 | (uint64_t)kind << 40 |
					       (uint64_t)seat << 32 | run);
}

static inline uint32_t description_run(uint64_t description)
{
	return (uint32_t)description;
}

static inline uint8_t description_seat(uint64_t description)
{
	return (uint8_t)(description >> 32);
}

static inline uint8_t description_flags(uint64_t description)
{
	return (uint8_t)(description >> 48);
}

static inline bool entry_unpack(const shmring *ring, const struct control *c, uint64_t sequence, struct entry *e)
{
	uint64_t payload = load_relaxed(&c->payload);
	uint64_t description = load_relaxed(&c->description);
	uint64_t slots;

	e->run = description_run(description);
	e->length = (uint32_t)payload;
	e->crc = (uint32_t)(payload >> 32);
	e->kind = (uint8_t)(description >> 40);
	e->flags = description_flags(description);
	e->shift = (uint8_t)(description >> 56);
	slots = e->flags & FLAG_ONES ? 1 : e->run;
	e->next = sequence + slots;
	return e->run - 1 < ring->capacity && (uint64_t)e->length + e->shift <= slots * SLOT_BYTES;
}

static inline int entry_read(const shmring *ring, uint64_t sequence, struct entry *e)
{
	if (__builtin_expect(entry_unpack(ring, control_at(ring, sequence), sequence, e), 1))
		return SHMRING_OK;
	return fail_entry(ring->name, sequence, e->run, e->length);
}

/* Reads an entry. Returns true if it is a message: neither damaged, nor aborted, nor an end marker. */
static inline bool entry_is_plain(const shmring *ring, const struct control *c, uint64_t sequence, struct entry *e)
{
	return entry_unpack(ring, c, sequence, e) && e->kind != KIND_ABORTED && e->kind != KIND_END;
}

/* Fills in `message` from the entry of a message that the caller holds. */
static inline void describe(const shmring *r, const struct control *c, uint64_t at, const struct entry *e,
			    struct shmring_message *message)
{
	message->message_id = at;
	message->time = load_relaxed(&c->time);
	message->data = r->slots + (uint64_t)(c - r->control) * SLOT_BYTES + e->shift;
	message->length = e->length;
	message->slots = (uint32_t)(e->next - at);
	message->checksum = e->flags & FLAG_CHECKSUM ? e->crc : 0;
	message->kind = e->kind;
}

/* --- published or not ----------------------------------------------------------- */

/* Makes a run visible with one store, which pairs with the acquire in shows(). */
static inline void publish(struct control *entry, uint64_t sequence)
{
	store_release(&entry->published, sequence + 1);
}

static inline bool shows(const struct control *entry, uint64_t sequence)
{
	return load_acquire(&entry->published) == sequence + 1;
}

static inline bool is_published(const shmring *ring, uint64_t sequence)
{
	return shows(control_at(ring, sequence), sequence);
}

/* Returns true if `sequence` is claimed and not published. The floor is read last, to tell
 * a hole from a slot that was published and then used again: such a slot shows a later sequence, and a reader that
 * has seen the later sequence also sees a floor above `sequence`. */
static inline bool is_hole(const shmring *ring, uint64_t sequence)
{
	return sequence < load_acquire(&ring->cursors->claim.v) && !is_published(ring, sequence) &&
	       sequence >= load_relaxed(&ring->cursors->floor.v);
}

/* --- a handle ------------------------------------------------------------------- */

/* Returns true in the process that made the handle. If the kernel wipes `owned` in forked children, `owned` is 1
 * in that process and 0 in every child. Otherwise `owned` is always 0, and `owner` is the id of the process that
 * made the handle. */
static inline bool is_owned(const shmring *ring)
{
	return __builtin_expect(ring->owned != 0, 1) || (ring->owner && ring->owner == getpid());
}

static inline int check_usable(const shmring *ring)
{
	return is_owned(ring) ? SHMRING_OK : fail_forked(ring->name);
}

/* Checks that a handle may write. Used by calls that take a seat or may clear away dead participants. */
static inline int check_writable(const shmring *ring)
{
	if (is_owned(ring) && ring->read_only)
		return fail(SHMRING_E_PERMISSION, "ring \"%s\" was attached read-only", ring->name);
	return check_usable(ring);
}

/* Adds `n` to a seat's counter, without an atomic addition: the seat's owner is the only writer. */
static inline void count(uint64_t *counter, uint64_t n)
{
	store_relaxed(counter, load_relaxed(counter) + n);
}

#endif
