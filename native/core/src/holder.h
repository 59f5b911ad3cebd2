/* Checks that detect a wait that no other process can end any more. */
#ifndef SHMRING_HOLDER_H
#define SHMRING_HOLDER_H

#include "core.h"

int check_named(const shmring *ring, const shmring_consumer *consumer);

/* Called when a push finds no room, or when a take finds no message. Returns SHMRING_OK, unless the last wait
 * found that no other process can end such a wait any more (find_lost()). In that case this function checks
 * again, and returns the error of check_named() if the check still fails. */
static inline int check_lost(const shmring *ring, const shmring_consumer *consumer, struct wait_memory *memory)
{
	if (__builtin_expect(!load_relaxed(&memory->lost), 1))
		return SHMRING_OK;
	store_relaxed(&memory->lost, false);
	return check_named(ring, consumer);
}

#endif
