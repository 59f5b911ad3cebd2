/* Arrow IPC messages (kinds 3 and 4 of docs/layout.md), written and read without Python: the buffers of a
 * schema's record batches, and a message turned back into schema and arrays. Readers trust no byte of the
 * message, and copy bytes that they read more than once: a peer may change them. */
#ifndef SHMRING_IPC_FORMAT_H
#define SHMRING_IPC_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "arrow_abi.h"

#define IPC_MOST_LEVELS 64 /* pyarrow reads no deeper ones */
/* A batch of more rows could not be counted in bytes; no ring holds one. */
#define IPC_MOST_ROWS (INT64_C(1) << 32)

/* The buffers of an array besides its validity. */
enum ipc_values {
	VALUES_NONE, /* and no validity either: the type null */
	VALUES_FIXED, /* `width` bytes each */
	VALUES_BITS,
	VALUES_BYTES, /* offsets of `width` bytes each, then the bytes */
	VALUES_LIST, /* offsets of `width` bytes each; a child */
	VALUES_FIXED_LIST, /* a child with `width` values for each */
	VALUES_STRUCT, /* children */
};

struct ipc_field {
	const struct ArrowSchema *schema;
	enum ipc_values values;
	uint32_t width;
	uint32_t buffers; /* of an array, and in a message */
};

/* The fields are those of the schema's tree, each before its children. It refers to the schema. */
struct ipc_layout {
	struct ipc_field *fields; /* the first is the record batch */
	uint32_t field_count;
	uint32_t buffer_count; /* of a message */
};

/* --- what both sides of a message have --------------------------------------------------- */

#define IPC_CONTINUATION UINT32_MAX /* each message begins so; the size of its metadata follows */

enum {
	IPC_VERSION_5 = 4,
	IPC_HEADER_RECORD_BATCH = 3,
};

struct ipc_node {
	int64_t length;
	int64_t null_count;
};

struct ipc_extent {
	int64_t offset; /* in the body */
	int64_t length;
};

/* --- in arrays ---------------------------------------------------------------------------- */

/* Offset `i` of an array whose offsets have `width` bytes; they may lie anywhere. */
static inline int64_t ipc_offset_at(const uint8_t *offsets, uint32_t width, int64_t i)
{
	int64_t large;
	int32_t small;

	if (width == sizeof large)
		return memcpy(&large, offsets + i * width, width), large;
	memcpy(&small, offsets + i * width, sizeof small);
	return small;
}

/* --- reading ------------------------------------------------------------------------------ */

enum ipc_read {
	IPC_NO_MEMORY = -2,
	IPC_DAMAGED = -1,
	IPC_FOREIGN = 0, /* well-formed as far as it was read, but for another reader */
	IPC_READ = 1,
};

/* ipc_fields.c */
bool ipc_layout_of(struct ipc_layout *layout, const struct ArrowSchema *schema);
void ipc_layout_free(struct ipc_layout *layout);

#endif
