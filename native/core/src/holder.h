/* Checks that detect a wait that no other process can end any more. */
#ifndef SHMRING_HOLDER_H
#define SHMRING_HOLDER_H

#include "core.h"

int check_named(const shmring *ring, const shmring_consumer *consumer);

/* Calls check_named() once if a wait has set `lost` in `memory`. */
static inline int check_lost(const shmring *ring, const shmring_consumer *consumer, struct wait_memory *memory)
{
	if (__builtin_expect(!load_relaxed(&memory->lost), 1))
		return SHMRING_OK;
	store_relaxed(&memory->lost, false);
	return check_named(ring, consumer);
}

#endif
