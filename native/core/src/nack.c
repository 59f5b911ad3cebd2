/* A living consumer hands messages back: docs/protocol.md, P7.
 *
 * Handing back is adoption (adopt.c) in the other direction. The lease is recorded in an orphan, a seat without an
 * owner, before it is struck from this consumer's seat. While both seats record the lease, adopt_from names the
 * orphan: if this process dies then, recovery keeps exactly one of the two records. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cells.h"
#include "takes.h"

/* Returns true if [lo, hi) can be struck. If [lo, hi) lies in the middle of a recorded range, that range is split,
 * and its second part needs a free entry. */
static bool can_strike(const shmring_consumer *consumer, uint64_t lo, uint64_t hi)
{
	bool inside = false;

	for (uint32_t k = 0; k < consumer->ranges_used; k++)
		inside |= consumer->range[k].lo < lo && RANGE_END(consumer->range[k].hi) > hi;
	return !inside || ranges_free_entry(consumer->range, &(uint32_t){consumer->ranges_used}) >= 0;
}

static void hand_over(shmring_consumer *consumer, const struct destination *destination, uint64_t lo, uint64_t hi)
{
	shmring *r = consumer->ring;
	struct seat *s = consumer->seat;

	orphan_record(r, s, consumer->branch_index, destination, lo, hi);
	(void)ranges_remove(s, consumer->range, &consumer->ranges_used, lo, hi);
	consumer_raise_hold(consumer);
	crash_order();
	store_relaxed(&s->lease.adopt_from, 0);
	count_orphans(r, consumer->branch_index);
	wake_branches(r, UINT64_C(1) << consumer->branch_index);
}

/* Hands back a range while all seats are taken: the range stays recorded and held in this consumer's
 * seat, and the next take of this consumer delivers it again. */
static int keep_to_give_again(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	if (!deferred_reserve(&consumer->returned))
		return fail(SHMRING_E_NO_MEMORY, "out of memory; hand it back again later");
	consumer_gives_again(consumer, first, end);
	/* Wakes all waiters, because only threads that wait in this consumer can take the messages. */
	wake(consumer->branch, INT_MAX);
	return SHMRING_OK;
}

/* Hands back [first, end), whose messages were all delivered equally often. */
static int hand_back_some(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	shmring *r = consumer->ring;
	uint32_t branch = consumer->branch_index, before = consumer_delivered_before(consumer, first, end);
	struct destination to = orphan_find(r, branch, first, end, before);

	if (to.seat == NOBODY && recover_dead_seats(r))
		to = orphan_find(r, branch, first, end, before);
	if (load_relaxed(&consumer->branch->d.state) != BRANCH_ACTIVE)
		return shmring_release(consumer, first, end); /* a dropped branch does not deliver again */
	if (to.seat == NOBODY)
		return keep_to_give_again(consumer, first, end);
	hand_over(consumer, &to, first, end);
	return SHMRING_OK;
}

static int hand_back(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	int status = SHMRING_OK;

	/* If a consumer died while it moved a lease, the move is settled before either seat changes. */
	if (!leases_move(consumer))
		return fail(
		    SHMRING_CONTENDED,
		    "ring \"%s\": a consumer that died moving a lease cannot be cleared away now; try again",
		    consumer->ring->name);
	while (!status && first < end) {
		uint64_t to = consumer_end_of_count(consumer, first, end);

		status = hand_back_some(consumer, first, to);
		first = to;
	}
	leases_moved(consumer);
	return status;
}

int shmring_nack(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	shmring *r = consumer->ring;
	int status;

	RETURN_NOT_OK(check_usable(r));
	RETURN_NOT_OK(consumer_check_held(consumer, first, end));
	if (deferred_overlaps(&consumer->deferred, first, end))
		return fail(SHMRING_E_INVALID, "ring \"%s\": some of [%llu, %llu) is released already", r->name,
			    (unsigned long long)first, (unsigned long long)end);
	if (consumer->gives_again && deferred_overlaps(&consumer->returned, first, end))
		return fail_returned(consumer, first, end);
	if (!can_strike(consumer, first, end))
		return fail(
		    SHMRING_E_LEASES,
		    "ring \"%s\": this consumer holds %d separate leases, and has no room for another piece; "
		    "release or hand back one of them first",
		    r->name, LEASES);
	if (!admin_try(r))
		return not_now(SHMRING_CONTENDED);
	status = hand_back(consumer, first, end);
	admin_leave(r);
	return status;
}

bool shmring_nack_again(const shmring_consumer *consumer, int64_t since_ns)
{
	const shmring *r = consumer->ring;

	if (admin_is_worth_waiting(r, since_ns, true))
		return true;
	/* The caller gives up: make the error that says why the admin lock cannot be taken. */
	(void)fail_admin_taken(lock_file_number(r->locks), r->name);
	return false;
}

/* --- dead letters --------------------------------------------------------------------- */

/* Dead letters are messages that were delivered max_deliveries times: they go into another ring, and are released
 * in this ring. docs/concepts/death.md. */
#define EXPLANATION_BYTES 512

/* Returns true if a branch keeps the messages of this ring from `sequence` on, even without consumers. */
static bool is_kept(const shmring *to, uint64_t sequence)
{
	for (uint32_t id = 0; id < BRANCHES; id++)
		if (is_active(to, id) &&
		    !(load_relaxed(&branch_at(to, id)->d.options) & (BRANCH_EPHEMERAL | BRANCH_DROP_OLDEST)) &&
		    load_relaxed(&branch_at(to, id)->d.first) <= sequence)
			return true;
	return false;
}

/* Makes a branch that keeps the dead letters, unless the ring has such a branch. */
static int see_that_letters_are_kept(shmring *to)
{
	/* The second name is tried if another process has made "default" as a branch that keeps no messages. */
	static const char *const names[] = {"default", "dead-letters"};

	for (size_t i = 0; i < sizeof names / sizeof *names && !is_kept(to, NONE); i++)
		RETURN_NOT_OK(shmring_subscribe(to, names[i], NULL, NULL));
	if (!is_kept(to, NONE))
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\": its branches \"%s\" and \"%s\" do not keep letters, since they are "
			    "ephemeral or drop the oldest; drop one of them",
			    to->name, names[0], names[1]);
	return SHMRING_OK;
}

static int check_not_removed(const shmring *to)
{
	bool remade = false;

	if (!lock_file_removed(to->locks, &remade))
		return SHMRING_OK;
	return fail(SHMRING_E_NOT_FOUND, "that ring was removed%s: close this consumer, %s, and join again",
		    remade ? " and made anew" : "", remade ? "which has the old one" : "make the ring again");
}

/* Pushes a dead letter into a ring that keeps it. If the keeping branch is dropped meanwhile, pushes it again. */
static int push_letter(shmring_producer *p, const struct shmring_message *message)
{
	uint64_t id;

	do {
		RETURN_NOT_OK(check_not_removed(p->ring));
		RETURN_NOT_OK(see_that_letters_are_kept(p->ring));
		RETURN_NOT_OK(shmring_push(p, message->data, message->length, message->kind, &id));
	} while (!is_kept(p->ring, id));
	return SHMRING_OK;
}

/* CHANGE: edit this for a new error */
static int fail_to_set_aside(const shmring_consumer *consumer, const struct shmring_lease *lease, int status)
{
	const shmring *to = consumer->dead_letters->ring;
	char why[EXPLANATION_BYTES];

	if (status == SHMRING_UNAVAILABLE)
		shmring_explain_full(to, why, sizeof why);
	else
		snprintf(why, sizeof why, "%s", shmring_error_message());
	return fail(
	    status == SHMRING_UNAVAILABLE ? SHMRING_E_NO_SPACE : status,
	    "ring \"%s\": message %llu was delivered %u times, which is the most, and ring \"%s\" for dead "
	    "letters %s: %s; the message stays, and the next take tries again",
	    consumer->ring->name, (unsigned long long)lease->first, consumer->max_deliveries, to->name,
	    status == SHMRING_UNAVAILABLE ? "is full" : "does not take it", why);
}

/* Sets the one message of a lease aside. Returns true if the message has gone into the other ring; if not, the
 * message has to be delivered, or *status is the reason why it stays. If this process is killed after the push and
 * before the release, the message is pushed a second time later; no message is lost. */
static bool set_aside(shmring_consumer *consumer, const struct shmring_lease *lease, int *status)
{
	struct shmring_message message;
	uint64_t at = lease->first;

	/* A damaged message is not set aside: its reader gets an error for it, once. Neither is an end marker:
	 * other consumers need it, too. */
	if (lease->redelivered < consumer->max_deliveries ||
	    shmring_read(consumer->ring, &at, lease->end, &message) || message.kind == KIND_END)
		return false;
	*status = push_letter(consumer->dead_letters, &message);
	if (*status) {
		if (*status != SHMRING_CONTENDED)
			*status = fail_to_set_aside(consumer, lease, *status);
		if (keep_to_give_again(consumer, lease->first, lease->end))
			*status = SHMRING_E_NO_MEMORY;
		return false;
	}
	*status = shmring_release(consumer, lease->first, lease->end);
	return *status == SHMRING_OK;
}

static bool same_schema(const shmring *r, const shmring *to)
{
	struct shmring_info from, other;

	shmring_get_info(r, &from);
	shmring_get_info(to, &other);
	return from.schema_bytes == 0 || (from.schema_bytes == other.schema_bytes &&
					  memcmp(from.schema, other.schema, from.schema_bytes) == 0);
}

/* CHANGE: edit this for a new option of a ring */
int shmring_consumer_dead_letters(shmring_consumer *consumer, uint32_t max_deliveries, shmring_producer *producer)
{
	shmring *r = consumer->ring, *to = producer->ring;
	int status;

	if (max_deliveries < 1 || max_deliveries > UINT8_MAX)
		return fail(SHMRING_E_INVALID, "ring \"%s\": a message is delivered 1 to %d times, not %u",
			    r->name, UINT8_MAX, max_deliveries);
	if (memcmp(r->header.uuid, to->header.uuid, sizeof to->header.uuid) == 0)
		return fail(
		    SHMRING_E_INVALID,
		    "ring \"%s\" cannot be the ring for its own dead letters: they would be delivered again",
		    r->name);
	if (!same_schema(r, to))
		return fail(
		    SHMRING_E_INVALID,
		    "ring \"%s\" needs the Arrow schema of ring \"%s\" to have its dead letters; create it "
		    "with the same schema",
		    to->name, r->name);
	if (to->capacity < r->capacity)
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\" has %llu slots, and a message of ring \"%s\" may have %llu: create it "
			    "with as many "
			    "slots to have its dead letters",
			    to->name, (unsigned long long)to->capacity, r->name, (unsigned long long)r->capacity);
	status = check_not_removed(to);
	if (!status)
		status = see_that_letters_are_kept(to);
	if (!status) {
		consumer->max_deliveries = max_deliveries;
		consumer->dead_letters = producer;
		consumer->set_aside = set_aside;
	}
	return status;
}
