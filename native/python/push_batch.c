/* push_batch(): a record batch from its arrays straight into the slots. */
#include "arrow.h"
#include "ipc_message.h"
#include "producers.h"

/* The caller's options of the message. */
struct wanted {
	Py_buffer head;
	uint8_t kind;
	uint64_t limit; /* bytes */
	int64_t timeout;
};

static PyObject *push_planned(struct producer *self, const struct ipc_message *message,
			      const struct wanted *wanted)
{
	uint64_t body = message->head_bytes + message->metadata_bytes;
	const struct pushing m = {
	    .data = message,
	    .length = body + message->body_bytes,
	    .align = (int64_t)body,
	    .fill = ipc_write,
	    .kind = wanted->kind,
	};

	if (m.length > wanted->limit || m.length > UINT32_MAX)
		Py_RETURN_NONE;
	return producer_usable(self) ? push_message(self, &m, wanted->timeout) : NULL;
}

static PyObject *push_arrays(struct producer *self, const struct ipc_layout *layout,
			     const struct ArrowArray *batch, const struct wanted *wanted)
{
	struct ipc_message message = {.head = wanted->head.buf, .head_bytes = (size_t)wanted->head.len};
	PyObject *result;

	switch (ipc_plan(layout, batch, &message)) {
	case IPC_PLAN_NO_MEMORY:
		return PyErr_NoMemory();
	case IPC_PLAN_DAMAGED:
		return PyErr_Format(PyExc_ValueError, "an array of column \"%s\" is damaged: %s", message.column,
				    message.damage);
	case IPC_PLAN_UNFIT:
		Py_RETURN_NONE;
	case IPC_PLANNED:
		break;
	}
	result = push_planned(self, &message, wanted);
	ipc_free(&message);
	return result;
}

/* push_batch(producer, layout, head, kind, limit, batch, timeout): returns the message's number. It returns None
 * and publishes nothing if the batch, which is pyarrow's and has the layout's schema, takes more than `limit`
 * bytes. */
PyObject *push_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	const struct state *state = PyModule_GetState(module);
	struct wanted wanted = {0};
	struct ArrowArray array;
	PyObject *result = NULL;

	if (nargs != 7 || !Py_IS_TYPE(args[0], state->producer) || !Py_IS_TYPE(args[1], state->arrow_layout)) {
		PyErr_SetString(PyExc_TypeError, "push_batch() wants a Producer, an ArrowLayout and five more");
		return NULL;
	}
	if (!parse_kind(args[3], &wanted.kind) || !parse_count(args[4], "limit", INT64_MAX, &wanted.limit) ||
	    !parse_timeout(args[6], &wanted.timeout) || PyObject_GetBuffer(args[2], &wanted.head, PyBUF_SIMPLE))
		return NULL;
	if (wanted.head.len % 4) {
		PyErr_Format(PyExc_ValueError, "head must have a multiple of 4 bytes, not %zd", wanted.head.len);
	} else if (arrow_export(args[5], state->names.export_to_c, &array)) {
		result = push_arrays((struct producer *)args[0], &((const struct arrow_layout *)args[1])->layout,
				     &array, &wanted);
		array.release(&array);
	}
	PyBuffer_Release(&wanted.head);
	return result;
}
