/* Functions that write record batches as Arrow IPC messages (in messages of kinds 3 and 4 of docs/layout.md), and
 * read IPC messages as arrays, without Python. Readers trust no byte of a message. They copy bytes that they read
 * more than once, because a peer may change the message between two reads. */
#ifndef SHMRING_IPC_H
#define SHMRING_IPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* --- the Arrow C data interface, as its specification prints it ---------------------------- */

struct ArrowSchema {
	const char *format;
	const char *name;
	const char *metadata;
	int64_t flags;
	int64_t n_children;
	struct ArrowSchema **children;
	struct ArrowSchema *dictionary;
	void (*release)(struct ArrowSchema *);
	void *private_data;
};

struct ArrowArray {
	int64_t length;
	int64_t null_count;
	int64_t offset;
	int64_t n_buffers;
	int64_t n_children;
	const void **buffers;
	struct ArrowArray **children;
	struct ArrowArray *dictionary;
	void (*release)(struct ArrowArray *);
	void *private_data;
};

/* --- the layout of a schema's batches -------------------------------------------------------- */

#define IPC_MOST_LEVELS 64 /* maximum depth of nested types: pyarrow reads no deeper schemas */
/* Maximum number of rows in a batch. The byte counts of a larger batch could overflow, and no ring has room for
 * it. */
#define IPC_MOST_ROWS (INT64_C(1) << 32)

/* Kinds of arrays, by the buffers and children that an array has besides its validity buffer. */
enum ipc_values {
	VALUES_NONE, /* no buffers, not even a validity buffer: the type null */
	VALUES_FIXED, /* a buffer of values of `width` bytes each */
	VALUES_BITS,
	VALUES_BYTES, /* a buffer of offsets of `width` bytes each, and a buffer of bytes */
	VALUES_LIST, /* a buffer of offsets of `width` bytes each, and a child */
	VALUES_FIXED_LIST, /* a child, which has `width` values for each list */
	VALUES_STRUCT, /* any number of children */
};

struct ipc_field {
	const struct ArrowSchema *schema;
	enum ipc_values values;
	uint32_t width;
	uint32_t buffers; /* number of buffers of an array of this field; the same in memory and in a message */
};

/* Fields of a schema: the nodes of its tree, each before its children. The fields point into the schema, so the
 * schema must live as long as the layout. */
struct ipc_layout {
	struct ipc_field *fields; /* all fields, each before its children; the first stands for the record batch */
	uint32_t field_count;
	uint32_t buffer_count; /* number of buffers in a message: the buffers of all columns and their children */
};

/* Functions of ipc_fields.c, which describes the layout of a schema's batches. */
bool ipc_layout_of(struct ipc_layout *layout, const struct ArrowSchema *schema);
void ipc_layout_free(struct ipc_layout *layout);

/* --- common to readers and writers ------------------------------------------------------- */

#define IPC_CONTINUATION UINT32_MAX /* first 4 bytes of each message; the size of its metadata follows */

enum {
	IPC_VERSION_5 = 4,
	IPC_HEADER_RECORD_BATCH = 3,
};

struct ipc_node {
	int64_t length;
	int64_t null_count;
};

struct ipc_extent {
	int64_t offset; /* bytes from the beginning of the body */
	int64_t length;
};

/* --- buffers of arrays --------------------------------------------------------------------- */

#define IPC_ALIGNMENT 8 /* alignment in bytes of buffers in the body, as pyarrow writes them */

/* Returns the size in bytes of a buffer of `nbytes` bytes with its padding. */
static inline uint64_t ipc_padded(uint64_t nbytes)
{
	return (nbytes + IPC_ALIGNMENT - 1) / IPC_ALIGNMENT * IPC_ALIGNMENT;
}

/* Returns offset `i` of an array whose offsets have `width` bytes. The offsets may be unaligned. */
static inline int64_t ipc_offset_at(const uint8_t *offsets, uint32_t width, int64_t i)
{
	int64_t large;
	int32_t small;

	if (width == sizeof large)
		return memcpy(&large, offsets + i * width, width), large;
	memcpy(&small, offsets + i * width, sizeof small);
	return small;
}

enum ipc_answer {
	IPC_NO_MEMORY = -2,
	IPC_DAMAGED = -1,
	IPC_FOREIGN = 0, /* no damage was found, but the caller needs another reader or writer for this batch */
	IPC_DONE = 1,
};

/* --- writing ------------------------------------------------------------------------------ */

/* One planned message: its size, and the source of each part. The plan points into the arrays, which must live
 * until the message is written. */
struct ipc_message {
	uint64_t metadata_bytes; /* size of the metadata and of the 8 bytes before it (continuation, size) */
	uint64_t body_bytes;
	const void *head; /* the caller's bytes, which ipc_write() writes in front of the IPC message */
	size_t head_bytes;
	uint32_t part_count;
	struct ipc_part *parts;
	struct ipc_metadata *metadata;
	const char *damage; /* reason why an array cannot be written */
	const char *column; /* name of the damaged array's column, in the schema's memory */
};

enum ipc_answer ipc_plan(const struct ipc_layout *layout, const struct ArrowArray *batch,
			 struct ipc_message *message);
void ipc_free(struct ipc_message *message);
void ipc_write(void *to, const void *message);

/* --- reading ------------------------------------------------------------------------------ */

/* A record batch message whose metadata was checked against a layout. */
struct ipc_batch {
	void *metadata; /* copy of the message's metadata; `nodes` and `extents` point into it */
	const struct ipc_node *nodes;
	const struct ipc_extent *extents;
	int64_t rows;
	uint64_t body; /* offset of the body in the message */
	uint64_t body_bytes;
};

/* Owner of the memory that the arrays point to. The thread that releases the last array calls let_go(), once. */
struct ipc_owner {
	void (*let_go)(void *context);
	void *context;
};

enum ipc_answer ipc_batch_open(const struct ipc_layout *layout, const uint8_t *message, uint64_t bytes,
			       struct ipc_batch *batch);
void ipc_batch_close(struct ipc_batch *batch);
enum ipc_answer ipc_arrays(const struct ipc_layout *layout, struct ipc_batch *batch, const uint8_t *body,
			   bool every_offset, struct ipc_owner owner, struct ArrowArray *root);

#endif
