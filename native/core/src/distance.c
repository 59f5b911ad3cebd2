/* How far behind the producers a consumer waits: a microsecond, if that pays.
 *
 * A consumer that keeps away does not sleep. It needs no wake-up: it checks again by
 * itself, and then waits like any other (wait.c). docs/protocol.md, P9.
 */
#include "clock.h"
#include "distance.h"

/* Every TRUST waits, a consumer tries EPISODE waits in which it keeps away for AWAY_NS before
 * it checks, and EPISODE waits in which it does not. */
#define AWAY_NS 1000LL
#define EPISODE 16
#define TRUST 16384

/* A consumer that polls close behind a producer competes with it for the lines that it
 * writes: both are slow. After a microsecond away the consumer finds many messages, unless
 * the producer waits for its answer. The slots taken in the same time show which case it
 * is: a tenth more, so that noise does not decide. */
bool stays_away(shmring_consumer *m)
{
	struct distance *d = &m->distance;
	uint32_t waits = load_relaxed(&d->waits) + 1;
	bool away = load_relaxed(&d->away);

	if (waits >= TRUST && (waits - TRUST) % EPISODE == 0) {
		uint64_t taken = load_relaxed(&m->branch->taken.v) >> 8;
		uint64_t now = (uint64_t)monotonic();
		uint64_t slots = taken - load_relaxed(&d->taken);
		uint64_t ns = now - load_relaxed(&d->since_ns);

		if (waits == TRUST + EPISODE) {
			store_relaxed(&d->near_slots, slots);
			store_relaxed(&d->near_ns, ns);
		} else if (waits > TRUST + EPISODE) {
			waits = 0;
		}
		away = waits ? waits > TRUST
			     : slots * load_relaxed(&d->near_ns) * 10 > load_relaxed(&d->near_slots) * ns * 11;
		store_relaxed(&d->taken, taken);
		store_relaxed(&d->since_ns, now);
		store_relaxed(&d->away, away);
	}
	store_relaxed(&d->waits, waits);
	return away;
}

void keep_away(void)
{
	for (int64_t until = monotonic() + AWAY_NS; monotonic() < until;)
		for (int i = 0; i < 4; i++)
			spin_hint();
}
