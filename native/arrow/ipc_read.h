/* Reading IPC messages: first the metadata of one, then the arrays of a record batch. */
#ifndef SHMRING_IPC_READ_H
#define SHMRING_IPC_READ_H

#include "ipc_flat.h"
#include "ipc_format.h"

/* One encapsulated message: a copy of its metadata, and where its body is. */
struct ipc_frame {
	struct flat metadata; /* a copy */
	struct flat_table header;
	uint64_t message_bytes;
	uint64_t body; /* where it begins in the message */
	uint64_t body_bytes;
};

/* ipc_frame.c */
enum ipc_read ipc_frame_open(struct ipc_frame *frame, const uint8_t *message, uint64_t bytes, uint64_t most);
void ipc_frame_close(struct ipc_frame *frame);

/* A record batch message whose metadata was checked against a layout. */
struct ipc_batch {
	struct ipc_frame frame;
	const struct ipc_node *nodes;
	const struct ipc_extent *extents;
	int64_t rows;
};

/* The owner of the bytes under the arrays. Called once, by the thread that drops the last array. */
struct ipc_owner {
	void (*let_go)(void *context);
	void *context;
};

/* ipc_arrays.c */
enum ipc_read ipc_batch_open(const struct ipc_layout *layout, const uint8_t *message, uint64_t bytes,
			     struct ipc_batch *batch);
void ipc_batch_close(struct ipc_batch *batch);
enum ipc_read ipc_arrays(const struct ipc_layout *layout, struct ipc_batch *batch, const uint8_t *body,
			 bool every_offset, struct ipc_owner owner, struct ArrowArray *root);

#endif
