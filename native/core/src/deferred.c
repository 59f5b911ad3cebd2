/* Deferred releases, which await a free entry of the consumer's seat: docs/protocol.md, P5.
 *
 * A hash table has the boundaries of the releases: a run [lo, hi) of released sequences is in the table twice, at
 * lo with hi and at hi with lo. Runs that touch are joined, so a boundary belongs to one run, and each neighbour
 * of a release is found in one step, however many releases wait.
 */
#include <stdlib.h>

#include "core.h"

#define LEAST_ROOM 16 /* first number of entries (a choice); the table doubles when it is half full */
#define EMPTY NONE

static size_t home(const struct deferred *d, uint64_t at)
{
	return (size_t)(at * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (d->room - 1);
}

static size_t find(const struct deferred *d, uint64_t at)
{
	size_t i = home(d, at);

	while (d->table[i].at != at && d->table[i].at != EMPTY)
		i = (i + 1) & (d->room - 1);
	return i;
}

static void put(struct deferred *d, uint64_t at, uint64_t other)
{
	d->table[find(d, at)] = (struct boundary){at, other};
	d->used++;
}

/* Removes the entry at `hole`, and moves back the entries that it had displaced. */
static void take_out(struct deferred *d, size_t hole)
{
	size_t mask = d->room - 1;

	d->used--;
	for (size_t i = (hole + 1) & mask; d->table[i].at != EMPTY; i = (i + 1) & mask)
		if (((i - home(d, d->table[i].at)) & mask) >= ((i - hole) & mask)) {
			d->table[hole] = d->table[i];
			hole = i;
		}
	d->table[hole].at = EMPTY;
}

/* Takes out the run with a boundary in entry `i`, and joins it to [*lo, *hi). */
static void join(struct deferred *d, size_t i, uint64_t *lo, uint64_t *hi)
{
	uint64_t at = d->table[i].at, other = d->table[i].other;

	take_out(d, i);
	take_out(d, find(d, other));
	if (other < *lo)
		*lo = other;
	if (other > *hi)
		*hi = other;
	if (at < *lo)
		*lo = at;
}

void deferred_join(struct deferred *d, uint64_t *lo, uint64_t *hi)
{
	uint64_t from = *lo, to = *hi;

	if (to - from <= d->room) {
		for (uint64_t at = from; d->used && at <= to; at++) {
			size_t i = find(d, at);

			if (d->table[i].at == at)
				join(d, i, lo, hi);
		}
		return;
	}
	for (bool found = true; found && d->used;) { /* looks again, because join() moves other entries */
		found = false;
		for (size_t i = 0; i < d->room; i++)
			if (d->table[i].at != EMPTY && d->table[i].at >= from && d->table[i].at <= to) {
				join(d, i, lo, hi);
				found = true;
			}
	}
}

static bool resize(struct deferred *d, size_t room)
{
	struct deferred bigger = {.table = malloc(room * sizeof *d->table), .room = room};

	if (!bigger.table)
		return false;
	for (size_t i = 0; i < room; i++)
		bigger.table[i].at = EMPTY;
	for (size_t i = 0; i < d->room; i++)
		if (d->table[i].at != EMPTY)
			put(&bigger, d->table[i].at, d->table[i].other);
	free(d->table);
	*d = bigger;
	return true;
}

bool deferred_reserve(struct deferred *d)
{
	return (d->used + 2) * 2 <= d->room || resize(d, d->room ? d->room * 2 : LEAST_ROOM);
}

void deferred_put(struct deferred *d, uint64_t lo, uint64_t hi)
{
	put(d, lo, hi);
	put(d, hi, lo);
}

/* Takes out any run. The function looks at few entries, because a release has to stay cheap. Returns false if all
 * entries that it looks at are empty. */
bool deferred_take_any(struct deferred *d, uint64_t *lo, uint64_t *hi)
{
	for (int n = 0; d->used && n < LEAST_ROOM; n++) {
		size_t i = d->cursor++ & (d->room - 1);

		if (d->table[i].at != EMPTY) {
			*lo = *hi = d->table[i].at;
			join(d, i, lo, hi);
			return true;
		}
	}
	return false;
}

/* Takes out the lowest run. It checks all entries, like deferred_overlaps(): both are for rare cases. */
bool deferred_take_lowest(struct deferred *d, uint64_t *lo, uint64_t *hi)
{
	*lo = EMPTY;
	for (size_t i = 0; d->used && i < d->room; i++)
		if (d->table[i].at < *lo)
			*lo = d->table[i].at;
	if (*lo == EMPTY)
		return false;
	*hi = *lo;
	join(d, find(d, *lo), lo, hi);
	return true;
}

bool deferred_overlaps(const struct deferred *d, uint64_t lo, uint64_t hi)
{
	for (size_t i = 0; d->used && i < d->room; i++)
		if (d->table[i].at != EMPTY && d->table[i].at < d->table[i].other && d->table[i].at < hi &&
		    d->table[i].other > lo)
			return true;
	return false;
}

void deferred_free(struct deferred *d)
{
	free(d->table);
}
