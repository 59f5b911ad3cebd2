/* Seats and the admin lock. Callers hold this lock, except for
 * seat_alive(), read_seat(), those that are asked about an owner, and the names. */
#ifndef SHMRING_SEATS_H
#define SHMRING_SEATS_H

#include "handles.h"

/* The name of a handle's own seat while it is not lent. */
#define ATTACHED_NAME "attached"

/* Who has a seat. Another owner, or the same one in another role, has another time of joining. */
struct seat_owner {
	uint32_t state;
	uint32_t pid;
	uint64_t start_time;
	uint64_t joined_ns;
};

int admin_enter(shmring *ring);
int admin_enter_to_leave(shmring *ring);
bool admin_is_worth_waiting(const shmring *ring, int64_t since_ns, bool leaving);
bool admin_try(shmring *ring);
void admin_leave(shmring *ring);
int seat_try(shmring *ring, uint32_t role, const char *name, uint32_t branch, uint32_t *index, uint32_t *barred);
bool seat_lend(shmring *ring, uint32_t role, const char *name, uint32_t branch, uint32_t *index);
void seat_prepare(struct seat *seat, uint32_t branch);
bool handle_seatless(const shmring *ring);
void handle_seated(shmring *ring, uint32_t index, bool lent);
void seat_abandon(shmring *ring, uint32_t index);
void seat_give_back(shmring *ring, uint32_t index);
bool seat_alive(const shmring *ring, uint32_t index);
bool read_seat(const shmring *ring, uint32_t index, struct seat_owner *owner,
	       struct shmring_participant_info *info);
bool seat_stopped(const struct seat_owner *owner);
void name_store(char *to, const char *name, size_t size);
void name_load(char *to, const char *from, size_t size);

static inline bool seat_is_own(const shmring *ring, uint32_t index)
{
	return load_relaxed(&ring->held[index]) != NULL;
}

#endif
