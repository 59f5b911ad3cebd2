/* The metadata of an IPC message: first copied, then checked, so that the checked bytes are used. */
#include <stdlib.h>
#include <string.h>

#include "ipc_read.h"

struct prefix {
	uint32_t continuation;
	uint32_t size;
};

/* Fields of the table Message (Message.fbs of Arrow's format). */
enum {
	MESSAGE_VERSION,
	MESSAGE_HEADER_TYPE,
	MESSAGE_HEADER,
	MESSAGE_BODY_BYTES,
};

static enum ipc_read read_frame(struct ipc_frame *frame)
{
	struct flat_table message;
	int16_t version = 0;
	uint8_t type = 0;
	int64_t body_bytes = 0;

	if (!flat_root(&frame->metadata, &message) ||
	    !flat_number(&message, MESSAGE_VERSION, sizeof version, &version) ||
	    !flat_number(&message, MESSAGE_HEADER_TYPE, sizeof type, &type) ||
	    !flat_number(&message, MESSAGE_BODY_BYTES, sizeof body_bytes, &body_bytes))
		return IPC_DAMAGED; /* its metadata leads outside of itself */
	if (version != IPC_VERSION_5)
		return IPC_FOREIGN; /* its metadata is of another version */
	if (type != IPC_HEADER_RECORD_BATCH)
		return IPC_FOREIGN;
	if (!flat_inner(&message, MESSAGE_HEADER, &frame->header) || frame->header.at == 0)
		return IPC_DAMAGED; /* its metadata leads outside of itself */
	if (body_bytes < 0 || (uint64_t)body_bytes > frame->message_bytes - frame->body)
		return IPC_DAMAGED; /* its body is cut off */
	frame->body_bytes = (uint64_t)body_bytes;
	return IPC_READ;
}

/* Opens a record batch message at the beginning of `bytes` bytes; its metadata has at most `most` bytes.
 * The caller calls ipc_frame_close() in any case. */
enum ipc_read ipc_frame_open(struct ipc_frame *frame, const uint8_t *message, uint64_t bytes, uint64_t most)
{
	struct prefix prefix = {0};
	uint8_t *copy;

	*frame = (struct ipc_frame){.message_bytes = bytes};
	if (bytes >= sizeof prefix)
		memcpy(&prefix, message, sizeof prefix);
	if (prefix.continuation != IPC_CONTINUATION)
		return IPC_DAMAGED; /* no IPC message begins there */
	if (prefix.size > bytes - sizeof prefix)
		return IPC_DAMAGED; /* its metadata is cut off */
	if (prefix.size > most)
		return IPC_FOREIGN; /* its metadata is larger than its columns need */
	copy = malloc(prefix.size + !prefix.size);
	if (!copy)
		return IPC_NO_MEMORY;
	memcpy(copy, message + sizeof prefix, prefix.size);
	frame->metadata = (struct flat){copy, prefix.size};
	frame->body = sizeof prefix + prefix.size;
	return read_frame(frame);
}

void ipc_frame_close(struct ipc_frame *frame)
{
	free((void *)frame->metadata.bytes);
}
