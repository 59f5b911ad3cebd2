/* Record batches as Arrow IPC messages (kinds 3 and 4 of docs/layout.md): how those of a
 * schema are laid out, and one of them, from its arrays straight into the ring. */
#ifndef SHMRING_BINDING_IPC_H
#define SHMRING_BINDING_IPC_H

#include "arrow.h"

/* What an array keeps beside its validity. */
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

/* _shmring.ArrowLayout. The fields are those of the schema's tree, each before its children. */
struct ipc_layout {
	PyObject ob_base;
	PyObject *capsule; /* keeps the schema alive */
	struct ipc_field *fields; /* the first is the record batch */
	uint32_t field_count;
	uint32_t buffer_count; /* of a message */
};

/* One message, planned: its bytes are known, and where each is to be copied from. It
 * refers to the arrays and the layout. */
struct ipc_message {
	uint64_t metadata_bytes; /* with the eight before it */
	uint64_t body_bytes;
	const void *head; /* bytes before the IPC message */
	size_t head_bytes;
	uint32_t part_count;
	struct ipc_part *parts;
	struct ipc_metadata *metadata;
};

/* ipc_layout.c */
PyObject *arrow_layout(PyObject *module, PyObject *schema);
bool ipc_agrees(const struct ipc_layout *layout, const struct ArrowSchema *schema);
extern PyType_Spec ipc_layout_spec;

/* ipc_message.c */
enum ipc_planned {
	IPC_RAISED = -1,
	IPC_UNFIT = 0, /* these arrays need another writer */
	IPC_PLANNED = 1,
};
enum ipc_planned ipc_plan(const struct ipc_layout *layout, const struct ArrowArray *batch,
			  struct ipc_message *message);
void ipc_free(struct ipc_message *message);
void ipc_write(void *to, const void *message);

#endif
