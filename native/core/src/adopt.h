/* The leases of the dead. */
#ifndef SHMRING_ADOPT_H
#define SHMRING_ADOPT_H

#include "handles.h"

bool may_adopt(const shmring_member *member);
bool leases_move(shmring_member *member);
void leases_moved(shmring_member *member);
bool member_take_again(shmring_member *member, uint32_t max_messages, uint64_t max_slots,
		       struct shmring_lease *lease, int *status);
bool member_adopt(shmring_member *member, uint32_t max_messages, uint64_t max_slots, struct shmring_lease *lease,
		  int *status);

#endif
