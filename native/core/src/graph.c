/* Calls that make, find, follow and drop branches. */
#include <stdio.h>
#include <string.h>

#include "cells.h"
#include "wake.h"

static bool find_branch(const shmring *r, const char *name, uint32_t *id)
{
	for (uint32_t i = 0; i < BRANCHES; i++) {
		char text[sizeof branch_at(r, i)->d.name];

		if (!is_active(r, i))
			continue;
		name_load(text, branch_at(r, i)->d.name, sizeof text);
		if (strcmp(text, name) == 0) {
			*id = i;
			return true;
		}
	}
	return false;
}

/* Fails with a text that lists the existing branches, because the name asked for may be misspelled. */
static int fail_no_branch(const shmring *r, const char *name)
{
	char names[256] = "none";
	struct text t = {names, sizeof names};

	for (uint32_t i = 0; i < BRANCHES; i++) {
		char text[sizeof branch_at(r, i)->d.name];

		if (!is_active(r, i))
			continue;
		name_load(text, branch_at(r, i)->d.name, sizeof text);
		if (t.room < strlen(text) + sizeof "\"\", , ...") {
			say(&t, ", ...");
			break;
		}
		say(&t, "%s\"%s\"", t.at == names ? "" : ", ", text);
	}
	return fail(SHMRING_E_NO_BRANCH, "ring \"%s\" has no branch \"%s\"; its branches: %s", r->name, name,
		    names);
}

int shmring_find_branch(const shmring *r, const char *name, uint32_t *id)
{
	return find_branch(r, name, id) ? SHMRING_OK : fail_no_branch(r, name);
}

/* Returns true if the branch has orphans: seats whose leases await adoption. */
bool has_orphans(const shmring *r, const char *name)
{
	uint32_t id;

	return name && find_branch(r, name, &id) && load_relaxed(&branch_at(r, id)->d.orphans);
}

/* --- subscribe ------------------------------------------------------------------ */

static int check_upstream(const shmring *r, uint64_t upstream)
{
	for (uint64_t m = upstream; m; m &= m - 1)
		if (!is_active(r, (uint32_t)__builtin_ctzll(m)))
			return fail(SHMRING_E_NO_BRANCH, "ring \"%s\" has no branch number %d to follow", r->name,
				    __builtin_ctzll(m));
	return SHMRING_OK;
}

/* Returns the beginning of the oldest open claim below `claim`, or `claim` if there is none. A branch placed
 * beyond that sequence would let the floor move into slots that are still being filled. */
static uint64_t lowest_hole(const shmring *r, uint64_t claim)
{
	uint64_t at = claim;

	for (uint32_t i = 0; i < r->seat_count; i++) {
		uint64_t lo = load_acquire(&r->seats[i].intent.lo);

		if (lo < at && is_hole(r, lo))
			at = lo;
	}
	return at;
}

/* Returns true if `sequence`, whose entry looks published, lies in an open claim. A producer that publishes a
 * batch stores the number of the batch's first row last, and only this store publishes the rows. The function
 * finds the claim by the seat that wrote the entry. Each claim of a seat lies above its earlier claims, so an
 * entry at or after the beginning of the seat's open claim was written in this claim. */
static bool lies_in_open_claim(const shmring *r, uint64_t sequence)
{
	uint8_t seat = description_seat(load_relaxed(&control_at(r, sequence)->description));
	/* Relaxed: a reader that sees the row's number sees the intent that was set before, or a later one. */
	uint64_t lo = seat < r->seat_count ? load_relaxed(&r->seats[seat].intent.lo) : NONE;

	return lo <= sequence && is_hole(r, lo);
}

/* Returns the sequence after the last published message below `claim`. The function reads the entries and not
 * the seats' intents. A producer stores its intent before it tries to claim. If another producer claims the slots
 * first, the loser's intent may for a moment cover messages that are already published. */
static uint64_t behind_published(const shmring *r, uint64_t claim)
{
	uint64_t at = claim;

	while (at && claim - at < r->capacity && (!is_published(r, at - 1) || lies_in_open_claim(r, at - 1)))
		at--;
	return at && claim - at < r->capacity ? walk_runs(r, at - 1, at) : at;
}

/* CHANGE: edit this for a new option of a ring */
/* Gives a new branch its position: the floor, or for SHMRING_LATEST the oldest open claim. The position is stored
 * before the branch's bit in `active`. Only a process that read the branches before the bit was set can still move
 * the floor past the position: floor_next shows how far that process goes (floor.c). */
static int place_branch(shmring *r, uint32_t id, const struct shmring_branch_options *o)
{
	struct cursors *c = r->cursors;
	struct branch *b = branch_at(r, id);
	uint64_t claim = load_acquire(&c->claim.v);
	uint64_t first = o->start == SHMRING_LATEST ? behind_published(r, claim) : o->sequence;
	uint64_t at = o->start == SHMRING_LATEST ? lowest_hole(r, claim) : load_acquire(&c->floor.v);
	uint64_t next;

	store_release(&b->taken.v, at << 8 | NOBODY);
	fetch_or_seq_cst(&c->graph.active, bit(id));
	fetch_add_seq_cst(&c->graph.changes, 1); /* after the bit: a reader that sees this count sees the bit */
	heavy_barrier(r->asymmetric); /* pairs with the barrier in floor_advance() */
	next = load_acquire(&c->floor_next.v);
	if (next > at)
		at = next;
	if (o->start == SHMRING_AT_SEQUENCE) {
		if (o->sequence > load_relaxed(&c->claim.v)) {
			fetch_and_seq_cst(&c->graph.active, ~bit(id));
			/* A producer may have begun to wait for this branch, which no longer holds it back. */
			wake_producers(r);
			return fail(SHMRING_E_INVALID,
				    "ring \"%s\": sequence %llu lies ahead of the producers (%llu)", r->name,
				    (unsigned long long)o->sequence,
				    (unsigned long long)load_relaxed(&c->claim.v));
		}
		/* The walk ends at a hole, because a branch that stands beyond the hole would let the floor pass
		 * the hole. For a branch with drop_oldest there is no walk here: the branch does not hold the
		 * floor, so entries could be overwritten during the walk. Its first take walks instead, under
		 * a hold (consumer.c). */
		if (!o->drop_oldest)
			at = walk_runs(r, at, o->sequence);
	}
	store_release(&b->taken.v, at << 8 | NOBODY);
	if (o->start != SHMRING_EARLIEST && at < first) {
		store_relaxed(&b->d.options, load_relaxed(&b->d.options) | BRANCH_LATER);
		at = first;
	}
	store_relaxed(&b->d.first, at);
	return SHMRING_OK;
}

static int check_name(const shmring *r, const char *name)
{
	size_t n = name ? strlen(name) : 0;

	if (n == 0 || n >= sizeof((struct branch_descriptor *)0)->name)
		return fail(SHMRING_E_INVALID, "ring \"%s\": a branch's name has 1 to %zu bytes", r->name,
			    sizeof((struct branch_descriptor *)0)->name - 1);
	return SHMRING_OK;
}

static int join_existing(shmring *r, uint32_t id, const char *name)
{
	if (!(load_relaxed(&branch_at(r, id)->d.options) & BRANCH_EXCLUSIVE))
		return SHMRING_OK;
	recover_dead_seats(r);
	if (living_consumers(r, id))
		return fail(SHMRING_E_SECOND_CONSUMER,
			    "ring \"%s\": branch \"%s\" is exclusive and has a living consumer; wait for it to "
			    "end, or make "
			    "the branch without exclusive",
			    r->name, name);
	return SHMRING_OK;
}

static int find_room(shmring *r, uint32_t *id)
{
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < BRANCHES; i++)
			if (load_relaxed(&branch_at(r, i)->d.state) == BRANCH_FREE) {
				*id = i;
				return SHMRING_OK;
			}
		recover_dead_seats(r);
	}
	return fail(SHMRING_E_LIMIT, "ring \"%s\" has %d branches already, its limit; drop one that is not needed",
		    r->name, BRANCHES);
}

int subscribe_locked(shmring *r, const char *name, const struct shmring_branch_options *o, bool joining,
		     uint32_t *id)
{
	struct shmring_branch_options defaults = {.start = SHMRING_EARLIEST};

	if (!o)
		o = &defaults;
	RETURN_NOT_OK(check_name(r, name));
	graph_repair(r);
	if (find_branch(r, name, id)) {
		recover_dead_seats(r); /* drops ephemeral branches whose consumers are dead, too */
		if (is_active(r, *id))
			return joining ? join_existing(r, *id, name) : SHMRING_OK;
	}
	if (o->start > SHMRING_AT_SEQUENCE)
		return fail(SHMRING_E_INVALID, "ring \"%s\": there is no start %d", r->name, o->start);
	if (o->ephemeral && !joining)
		return fail(SHMRING_E_INVALID, "ring \"%s\": an ephemeral branch is made by joining it", r->name);
	RETURN_NOT_OK(check_upstream(r, o->upstream));
	RETURN_NOT_OK(find_room(r, id));

	struct branch_descriptor *d = &branch_at(r, *id)->d;

	name_store(d->name, name, sizeof d->name);
	store_relaxed(&d->options, (o->exclusive ? BRANCH_EXCLUSIVE : 0) | (o->ephemeral ? BRANCH_EPHEMERAL : 0) |
				       (o->drop_oldest ? BRANCH_DROP_OLDEST : 0));
	store_relaxed(&d->upstream, o->upstream);
	for (int word = 0; word < 4; word++)
		store_relaxed(&d->consumers[word], 0);
	store_relaxed(&d->orphans, 0);
	store_relaxed(&branch_at(r, *id)->taken.ended, 0);
	store_relaxed(&branch_at(r, *id)->taken.ends, 0);
	RETURN_NOT_OK(place_branch(r, *id, o));
	store_release(&d->state, BRANCH_ACTIVE);
	derive(r);
	return SHMRING_OK;
}

static int admin_enter_writable(shmring *r)
{
	int status;

	RETURN_NOT_OK(check_writable(r));
	status = admin_enter(r);
	/* The process takes a seat first: if it dies while it changes the graph, recovery finds the dead seat, and
	 * completes the change. */
	if (!status && load_relaxed(&r->seat) == NOBODY) {
		status = handle_seat(r);
		if (status)
			admin_leave(r);
	}
	return status;
}

int shmring_subscribe(shmring *r, const char *name, const struct shmring_branch_options *options, uint32_t *id)
{
	uint32_t number;
	int status;

	RETURN_NOT_OK(admin_enter_writable(r));
	status = subscribe_locked(r, name, options, false, id ? id : &number);
	admin_leave(r);
	return status;
}

int shmring_unsubscribe(shmring *r, const char *name)
{
	uint32_t id;
	int status;

	RETURN_NOT_OK(check_writable(r));
	RETURN_NOT_OK(admin_enter(r));
	/* A drop works without a seat, too: it may be needed to free seats. If this process dies without a seat,
	 * recovery sees the interrupted drop by the state of the branch (recovery.c). */
	if (load_relaxed(&r->seat) == NOBODY)
		(void)handle_seat(r);
	status = shmring_find_branch(r, name, &id);
	if (!status)
		branch_drop(r, id);
	admin_leave(r);
	return status;
}

static bool reaches(const shmring *r, uint64_t from, uint32_t target)
{
	uint64_t seen = 0;

	while (from & ~seen) {
		uint32_t id = (uint32_t)__builtin_ctzll(from & ~seen);

		if (id == target)
			return true;
		seen |= bit(id);
		from |= load_relaxed(&branch_at(r, id)->d.upstream);
	}
	return false;
}

/* Changes the upstreams of branch `id`: adds `more` and removes `less`. The caller holds the admin
 * lock, so that no change is lost when several processes build a graph. */
static int change_locked(shmring *r, uint32_t id, uint64_t more, uint64_t less)
{
	uint64_t before, after;

	if (id >= BRANCHES || !is_active(r, id))
		return fail(SHMRING_E_NO_BRANCH, "ring \"%s\" has no branch number %u", r->name, id);
	RETURN_NOT_OK(check_upstream(r, more));
	if (reaches(r, more, id))
		return fail(SHMRING_E_INVALID, "ring \"%s\": branch \"%.48s\" cannot follow itself", r->name,
			    branch_at(r, id)->d.name);
	before = load_relaxed(&branch_at(r, id)->d.upstream);
	after = (before | more) & ~less;
	if (after != before) {
		store_relaxed(&branch_at(r, id)->d.upstream, after);
		derive(r);
		wake_branches(r, bit(id));
	}
	return SHMRING_OK;
}

static int change_upstreams(shmring *r, uint32_t id, uint64_t more, uint64_t less)
{
	int status;

	RETURN_NOT_OK(admin_enter_writable(r));
	status = change_locked(r, id, more, less);
	admin_leave(r);
	return status;
}

int shmring_follow(shmring *r, uint32_t id, uint64_t upstream)
{
	return change_upstreams(r, id, upstream, 0);
}

int shmring_unfollow(shmring *r, uint32_t id, uint64_t upstream)
{
	return change_upstreams(r, id, 0, upstream);
}

int shmring_branch_info(const shmring *r, uint32_t id, struct shmring_branch_info *info)
{
	const struct branch *b;
	uint32_t options;
	uint64_t position, released, first;

	if (id >= BRANCHES || !is_active(r, id))
		return fail(SHMRING_E_NO_BRANCH, "ring \"%s\" has no branch number %u", r->name, id);
	b = branch_at(r, id);
	options = load_relaxed(&b->d.options);
	released = branch_released(r, b, false); /* read first, so that it never exceeds `position` */
	position = load_acquire(&b->taken.v) >> 8;
	first = load_relaxed(&b->d.first);
	*info = (struct shmring_branch_info){
	    .id = id,
	    .exclusive = options & BRANCH_EXCLUSIVE,
	    .ephemeral = options & BRANCH_EPHEMERAL,
	    .drop_oldest = options & BRANCH_DROP_OLDEST,
	    .upstream = load_relaxed(&b->d.upstream),
	    .position = position > first ? position : first, /* messages below `first` are passed over */
	    .released = released,
	    .ends = load_relaxed(&b->taken.ends), /* number of stream ends reached: docs/protocol.md, P11 */
	    .orphans = load_relaxed(&b->d.orphans),
	};
	name_load(info->name, b->d.name, sizeof b->d.name);
	for (int word = 0; word < 4; word++)
		info->consumers += (uint32_t)__builtin_popcountll(load_relaxed(&b->d.consumers[word]));
	info->consumers -= info->orphans < info->consumers ? info->orphans : info->consumers;
	return SHMRING_OK;
}
