/* Joining a ring. */
#ifndef SHMRING_PARTICIPANTS_H
#define SHMRING_PARTICIPANTS_H

#include "handles.h"

int handle_seat(shmring *ring);
int seat_take(shmring *ring, uint32_t role, const char *name, uint32_t branch, uint32_t *index);

#endif
