/* Gives participants their seats in a ring, and describes the participants. */
#include "holder.h"

/* Takes a free seat. If there is none, frees the seats of dead owners and tries once more. */
static int seat_find(shmring *r, uint32_t role, const char *name, uint32_t branch, uint32_t *index)
{
	uint32_t barred;
	int status = seat_try(r, role, name, branch, index, &barred);

	if (status == SHMRING_UNAVAILABLE && recover_dead_seats(r))
		status = seat_try(r, role, name, branch, index, &barred);
	if (status != SHMRING_UNAVAILABLE)
		return status;
	if (barred)
		return fail(SHMRING_E_LIMIT,
			    "ring \"%s\": none of its %u participants' seats can be taken: %u are free, but "
			    "another process holds locks on them; any user who may read the file can do that",
			    r->name, r->seat_count, barred);
	return fail(SHMRING_E_LIMIT,
		    "ring \"%s\": all %u participants' seats are taken; close handles that are not needed "
		    "(`shmring stat` shows whose they are), or create the ring with more participants",
		    r->name, r->seat_count);
}

/* Gives a handle a seat of its own. The callers of handle_seat() and seat_take() hold the admin lock. */
int handle_seat(shmring *r)
{
	uint32_t index;
	int status = seat_find(r, ROLE_ATTACHED, ATTACHED_NAME, 0, &index);

	if (!status)
		handle_seated(r, index, false);
	return status;
}

/* Returns true if orphans have seats. A handle may then attach without a seat, because a consumer of the
 * orphans' branch can take over an orphan's seat; otherwise orphans could keep all seats for ever. */
bool orphans_have_seats(const shmring *r)
{
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (load_relaxed(&r->seats[i].id.state) == SEAT_ORPHAN)
			return true;
	return false;
}

/* CHANGE: edit this for a new option of a ring */
int seat_take(shmring *r, uint32_t role, const char *name, uint32_t branch, uint32_t *index)
{
	int status;

	if (seat_lend(r, role, name, branch, index))
		return SHMRING_OK;
	status = seat_find(r, role, name, branch, index);
	/* If the handle has no seat of its own, because no seat was free or because its seat was abandoned, the
	 * new seat becomes the handle's own, lent to the new participant. */
	if (!status && load_relaxed(&r->seat) == NOBODY)
		handle_seated(r, *index, true);
	return status;
}

int shmring_participant_info(const shmring *r, uint32_t index, struct shmring_participant_info *info)
{
	struct seat_owner owner;

	if (index >= r->seat_count)
		return fail(SHMRING_E_INVALID, "ring \"%s\" has no seat %u", r->name, index);
	if (!read_seat(r, index, &owner, info))
		return not_now(SHMRING_UNAVAILABLE);
	info->stopped = info->alive && seat_stopped(&owner);
	return SHMRING_OK;
}
