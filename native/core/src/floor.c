/* The floor, the lowest sequence still held: messages below it may be overwritten.
 *
 * Producers may claim up to floor + capacity, and nothing else decides which messages may be
 * overwritten. The floor only grows. A process that needs a higher floor computes F, the
 * lowest sequence that some branch still keeps from producers, and moves the floor in these steps:
 *
 *   1. floor_next = max(floor_next, F); barrier
 *   2. if a branch is new since F was computed, or a branch drops the oldest:
 *      read all branches and holds again; F' = min(F, their minimum)
 *   3. floor = max(floor, F')
 *
 * A newcomer (a branch that subscribes at the floor, or a consumer of a branch
 * with drop_oldest) does the opposite: it announces its position, passes a
 * barrier and then looks at floor_next. Either step 2 sees the position, or the
 * newcomer sees floor_next beyond its position and moves up. A subscription passes the
 * heavy barrier itself. If a branch drops the oldest, the process that moves the floor passes the
 * heavy barrier, because the branch's consumers announce a position at every take. docs/protocol.md, P4.
 */
#include "cells.h"

/* Walks from `from`, a boundary between messages, over published messages. Returns the first sequence at or after
 * `target` where a message can begin, or the first unpublished sequence if it lies before `target`. */
uint64_t walk_runs(const shmring *r, uint64_t from, uint64_t target)
{
	uint64_t at = from;

	while (at < target && at - from < r->capacity) {
		const struct control *c = control_at(r, at);
		uint64_t description;
		uint32_t run;

		if (load_acquire(&c->published) != at + 1)
			break;
		/* Acquire: the caller's check of the floor comes after this load. */
		description = load_acquire(&c->description);
		run = description_run(description);
		if (run == 0 || run > r->capacity)
			break; /* the entry is damaged: the consumer that reads it reports that */
		if (description_flags(description) & FLAG_ONES && at + run > target)
			return target;
		at += run;
	}
	return at;
}

/* Returns a sequence below which the branch has released everything. The result is never too high, but it may be
 * too low. A later call may return a lower sequence: a consumer announces its hold before its take, and the take
 * may fail.
 *
 * With `holds_only`, returns the lowest hold of the branch's consumers, or NONE: for branches whose unread
 * messages producers may overwrite (gates_by_holds_only()), so the branch's position does not count. The holds of
 * orphans do not count either: no process reads an orphan's messages until a consumer adopts them, and this
 * consumer announces a hold of its own before it reads (adopt.c). */
uint64_t branch_released(const shmring *r, const struct branch *b, bool holds_only)
{
	for (int attempt = 0; attempt < 16; attempt++) {
		uint32_t moves = load_acquire(&b->d.moves);
		uint64_t taken = load_acquire(&b->taken.v);
		uint64_t low = holds_only ? NONE : taken >> 8;

		/* Holds are read after `taken`: a consumer stores its hold before its take
		 * moves `taken`, so a reader that sees the take sees the hold. */
		for (uint32_t word = 0; word * 64 < r->seat_count; word++) {
			uint64_t consumers = load_acquire(&b->d.consumers[word]);

			while (consumers) {
				uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(consumers);
				uint64_t hold;

				consumers &= consumers - 1;
				if (i >= r->seat_count)
					break;
				if (holds_only && load_acquire(&r->seats[i].id.state) == SEAT_ORPHAN)
					continue;
				hold = load_acquire(&r->seats[i].lease.hold);
				if (hold < low)
					low = hold;
			}
		}
		/* If a lease moved between two seats meanwhile, the loop may have missed its hold in both: read
		 * all holds again. */
		if (load_relaxed(&b->d.moves) == moves)
			return low;
	}
	return 0;
}

uint64_t upstream_released(const shmring *r, uint64_t upstream)
{
	uint64_t low = NONE;

	for (uint64_t m = upstream; m; m &= m - 1) {
		uint64_t released = branch_released(r, &r->cursors->branch[__builtin_ctzll(m)], false);

		if (released < low)
			low = released;
	}
	return low;
}

/* Returns the lowest sequence that any branch holds; NONE if no branch holds anything. Sets *drops_oldest if a
 * branch drops the oldest. Sets *soft if a branch drops the oldest or no branch holds anything: producers may then
 * overwrite messages that no consumer has read, and the caller decides how many. */
static uint64_t gate(const shmring *r, bool *soft, bool *drops_oldest)
{
	uint64_t active = load_acquire(&r->cursors->graph.active);
	uint64_t low = NONE;

	*drops_oldest = false;
	for (uint64_t m = active; m; m &= m - 1) {
		const struct branch *b = &r->cursors->branch[__builtin_ctzll(m)];
		uint64_t released = branch_released(r, b, gates_by_holds_only(b));

		*drops_oldest |= (load_relaxed(&b->d.options) & BRANCH_DROP_OLDEST) != 0;
		if (released < low)
			low = released;
	}
	*soft = *drops_oldest || low == NONE;
	return low;
}

/* Returns true if all branches have released everything below `sequence`. Unread messages of a branch with
 * drop_oldest count as released. */
bool everybody_released(const shmring *r, uint64_t sequence)
{
	bool soft, drops_oldest;

	return gate(r, &soft, &drops_oldest) >= sequence;
}

/* Returns true if no branch holds producers back by its position; holds of consumers may still do so. A producer
 * that finds no room may then wait for another producer to publish a claim. Publishing wakes no producer, so the
 * waiting producer has to look again after UNTOLD_NS. */
bool nobody_gates(const shmring *r)
{
	for (uint64_t m = load_relaxed(&r->cursors->graph.active); m; m &= m - 1)
		if (!gates_by_holds_only(&r->cursors->branch[__builtin_ctzll(m)]))
			return false;
	return true;
}

static void raise_to(uint64_t *word, uint64_t value)
{
	uint64_t seen = load_relaxed(word);

	while (seen < value && !cas_seq_cst(word, &seen, value))
		;
}

/* Tries to raise the floor to `need` or beyond; returns the floor. */
uint64_t floor_advance(shmring *r, uint64_t need)
{
	struct cursors *c = r->cursors;
	uint64_t floor = load_acquire(&c->floor.v);
	uint32_t changes = load_acquire(&c->graph.changes); /* read before gate(), so no new branch is missed */
	bool soft, drops_oldest;
	uint64_t next = gate(r, &soft, &drops_oldest);
	uint64_t again = next;

	while (soft) {
		/* Free a sixteenth of the ring more than is needed, so that the floor
		 * moves seldom. */
		uint64_t walked = walk_runs(r, floor, need + r->capacity / 16);
		uint64_t now = load_acquire(&c->floor.v);

		/* While the floor stands where the walk began, nothing the walk
		 * has read can have been overwritten. */
		if (now == floor) {
			if (walked < next)
				next = walked;
			break;
		}
		if (now >= need)
			return now;
		floor = now;
	}
	if (next <= floor || next > load_relaxed(&c->claim.v))
		return floor;
	raise_to(&c->floor_next.v, next);
	/* If no branch drops the oldest, only a new branch can hold a lower sequence than was seen,
	 * and a new branch counts `changes` up after it has announced its position (place_branch() in graph.c). */
	if (!drops_oldest) {
		light_barrier(r->asymmetric);
		if (load_acquire(&c->graph.changes) != changes)
			again = gate(r, &soft, &drops_oldest);
	}
	/* A branch with drop_oldest may be new since the first look, so `drops_oldest` is tested again. The
	 * branch's consumers pass a light barrier only: this side has to pass the heavy barrier. */
	if (drops_oldest) {
		heavy_barrier(r->asymmetric);
		again = gate(r, &soft, &drops_oldest);
	}
	raise_to(&c->floor.v, again < next ? again : next);
	return load_acquire(&c->floor.v);
}
