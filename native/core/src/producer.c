/* Producers: claim, publish, abort, push.
 *
 * claim:   intent = (lo, n); then claim: lo -> lo + n by CAS
 * publish: payload and entries; then control[lo].published = lo + 1; then
 *          intent = none
 *
 * The check for room comes before the CAS, because a claim cannot be taken back: every claimed
 * sequence has to be published, as a message or as an aborted run.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cells.h"
#include "holder.h"
#include "wake.h"

static inline uint64_t message_time(uint32_t options)
{
	if (options & OPT_CLOCK_OFF)
		return 0;
	return now_ns(options & OPT_CLOCK_PRECISE ? CLOCK_REALTIME : CLOCK_REALTIME_COARSE);
}

/* Returns true for kinds that shmring itself defines or keeps for later, for example end markers: all kinds but
 * plain bytes and the users' own kinds. kind_check_reserved() checks such a message before it is published. */
static inline bool kind_is_reserved(uint8_t kind)
{
	return (uint8_t)(kind - 1) < SHMRING_KIND_USER - 1;
}

static inline int kind_check(const shmring *r, uint8_t kind, const uint8_t *data, uint64_t length)
{
	if (__builtin_expect(kind_is_reserved(kind), 0))
		return kind_check_reserved(r, kind, data, length);
	return SHMRING_OK;
}

/* CHANGE: edit this for a new option of a ring */
int shmring_producer_open(shmring *r, const char *name, shmring_producer **out)
{
	uint32_t *single = &r->cursors->graph.single_producer;
	shmring_producer *p;
	int status;

	RETURN_NOT_OK(check_writable(r));
	p = aligned_alloc(CELL, sizeof *p + CELL - sizeof *p % CELL);
	if (!p)
		return fail(SHMRING_E_NO_MEMORY, "out of memory");
	memset(p, 0, sizeof *p);
	p->ring = r;
	status = admin_enter(r);
	if (status) {
		free(p);
		return status;
	}
	if (r->options & OPT_SINGLE_PRODUCER) {
		uint32_t other = load_relaxed(single);

		if (other && other <= r->seat_count &&
		    load_acquire(&r->seats[other - 1].id.state) == SEAT_ACTIVE &&
		    r->seats[other - 1].id.role == ROLE_PRODUCER &&
		    (seat_alive(r, other - 1) || !recover_seat(r, other - 1)))
			status =
			    fail(SHMRING_E_SECOND_PRODUCER,
				 "ring \"%s\" has a single producer, and process %u is it; wait for it to end, "
				 "or create the ring for several producers",
				 r->name, r->seats[other - 1].id.pid);
	}
	if (!status)
		status = seat_take(r, ROLE_PRODUCER, name, 0, &p->seat_index);
	if (!status && r->options & OPT_SINGLE_PRODUCER)
		store_relaxed(single, p->seat_index + 1);
	admin_leave(r);
	if (status) {
		free(p);
		return status;
	}
	p->seat = &r->seats[p->seat_index];
	p->floor = 0; /* never above the shared floor; a claim for which 0 is too low reads the shared floor */
	p->began = load_relaxed(&r->cursors->claim.v);
	*out = p;
	return SHMRING_OK;
}

void shmring_producer_close(shmring_producer *p)
{
	shmring *r;

	/* A forked child frees nothing: another thread of the parent may have held malloc's mutex at the fork. */
	if (!p || !is_owned(p->ring))
		return;
	r = p->ring;
	if (p->claim_n)
		(void)shmring_abort(p);
	if (admin_enter_to_leave(r) == SHMRING_OK) {
		if (load_relaxed(&r->cursors->graph.single_producer) == p->seat_index + 1)
			store_relaxed(&r->cursors->graph.single_producer, 0);
		seat_give_back(r, p->seat_index);
		admin_leave(r);
	} else {
		seat_abandon(r, p->seat_index);
	}
	free(p);
}

/* --- the steps of a push, and the push of one slot -------------------------------- */

/* Called between a claim and the writing of its bytes. A reader that sees one of the new bytes must
 * also see the floor that allowed the claim, and the claim's intent. The fence pairs with the acquire
 * fence in shmring_table_row(), the only function that reads the bytes of slots without holding them. */
static inline void order_before_filling(void)
{
	fence_release();
}

/* Claims [lo, lo + n), which is free, for the owner of seat `s`. Returns false if another
 * producer was faster. */
static inline bool claim_run(struct cursors *c, struct seat *s, uint32_t options, uint64_t lo, uint64_t n)
{
	/* n is stored before lo, because a reader that finds lo in a dead seat trusts the n beside it. Release: a
	 * reader that sees this n also sees the end of the previous claim (table.c). */
	store_release(&s->intent.n, n);
	crash_order();
	/* The release half of the CAS below orders this store before it: a reader that sees the claim word beyond
	 * lo sees this intent, or its end. */
	store_release(&s->intent.lo, lo);
	if (options & OPT_SINGLE_PRODUCER) {
		store_release(&c->claim.v, lo + n); /* no CAS: no other producer claims */
	} else if (__builtin_expect(!cas_release(&c->claim.v, &lo, lo + n), 0)) {
		store_release(&s->intent.lo, NONE);
		count(&s->counters.contended, 1);
		return false;
	}
	order_before_filling();
	return true;
}

static inline void claim_done(shmring *r, struct seat *s, uint32_t options)
{
	/* Release: a reader that sees the intent gone sees the publication. */
	store_release(&s->intent.lo, NONE);
	wake_readers(r, !(options & OPT_FENCES));
}

/* CHANGE: edit this for a new counter that each participant has */
/* Publishes the run that begins with `entry`, which is filled, and ends the claim. */
static inline void publish_run(shmring *r, struct seat *s, uint32_t options, struct control *entry, uint64_t lo,
			       uint64_t messages, uint64_t bytes)
{
	publish(entry, lo);
	count(&s->counters.messages, messages);
	count(&s->counters.bytes, bytes);
	claim_done(r, s, options);
}

__attribute__((cold, noinline)) static int claim_lost(shmring_producer *p)
{
	keep_out(&p->contention, load_relaxed(&p->seat->counters.messages));
	return not_now(SHMRING_CONTENDED);
}

__attribute__((cold, noinline)) static int push_any(shmring_producer *p, const void *data, size_t length,
						    uint8_t kind, uint64_t *message_id);

/* Pushes a message of one slot if the slot is free by the cached floor, and the kind needs no check of the
 * message; everything else goes to push_any(). `options` are the ring's options: if the caller passes a constant,
 * the compiler removes the checks of the options. */
__attribute__((always_inline)) static inline int push_straight(shmring_producer *p, const void *data,
							       size_t length, uint8_t kind, uint64_t *message_id,
							       uint32_t options)
{
	shmring *r = p->ring;
	struct cursors *c = r->cursors;
	struct seat *s = p->seat;
	struct control *entry;
	uint64_t lo, i;

	/* CHANGE: edit this for a new option of a ring */
	/* CHANGE: edit this for a new error */
	/* An empty message also takes the slow path, because its data may be NULL. */
	if (__builtin_expect(!r->owned || p->claim_n || length - 1 >= SLOT_BYTES || kind_is_reserved(kind) ||
				 options & OPT_CHECKSUM,
			     0))
		return push_any(p, data, length, kind, message_id);
	lo = load_relaxed(&c->claim.v); /* relaxed: if the loaded claim word is old, the CAS fails */
	if (__builtin_expect(lo - p->floor >= r->capacity, 0))
		return push_any(p, data, length, kind, message_id);

	if (__builtin_expect(!claim_run(c, s, options, lo, 1), 0))
		return claim_lost(p);
	i = index_of(r, lo);
	memcpy(r->slots + i * SLOT_BYTES, data, length);
	entry = &r->control[i];
	entry_fill(entry, message_time(options), (uint32_t)length, 1, (uint8_t)p->seat_index, kind, 0, 0, 0);
	publish_run(r, s, options, entry, lo, 1, length);
	if (message_id)
		*message_id = lo;
	return SHMRING_OK;
}

__attribute__((noinline)) static int push_as_asked(shmring_producer *p, const void *data, size_t length,
						   uint8_t kind, uint64_t *message_id)
{
	return push_straight(p, data, length, kind, message_id, p->ring->options);
}

int shmring_push(shmring_producer *p, const void *data, size_t length, uint8_t kind, uint64_t *message_id)
{
	/* CHANGE: edit this for a new option of a ring */
	const uint32_t asked = OPT_SINGLE_PRODUCER | OPT_CHECKSUM | OPT_CLOCK_PRECISE | OPT_CLOCK_OFF | OPT_FENCES;

	if (__builtin_expect((p->ring->options & asked) != 0, 0))
		return push_as_asked(p, data, length, kind, message_id);
	return push_straight(p, data, length, kind, message_id, 0);
}

/* --- claim -------------------------------------------------------------------------- */

/* CHANGE: edit this for a new option of a ring */
static int check_claim_size(const shmring *r, uint64_t n)
{
	if (n == 0)
		return fail(SHMRING_E_INVALID, "ring \"%s\": a claim needs at least one slot", r->name);
	if (n > r->capacity)
		return fail(
		    SHMRING_E_TOO_LARGE,
		    "ring \"%s\" has %llu slots of %d bytes, this needs %llu; create the ring with more slots or "
		    "split it",
		    r->name, (unsigned long long)r->capacity, SLOT_BYTES, (unsigned long long)n);
	return SHMRING_OK;
}

/* Calls check_named() for shmring_next(), once per lap. A producer that never waits would otherwise not learn that
 * the ring's file was removed. `lo` is the sequence that the producer is about to claim. */
static int look_at_name(shmring_producer *p, uint64_t lo)
{
	int status = check_named(p->ring, NULL);

	if (status)
		p->floor = 0; /* makes the next claim read the floor, and then check the name again */
	else
		p->looked = lo;
	return status;
}

/* CHANGE: edit this for a new error */
int64_t shmring_next(shmring_producer *p, uint32_t n)
{
	shmring *r = p->ring;
	struct cursors *c = r->cursors;
	uint64_t lo;

	RETURN_NOT_OK(check_usable(r));
	if (__builtin_expect(p->claim_n != 0, 0))
		return fail(
		    SHMRING_E_CLAIM_OPEN,
		    "this producer of ring \"%s\" has an open claim; commit or abort it first, or give each "
		    "thread its own producer",
		    r->name);
	if (__builtin_expect(n != 1, 0))
		RETURN_NOT_OK(check_claim_size(r, n));

	/* Relaxed: if this claim word is old, the CAS fails. Even an old claim word is not below the cached floor,
	 * because the process that moved the floor there had seen the claim word beyond it. */
	lo = load_relaxed(&c->claim.v);
	/* CHANGE: edit this for a new option of a ring */
	if (__builtin_expect(lo - p->floor > r->capacity - n, 0)) {
		p->floor = load_acquire(&c->floor.v);
		if (lo + n > p->floor + r->capacity)
			p->floor = floor_advance(r, lo + n - r->capacity);
		if ((lo | p->floor) >= MAX_SEQUENCE)
			return fail(SHMRING_E_DAMAGED,
				    "ring \"%s\": its cursors are damaged (claim %llu, floor %llu)", r->name,
				    (unsigned long long)lo, (unsigned long long)p->floor);
		if (lo + n > p->floor + r->capacity) {
			int status = check_lost(r, NULL, &p->wait);

			count(&p->seat->counters.full_waits, 1);
			return status ? status : not_now(SHMRING_UNAVAILABLE);
		}
		if (lo - p->looked >= r->capacity)
			RETURN_NOT_OK(look_at_name(p, lo));
	}

	if (!claim_run(c, p->seat, r->options, lo, n))
		return claim_lost(p);
	p->claim_lo = lo;
	p->claim_n = n;
	return (int64_t)lo;
}

/* CHANGE: edit this for a new option of a ring */
int64_t shmring_producer_available(shmring_producer *p)
{
	shmring *r = p->ring;
	uint64_t claim = load_relaxed(&r->cursors->claim.v); /* relaxed: no other producer moves the claim word */

	RETURN_NOT_OK(check_usable(r));
	if (!(r->options & OPT_SINGLE_PRODUCER))
		return fail(SHMRING_E_INVALID, "ring \"%s\": available() wants a single-producer ring", r->name);
	p->floor = load_acquire(&r->cursors->floor.v);
	if (p->floor + r->capacity / 2 < claim)
		p->floor = floor_advance(r, claim - r->capacity / 2);
	if (p->floor > claim || claim >= MAX_SEQUENCE)
		return fail(SHMRING_E_DAMAGED, "ring \"%s\": its cursors are damaged (claim %llu, floor %llu)",
			    r->name, (unsigned long long)claim, (unsigned long long)p->floor);
	order_before_filling();
	return (int64_t)(p->floor + r->capacity);
}

static int no_claim(const shmring *r)
{
	return fail(SHMRING_E_INVALID, "this producer of ring \"%s\" has no open claim", r->name);
}

/* Returns the number of slots from `began`, where a stream began, to its end marker at `at`. The marker's entry
 * holds this distance in place of a checksum, because the marker has no bytes. docs/protocol.md, P11. */
static uint32_t run_behind(uint64_t began, uint64_t at)
{
	return at - began < UINT32_MAX ? (uint32_t)(at - began) : UINT32_MAX;
}

/* CHANGE: edit this for a new option of a ring */
int shmring_publish(shmring_producer *p, uint32_t length, uint8_t kind, uint8_t shift)
{
	shmring *r = p->ring;
	uint64_t lo = p->claim_lo;
	struct control *entry = control_at(r, lo);
	uint8_t flags = 0;
	uint32_t crc = 0;

	RETURN_NOT_OK(check_usable(r));
	if (p->claim_n == 0)
		return no_claim(r);
	if ((uint64_t)length + shift > p->claim_n * SLOT_BYTES)
		return fail(SHMRING_E_TOO_LARGE, "ring \"%s\": the claim has room for %llu bytes, not %u", r->name,
			    (unsigned long long)(p->claim_n * SLOT_BYTES - shift), length);
	RETURN_NOT_OK(kind_check(r, kind, slot_at(r, lo) + shift, length));
	if (kind == KIND_END) {
		crc = run_behind(p->began, lo);
		p->began = lo + p->claim_n;
	} else if (r->options & OPT_CHECKSUM) {
		flags |= FLAG_CHECKSUM;
		crc = shmring_crc32c(0, slot_at(r, lo) + shift, length);
	}
	entry_fill(entry, message_time(r->options), length, (uint32_t)p->claim_n, (uint8_t)p->seat_index, kind,
		   flags, shift, crc);
	p->claim_n = 0;
	publish_run(r, p->seat, r->options, entry, lo, 1, length);
	return SHMRING_OK;
}

/* CHANGE: edit this for a new option of a ring */
/* Extends the open claim of a single producer up to `last`, which must be below shmring_producer_available(). */
static int extend_claim(shmring_producer *p, uint64_t last)
{
	shmring *r = p->ring;
	uint64_t n = last + 1 - p->claim_lo;

	if (!(r->options & OPT_SINGLE_PRODUCER) || last < p->claim_lo || n > r->capacity ||
	    last >= p->floor + r->capacity)
		return fail(SHMRING_E_INVALID, "ring \"%s\": done(%llu) is outside the claim", r->name,
			    (unsigned long long)last);
	store_relaxed(&p->seat->intent.n, n);
	store_release(&r->cursors->claim.v, last + 1); /* no CAS: no other producer claims */
	order_before_filling();
	p->claim_n = n;
	return SHMRING_OK;
}

/* CHANGE: edit this for a new option of a ring */
static int check_rows(const shmring *r, uint32_t n, const uint32_t *lengths, uint32_t length)
{
	for (uint32_t i = 0; i < (lengths ? n : 1); i++)
		if ((lengths ? lengths[i] : length) > SLOT_BYTES)
			return fail(SHMRING_E_TOO_LARGE, "ring \"%s\": row %u has %u bytes, a slot has %d",
				    r->name, i, lengths ? lengths[i] : length, SLOT_BYTES);
	return SHMRING_OK;
}

int shmring_publish_ones(shmring_producer *p, uint64_t last, const uint32_t *lengths, uint32_t length)
{
	shmring *r = p->ring;
	uint8_t flags = FLAG_ONES | (r->options & OPT_CHECKSUM ? FLAG_CHECKSUM : 0);
	uint64_t lo = p->claim_lo;
	uint64_t bytes = 0;
	uint64_t time;
	uint32_t n;

	RETURN_NOT_OK(check_usable(r));
	if (p->claim_n == 0)
		return no_claim(r);
	if (last - lo >= p->claim_n)
		RETURN_NOT_OK(extend_claim(p, last));
	n = (uint32_t)(last - lo + 1);
	RETURN_NOT_OK(check_rows(r, n, lengths, length));
	time = message_time(r->options);
	/* Abort the unused slots at the end of the claim. Readers reach these slots only after the messages,
	 * which are published below. */
	if (n < p->claim_n)
		publish_aborted(r, last + 1, p->claim_n - n, (uint8_t)p->seat_index);
	for (uint32_t i = n; i-- > 0;) {
		uint64_t seq = lo + i;
		uint32_t len = lengths ? lengths[i] : length;
		uint32_t crc = r->options & OPT_CHECKSUM ? shmring_crc32c(0, slot_at(r, seq), len) : 0;
		struct control *c = control_at(r, seq);

		bytes += len;
		entry_fill(c, time, len, n - i, (uint8_t)p->seat_index, KIND_BYTES, flags, 0, crc);
		/* The entries of all messages but the first get their numbers here. publish_run() stores the
		 * number of the first message, which makes all of them readable. Release: a reader that sees the
		 * number of a later message also sees the open claim in the producer's seat, or that the claim has
		 * ended. So the reader knows whether the message is published (graph.c, claims.c). */
		if (i)
			store_release(&c->published, seq + 1);
	}
	p->claim_n = 0;
	publish_run(r, p->seat, r->options, control_at(r, lo), lo, n, bytes);
	return SHMRING_OK;
}

/* CHANGE: edit this for a new option of a ring */
static int check_parts(const shmring_producer *p, const struct shmring_part *parts, uint32_t n)
{
	const shmring *r = p->ring;
	uint64_t slots = 0;

	for (uint32_t i = 0; i < n; i++) {
		RETURN_NOT_OK(check_claim_size(r, parts[i].slots));
		if ((uint64_t)parts[i].length + parts[i].shift > (uint64_t)parts[i].slots * SLOT_BYTES)
			return fail(SHMRING_E_TOO_LARGE, "ring \"%s\": part %u has %u bytes in %u slots", r->name,
				    i, parts[i].length, parts[i].slots);
		slots += parts[i].slots;
	}
	if (slots != p->claim_n)
		return fail(SHMRING_E_INVALID, "ring \"%s\": the parts have %llu slots, the claim has %llu",
			    r->name, (unsigned long long)slots, (unsigned long long)p->claim_n);
	slots = 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint8_t *data = slot_at(r, p->claim_lo + slots) + parts[i].shift;

		RETURN_NOT_OK(kind_check(r, parts[i].kind, data, parts[i].length));
		slots += parts[i].slots;
	}
	return SHMRING_OK;
}

/* Returns the sequence at which the stream of message `i` of the claim began: after the last end marker before
 * that message. */
static uint64_t began_before(const shmring_producer *p, const struct shmring_part *parts, uint32_t i)
{
	uint64_t at = p->claim_lo, began = p->began;

	for (uint32_t k = 0; k < i; k++) {
		at += parts[k].slots;
		if (parts[k].kind == KIND_END)
			began = at;
	}
	return began;
}

int shmring_publish_parts(shmring_producer *p, const struct shmring_part *parts, uint32_t n)
{
	shmring *r = p->ring;
	uint8_t checksum = r->options & OPT_CHECKSUM ? FLAG_CHECKSUM : 0;
	uint64_t seq = p->claim_lo + p->claim_n;
	uint64_t began = p->began;
	uint64_t bytes = 0;
	uint64_t time;

	RETURN_NOT_OK(check_usable(r));
	if (p->claim_n == 0)
		return no_claim(r);
	RETURN_NOT_OK(check_parts(p, parts, n));
	time = message_time(r->options);
	for (uint32_t i = n; i-- > 0;) {
		const struct shmring_part *part = &parts[i];
		uint8_t flags = part->kind == KIND_END ? 0 : checksum;
		uint32_t crc = 0;

		seq -= part->slots;
		if (flags)
			crc = shmring_crc32c(0, slot_at(r, seq) + part->shift, part->length);
		if (part->kind == KIND_END) {
			crc = run_behind(began_before(p, parts, i), seq);
			/* The loop runs backwards, so the first end marker that it meets is the last of the claim.
			 * The producer's next stream begins after that marker. */
			if (began == p->began)
				began = seq + part->slots;
		}
		bytes += part->length;
		entry_fill(control_at(r, seq), time, part->length, part->slots, (uint8_t)p->seat_index, part->kind,
			   flags, part->shift, crc);
		if (i)
			/* Release: a reader that sees this number also sees the open claim, or its end, as in
			 * shmring_publish_ones(). */
			store_release(&control_at(r, seq)->published, seq + 1);
	}
	p->claim_n = 0;
	p->began = began;
	publish_run(r, p->seat, r->options, control_at(r, seq), seq, n, bytes);
	return SHMRING_OK;
}

/* CHANGE: edit this for a new counter that each participant has */
int shmring_abort(shmring_producer *p)
{
	RETURN_NOT_OK(check_usable(p->ring));
	if (p->claim_n == 0)
		return no_claim(p->ring);
	publish_aborted(p->ring, p->claim_lo, p->claim_n, (uint8_t)p->seat_index);
	p->claim_n = 0;
	claim_done(p->ring, p->seat, p->ring->options);
	return SHMRING_OK;
}

/* CHANGE: edit this for a new option of a ring */
static int push_any(shmring_producer *p, const void *data, size_t length, uint8_t kind, uint64_t *message_id)
{
	uint64_t slots = length <= SLOT_BYTES ? 1 : shmring_slots_for(length, false);
	int64_t lo;

	RETURN_NOT_OK(kind_check(p->ring, kind, data, length));
	if (length > UINT32_MAX)
		return fail(SHMRING_E_TOO_LARGE, "ring \"%s\": a message has at most 4 GiB", p->ring->name);
	lo = shmring_next(p, (uint32_t)slots);
	if (lo < 0)
		return (int)lo;
	if (length) /* data may be NULL if length is 0 */
		memcpy(slot_at(p->ring, (uint64_t)lo), data, length);
	if (message_id)
		*message_id = (uint64_t)lo;
	return shmring_publish(p, (uint32_t)length, kind, 0);
}

int shmring_push_many(shmring_producer *p, const void *rows, size_t stride, uint32_t n, const uint32_t *lengths,
		      uint32_t length, uint64_t *message_id)
{
	shmring *r = p->ring;
	const uint8_t *row = rows;
	int64_t lo;

	RETURN_NOT_OK(check_rows(r, n, lengths, length));
	lo = shmring_next(p, n);
	if (lo < 0)
		return (int)lo;
	if (!lengths && length == SLOT_BYTES && stride == SLOT_BYTES)
		memcpy(slot_at(r, (uint64_t)lo), rows, (size_t)n * SLOT_BYTES);
	else
		for (uint32_t i = 0; i < n; i++, row += stride)
			memcpy(slot_at(r, (uint64_t)lo + i), row, lengths ? lengths[i] : length);
	if (message_id)
		*message_id = (uint64_t)lo;
	return shmring_publish_ones(p, (uint64_t)lo + n - 1, lengths, length);
}

void shmring_count_dropped(shmring_producer *p)
{
	if (is_owned(p->ring))
		count(&p->seat->counters.dropped, 1);
}
