/* map_batch(): a leased record batch, for pyarrow. */
#include <string.h>

#include "arrow.h"
#include "mapped.h"
#include "consumers.h"

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
	if (!lease_hold(lease)) {
		PyBuffer_Release(&head);
		return NULL;
	}
	m.lease = &lease->handle;
	m.layout = &((const struct arrow_layout *)args[1])->layout;
	m.message = lease->message.data;
	m.bytes = lease->message.length;
	if (step_over(&m, skip, &head))
		read = mapped_batch(&m, &array);
	handle_let_go(&lease->handle);
	PyBuffer_Release(&head);
	if (read == IPC_READ)
		return import_array(args[6], &array, args[7]);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
