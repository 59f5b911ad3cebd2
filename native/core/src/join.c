/* Consumers join a branch, and leave it: docs/protocol.md, P7 and P10. */
#include <stdlib.h>

#include "cells.h"
#include "takes.h"

/* Takes over the seat of an orphan of branch `id`, with its leases, which the next takes deliver again. */
static int inherit(shmring_consumer *consumer, uint32_t id, const char *name)
{
	shmring *r = consumer->ring;
	uint32_t i = 0;
	bool inherited;

	while (i < r->seat_count &&
	       (load_relaxed(&r->seats[i].id.state) != SEAT_ORPHAN || load_relaxed(&r->seats[i].id.branch) != id))
		i++;
	/* The caller found no free seat, but orphans of the branch. If the orphans are gone now, recovery in
	 * subscribe_locked() has dropped their branch, which freed their seats: take a free one. */
	if (i == r->seat_count)
		return seat_take(r, ROLE_CONSUMER, name, BRANCHES, &consumer->seat_index);
	consumer->seat_index = i;
	consumer->seat = &r->seats[i];
	seat_join_ranges(consumer->seat, false);
	seat_read_ranges(consumer->seat, consumer->range);
	consumer->ranges_used = LEASES;
	for (uint32_t k = 0; k < LEASES; k++) {
		if (consumer->range[k].lo == NONE)
			continue;
		if (!deferred_reserve(&consumer->returned))
			return fail(SHMRING_E_NO_MEMORY, "out of memory");
		consumer_gives_again(consumer, consumer->range[k].lo, RANGE_END(consumer->range[k].hi));
	}
	if (!leases_move(consumer))
		return fail(SHMRING_E_LIMIT,
			    "ring \"%s\": all seats are taken, and a consumer that died moving a lease cannot be "
			    "cleared away now; try again",
			    r->name);
	inherited = seat_inherit(r, i, name);
	leases_moved(consumer);
	if (!inherited)
		return fail(SHMRING_E_LIMIT,
			    "ring \"%s\": all seats are taken, and another process holds a lock on that of a dead "
			    "consumer; any user who may read the file can do that",
			    r->name);
	count_orphans(r, id);
	if (load_relaxed(&r->seat) == NOBODY)
		handle_seated(r, i, true);
	/* With drop_oldest, an orphan's hold does not hold producers back: some messages may be overwritten. */
	if (load_relaxed(&branch_at(r, id)->d.options) & BRANCH_DROP_OLDEST)
		consumer->lost_below = consumer_stake(consumer, load_relaxed(&consumer->seat->lease.hold));
	return SHMRING_OK;
}

/* Takes a seat, then finds or makes the branch. The seat comes first: taking a seat may need recovery, which would
 * drop an ephemeral branch without a consumer. */
static int take_seat_and_branch(shmring_consumer *consumer, const char *branch,
				const struct shmring_branch_options *options, const char *name, uint32_t *id)
{
	shmring *r = consumer->ring;
	int status = seat_take(r, ROLE_CONSUMER, name, BRANCHES, &consumer->seat_index);

	if (status == SHMRING_E_LIMIT && has_orphans(r, branch)) {
		status = subscribe_locked(r, branch, options, true, id);
		return status ? status : inherit(consumer, *id, name);
	}
	if (status)
		return status;
	status = subscribe_locked(r, branch, options, true, id);
	if (status)
		seat_give_back(r, consumer->seat_index);
	return status;
}

/* CHANGE: edit this for a new option of a ring */
int shmring_join(shmring *r, const char *branch, const struct shmring_branch_options *options, const char *name,
		 shmring_consumer **out)
{
	shmring_consumer *consumer;
	uint32_t id = 0;
	int status;

	RETURN_NOT_OK(check_writable(r));
	consumer = calloc(1, sizeof *consumer);
	if (!consumer)
		return fail(SHMRING_E_NO_MEMORY, "out of memory");
	status = admin_enter(r);
	if (status) {
		free(consumer);
		return status;
	}
	consumer->ring = r;
	status = take_seat_and_branch(consumer, branch, options, name, &id);
	if (!status) {
		consumer->seat = &r->seats[consumer->seat_index];
		store_relaxed(&consumer->seat->id.branch, id);
		consumer->branch = &r->cursors->branch[id];
		consumer->branch_index = id;
		/* Set this seat's bit before the consumer's first stake and first take, so that branch_released()
		 * reads its hold; pairs with the acquire there. */
		fetch_or_seq_cst(&consumer->branch->d.consumers[consumer->seat_index / 64],
				 UINT64_C(1) << (consumer->seat_index % 64));
		consumer_begins(consumer);
	}
	admin_leave(r);
	if (status) {
		deferred_free(&consumer->returned);
		free(consumer);
		return status;
	}
	*out = consumer;
	return SHMRING_OK;
}

void shmring_consumer_close(shmring_consumer *consumer)
{
	shmring *r;

	/* A forked child frees nothing: another thread of the parent may have held malloc's mutex at the fork. */
	if (!consumer || !is_owned(consumer->ring))
		return;
	if (consumer->gives_again) { /* messages that were handed back must not be released */
		shmring_consumer_abandon(consumer);
		return;
	}
	r = consumer->ring;
	for (int k = 0; k < LEASES; k++)
		store_relaxed(&consumer->seat->range[k].lo, NONE);
	store_release(&consumer->seat->lease.hold, NONE);
	wake_after_release(r, consumer->branch, NONE);
	pass_wake_up_on(consumer);
	if (admin_enter_to_leave(r) == SHMRING_OK) {
		fetch_and_seq_cst(&consumer->branch->d.consumers[consumer->seat_index / 64],
				  ~(UINT64_C(1) << (consumer->seat_index % 64)));
		seat_give_back(r, consumer->seat_index);
		branch_consumer_left(r, consumer->branch_index);
		admin_leave(r);
	} else {
		seat_abandon(r, consumer->seat_index);
	}
	deferred_free(&consumer->deferred);
	deferred_free(&consumer->returned);
	free(consumer);
}

void shmring_consumer_abandon(shmring_consumer *consumer)
{
	bool entered;

	if (!consumer || !is_owned(consumer->ring))
		return;
	entered = admin_enter_to_leave(consumer->ring) == SHMRING_OK;
	seat_abandon(consumer->ring, consumer->seat_index);
	if (entered) {
		(void)recover_seat(consumer->ring, consumer->seat_index);
		if (load_relaxed(&consumer->ring->seat) == NOBODY)
			(void)handle_seat(consumer->ring);
		admin_leave(consumer->ring);
	}
	deferred_free(&consumer->deferred);
	deferred_free(&consumer->returned);
	free(consumer);
}
