/* The state of branches; calls that change it need the admin lock. */
#ifndef SHMRING_BRANCHES_H
#define SHMRING_BRANCHES_H

#include "handles.h"

void graph_repair(shmring *ring);
void derive(shmring *ring);
unsigned living_consumers(const shmring *ring, uint32_t id);
void branch_drop(shmring *ring, uint32_t id);
void branch_consumer_left(shmring *ring, uint32_t id);
void count_orphans(shmring *ring, uint32_t id);

static inline struct branch *branch_at(const shmring *r, uint32_t id)
{
	return &r->cursors->branch[id];
}

static inline uint64_t bit(uint32_t id)
{
	return UINT64_C(1) << id;
}

static inline bool is_active(const shmring *r, uint32_t id)
{
	return load_acquire(&branch_at(r, id)->d.state) == BRANCH_ACTIVE;
}

#endif
