/* Back-off after a lost race.
 *
 * Two producers that claim at the same time, or two consumers that take, fetch the
 * same cache lines from each other for every message, which takes 0.1 us; a push or a take whose cache
 * lines are in its own cache takes a fifth of that. So a producer or consumer that has lost a race
 * pauses, while the other one goes on. The pause is twice as long as the last one if the producer or
 * consumer has pushed or taken fewer than FEW messages since. The lost claim or take is undone before the
 * pause, so it blocks no other participant.
 */
#include "core.h"

#define SHORTEST_NS 500
#define LONGEST_NS 16000
#define FEW 4096

static uint64_t next_pause(struct contention *c, uint64_t messages)
{
	uint64_t ns = load_relaxed(&c->ns);

	if (ns == 0 || messages - load_relaxed(&c->messages) >= FEW)
		ns = SHORTEST_NS;
	else if (ns < LONGEST_NS)
		ns *= 2;
	store_relaxed(&c->ns, ns);
	store_relaxed(&c->messages, messages);
	return ns;
}

void keep_out(struct contention *c, uint64_t messages)
{
	uint64_t until = now_ns(CLOCK_MONOTONIC) + next_pause(c, messages);

	while (now_ns(CLOCK_MONOTONIC) < until)
		spin_hint();
}
