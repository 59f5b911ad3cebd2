/* A record batch planned as an IPC message, to be written straight into the ring. */
#ifndef SHMRING_IPC_MESSAGE_H
#define SHMRING_IPC_MESSAGE_H

#include <stddef.h>

#include "ipc_format.h"

/* One planned message: its size, and the source of each part. It refers to the arrays
 * and the layout. */
struct ipc_message {
	uint64_t metadata_bytes; /* with the eight before it */
	uint64_t body_bytes;
	const void *head; /* bytes before the IPC message */
	size_t head_bytes;
	uint32_t part_count;
	struct ipc_part *parts;
	struct ipc_metadata *metadata;
	const char *damage; /* of an array that cannot be written, and its column's name */
	const char *column;
};

enum ipc_planned {
	IPC_PLAN_NO_MEMORY = -2,
	IPC_PLAN_DAMAGED = -1,
	IPC_PLAN_UNFIT = 0, /* these arrays need another writer */
	IPC_PLANNED = 1,
};
enum ipc_planned ipc_plan(const struct ipc_layout *layout, const struct ArrowArray *batch,
			  struct ipc_message *message);
void ipc_free(struct ipc_message *message);
void ipc_write(void *to, const void *message);

#endif
