/* Functions for claims: they count the slots of a message, check messages of reserved kinds, copy a file into a
 * claim, and recover claims that are not published. docs/protocol.md, P3.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cells.h"
#include "wake.h"

/* --- positions, for callers outside of the core --------------------------------------- */

void *shmring_slot(const shmring *r, uint64_t sequence)
{
	return slot_at(r, sequence);
}

uint64_t shmring_slots_for(uint64_t length, bool aligned)
{
	/* Slots begin at multiples of 4, so at most 60 bytes are skipped. */
	uint64_t skip = aligned ? BODY_ALIGN - 4 : 0;
	uint64_t slots = length / SLOT_BYTES + (length % SLOT_BYTES + skip + SLOT_BYTES - 1) / SLOT_BYTES;

	return slots ? slots : 1;
}

uint64_t shmring_claimed(const shmring *r)
{
	return load_acquire(&r->cursors->claim.v);
}

uint64_t shmring_floor(const shmring *r)
{
	return load_acquire(&r->cursors->floor.v);
}

/* --- kinds ------------------------------------------------------------------------- */

/* Readers trust the kind before they read the bytes: they step over an aborted claim, end their iteration at an
 * end marker, and parse messages that are marked as record batches. */
static_assert((int)SHMRING_KIND_BYTES == KIND_BYTES && (int)SHMRING_KIND_END == KIND_END &&
		  (int)SHMRING_KIND_ARROW_BATCH == KIND_ARROW_BATCH &&
		  (int)SHMRING_KIND_ARROW_STREAM == KIND_ARROW_STREAM,
	      "the header's kinds are the layout's");

/* Returns true if `data` begins like an encapsulated IPC message: ff ff ff ff, then the size of the metadata (at
 * least one word of a flat buffer), then room for the metadata. */
static bool is_encapsulated(const uint8_t *data, uint64_t length)
{
	uint32_t head[2];

	if (length < sizeof head)
		return false;
	memcpy(head, data, sizeof head);
	return head[0] == UINT32_MAX && head[1] >= 8 && head[1] <= length - sizeof head;
}

int kind_check_reserved(const shmring *r, uint8_t kind, const uint8_t *data, uint64_t length)
{
	switch (kind) {
	case KIND_END:
		if (length)
			return fail(SHMRING_E_INVALID, "ring \"%s\": an end marker must be empty, not %llu bytes",
				    r->name, (unsigned long long)length);
		return SHMRING_OK;
	case KIND_ARROW_BATCH:
		if (!r->header.schema_bytes)
			return fail(SHMRING_E_INVALID,
				    "ring \"%s\": kind %d must be a record batch of the ring's schema, and the "
				    "ring was made without one",
				    r->name, kind);
		break;
	case KIND_ARROW_STREAM:
		break;
	default:
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\": kind %d is reserved; it must be %d (bytes), or %d to 255 as you like",
			    r->name, kind, SHMRING_KIND_BYTES, SHMRING_KIND_USER);
	}
	if (!is_encapsulated(data, length))
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\": kind %d must be an Arrow IPC message, and these %llu bytes are not; "
			    "write record batches with an Arrow writer, or mark the message with %d to 255",
			    r->name, kind, (unsigned long long)length, SHMRING_KIND_USER);
	return SHMRING_OK;
}

/* --- from a file ------------------------------------------------------------------- */

/* Returns true if copy_file_range(2) cannot copy between the two files. It is tried first because it does not use
 * the mapping: a handle that has just attached would have a page fault for each page of the claim, and page faults
 * take twice as long as the copy. */
static bool is_refusal(int error)
{
	return error == EXDEV || error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EPERM;
}

/* Copies like copy_file_range(2) from `fd` into the slots at `to`; reads into the mapping of the
 * slots if the file systems cannot copy in the kernel. */
static ssize_t copy_some(const shmring *r, uint8_t *to, int fd, off_t from, size_t n)
{
	uint64_t slots_bytes = r->capacity * SLOT_BYTES;
	uint64_t at = (uint64_t)(to - r->slots) % slots_bytes; /* `to` may lie in the second mapping */
	off_t out = (off_t)(r->header.slots_offset + at);
	int ring_fd = lock_file_number(r->locks);
	ssize_t copied;

	if (n > slots_bytes - at)
		n = slots_bytes - at;
	if (ring_fd < 0)
		return pread(fd, to, n, from);
	copied = copy_file_range(fd, &(off_t){from}, ring_fd, &out, n, 0);
	/* Other code of this process may have closed the ring's descriptor during the copy. */
	if (lock_file_number(r->locks) != ring_fd || (copied < 0 && is_refusal(errno)))
		return pread(fd, to, n, from);
	return copied;
}

int shmring_fill(const shmring_producer *p, uint64_t at, int fd, uint64_t offset, uint64_t length)
{
	const shmring *r = p->ring;
	uint64_t room = p->claim_n * SLOT_BYTES;
	uint8_t *to = slot_at(r, p->claim_lo) + at;

	if (at > room || length > room - at)
		return fail(SHMRING_E_INVALID, "ring \"%s\": these bytes do not lie in the open claim", r->name);
	while (length) {
		ssize_t n = copy_some(r, to, fd, (off_t)offset, length);

		if (n == 0)
			return fail(SHMRING_E_INVALID, "ring \"%s\": the file to copy from ends too early",
				    r->name);
		if (n < 0 && errno != EINTR)
			return fail_errno("cannot copy from the file", r->name);
		if (n > 0) {
			to += n;
			offset += (uint64_t)n;
			length -= (uint64_t)n;
		}
	}
	return SHMRING_OK;
}

/* --- aborted runs, and the holes of dead producers --------------------------------- */

void publish_aborted(shmring *r, uint64_t lo, uint64_t n, uint8_t seat)
{
	struct control *entry = control_at(r, lo);

	entry_fill(entry, 0, 0, (uint32_t)n, seat, KIND_ABORTED, 0, 0, 0);
	publish(entry, lo);
}

/* Returns true if the claim word once had the value `at`, which is evidence that the hole at h ends at `at`. If
 * the claim word is beyond `at` now, a producer has claimed from `at`. It keeps its intent at `at` until it has
 * published there. So the function reads the claim word first, then the intents, and last whether `at` is
 * published: in this order it misses no such producer. */
static bool passed_through(const shmring *r, uint64_t h, uint64_t at)
{
	uint8_t seat;

	if (load_acquire(&r->cursors->claim.v) == at)
		return true;
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (load_relaxed(&r->seats[i].id.state) != SEAT_FREE && load_acquire(&r->seats[i].intent.lo) == at)
			return true;
	if (!is_published(r, at))
		return false;
	/* The entry at `at` shows its own sequence, but proves nothing if it is a row of the hole itself: a
	 * producer that died while it filled a batch may have stored the sequences of later rows already. The
	 * entry is such a row if the seat that wrote it has its intent at h: the claims of a seat only go up. */
	seat = description_seat(load_relaxed(&control_at(r, at)->description));
	return seat >= r->seat_count || load_relaxed(&r->seats[seat].intent.lo) != h;
}

/* Returns the length of the hole at h, whose owner is dead; 0 if the length is unknown now because
 * a living producer may be the owner. Several dead producers may have an
 * intent that begins at h, but only one of them claimed the hole. The length is the smallest n of these intents
 * for which passed_through() finds evidence. docs/protocol.md, P3. */
static uint64_t hole_length(const shmring *r, uint64_t h)
{
	uint64_t best = 0;

	if (r->options & OPT_SINGLE_PRODUCER) /* the hole ends at the claim word: the dead owner moved it last */
		return load_relaxed(&r->cursors->claim.v) - h;
	for (uint32_t i = 0; i < r->seat_count; i++) {
		const struct seat *s = &r->seats[i];
		uint64_t n;

		if (load_relaxed(&s->id.state) == SEAT_FREE || load_acquire(&s->intent.lo) != h)
			continue;
		if (seat_alive(r, i))
			return 0;
		n = load_relaxed(&s->intent.n);
		if (n && n <= r->capacity && (best == 0 || n < best) && passed_through(r, h, h + n))
			best = n;
	}
	return best;
}

/* CHANGE: edit this for a new counter that each participant has */
/* Settles the claim of a dead owner: publishes its hole as an aborted run. Returns true if the seat no
 * longer needs its intent. */
bool settle_claim(shmring *r, struct seat *s, uint32_t index)
{
	uint64_t h = load_relaxed(&s->intent.lo); /* relaxed: the owner is dead, so all its stores are visible */

	/* Without a hole at h there is nothing to publish: the owner had published its message already, or never
	 * claimed h, and another producer may claim h. */
	if (h != NONE && is_hole(r, h)) {
		uint64_t n = hole_length(r, h);

		if (n == 0 || n > r->capacity)
			return false;
		/* Check again: h may have been claimed by another producer, still alive, which published its
		 * message and cleared its intent between the first check and hole_length(). A producer
		 * publishes before it clears its intent, so this check sees the message. */
		if (is_hole(r, h)) {
			/* A batch's rows may have their numbers already: clear the numbers, so that table()
			 * does not list the rows as messages. */
			for (uint64_t i = 1; i < n; i++)
				store_relaxed(&control_at(r, h + i)->published, 0);
			publish_aborted(r, h, n, (uint8_t)index);
			wake_readers(r, r->asymmetric);
		}
	}
	store_release(&s->intent.lo, NONE);
	return true;
}
