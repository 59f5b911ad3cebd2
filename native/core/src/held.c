/* Functions that read messages on lease, one by one or as one array of rows, and functions that tell how far a
 * consumer can read. */
#include "cells.h"
#include "takes.h"

__attribute__((cold, noinline)) static int read_any(const shmring *r, uint64_t *position, uint64_t end,
						    struct shmring_message *message);

/* CHANGE: edit this for a new option of a ring */
int shmring_read(const shmring *r, uint64_t *position, uint64_t end, struct shmring_message *message)
{
	uint64_t at = *position;
	const struct control *c = control_at(r, at);
	struct entry e;

	/* A published message without a checksum, the common case, is read here. read_any() skips aborted runs,
	 * compares checksums, and reports damage and the end of the range. */
	if (__builtin_expect(at >= end || !shows(c, at) || !entry_is_plain(r, c, at, &e) || e.next > end ||
				 e.flags & FLAG_CHECKSUM,
			     0))
		return read_any(r, position, end, message);
	*position = e.next;
	describe(r, c, at, &e, message);
	return SHMRING_OK;
}

static int read_any(const shmring *r, uint64_t *position, uint64_t end, struct shmring_message *message)
{
	while (*position < end) {
		uint64_t at = *position;
		struct entry e;

		if (!is_published(r, at))
			return fail(SHMRING_E_DAMAGED, "ring \"%s\": sequence %llu is held but not published",
				    r->name, (unsigned long long)at);
		RETURN_NOT_OK(entry_read(r, at, &e));
		if (e.next > end)
			return fail(SHMRING_E_DAMAGED, "ring \"%s\": message %llu reaches beyond what is held",
				    r->name, (unsigned long long)at);
		*position = e.next;
		if (e.kind == KIND_ABORTED)
			continue;
		describe(r, control_at(r, at), at, &e, message);
		if (e.flags & FLAG_CHECKSUM && shmring_crc32c(0, message->data, e.length) != e.crc)
			return fail(SHMRING_E_DAMAGED, "ring \"%s\": message %llu does not match its checksum",
				    r->name, (unsigned long long)at);
		return SHMRING_OK;
	}
	return not_now(SHMRING_UNAVAILABLE);
}

/* CHANGE: edit this for a new option of a ring */
const void *shmring_rows(const shmring *r, uint64_t first, uint64_t end)
{
	uint64_t at = first;

	if (first >= end || end - first > r->capacity || r->options & OPT_CHECKSUM)
		return NULL;
	while (at < end) {
		struct entry e;

		if (!is_published(r, at) || entry_read(r, at, &e) || e.next != at + 1 || e.shift ||
		    e.kind == KIND_ABORTED)
			return NULL;
		at += e.run; /* steps over a run of one-slot messages */
	}
	return slot_at(r, first);
}

/* Returns the end of the one-slot messages that begin at the branch's position, before any of them is taken. For a
 * branch with drop_oldest, returns the position itself: producers may overwrite messages that are not on lease. */
uint64_t shmring_consumer_available(shmring_consumer *consumer)
{
	const shmring *r = consumer->ring;
	uint64_t upstream = load_relaxed(&consumer->branch->d.upstream);
	uint64_t from = load_acquire(&consumer->branch->taken.v) >> 8;
	uint64_t limit = upstream ? upstream_released(r, upstream) : NONE;
	uint64_t at = from;

	if (load_relaxed(&consumer->branch->d.options) & BRANCH_DROP_OLDEST)
		return from;
	if (limit > from + r->capacity) /* a range has at most as many slots as the ring */
		limit = from + r->capacity;
	while (at < limit && is_published(r, at)) {
		struct entry e;

		if (entry_read(r, at, &e) || e.next != at + 1 || e.kind == KIND_ABORTED || e.kind == KIND_END)
			break;
		at = e.flags & FLAG_ONES && at + e.run < limit ? at + e.run : e.next;
	}
	return at;
}

uint64_t shmring_consumer_reach(shmring_consumer *consumer)
{
	const shmring *r = consumer->ring;
	uint64_t taken = load_acquire(&consumer->branch->taken.v);
	uint64_t upstream = load_relaxed(&consumer->branch->d.upstream);
	uint64_t t = taken >> 8;

	if (upstream) {
		uint64_t released = upstream_released(r, upstream);

		return released > t ? released : t;
	}
	return walk_runs(r, t, t + r->capacity);
}

int shmring_measure(const shmring *r, uint64_t from, uint64_t limit, uint32_t max_messages, uint64_t max_slots,
		    uint64_t *end, uint32_t *messages)
{
	bool marker = false;

	RETURN_NOT_OK(check_usable(r));
	RETURN_NOT_OK(scan_messages(r, from, limit, max_messages, max_slots, end, messages, &marker));
	*messages += marker;
	return SHMRING_OK;
}

void shmring_consumer_overrun(const shmring_consumer *consumer, uint64_t *first, uint64_t *end)
{
	*first = consumer->overrun_first;
	*end = consumer->overrun_end;
}
