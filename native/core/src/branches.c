/* Functions that change the state of branches, and complete a change whose process died. Every
 * change happens under the admin lock, but producers and consumers read the state without the lock.
 * So each intermediate state of a change restricts producers and consumers too much, never too little.
 */
#include "wake.h"

/* Computes `followers` of each branch and `roots` from the upstreams. */
void derive(shmring *r)
{
	uint64_t followers[BRANCHES] = {0};
	uint64_t roots = 0;

	for (uint32_t id = 0; id < BRANCHES; id++) {
		if (!is_active(r, id))
			continue;
		uint64_t upstream = load_relaxed(&branch_at(r, id)->d.upstream);

		if (!upstream)
			roots |= bit(id);
		for (uint64_t m = upstream; m; m &= m - 1)
			followers[__builtin_ctzll(m)] |= bit(id);
	}
	for (uint32_t id = 0; id < BRANCHES; id++)
		store_relaxed(&branch_at(r, id)->d.followers, followers[id]);
	store_relaxed(&r->cursors->graph.roots, roots);
	/* Makes consumers compute again how far their upstream branches let them take (consumer_limit()). */
	store_release(&r->cursors->graph.changes, load_relaxed(&r->cursors->graph.changes) + 1);
}

unsigned living_consumers(const shmring *r, uint32_t id)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < r->seat_count; i++)
		n += load_relaxed(&branch_at(r, id)->d.consumers[i / 64]) >> (i % 64) & 1 &&
		     load_relaxed(&r->seats[i].id.state) == SEAT_ACTIVE && seat_alive(r, i);
	return n;
}

void count_orphans(shmring *r, uint32_t id)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->seat_count; i++)
		n += load_relaxed(&r->seats[i].id.state) == SEAT_ORPHAN &&
		     load_relaxed(&r->seats[i].id.branch) == id;
	store_relaxed(&branch_at(r, id)->d.orphans, n);
}

static void free_orphans(shmring *r, uint32_t id)
{
	for (uint32_t i = 0; i < r->seat_count; i++) {
		struct seat *s = &r->seats[i];

		if (load_relaxed(&s->id.state) != SEAT_ORPHAN || load_relaxed(&s->id.branch) != id)
			continue;
		fetch_and_seq_cst(&branch_at(r, id)->d.consumers[i / 64], ~(UINT64_C(1) << (i % 64)));
		store_release(&s->lease.hold, NONE);
		store_release(&s->id.state, SEAT_FREE);
	}
	count_orphans(r, id);
}

static void free_if_deserted(shmring *r, uint32_t id)
{
	struct branch *b = branch_at(r, id);

	if (load_relaxed(&b->d.state) != BRANCH_DROPPED)
		return;
	for (int word = 0; word < 4; word++)
		if (load_relaxed(&b->d.consumers[word]))
			return;
	fetch_and_seq_cst(&r->cursors->graph.active, ~bit(id));
	store_release(&b->d.state, BRANCH_FREE);
	wake_producers(r);
}

/* Drops a branch: its consumers take nothing more. A take records its hold, passes a light
 * barrier and then reads the branch's state. So after the heavy barrier here, either the take's
 * hold is visible, or the take sees the drop and undoes itself. From then on only holds of the
 * branch's consumers hold producers back, until the last consumer leaves. After a crash, the
 * function can run again. */
void branch_drop(shmring *r, uint32_t id)
{
	struct branch *b = branch_at(r, id);
	uint64_t upstream = load_relaxed(&b->d.upstream);

	store_release(&b->d.state, BRANCH_DROPPING);
	for (uint32_t other = 0; other < BRANCHES; other++) {
		struct branch *f = branch_at(r, other);
		uint64_t up = load_relaxed(&f->d.upstream);

		if (is_active(r, other) && up & bit(id))
			store_relaxed(&f->d.upstream, (up & ~bit(id)) | upstream);
	}
	derive(r);
	heavy_barrier(r->asymmetric);
	store_release(&b->d.state, BRANCH_DROPPED);
	free_orphans(r, id);
	wake_branches(r, NONE); /* tells consumers of the drop, and followers of their new limit */
	free_if_deserted(r, id);
	wake_producers(r);
}

/* Returns true for an ephemeral branch without a living consumer: the last consumer has left or died, or the
 * branch's creator died before it joined, or a process that recovered died before it dropped the branch. */
static bool is_deserted_ephemeral(const shmring *r, uint32_t id)
{
	return load_relaxed(&branch_at(r, id)->d.options) & BRANCH_EPHEMERAL && living_consumers(r, id) == 0;
}

/* Corrects each branch's count of orphans, and frees orphans of dropped branches. Recovery does both, too, but a
 * process that recovered may have died before it did. */
static void repair_orphans(shmring *r)
{
	uint32_t orphans[BRANCHES] = {0};

	for (uint32_t i = 0; i < r->seat_count; i++) {
		struct seat *s = &r->seats[i];
		uint32_t id = load_relaxed(&s->id.branch);

		if (load_relaxed(&s->id.state) != SEAT_ORPHAN)
			continue;
		if (id < BRANCHES && is_active(r, id)) {
			orphans[id]++;
			continue;
		}
		if (id < BRANCHES) {
			fetch_and_seq_cst(&branch_at(r, id)->d.consumers[i / 64], ~(UINT64_C(1) << (i % 64)));
			free_if_deserted(r, id);
		}
		store_release(&s->lease.hold, NONE);
		store_release(&s->id.state, SEAT_FREE);
	}
	for (uint32_t id = 0; id < BRANCHES; id++)
		if (load_relaxed(&branch_at(r, id)->d.orphans) != orphans[id])
			store_relaxed(&branch_at(r, id)->d.orphans, orphans[id]);
}

/* Completes changes of branches by a process that died while it held the admin lock. */
void graph_repair(shmring *r)
{
	uint64_t active = load_relaxed(&r->cursors->graph.active);

	for (uint32_t id = 0; id < BRANCHES; id++) {
		uint32_t state = load_relaxed(&branch_at(r, id)->d.state);

		if (state == BRANCH_FREE && active & bit(id))
			fetch_and_seq_cst(&r->cursors->graph.active, ~bit(id));
		if (state == BRANCH_DROPPING || (state == BRANCH_ACTIVE && is_deserted_ephemeral(r, id)))
			branch_drop(r, id);
		else if (state == BRANCH_DROPPED)
			free_if_deserted(r, id);
	}
	repair_orphans(r);
	derive(r);
}

/* Drops an ephemeral branch, or frees a dropped one, if the consumer that has left or died was the last. */
void branch_consumer_left(shmring *r, uint32_t id)
{
	if (is_active(r, id) && is_deserted_ephemeral(r, id))
		branch_drop(r, id);
	else
		free_if_deserted(r, id);
}
