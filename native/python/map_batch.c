/* map_batch(): a leased record batch as Arrow arrays over its slots, or over a copy of them, for pyarrow. */
#include <stdlib.h>
#include <string.h>

#include "arrow.h"
#include "consumers.h"
#include "ipc_read.h"
#include "mapped.h"

#define BODY_ALIGNMENT 64 /* of a copy, as Arrow recommends it */

struct mapping {
	struct handle *lease; /* pinned for as long as the mapping is made */
	const struct ipc_layout *layout;
	const uint8_t *message;
	uint64_t bytes;
	bool copy;
	bool every_offset; /* check each one, in a copy of the offsets */
};

/* --- the bytes under the arrays -------------------------------------------------------------- */

static uint8_t *copy_body(const uint8_t *body, uint64_t bytes)
{
	uint8_t *copy = aligned_alloc(BODY_ALIGNMENT, (bytes / BODY_ALIGNMENT + 1) * BODY_ALIGNMENT);

	if (!copy || bytes < GIL_FREE_BYTES)
		return copy ? memcpy(copy, body, bytes) : NULL;
	Py_BEGIN_ALLOW_THREADS memcpy(copy, body, bytes);
	Py_END_ALLOW_THREADS return copy;
}

static enum ipc_read over_copy(struct mapping *m, struct ipc_batch *batch, const uint8_t *body,
			       struct ArrowArray *array)
{
	uint8_t *copy = copy_body(body, batch->frame.body_bytes);
	enum ipc_read read;

	if (!copy)
		return IPC_NO_MEMORY;
	read = ipc_arrays(m->layout, batch, copy, m->every_offset, (struct ipc_owner){free, copy}, array);
	if (read != IPC_READ)
		free(copy);
	return read;
}

static enum ipc_read over_slots(struct mapping *m, struct ipc_batch *batch, const uint8_t *body,
				struct ArrowArray *array)
{
	struct ipc_owner owner = {let_lease_go, m->lease};
	enum ipc_read read = ipc_arrays(m->layout, batch, body, m->every_offset, owner, array);

	if (read == IPC_READ) {
		handle_pin(m->lease);
		Py_INCREF((PyObject *)m->lease);
	}
	return read;
}

/* Makes the arrays, which the caller releases. They pin the lease, unless they lie over a copy. Raises only when
 * memory is short. */
static enum ipc_read map_message(struct mapping *m, struct ArrowArray *array)
{
	struct ipc_batch batch;
	enum ipc_read read = ipc_batch_open(m->layout, m->message, m->bytes, &batch);
	const uint8_t *body = m->message + batch.frame.body;

	/* Not every library reads numbers at unaligned addresses. */
	if (read == IPC_READ)
		read = m->copy || (uintptr_t)body % 8 ? over_copy(m, &batch, body, array)
						      : over_slots(m, &batch, body, array);
	ipc_batch_close(&batch);
	if (read == IPC_NO_MEMORY)
		PyErr_NoMemory();
	return read;
}

/* --- the call ------------------------------------------------------------------------------------ */

/* Hands the arrays to an importer of pyarrow. */
static PyObject *import_array(PyObject *import, struct ArrowArray *array, PyObject *schema)
{
	PyObject *address = PyLong_FromVoidPtr(array);
	PyObject *batch = address ? PyObject_CallFunctionObjArgs(import, address, schema, NULL) : NULL;

	Py_XDECREF(address);
	if (array->release)
		array->release(array);
	return batch;
}

/* True if `head` lies behind the first `skip` bytes of the message; what follows is mapped. */
static bool step_over(struct mapping *m, uint64_t skip, const Py_buffer *head)
{
	uint64_t bytes = skip + (uint64_t)head->len;

	if (m->bytes < bytes || memcmp(m->message + skip, head->buf, (size_t)head->len) != 0)
		return false;
	m->message += bytes;
	m->bytes -= bytes;
	return true;
}

/* map_batch(lease, layout, skip, head, copy, every_offset, import, schema): returns import(address, schema), or
 * None if what follows `skip` bytes of the message is not `head` and one batch of that layout. */
PyObject *map_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	const struct state *state = PyModule_GetState(module);
	struct lease *lease;
	struct mapping m = {0};
	struct ArrowArray array;
	enum ipc_read read = IPC_FOREIGN;
	uint64_t skip;
	Py_buffer head;

	if (nargs != 8 || !Py_IS_TYPE(args[0], state->lease) || !Py_IS_TYPE(args[1], state->arrow_layout)) {
		PyErr_SetString(PyExc_TypeError, "map_batch() wants a Lease, an ArrowLayout and six more");
		return NULL;
	}
	lease = (struct lease *)args[0];
	if (!parse_count(args[2], "skip", UINT32_MAX, &skip) || !parse_flag(args[4], &m.copy) ||
	    !parse_flag(args[5], &m.every_offset) || PyObject_GetBuffer(args[3], &head, PyBUF_SIMPLE))
		return NULL;
	if (!lease_readable(lease)) {
		PyBuffer_Release(&head);
		return NULL;
	}
	handle_pin(&lease->handle);
	m.lease = &lease->handle;
	m.layout = &((const struct arrow_layout *)args[1])->layout;
	m.message = lease->message.data;
	m.bytes = lease->message.length;
	if (step_over(&m, skip, &head))
		read = map_message(&m, &array);
	(void)handle_unpin(&lease->handle);
	PyBuffer_Release(&head);
	if (read == IPC_READ)
		return import_array(args[6], &array, args[7]);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
