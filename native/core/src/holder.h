/* Checks that detect a wait that no other process can end any more. */
#ifndef SHMRING_HOLDER_H
#define SHMRING_HOLDER_H

#include "core.h"

int check_named(const shmring *ring, const shmring_consumer *consumer);

/* Called by a try to push or take that finds no room or no message. If the last wait has found the ring lost
 * (find_lost()), returns the error of check_named(), or SHMRING_OK if the ring is not lost any more. */
static inline int check_lost(const shmring *ring, const shmring_consumer *consumer, struct wait_memory *memory)
{
	if (__builtin_expect(!load_relaxed(&memory->lost), 1))
		return SHMRING_OK;
	store_relaxed(&memory->lost, false);
	return check_named(ring, consumer);
}

#endif
