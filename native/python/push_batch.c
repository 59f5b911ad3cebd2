/* push_batch(): a record batch from its arrays straight into the slots. */
#include "ipc.h"
#include "producers.h"

/* What the caller says about the message. */
struct wanted {
	Py_buffer head;
	uint8_t kind;
	uint64_t limit; /* bytes */
	bool checked; /* the schema is the layout's, somebody has found */
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

static PyObject *push_arrays(struct producer *self, PyObject *data, const struct ipc_layout *layout,
			     const struct wanted *wanted)
{
	const struct ArrowSchema *schema;
	const struct ArrowArray *array;
	PyObject *capsules = arrow_import(data, &schema, &array);
	struct ipc_message message = {.head = wanted->head.buf, .head_bytes = (size_t)wanted->head.len};
	PyObject *result = NULL;

	if (!capsules)
		return NULL;
	switch (ipc_agrees(layout, schema, !wanted->checked) ? ipc_plan(layout, array, &message) : IPC_UNFIT) {
	case IPC_RAISED:
		break;
	case IPC_UNFIT:
		result = Py_NewRef(Py_None);
		break;
	case IPC_PLANNED:
		result = push_planned(self, &message, wanted);
		ipc_free(&message);
	}
	Py_DECREF(capsules);
	return result;
}

/* push_batch(producer, data, layout, head, kind, limit, checked, timeout): the message's number. None,
 * and nothing is published, where `data` is not one batch that is laid out so, or takes more than
 * `limit` bytes. */
PyObject *push_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	const struct state *state = PyModule_GetState(module);
	struct wanted wanted = {0};
	PyObject *result;

	if (nargs != 8 || !Py_IS_TYPE(args[0], state->producer) || !Py_IS_TYPE(args[2], state->arrow_layout)) {
		PyErr_SetString(PyExc_TypeError,
				"push_batch() wants a Producer, data, an ArrowLayout and five more");
		return NULL;
	}
	if (!parse_kind(args[4], &wanted.kind) || !parse_count(args[5], "limit", INT64_MAX, &wanted.limit) ||
	    !parse_flag(args[6], &wanted.checked) || !parse_timeout(args[7], &wanted.timeout) ||
	    PyObject_GetBuffer(args[3], &wanted.head, PyBUF_SIMPLE))
		return NULL;
	if (wanted.head.len % 4 == 0)
		result =
		    push_arrays((struct producer *)args[0], args[1], (const struct ipc_layout *)args[2], &wanted);
	else
		result = PyErr_Format(PyExc_ValueError, "head must have a multiple of 4 bytes, not %zd",
				      wanted.head.len);
	PyBuffer_Release(&wanted.head);
	return result;
}
