/* Recovery; the caller holds the admin lock. */
#ifndef SHMRING_RECOVERY_H
#define SHMRING_RECOVERY_H

#include "handles.h"

unsigned recover_dead_seats(shmring *ring);
bool recover_seat(shmring *ring, uint32_t index);

#endif
