/* How far behind the producers a consumer waits: a microsecond, where that pays.
 *
 * Keeping away is no sleep. Nobody need wake a consumer that keeps away: it looks again by
 * itself, and then it waits like any other (wait.c). docs/protocol.md, P9.
 */
#include "clock.h"
#include "distance.h"

/* Whether a consumer keeps away for AWAY_NS before it looks is tried for EPISODE waits with
 * and EPISODE without, each TRUST waits. */
#define AWAY_NS 1000LL
#define EPISODE 16
#define TRUST 16384

/* A consumer that looks again and again close behind a producer fights it for the lines
 * that it writes: both are slow. After a microsecond away the consumer finds many messages,
 * unless the producer waits for its answer. Which of the two it is shows in the slots that
 * are taken in the same time: a tenth more, so that noise does not decide. */
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
