/* Joining and making branches. */
#ifndef SHMRING_GRAPH_H
#define SHMRING_GRAPH_H

#include "handles.h"

/* The caller holds the admin lock. */
int subscribe_locked(shmring *ring, const char *name, const struct shmring_branch_options *options, bool joining,
		     uint32_t *id);

#endif
