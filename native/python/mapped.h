/* Leased messages as Arrow arrays. */
#ifndef SHMRING_BINDING_MAPPED_H
#define SHMRING_BINDING_MAPPED_H

#include "handle.h"
#include "ipc_read.h"

struct mapping {
	struct handle *lease; /* pinned for as long as the mapping is made */
	const struct ipc_layout *layout;
	const uint8_t *message;
	uint64_t bytes;
	bool copy;
	bool every_offset; /* check each one, in a copy of the offsets */
};

/* mapped.c */
bool mapped_prepare(void);
void let_lease_go(void *lease);
enum ipc_read mapped_batch(struct mapping *mapping, struct ArrowArray *array);

#endif
