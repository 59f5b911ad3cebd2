/* Record batches of pyarrow, exchanged through the Arrow C data interface. push_batch() copies a batch's arrays
 * straight into the slots; map_batch() makes arrays that lie over leased slots. */
#include <stdlib.h>

#include "handle.h"
#include "ipc.h"

/* --- how record batches of a schema are laid out ------------------------------------- */

/* A Python object of type _shmring.ArrowLayout. */
struct arrow_layout {
	PyObject ob_base;
	PyObject *capsule; /* owner of the exported schema, which `layout` refers to */
	struct ipc_layout layout;
};

/* arrow_layout(schema): returns the layout; None if a column has a type that push_batch() does not write. */
PyObject *arrow_layout(PyObject *module, PyObject *schema)
{
	struct state *state = PyModule_GetState(module);
	PyObject *capsule = PyObject_CallMethod(schema, "__arrow_c_schema__", NULL);
	const struct ArrowSchema *root = capsule ? PyCapsule_GetPointer(capsule, "arrow_schema") : NULL;
	struct arrow_layout *self = root ? PyObject_New(struct arrow_layout, state->arrow_layout) : NULL;

	if (!self) {
		Py_XDECREF(capsule);
		return NULL;
	}
	self->capsule = capsule;
	if (ipc_layout_of(&self->layout, root))
		return (PyObject *)self;
	if (!self->layout.fields)
		PyErr_NoMemory();
	Py_DECREF((PyObject *)self);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void layout_dealloc(PyObject *op)
{
	struct arrow_layout *self = (struct arrow_layout *)op;

	ipc_layout_free(&self->layout);
	Py_DECREF(self->capsule);
	object_free(op);
}

static PyType_Slot slots[] = {
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_doc, "How record batches of a schema are laid out in IPC messages; made by arrow_layout()."},
    {0, NULL},
};

PyType_Spec arrow_layout_spec = MADE_HERE("shmring._shmring.ArrowLayout", struct arrow_layout, slots);

/* --- push_batch() ------------------------------------------------------------------------ */

/* Exports a batch of pyarrow; the caller releases the array. Leaves out the schema, because exporting the schema
 * would take as long again. */
static bool arrow_export(PyObject *batch, PyObject *method, struct ArrowArray *array)
{
	PyObject *address = PyLong_FromVoidPtr(array);
	PyObject *done = address ? PyObject_CallMethodObjArgs(batch, method, address, NULL) : NULL;

	Py_XDECREF(address);
	Py_XDECREF(done);
	return done != NULL;
}

/* The arguments of push_batch() that concern the message. */
struct wanted {
	Py_buffer head;
	uint8_t kind;
	uint64_t limit; /* maximum bytes of the message; a batch that needs more is not published */
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
	case IPC_NO_MEMORY:
		return PyErr_NoMemory();
	case IPC_DAMAGED:
		return PyErr_Format(PyExc_ValueError, "an array of column \"%s\" is damaged: %s", message.column,
				    message.damage);
	case IPC_FOREIGN:
		Py_RETURN_NONE;
	case IPC_DONE:
		break;
	}
	result = push_planned(self, &message, wanted);
	ipc_free(&message);
	return result;
}

/* push_batch(producer, layout, head, kind, limit, batch, timeout): publishes the bytes `head` and a batch of
 * pyarrow with the layout's schema as one message, and returns the message's number. Returns None, and publishes
 * nothing, if the message would have more than `limit` bytes, or 4 GiB or more, or if ipc_plan() leaves the batch
 * to pyarrow (IPC_FOREIGN). */
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

/* --- map_batch(): arrays over the slots, or over a copy of them ---------------------------- */

#define BODY_ALIGNMENT 64 /* alignment of a copy, recommended by Arrow */

struct mapping {
	/* Lease of the message. map_batch() pins the lease (handle.h) while it makes the arrays: if another thread
	 * releases the lease meanwhile, the slots are not freed before the call has ended. */
	struct handle *lease;
	const struct ipc_layout *layout;
	const uint8_t *message;
	uint64_t bytes;
	bool copy; /* make the arrays over a copy of the message's body, even if the body is aligned */
	bool every_offset; /* check every offset of variable-length columns, in a copy of the offsets */
};

static uint8_t *copy_body(const uint8_t *body, uint64_t bytes)
{
	uint8_t *copy = aligned_alloc(BODY_ALIGNMENT, (bytes / BODY_ALIGNMENT + 1) * BODY_ALIGNMENT);

	if (!copy || bytes < GIL_FREE_BYTES)
		return copy ? memcpy(copy, body, bytes) : NULL;
	Py_BEGIN_ALLOW_THREADS memcpy(copy, body, bytes);
	Py_END_ALLOW_THREADS return copy;
}

static enum ipc_answer over_copy(struct mapping *m, struct ipc_batch *batch, const uint8_t *body,
				 struct ArrowArray *array)
{
	uint8_t *copy = copy_body(body, batch->body_bytes);
	enum ipc_answer read;

	if (!copy)
		return IPC_NO_MEMORY;
	read = ipc_arrays(m->layout, batch, copy, m->every_offset, (struct ipc_owner){free, copy}, array);
	if (read != IPC_DONE)
		free(copy);
	return read;
}

static enum ipc_answer over_slots(struct mapping *m, struct ipc_batch *batch, const uint8_t *body,
				  struct ArrowArray *array)
{
	struct ipc_owner owner = {let_lease_go, m->lease};
	enum ipc_answer read = ipc_arrays(m->layout, batch, body, m->every_offset, owner, array);

	if (read == IPC_DONE) {
		handle_pin(m->lease);
		Py_INCREF((PyObject *)m->lease);
	}
	return read;
}

/* Makes the arrays, which the caller releases. They pin the lease, unless they lie over a copy. Raises only when
 * memory is short. */
static enum ipc_answer map_message(struct mapping *m, struct ArrowArray *array)
{
	struct ipc_batch batch;
	enum ipc_answer read = ipc_batch_open(m->layout, m->message, m->bytes, &batch);
	const uint8_t *body = m->message + batch.body;

	/* Copy a body at an unaligned address, because some libraries cannot read numbers there. */
	if (read == IPC_DONE)
		read = m->copy || (uintptr_t)body % 8 ? over_copy(m, &batch, body, array)
						      : over_slots(m, &batch, body, array);
	ipc_batch_close(&batch);
	if (read == IPC_NO_MEMORY)
		PyErr_NoMemory();
	return read;
}

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

/* Steps over the first `skip` bytes of the message and the bytes `head` after them. Returns false if other bytes
 * are there than `head`. */
static bool step_over(struct mapping *m, uint64_t skip, const Py_buffer *head)
{
	uint64_t bytes = skip + (uint64_t)head->len;

	if (m->bytes < bytes || memcmp(m->message + skip, head->buf, (size_t)head->len) != 0)
		return false;
	m->message += bytes;
	m->bytes -= bytes;
	return true;
}

/* map_batch(lease, layout, skip, head, copy, every_offset, import, schema): makes arrays of the leased message,
 * and returns import(address of the arrays, schema), which is a batch of pyarrow. The message has `skip` bytes of
 * any content, then the bytes `head`, then one undamaged batch of that layout: for any other message, returns
 * None. The arrays lie over the slots and pin the lease; with `copy` set, or if the body is not aligned, the
 * arrays lie over a copy. With `every_offset` set, all offsets of variable-length columns are copied and checked.
 */
PyObject *map_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	const struct state *state = PyModule_GetState(module);
	struct lease *lease;
	struct mapping m = {0};
	struct ArrowArray array;
	enum ipc_answer read = IPC_FOREIGN;
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
	if (read == IPC_DONE)
		return import_array(args[6], &array, args[7]);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* --- columns over the same memory ---------------------------------------------------- */

/* Maximum number of columns of the other batch with which a column is compared: without a limit, the time would
 * grow with the square of the number of columns. The search begins after the column that was found last. The
 * wanted column is near there, because a function that drops or adds some columns keeps the others in order. */
#define NEAR 64

/* Returns true if two arrays of one type have the same values because they lie in the same memory. */
static bool is_same(const struct ArrowArray *one, const struct ArrowArray *other)
{
	if (one->length != other->length || one->offset != other->offset || one->n_buffers != other->n_buffers ||
	    one->n_children != other->n_children || one->dictionary || other->dictionary)
		return false;
	for (int64_t i = 0; i < one->n_buffers; i++)
		if (one->buffers[i] != other->buffers[i])
			return false;
	for (int64_t i = 0; i < one->n_children; i++)
		if (!is_same(one->children[i], other->children[i]))
			return false;
	return true;
}

/* Returns the place of the first column of `in` that is the same as `column`; -1 if none was found. Compares NEAR
 * columns at most: begins with the column at place `first`, and goes on with place 0 after the last column. */
static int64_t find_column(const struct ArrowArray *column, const struct ArrowArray *in, int64_t first)
{
	for (int64_t i = 0; i < in->n_children && i < NEAR; i++)
		if (is_same(column, in->children[(first + i) % in->n_children]))
			return (first + i) % in->n_children;
	return -1;
}

static PyObject *places(const struct ArrowArray *batch, const struct ArrowArray *in)
{
	PyObject *found = PyList_New((Py_ssize_t)batch->n_children);
	int64_t next = 0;

	for (int64_t i = 0; found && i < batch->n_children; i++) {
		int64_t at = find_column(batch->children[i], in, next);
		PyObject *place = PyLong_FromLongLong(at);

		if (!place || PyList_SetItem(found, (Py_ssize_t)i, place))
			Py_CLEAR(found);
		if (at >= 0)
			next = at + 1;
	}
	return found;
}

/* same_columns(batch, other) -> [int]: both are batches of pyarrow. For each column of `batch`, returns the place
 * of the column of `other` that has arrays of the same length at the same addresses; -1 if none was found. */
PyObject *same_columns(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	const struct state *state = PyModule_GetState(module);
	struct ArrowArray batch, other;
	PyObject *found;

	if (nargs != 2) {
		PyErr_SetString(PyExc_TypeError, "same_columns() wants two batches");
		return NULL;
	}
	if (!arrow_export(args[0], state->names.export_to_c, &batch))
		return NULL;
	if (!arrow_export(args[1], state->names.export_to_c, &other)) {
		batch.release(&batch);
		return NULL;
	}
	found = places(&batch, &other);
	other.release(&other);
	batch.release(&batch);
	return found;
}
