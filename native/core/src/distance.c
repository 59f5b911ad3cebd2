/* How far behind the producers a member waits: a microsecond of its own accord, where that
 * pays, or the head start that its user wants.
 *
 * Neither is a sleep. Nobody need wake a member that keeps away: it looks again by itself,
 * and after a bounded time it waits like any other (wait.c). docs/protocol.md, P9.
 */
#include <errno.h>
#include <sched.h>
#include <time.h>

#include "cells.h"
#include "clock.h"
#include "distance.h"
#include "end.h"
#include "floor.h"
#include "takes.h"

/* Whether a member keeps away for AWAY_NS before it looks is tried for EPISODE waits with
 * and EPISODE without, each TRUST waits. */
#define AWAY_NS 1000LL
#define EPISODE 16
#define TRUST 16384
/* Who gives a head start looks each time that an eighth of what has been waited has passed
 * again, so that nobody gets much further ahead than was wanted; for a moment by spinning. */
#define LOOK_SHARE 8
#define LONGEST_PAUSE_NS (10 * 1000 * 1000LL)
#define SHORTEST_NAP_NS (50 * 1000LL)
#define SPINNING_NS (50 * 1000LL)
#define LONGEST_PATIENCE_NS (60 * 1000 * 1000 * 1000LL)

/* A member that looks again and again close behind a producer fights it for the lines
 * that it writes: both are slow. After a microsecond away the member finds many messages,
 * unless the producer waits for its answer. Which of the two it is shows in the slots that
 * are taken in the same time: a tenth more, so that noise does not decide. */
bool stays_away(shmring_member *m)
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

static void spin_for(int64_t ns)
{
	for (int64_t until = monotonic() + ns; monotonic() < until;)
		for (int i = 0; i < 4; i++)
			spin_hint();
}

void keep_away(void)
{
	spin_for(AWAY_NS);
}

/* --- a head start ----------------------------------------------------------------- */

int shmring_member_head_start(shmring_member *m, uint32_t messages, int64_t patience_ns)
{
	const shmring *r = m->ring;
	struct head_start *h = &m->head_start;
	int status = check_usable(r);

	if (status)
		return status;
	if (messages > r->capacity / 2)
		return fail(
		    SHMRING_E_INVALID,
		    "a head start of %u messages is more than half of the ring \"%s\", which has %llu slots",
		    messages, r->name, (unsigned long long)r->capacity);
	if (messages && (patience_ns <= 0 || patience_ns > LONGEST_PATIENCE_NS))
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\": a head start lasts more than nothing and at most 60 s, not %lld ns",
			    r->name, (long long)patience_ns);
	store_relaxed(&h->patience_ns, patience_ns);
	store_relaxed(&h->taken, UINT64_MAX);
	store_relaxed(&h->messages, messages);
	return SHMRING_OK;
}

/* How far the producers have been seen to be ahead of where the branch stood. */
struct lead {
	uint64_t from;
	uint64_t at;
	uint32_t messages;
};

/* So far ahead as they shall get, or as they can. */
static bool is_ahead(const shmring_member *m, uint32_t wanted, struct lead *lead)
{
	const shmring *r = m->ring;
	const struct branch *b = m->branch;
	uint64_t upstream = load_relaxed(&b->d.upstream);
	uint64_t limit = upstream_released(r, upstream);
	uint64_t t = load_relaxed(&b->taken.v) >> 8;
	uint32_t found;
	uint64_t end;
	bool marker;

	if (member_is_ended(m, t) || load_relaxed(&r->cursors->producers.futex) & 1 || /* room, or a release */
	    (load_relaxed(&b->d.options) & BRANCH_LAPSE && load_relaxed(&r->cursors->floor_next.v) > t))
		return true;
	if (lead->from != t) /* or others have taken some of them */
		*lead = (struct lead){.from = t, .at = t};
	do {
		/* A member that shares its branch may read here what is being overwritten. It takes
		 * too early then; what it takes is read again. */
		if (scan_messages(r, lead->at, limit, wanted - lead->messages, r->capacity / 2, &end, &found,
				  &marker) ||
		    marker)
			return true;
		lead->at = end;
		lead->messages += found;
		if (lead->messages >= wanted || end - t >= r->capacity / 2)
			return true;
	} while (found);
	return false;
}

/* Nobody is there who would get further ahead, or somebody cannot. Who polls for room, or
 * does not wait for it, shows that in its seat alone. */
static bool nobody_gets_further(shmring_member *m)
{
	const shmring *r = m->ring;
	uint64_t refused = 0, before = load_relaxed(&m->head_start.refused);
	bool produces = false, waits = false;

	for (uint32_t i = 0; i < r->seat_count; i++) {
		const struct seat *s = &r->seats[i];

		if (load_relaxed(&s->id.role) != ROLE_PRODUCER || load_relaxed(&s->id.state) != SEAT_ACTIVE)
			continue;
		produces = true;
		waits |= load_relaxed(&s->waits) != WAIT_NONE;
		refused += load_relaxed(&s->counters.full_waits);
	}
	if (before == NONE)
		store_relaxed(&m->head_start.refused, refused);
	if (waits || (before != NONE && refused != before)) /* or one has left that had been refused */
		return true;
	return !produces &&
	       upstream_released(r, load_relaxed(&m->branch->d.upstream)) >= load_relaxed(&r->cursors->claim.v);
}

/* False: a signal. */
static bool pause_for(int64_t ns, int64_t waited, uint8_t strategy)
{
	if (strategy == SHMRING_WAIT_YIELD) {
		sched_yield();
	} else if (strategy == SHMRING_WAIT_SPIN || (strategy == SHMRING_WAIT_DEFAULT && waited < SPINNING_NS)) {
		spin_for(ns);
	} else {
		if (ns < SHORTEST_NAP_NS)
			ns = SHORTEST_NAP_NS;
		return nanosleep(&(struct timespec){.tv_nsec = ns}, NULL) == 0 || errno != EINTR;
	}
	return true;
}

/* Before a wait of a member that has taken all there was: lets the producers get ahead. The
 * time counts from the first such wait, so that a message that comes to a member which has
 * waited for longer is taken at once. False: after a slice, or a signal, not yet. */
bool give_head_start(shmring_member *m, int64_t deadline, int64_t slice_ns, uint8_t strategy)
{
	struct head_start *h = &m->head_start;
	uint32_t wanted = load_relaxed(&h->messages);
	uint64_t taken = load_relaxed(&m->seat->counters.messages);
	int64_t start = monotonic(), now = start, since, until;
	struct lead lead = {0};

	if (load_relaxed(&h->taken) != taken) {
		store_relaxed(&h->since_ns, start);
		store_relaxed(&h->taken, taken);
		store_relaxed(&h->refused, NONE);
	}
	since = load_relaxed(&h->since_ns);
	until = since + load_relaxed(&h->patience_ns);
	if (until > deadline)
		until = deadline;
	/* Whoever was woken owes the branch's others a look, see pass_wake_up_on(). */
	if (load_relaxed(&m->woken))
		return true;
	while (now < until) {
		int64_t pause = (now - since) / LOOK_SHARE;

		if (load_relaxed(&m->interrupted) || has_news(m) || is_ahead(m, wanted, &lead))
			return true;
		if (now - since > SPINNING_NS && nobody_gets_further(m))
			return true;
		if (now - start >= slice_ns)
			return false;
		pause = pause < AWAY_NS ? AWAY_NS : pause > LONGEST_PAUSE_NS ? LONGEST_PAUSE_NS : pause;
		if (!pause_for(pause < until - now ? pause : until - now, now - since, strategy))
			return false;
		now = monotonic();
	}
	return true;
}
