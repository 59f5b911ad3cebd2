/* _shmring.Batch: several messages that are read in place. */
#include <string.h>

#include "device.h"

static size_t batch_count(const struct lease *self)
{
	return self->range.messages;
}

/* Returns where the batch's messages lie, with their lengths, kinds and times. The first call reads this from the
 * ring for every message; later calls return the same array. */
static const struct shmring_message *batch_messages(struct lease *self)
{
	struct ring *ring = lease_ring(self);
	uint64_t position = self->range.first;
	struct shmring_message *messages;

	if (!lease_readable(self))
		return NULL;
	if (self->messages)
		return self->messages;
	messages = PyMem_Malloc(batch_count(self) * sizeof *messages);
	if (!messages) {
		PyErr_NoMemory();
		return NULL;
	}
	for (size_t i = 0; i < batch_count(self); i++) {
		int status = shmring_read(ring->core, &position, self->range.end, &messages[i]);

		if (status) {
			PyMem_Free(messages);
			raise_not_read(ring, status, position);
			return NULL;
		}
	}
	self->messages = messages;
	return messages;
}

/* Returns true if the messages lie side by side, each in one slot. */
static bool is_one_block(const struct lease *self, const struct shmring_message *messages)
{
	const uint8_t *first = messages[0].data;

	for (size_t i = 0; i < batch_count(self); i++)
		if (messages[i].slots != 1 || messages[i].data != first + i * SHMRING_SLOT_BYTES)
			return false;
	return true;
}

/* Returns the address of the batch's messages if they form one array, with one full slot for each message. Returns
 * NULL without an exception if they do not, and NULL with an exception if they cannot be read. */
static const void *batch_rows(struct lease *self)
{
	const struct shmring_message *messages;
	const void *rows;

	if (!lease_readable(self))
		return NULL;
	rows = shmring_rows(lease_ring(self)->core, self->range.first, self->range.end);
	if (rows)
		return rows;
	messages = batch_messages(self);
	return messages && is_one_block(self, messages) ? messages[0].data : NULL;
}

static int batch_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
	struct lease *self = (struct lease *)op;
	const void *rows = batch_rows(self);

	if (!rows) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_BufferError,
					"these messages do not lie side by side; iterate over the batch");
		return -1;
	}
	if (PyBuffer_FillInfo(buffer, op, (void *)rows, (Py_ssize_t)(batch_count(self) * SHMRING_SLOT_BYTES), 1,
			      flags))
		return -1;
	if (flags & PyBUF_ND) {
		buffer->ndim = 2;
		buffer->shape = self->shape;
		if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES)
			buffer->strides = self->strides;
	}
	handle_pin(&self->handle);
	return 0;
}

/* --- numpy, imported when first asked for -------------------------------------- */

/* Returns a numpy array over `bytes`. Takes over the caller's reference to `bytes`. */
static PyObject *numpy_array(PyObject *bytes, const char *type)
{
	PyObject *numpy = bytes ? PyImport_ImportModule("numpy") : NULL;
	PyObject *array = numpy ? PyObject_CallMethod(numpy, "frombuffer", "Os", bytes, type) : NULL;

	Py_XDECREF(numpy);
	Py_XDECREF(bytes);
	return array;
}

/* Returns a copy of the messages as an array of shape (n, 300), padded with zeroes. */
static PyObject *array_copied(struct lease *self)
{
	const struct shmring_message *messages = batch_messages(self);
	Py_ssize_t n = (Py_ssize_t)batch_count(self);
	PyObject *bytes, *flat, *rows;

	if (!messages)
		return NULL;
	for (Py_ssize_t i = 0; i < n; i++)
		if (messages[i].length > SHMRING_SLOT_BYTES)
			return PyErr_Format(
			    PyExc_ValueError,
			    "message %llu has %u bytes and does not fit a row of %d; iterate over the "
			    "batch instead",
			    (unsigned long long)messages[i].message_id, messages[i].length, SHMRING_SLOT_BYTES);
	bytes = PyBytes_FromStringAndSize(NULL, n * SHMRING_SLOT_BYTES);
	if (bytes) {
		char *to = PyBytes_AsString(bytes);

		memset(to, 0, (size_t)n * SHMRING_SLOT_BYTES);
		for (Py_ssize_t i = 0; i < n; i++)
			memcpy(to + i * SHMRING_SLOT_BYTES, messages[i].data, messages[i].length);
	}
	flat = numpy_array(bytes, "uint8");
	if (!flat)
		return NULL;
	rows = PyObject_CallMethod(flat, "reshape", "ni", n, SHMRING_SLOT_BYTES);
	Py_DECREF(flat);
	return rows;
}

static PyObject *get_array(PyObject *op, void *Py_UNUSED(closure))
{
	struct lease *self = (struct lease *)op;
	PyObject *numpy, *array;

	if (!batch_rows(self))
		return PyErr_Occurred() ? NULL : array_copied(self);
	numpy = PyImport_ImportModule("numpy");
	array = numpy ? PyObject_CallMethod(numpy, "asarray", "O", op) : NULL;
	Py_XDECREF(numpy);
	return array;
}

/* A field of struct shmring_message that a batch returns as an array over all messages. */
struct field {
	size_t offset;
	size_t width;
	const char *type;
};

#define FIELD(name, numpy_type)                                                                                   \
	&(struct field){offsetof(struct shmring_message, name), sizeof((struct shmring_message){0}.name),         \
			numpy_type}

static PyObject *get_column(PyObject *op, void *closure)
{
	struct lease *self = (struct lease *)op;
	const struct field *field = closure;
	const struct shmring_message *messages = batch_messages(self);
	PyObject *bytes;

	if (!messages)
		return NULL;
	bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(batch_count(self) * field->width));
	if (bytes) {
		char *to = PyBytes_AsString(bytes);

		for (size_t i = 0; i < batch_count(self); i++)
			memcpy(to + i * field->width, (const char *)&messages[i] + field->offset, field->width);
	}
	return numpy_array(bytes, field->type);
}

/* --- raw slots -------------------------------------------------------------------- */

static PyObject *get_slots(PyObject *op, void *Py_UNUSED(closure))
{
	struct lease *self = (struct lease *)op;
	struct ring *ring = lease_ring(self);

	if (!lease_readable(self))
		return NULL;
	return view_new(ring->state, op, &self->handle, shmring_slot(ring->core, self->range.first),
			(self->range.end - self->range.first) * SHMRING_SLOT_BYTES, true);
}

static PyObject *get_offsets(PyObject *op, void *Py_UNUSED(closure))
{
	struct lease *self = (struct lease *)op;
	const struct shmring_message *messages = batch_messages(self);
	const struct ring *ring = lease_ring(self);
	PyObject *bytes;

	if (!messages)
		return NULL;
	bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(batch_count(self) * sizeof(uint64_t)));
	if (bytes) {
		char *to = PyBytes_AsString(bytes);

		for (size_t i = 0; i < batch_count(self); i++) {
			const struct shmring_message *m = &messages[i];
			const uint8_t *slot = shmring_slot(ring->core, m->message_id);
			uint64_t offset = (m->message_id - self->range.first) * SHMRING_SLOT_BYTES +
					  (uint64_t)((const uint8_t *)m->data - slot);

			memcpy(to + i * sizeof offset, &offset, sizeof offset);
		}
	}
	return numpy_array(bytes, "uint64");
}

/* --- single messages of a batch --------------------------------------------------- */

static Py_ssize_t batch_length(PyObject *op)
{
	return (Py_ssize_t)batch_count((struct lease *)op);
}

/* Returns a view of message `i`; NULL without an exception if `i` is out of range. */
static const struct shmring_message *message_at(struct lease *self, Py_ssize_t i)
{
	const struct shmring_message *messages = batch_messages(self);

	return !messages || i < 0 || (size_t)i >= batch_count(self) ? NULL : &messages[i];
}

static PyObject *batch_item(PyObject *op, Py_ssize_t i)
{
	struct lease *self = (struct lease *)op;
	const struct shmring_message *message = message_at(self, i);

	if (message)
		return view_new(lease_ring(self)->state, op, &self->handle, message->data, message->length, true);
	if (!PyErr_Occurred())
		PyErr_SetString(PyExc_IndexError, "the batch has fewer messages");
	return NULL;
}

struct batch_iterator {
	struct iterator base;
	struct view *lent[2]; /* views of the last two iterations, kept alive by this iterator: see view_lend() */
};

/* Iterates over views of the messages. A loop's variable outlives the `with` block, so the end of the block takes
 * back the views that the loop was given. */
static PyObject *batch_iter(PyObject *op)
{
	PyObject *iterator = iterator_new(lease_ring((struct lease *)op)->state->batch_iterator, op, 0);
	struct batch_iterator *self = (struct batch_iterator *)iterator;

	if (self)
		self->lent[0] = self->lent[1] = NULL;
	return iterator;
}

static PyObject *batch_iterator_next(PyObject *op)
{
	struct batch_iterator *self = (struct batch_iterator *)op;
	struct lease *batch = (struct lease *)self->base.over;
	const struct shmring_message *message = message_at(batch, (Py_ssize_t)self->base.number);
	PyObject *memory;

	if (!message)
		return NULL;
	memory = view_lend(lease_ring(batch)->state, batch, message, &self->lent[self->base.number % 2]);
	self->base.number += memory != NULL;
	return memory;
}

static void batch_iterator_dealloc(PyObject *op)
{
	struct batch_iterator *self = (struct batch_iterator *)op;

	view_settle(&self->lent[0]);
	view_settle(&self->lent[1]);
	iterator_dealloc(op);
}

static PyType_Slot iterator_slots[] = {
    {Py_tp_dealloc, batch_iterator_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, batch_iterator_next},
    {0, NULL},
};

PyType_Spec batch_iterator_spec = MADE_HERE("shmring.BatchIterator", struct batch_iterator, iterator_slots);

/* --- the type ------------------------------------------------------------------------ */

static PyMethodDef methods[] = {
    {"release", lease_release, METH_NOARGS,
     "release($self, /)\n--\n\nGive the slots back, now or when the last view of them is gone."},
    {"nack", lease_nack, METH_NOARGS,
     "nack($self, /)\n--\n\n"
     "Hand all messages back, now or when the last view of them is gone: the branch delivers them again,\n"
     "marked as redelivered. An exception that leaves the ``with`` does the same, and so does dropping a\n"
     "batch without release(), with a ResourceWarning.\n\n"
     "Raises\n------\n"
     "Contended, TooManyLeases : as of Lease.nack()"},
    DEVICE_METHODS,
    {"__enter__", handle_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(lease_exit), METH_FASTCALL, NULL},
    {0},
};

static PyGetSetDef getset[] = {
    {"array", get_array, NULL,
     "uint8 array of shape (n, 300), read-only: the ring's own memory, no copy. The bytes beyond a row's\n"
     "length are not defined. If the messages do not lie side by side (an aborted claim, a long message\n"
     "between them), the array is a copy, padded with zeroes. ValueError if a message has more than 300 bytes",
     NULL},
    {"lengths", get_column, NULL, "uint32 array of shape (n,): bytes of each message", FIELD(length, "uint32")},
    {"message_ids", get_column, NULL, "uint64 array of shape (n,): sequence of each message",
     FIELD(message_id, "uint64")},
    {"times", get_column, NULL, "uint64 array of shape (n,): ns since 1970; 0 if the ring keeps no time",
     FIELD(time, "uint64")},
    {"kinds", get_column, NULL, "uint8 array of shape (n,): the mark given to push()", FIELD(kind, "uint8")},
    {"slots", get_slots, NULL,
     "all slots from `first` to `end`, 300 bytes each, as one read-only memoryview. Slots of aborted claims\n"
     "and bytes beyond a message's length are not defined",
     NULL},
    {"offsets", get_offsets, NULL, "uint64 array of shape (n,): where each message begins in `slots`", NULL},
    {"redelivered", lease_get_redelivered, NULL,
     "whether an earlier consumer held these messages, and died or handed them back", NULL},
    {"deliveries", lease_get_deliveries, NULL,
     "times that they were delivered, this one included; 256 for more than 255", NULL},
    {0},
};

static PyMemberDef members[] = {
    {"first", T_ULONGLONG, offsetof(struct lease, range.first), READONLY, "sequence of the first slot"},
    {"end", T_ULONGLONG, offsetof(struct lease, range.end), READONLY, "sequence behind the last slot"},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, lease_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {Py_tp_iter, batch_iter},
    {Py_sq_length, batch_length},
    {Py_sq_item, batch_item},
    {Py_bf_getbuffer, batch_getbuffer},
    {Py_bf_releasebuffer, lease_releasebuffer},
    {Py_tp_doc,
     "Messages that are read in place; made by Consumer.lease_many(). len() counts the messages; indexing\n"
     "and iteration give each one as a memoryview, whatever its size. The end of the block, or release(),\n"
     "releases the memoryviews of iteration, but for those over which there is a numpy array or another\n"
     "buffer."},
    {0, NULL},
};

PyType_Spec batch_spec = MADE_HERE("shmring.Batch", struct lease, slots);
