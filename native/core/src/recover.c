/* What the dead have left: holes, pending takes, leases, seats, branches.
 *
 * One recoverer at a time, under the admin lock, which the kernel frees if he
 * dies too. Every step may be repeated: the next recoverer begins anew.
 */
#include <string.h>

#include "internal.h"

/* Did the claim word pass through `at`, which is h + n of a hole at h? Claim
 * first, intents second, publication last: whoever claimed from `at` has its
 * intent there until it has published. */
static bool passed_through(const shmring *r, uint64_t h, uint64_t at)
{
	uint8_t seat;

	if (load_acquire(&r->cursors->claim.v) == at)
		return true;
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (load_acquire(&r->seats[i].id.state) != SEAT_FREE && load_acquire(&r->seats[i].intent.lo) == at)
			return true;
	if (!is_published(r, at))
		return false;
	/* The hole's owner may have died filling a batch, whose later rows carry
	 * their numbers already. A seat's claims only go up, so what a seat with
	 * its intent at h has written behind h lies inside the hole. */
	seat = description_seat(load_relaxed(&control_at(r, at)->description));
	return seat >= r->seat_count || load_acquire(&r->seats[seat].intent.lo) != h;
}

/* The length of the hole at h, whose owner is dead; 0 if that cannot be said
 * now because a living producer may be the owner. docs/protocol.md, P3: among
 * the dead whose intent begins at h the smallest n with evidence is right. */
static uint64_t hole_length(const shmring *r, uint64_t h)
{
	uint64_t best = 0;

	if (r->options & OPT_SINGLE_PRODUCER) /* nobody else can have moved it */
		return load_acquire(&r->cursors->claim.v) - h;
	for (uint32_t i = 0; i < r->seat_count; i++) {
		const struct seat *s = &r->seats[i];
		uint64_t n;

		if (load_acquire(&s->id.state) == SEAT_FREE || load_acquire(&s->intent.lo) != h)
			continue;
		if (seat_alive(r, i))
			return 0;
		n = load_relaxed(&s->intent.n);
		if (n && n <= r->capacity && (best == 0 || n < best) && passed_through(r, h, h + n))
			best = n;
	}
	return best;
}

/* True if the seat needs its intent no longer. */
static bool settle_claim(shmring *r, struct seat *s, uint32_t index)
{
	uint64_t h = load_acquire(&s->intent.lo);

	/* No hole: it never had h. Another one may take h from here on. */
	if (h != NONE && is_hole(r, h)) {
		uint64_t n = hole_length(r, h);

		if (n == 0 || n > r->capacity)
			return false;
		/* Again: a living owner may have published and cleared its intent between
		 * the first look and hole_length()'s. It publishes first, so this one sees it. */
		if (is_hole(r, h)) {
			/* A batch's rows may carry their numbers already; table() must not take them for
			 * messages. */
			for (uint64_t i = 1; i < n; i++)
				store_relaxed(&control_at(r, h + i)->published, 0);
			publish_aborted(r, h, n, (uint8_t)index);
			wake_readers(r);
		}
	}
	store_release(&s->intent.lo, NONE);
	return true;
}

/* A split that was interrupted recorded the tail twice. */
static void join_split(struct seat *s)
{
	for (int k = 0; k < LEASES; k++) {
		uint64_t lo = load_relaxed(&s->range[k].lo);

		for (int j = 0; lo != NONE && j < LEASES; j++) {
			uint64_t hi = load_relaxed(&s->range[k].hi);
			uint64_t tail = load_relaxed(&s->range[j].lo), tail_hi = load_relaxed(&s->range[j].hi);

			if (tail == NONE || tail <= lo || tail >= hi)
				continue;
			if (tail_hi > hi)
				store_relaxed(&s->range[k].hi, tail_hi);
			crash_order();
			store_relaxed(&s->range[j].lo, NONE);
		}
	}
}

/* A lease that was on its way between this seat and another is kept in one of
 * them: in the one it left, as long as the other does not record it. */
static void settle_move(shmring *r, struct seat *s, struct branch *b)
{
	uint64_t from = load_relaxed(&s->lease.adopt_from) & ~ADOPT_AWAY;
	bool away = load_relaxed(&s->lease.adopt_from) & ADOPT_AWAY;
	uint64_t lo = load_relaxed(&s->lease.adopt_lo), hi = load_relaxed(&s->lease.adopt_hi);
	uint32_t all = LEASES;

	if (from && from <= r->seat_count) {
		const struct seat *other = &r->seats[from - 1];
		bool recorded = !away || (load_acquire(&other->id.state) == SEAT_ORPHAN &&
					  load_relaxed(&other->id.branch) == load_relaxed(&s->id.branch));

		for (int k = 0; recorded && k < LEASES; k++) {
			uint64_t at = load_relaxed(&other->range[k].lo);

			if (away ? at > lo || load_relaxed(&other->range[k].hi) < hi : at != lo)
				continue;
			if (away)
				fetch_or_seq_cst(&b->d.members[(from - 1) / 64], UINT64_C(1) << ((from - 1) % 64));
			(void)ranges_remove(s, &all, lo, hi);
		}
	}
	crash_order();
	store_relaxed(&s->lease.adopt_from, 0);
}

static void settle_take(shmring *r, struct seat *s, uint32_t index, struct branch *b)
{
	uint64_t taken = load_acquire(&b->taken.v); /* before take_end, see read.c */
	uint64_t take_end = load_acquire(&s->lease.take_end);
	uint64_t end = TAKE_END(take_end);
	uint32_t all = LEASES;

	join_split(s);
	settle_move(r, s, b);
	crash_order();
	if (take_end & TAKE_PENDING) {
		if (taken != (end << 8 | index))
			(void)ranges_remove(s, &all, load_relaxed(&s->lease.take_lo), end);
		crash_order();
		store_release(&s->lease.take_end, take_end & ~TAKE_PENDING);
	}
}

static void settle_member(shmring *r, struct seat *s, uint32_t index)
{
	uint32_t id = load_relaxed(&s->id.branch);
	struct branch *b;
	uint64_t low;
	bool is_member;

	if (id >= BRANCHES) { /* damaged: no branch to answer to */
		store_release(&s->id.state, SEAT_FREE);
		return;
	}
	b = &r->cursors->branch[id];
	settle_take(r, s, index, b);
	low = ranges_lowest(s, LEASES);
	/* Its number may be another branch's by now. */
	is_member = load_relaxed(&b->d.members[index / 64]) >> (index % 64) & 1;
	branch_member_left(r, id);
	/* The seat's state changes last: until then the next recoverer finds a
	 * dead one and begins anew, whoever dies here. */
	if (low != NONE && is_member && load_acquire(&b->d.state) == BRANCH_ACTIVE) {
		store_release(&s->lease.hold, low);
		store_release(&b->d.orphans, load_relaxed(&b->d.orphans) + 1);
		store_release(&s->id.state, SEAT_ORPHAN);
	} else {
		fetch_and_seq_cst(&b->d.members[index / 64], ~(UINT64_C(1) << (index % 64)));
		store_release(&s->lease.hold, NONE);
		branch_member_left(r, id); /* the last one frees a dropped branch */
		store_release(&s->id.state, SEAT_FREE);
	}
	count_orphans(r, id);
	wake_branches(r, UINT64_C(1) << id | load_relaxed(&b->d.followers));
	wake_producers(r);
}

/* The seat's owner is dead. True if the seat has been dealt with. */
bool recover_seat(shmring *r, uint32_t index)
{
	struct seat *s = &r->seats[index];

	if (!settle_claim(r, s, index))
		return false;
	if (load_relaxed(&s->id.role) == ROLE_MEMBER)
		settle_member(r, s, index);
	else
		store_release(&s->id.state, SEAT_FREE);
	if (r->seat != NOBODY)
		count(&r->seats[r->seat].counters.recovered, 1);
	return true;
}

static bool seat_dead(const shmring *r, uint32_t index)
{
	return load_acquire(&r->seats[index].id.state) == SEAT_ACTIVE && !seat_alive(r, index);
}

/* One bit a seat; each costs a question to the kernel. */
static bool find_the_dead(const shmring *r, uint64_t dead[4])
{
	bool any = false;

	memset(dead, 0, 4 * sizeof *dead);
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (seat_dead(r, i)) {
			dead[i / 64] |= UINT64_C(1) << (i % 64);
			any = true;
		}
	return any;
}

/* Of those that were found dead; some may have been cleared away since. */
static unsigned recover_these(shmring *r, const uint64_t dead[4])
{
	bool repaired = false;
	unsigned n = 0;

	for (uint32_t word = 0; word < 4; word++)
		for (uint64_t m = dead[word]; m; m &= m - 1) {
			uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(m);

			if (!seat_dead(r, i))
				continue;
			/* First what the dead may have left half done under the admin lock:
			 * once their seats are free nobody would look for it again. */
			if (!repaired)
				graph_repair(r);
			repaired = true;
			n += recover_seat(r, i);
		}
	return n;
}

unsigned recover_dead_seats(shmring *r)
{
	uint64_t dead[4];

	return find_the_dead(r, dead) ? recover_these(r, dead) : 0;
}

int shmring_recover(shmring *r, unsigned *count)
{
	int status = check_usable(r);
	uint64_t dead[4];
	unsigned n;

	if (count)
		*count = 0;
	if (status)
		return status;
	if (r->read_only)
		return fail(SHMRING_E_PERMISSION, "ring \"%s\" was attached read-only", r->name);
	/* Asking needs no lock; most of the time nobody is dead. */
	if (!find_the_dead(r, dead))
		return SHMRING_OK;
	if (!admin_try(r))
		return not_now(SHMRING_CONTENDED);
	n = recover_these(r, dead);
	if (count)
		*count = n;
	admin_leave(r);
	return SHMRING_OK;
}
