/* Record batches and the binding: the layout as an object; a batch planned as a message, to be written
 * straight into the ring; a message as arrays over the ring. */
#ifndef SHMRING_BINDING_IPC_H
#define SHMRING_BINDING_IPC_H

#include "arrow.h"
#include "ipc_format.h"

/* _shmring.ArrowLayout */
struct arrow_layout {
	PyObject ob_base;
	PyObject *capsule; /* keeps the schema alive */
	struct ipc_layout layout;
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
