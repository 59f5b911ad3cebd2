/* What may be overwritten, and how far branches have released. */
#ifndef SHMRING_FLOOR_H
#define SHMRING_FLOOR_H

#include "handles.h"

uint64_t walk_runs(const shmring *ring, uint64_t from, uint64_t target);
uint64_t branch_released(const shmring *ring, const struct branch *branch, bool holds_only);
uint64_t upstream_released(const shmring *ring, uint64_t upstream);
uint64_t floor_advance(shmring *ring, uint64_t need);
bool nobody_gates(const shmring *ring);
bool everybody_released(const shmring *ring, uint64_t sequence);

/* Only the holds of its consumers gate; its position does not. */
static inline bool gates_by_holds_only(const struct branch *branch)
{
	return load_relaxed(&branch->d.options) & BRANCH_DROP_OLDEST ||
	       load_acquire(&branch->d.state) == BRANCH_DROPPED;
}

#endif
