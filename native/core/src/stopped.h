/* Whether a participant's process is stopped. */
#ifndef SHMRING_STOPPED_H
#define SHMRING_STOPPED_H

#include "handles.h"

bool is_stopped(const shmring *ring, uint32_t pid);

#endif
