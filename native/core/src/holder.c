/* Descriptions of the participant or branch that holds up a full ring or an empty branch, for the texts
 * of errors.
 *
 * The functions only read shared words, which may change meanwhile: each word was right when it was
 * read, but the words may be from different moments. Texts of errors and displays need no more.
 */
#include <stdio.h>
#include <string.h>

#include "cells.h"
#include "holder.h"

/* Returns the age of the message at `sequence` in nanoseconds; -1 if it is unknown. */
static int64_t age_of(const shmring *r, uint64_t sequence)
{
	uint64_t time = is_published(r, sequence) ? load_relaxed(&control_at(r, sequence)->time) : 0;
	uint64_t now = now_ns(CLOCK_REALTIME);

	return time && time <= now ? (int64_t)(now - time) : -1;
}

/* Describes the owner of a seat as the holder. Returns false if the seat is free now. */
static bool blame_seat(const shmring *r, uint32_t seat, struct shmring_holder *h)
{
	struct shmring_participant_info info;
	struct seat_owner owner;

	if (!read_seat(r, seat, &owner, &info))
		return false;
	h->seat = (int32_t)seat;
	h->pid = info.pid;
	h->alive = info.alive;
	h->stopped = info.alive && seat_stopped(&owner);
	memcpy(h->name, info.name, sizeof h->name);
	return true;
}

/* Finds the producer whose open claim contains `sequence`. */
static bool blame_claim(const shmring *r, uint64_t sequence, struct shmring_holder *h)
{
	for (uint32_t i = 0; i < r->seat_count; i++) {
		const struct seat *s = &r->seats[i];
		uint64_t lo = load_acquire(&s->intent.lo);

		if (load_acquire(&s->id.state) == SEAT_FREE || lo == NONE || sequence < lo ||
		    sequence - lo >= load_relaxed(&s->intent.n) || !is_hole(r, lo) || !blame_seat(r, i, h))
			continue;
		h->kind = SHMRING_HELD_BY_CLAIM;
		return true;
	}
	return false;
}

/* Finds why branch `id` has released nothing beyond `released`. An orphan is never the holder, because the
 * branch's living consumers have to adopt its leases: the holder is one of these consumers, or the branch has
 * none. If `released` itself is not published yet, the holder is the producer that has claimed it. */
static void blame_branch(const shmring *r, uint32_t id, uint64_t released, struct shmring_holder *h)
{
	const struct branch *b = &r->cursors->branch[id];
	uint32_t consumers = 0;

	h->branch = (int32_t)id;
	h->sequence = released;
	h->age_ns = age_of(r, released);
	name_load(h->branch_name, b->d.name, sizeof b->d.name);
	h->kind = SHMRING_HELD_BY_NO_CONSUMER;
	for (uint32_t i = 0; i < r->seat_count; i++) {
		if (load_acquire(&r->seats[i].id.state) != SEAT_ACTIVE ||
		    !(load_acquire(&b->d.consumers[i / 64]) >> (i % 64) & 1))
			continue;
		if (load_acquire(&r->seats[i].lease.hold) <= released && blame_seat(r, i, h)) {
			h->kind = SHMRING_HELD_BY_LEASE;
			return;
		}
		if (seat_alive(r, i) && (consumers || blame_seat(r, i, h))) {
			h->kind = SHMRING_HELD_BY_CONSUMERS;
			consumers++;
		}
	}
	h->consumers = consumers;
	if (!is_published(r, released))
		(void)blame_claim(r, released, h);
}

/* Finds the branch of `mask` that has released least. If several branches have released equally little, finds one
 * that follows none of the others. */
static uint64_t slowest(const shmring *r, uint64_t mask, uint32_t *id)
{
	uint64_t least = NONE;
	uint64_t level = 0;

	for (uint64_t m = mask; m; m &= m - 1) {
		const struct branch *b = &r->cursors->branch[__builtin_ctzll(m)];
		uint64_t released = branch_released(r, b, gates_by_holds_only(b));

		if (released < least) {
			least = released;
			level = 0;
		}
		if (released == least)
			level |= m & -m;
	}
	*id = level ? (uint32_t)__builtin_ctzll(level) : BRANCHES;
	for (uint64_t m = level; m; m &= m - 1)
		if (!(load_relaxed(&r->cursors->branch[__builtin_ctzll(m)].d.upstream) & level)) {
			*id = (uint32_t)__builtin_ctzll(m);
			break;
		}
	return least;
}

static void nobody(struct shmring_holder *h)
{
	*h = (struct shmring_holder){.branch = -1, .seat = -1, .age_ns = -1};
}

static void behind(const shmring *r, struct shmring_holder *h)
{
	uint64_t claim = load_acquire(&r->cursors->claim.v);

	h->slots = claim > h->sequence ? claim - h->sequence : 0;
}

int shmring_find_holder(const shmring *r, struct shmring_holder *h)
{
	uint32_t id;
	uint64_t least = slowest(r, load_acquire(&r->cursors->graph.active), &id);

	nobody(h);
	if (least != NONE) {
		blame_branch(r, id, least, h);
	} else {
		/* No branch holds producers back, so only an open claim can. */
		h->sequence = load_acquire(&r->cursors->floor.v);
		h->sequence = walk_runs(r, h->sequence, h->sequence + r->capacity);
		if (!blame_claim(r, h->sequence, h))
			return SHMRING_UNAVAILABLE;
	}
	behind(r, h);
	return SHMRING_OK;
}

/* --- texts --------------------------------------------------------------------- */

static void say_who(struct text *t, const char *role, const struct shmring_holder *h)
{
	say(t, "%s%s%s%s (pid %u%s)", role, h->name[0] ? " \"" : "", h->name, h->name[0] ? "\"" : "", h->pid,
	    !h->alive    ? ", dead"
	    : h->stopped ? ", stopped"
			 : "");
}

static void say_age(struct text *t, const struct shmring_holder *h)
{
	if (h->age_ns >= 0)
		say(t, ", published %.1f s ago", (double)h->age_ns / 1e9);
}

static void say_behind(struct text *t, const struct shmring_holder *h)
{
	say(t, ", %llu slot%s behind the producers", (unsigned long long)h->slots, h->slots == 1 ? "" : "s");
}

static void say_holder(struct text *t, const shmring *r, const struct shmring_holder *h)
{
	unsigned long long at = h->sequence;

	switch (h->kind) {
	case SHMRING_HELD_BY_CLAIM:
		say_who(t, "producer", h);
		say(t, " has claimed sequence %llu and neither committed nor aborted it", at);
		break;
	case SHMRING_HELD_BY_LEASE:
		say(t, "branch \"%s\": ", h->branch_name);
		say_who(t, "consumer", h);
		say(t, " has not released sequence %llu", at);
		say_age(t, h);
		say_behind(t, h);
		break;
	case SHMRING_HELD_BY_CONSUMERS:
		say(t, "branch \"%s\" has still to take sequence %llu", h->branch_name, at);
		say_age(t, h);
		say_behind(t, h);
		say(t,
		    h->consumers == 1 ? "; its only living consumer is "
				      : "; of its %u living consumers the first is ",
		    h->consumers);
		say_who(t, "consumer", h);
		break;
	case SHMRING_HELD_BY_NO_CONSUMER:
		say(t, "branch \"%s\" has no consumer and has still to take sequence %llu", h->branch_name, at);
		say_age(t, h);
		say_behind(t, h);
		say(t, ": join it, or drop it with `");
		say_command(t, "drop-branch", r->name, h->branch_name);
		say(t, "`");
		break;
	default:
		say(t, "nothing holds it up any more");
	}
}

/* Returns true if a living participant has this role; consumers of branch `without` do not count. */
static bool is_attached(const shmring *r, uint32_t role, uint32_t without)
{
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (load_relaxed(&r->seats[i].id.state) == SEAT_ACTIVE &&
		    load_relaxed(&r->seats[i].id.role) == role &&
		    (role == ROLE_PRODUCER || load_relaxed(&r->seats[i].id.branch) != without) && seat_alive(r, i))
			return true;
	return false;
}

/* Returns an error if a wait of this consumer (NULL: of a producer) cannot end any more: the file has lost its
 * name, so that no other process can attach, and no attached participant can end the wait. Attached processes may
 * go on with each other, unless another process has made the ring anew. */
int check_named(const shmring *r, const shmring_consumer *consumer)
{
	static const char removed[] = "its file was removed while it was in use (by rm, by a cleaner of "
				      "/dev/shm, or by systemd as its user logged out: RemoveIPC)";
	bool for_producers = consumer && !load_relaxed(&consumer->branch->d.upstream), remade;

	if (!lock_file_removed(r->locks, &remade) || load_relaxed(&r->cursors->unlinked.v))
		return SHMRING_OK;
	if (remade)
		return fail(SHMRING_E_NOT_FOUND,
			    "ring \"%s\": %s, and made anew: this handle does not meet those who have attached "
			    "since; close it and attach again",
			    r->name, removed);
	if (is_attached(r, for_producers ? ROLE_PRODUCER : ROLE_CONSUMER,
			consumer ? consumer->branch_index : BRANCHES))
		return SHMRING_OK;
	return fail(SHMRING_E_NOT_FOUND,
		    "ring \"%s\": %s, no %s is attached, and none can come; close this handle, and make the ring "
		    "again",
		    r->name, removed, for_producers ? "producer" : "consumer");
}

static bool say_removed(struct text *t, const shmring *r, const shmring_consumer *consumer)
{
	if (check_named(r, consumer) == SHMRING_OK)
		return false;
	say(t, "%s", shmring_error_message());
	return true;
}

/* CHANGE: edit this for a new option of a ring */
void shmring_explain_full(const shmring *r, char *text, size_t size)
{
	struct text t = {text, size};
	struct shmring_holder h;

	if (say_removed(&t, r, NULL))
		return;
	(void)shmring_find_holder(r, &h);
	say_holder(&t, r, &h);
}

void shmring_explain_branch(const shmring *r, uint32_t branch, char *text, size_t size)
{
	struct text t = {text, size};
	struct shmring_holder h;
	uint64_t released;

	if (say_removed(&t, r, NULL))
		return;
	nobody(&h);
	if (branch < BRANCHES) {
		released = branch_released(r, &r->cursors->branch[branch], false);
		blame_branch(r, branch, released, &h);
		behind(r, &h);
	}
	say_holder(&t, r, &h);
}

static void say_producers(struct text *t, const shmring *r)
{
	struct shmring_holder h;
	uint32_t producers = 0;

	nobody(&h);
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (load_acquire(&r->seats[i].id.state) == SEAT_ACTIVE &&
		    load_relaxed(&r->seats[i].id.role) == ROLE_PRODUCER && seat_alive(r, i))
			producers += producers || blame_seat(r, i, &h);
	if (producers == 0) {
		say(t, "no producer is attached");
		return;
	}
	say(t, "%u producer%s attached, ", producers, producers == 1 ? " is" : "s are");
	say_who(t, producers == 1 ? "namely producer" : "the first is producer", &h);
}

void shmring_explain_empty(const shmring_consumer *consumer, char *text, size_t size)
{
	const shmring *r = consumer->ring;
	struct text t = {text, size};
	uint64_t at = load_acquire(&consumer->branch->taken.v) >> 8;
	uint64_t upstream = load_relaxed(&consumer->branch->d.upstream);
	struct shmring_holder h;
	uint32_t id;

	if (say_removed(&t, r, consumer))
		return;
	nobody(&h);
	h.sequence = at;
	if (upstream && load_acquire(&r->cursors->claim.v) > at) {
		uint64_t released = slowest(r, upstream, &id);

		say(&t, "it follows ");
		blame_branch(r, id, released, &h);
		behind(r, &h);
		say_holder(&t, r, &h);
	} else if (!is_published(r, at) && blame_claim(r, at, &h)) {
		say_holder(&t, r, &h);
	} else {
		say_producers(&t, r);
	}
}
