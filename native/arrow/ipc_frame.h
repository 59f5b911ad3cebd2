/* One encapsulated IPC message: a copy of its metadata, and where its body is. */
#ifndef SHMRING_IPC_FRAME_H
#define SHMRING_IPC_FRAME_H

#include "ipc_flat.h"
#include "ipc_format.h"

struct ipc_frame {
	struct flat metadata; /* a copy */
	struct flat_table header;
	uint64_t message_bytes;
	uint64_t body; /* where it begins in the message */
	uint64_t body_bytes;
	const char *wrong; /* in words, after IPC_DAMAGED and IPC_FOREIGN */
};

static inline enum ipc_read ipc_wrong(struct ipc_frame *frame, enum ipc_read what, const char *words)
{
	frame->wrong = words;
	return what;
}

/* ipc_frame.c */
enum ipc_read ipc_frame_open(struct ipc_frame *frame, const uint8_t *message, uint64_t bytes, uint64_t most,
			     uint8_t header_type);
void ipc_frame_close(struct ipc_frame *frame);

#endif
