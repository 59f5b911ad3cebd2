/* How far behind the producers a consumer waits: up to two microseconds, or up to four if
 * there are several branches, and if that pays.
 *
 * A consumer that keeps away does not sleep. It needs no wake-up: it checks again by
 * itself, and then waits like any other (wait.c). docs/protocol.md, P9.
 */
#include "clock.h"
#include "distance.h"

/* A consumer that polls close behind a producer competes with it for the lines that it
 * writes: both are slow, and the more so the more consumers poll. One that keeps away finds
 * several messages, unless the producer waits for its answer or sends seldom. How many its
 * branch has taken until its next wait shows which case it is. */
enum {
	FEW = 3, /* fewer: it did not pay. Who answers a producer that waits for it gets one */
	MANY = 32, /* enough to share the cost of a look; it need not be further away */
	LEAST_NS = 250,
	MOST_NS = 2000, /* first, too: at 1.5 M messages/s, as while all of eight poll, this brings FEW */
	MOST_OF_SEVERAL_NS = 4000, /* eight branches get 9 M messages/s on 16 cores, by MOST_NS 6 */
	WAITS = 16, /* near, until it is tried again: twice as many each time that it did not pay, */
	MOST_FAILURES = 10, /* up to 2^10 times */
};

/* A consumer must not keep away for so long that the producers wait for room. */
static uint64_t many(const shmring *r)
{
	return r->capacity < 16 * MANY ? r->capacity / 16 : MANY;
}

static uint32_t most_ns(const shmring *r)
{
	uint64_t active = load_relaxed(&r->cursors->graph.active);

	return active & (active - 1) ? MOST_OF_SEVERAL_NS : MOST_NS;
}

static uint32_t changed(const shmring *r, uint32_t away_ns, uint64_t got)
{
	uint32_t most = most_ns(r);

	if (got < many(r))
		return away_ns < most ? away_ns * 2 : most;
	return got > 4 * many(r) && away_ns > LEAST_NS ? away_ns / 2 : away_ns;
}

/* How long to keep away before this wait: 0, not at all. */
static uint32_t time_away(shmring_consumer *consumer)
{
	struct distance *d = &consumer->distance;
	uint32_t away_ns = load_relaxed(&d->away_ns);
	uint32_t waits = load_relaxed(&d->waits) + 1;
	uint64_t taken;

	if (!away_ns && waits < (uint32_t)WAITS << load_relaxed(&d->failures)) {
		store_relaxed(&d->waits, waits);
		return 0;
	}
	taken = load_relaxed(&consumer->branch->taken.v) >> 8;
	if (!away_ns) {
		away_ns = MOST_NS;
	} else if (taken - load_relaxed(&d->taken) >= FEW) {
		away_ns = changed(consumer->ring, away_ns, taken - load_relaxed(&d->taken));
		store_relaxed(&d->failures, 0);
	} else {
		away_ns = 0;
		store_relaxed(&d->waits, 0);
		if (load_relaxed(&d->failures) < MOST_FAILURES)
			store_relaxed(&d->failures, load_relaxed(&d->failures) + 1);
	}
	store_relaxed(&d->taken, taken);
	store_relaxed(&d->away_ns, away_ns);
	return away_ns;
}

void keep_away(shmring_consumer *consumer)
{
	uint32_t away_ns = time_away(consumer);

	if (away_ns)
		for (int64_t until = monotonic() + away_ns; monotonic() < until;)
			for (int i = 0; i < 4; i++)
				spin_hint();
}
