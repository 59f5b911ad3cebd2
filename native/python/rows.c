/* Producer.push_many(): rows from a buffer or a list. */
#include <string.h>

#include "producers.h"

struct rows {
	const void *data;
	size_t stride;
	uint64_t count;
	uint32_t length;
	uint32_t *lengths; /* NULL: every row has `length` bytes */
	/* these keep the rows alive */
	Py_buffer buffer;
	void *copy;
};

static void rows_free(struct rows *rows)
{
	PyBuffer_Release(&rows->buffer);
	PyMem_Free(rows->copy);
}

static bool too_long(struct producer *self, uint64_t row, uint64_t length)
{
	PyErr_Format(error_class(ring_of(&self->handle)->state, SHMRING_E_TOO_LARGE),
		     "row %llu has %llu bytes, push_many() takes at most %d a row; push() takes longer messages",
		     (unsigned long long)row, (unsigned long long)length, SHMRING_SLOT_BYTES);
	return false;
}

static bool rows_from_buffer(struct producer *self, PyObject *object, struct rows *rows)
{
	Py_buffer *b = &rows->buffer;

	if (PyObject_GetBuffer(object, b, PyBUF_STRIDED_RO | PyBUF_FORMAT))
		return false;
	if (b->ndim != 2 || b->itemsize != 1 || (b->format && strcmp(b->format, "B") != 0)) {
		PyErr_Format(PyExc_TypeError,
			     "rows must be a two-dimensional uint8 array, not %d-dimensional '%s'", b->ndim,
			     b->format ? b->format : "B");
		return false;
	}
	if (b->shape[1] > 1 && b->strides[1] != 1) {
		PyErr_SetString(PyExc_TypeError, "each row must be contiguous; use numpy.ascontiguousarray(rows)");
		return false;
	}
	rows->count = (uint64_t)b->shape[0];
	if (rows->count > 1 && b->strides[0] < 0) {
		PyErr_SetString(PyExc_TypeError,
				"rows must go forward in memory; use numpy.ascontiguousarray(rows)");
		return false;
	}
	if (b->shape[1] > SHMRING_SLOT_BYTES)
		return too_long(self, 0, (uint64_t)b->shape[1]);
	rows->data = b->buf;
	rows->stride = (size_t)b->strides[0];
	rows->length = (uint32_t)b->shape[1];
	return true;
}

static bool copy_row(struct producer *self, struct rows *rows, uint64_t row, PyObject *item)
{
	uint8_t *to = (uint8_t *)rows->copy + row * SHMRING_SLOT_BYTES;
	Py_buffer buffer;
	bool fits;

	if (PyBytes_CheckExact(item)) {
		Py_ssize_t length = Py_SIZE(item);

		if (length > SHMRING_SLOT_BYTES)
			return too_long(self, row, (uint64_t)length);
		memcpy(to, PyBytes_AsString(item), (size_t)length);
		rows->lengths[row] = (uint32_t)length;
		return true;
	}
	if (!PyObject_CheckBuffer(item)) {
		PyErr_Format(PyExc_TypeError, "row %llu is not bytes but %R", (unsigned long long)row,
			     (PyObject *)Py_TYPE(item));
		return false;
	}
	if (PyObject_GetBuffer(item, &buffer, PyBUF_SIMPLE))
		return false;
	fits = buffer.len <= SHMRING_SLOT_BYTES || too_long(self, row, (uint64_t)buffer.len);
	if (fits) {
		memcpy(to, buffer.buf, (size_t)buffer.len);
		rows->lengths[row] = (uint32_t)buffer.len;
	}
	PyBuffer_Release(&buffer);
	return fits;
}

/* Gathered first: the list and what is in it may change while this call waits. */
static bool rows_from_list(struct producer *self, PyObject *list, struct rows *rows)
{
	PyObject *items = PySequence_Tuple(list);
	bool copied = items != NULL;

	if (!items)
		return false;
	rows->count = (uint64_t)PyTuple_Size(items);
	rows->copy = PyMem_Malloc(rows->count * (SHMRING_SLOT_BYTES + sizeof *rows->lengths) + 1);
	if (!rows->copy) {
		PyErr_NoMemory();
		copied = false;
	} else {
		rows->lengths = (uint32_t *)((uint8_t *)rows->copy + rows->count * SHMRING_SLOT_BYTES);
	}
	for (uint64_t i = 0; copied && i < rows->count; i++)
		copied = copy_row(self, rows, i, PyTuple_GetItem(items, (Py_ssize_t)i));
	Py_DECREF(items);
	rows->data = rows->copy;
	rows->stride = SHMRING_SLOT_BYTES;
	return copied;
}

static bool rows_from(struct producer *self, PyObject *object, struct rows *rows)
{
	if (PyList_Check(object) || PyTuple_Check(object))
		return rows_from_list(self, object, rows);
	if (PyObject_CheckBuffer(object))
		return rows_from_buffer(self, object, rows);
	PyErr_Format(PyExc_TypeError, "rows must be a uint8 array of shape (n, k) or a list of bytes, not %R",
		     (PyObject *)Py_TYPE(object));
	return false;
}

static int push_rows(struct producer *self, const struct rows *rows, uint64_t *message_id)
{
	uint32_t count = rows->count > UINT32_MAX ? UINT32_MAX : (uint32_t)rows->count;
	int status;

	if (producer_busy(self))
		return STATUS_BUSY;
	if (rows->count * SHMRING_SLOT_BYTES < GIL_FREE_BYTES || self->claimed)
		return shmring_push_many(self->core, rows->data, rows->stride, count, rows->lengths, rows->length,
					 message_id);
	self->busy = getpid();
	handle_pin(&self->handle);
	Py_BEGIN_ALLOW_THREADS status = shmring_push_many(self->core, rows->data, rows->stride, count,
							  rows->lengths, rows->length, message_id);
	Py_END_ALLOW_THREADS self->busy = 0;
	(void)handle_unpin(&self->handle);
	return status;
}

PyObject *producer_push_many(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct producer *self = (struct producer *)op;
	const struct names *names = &ring_of(&self->handle)->state->names;
	PyObject *const order[] = {NULL, names->timeout, names->durable};
	PyObject *sorted[3] = {NULL};
	struct wait_state waiting = {.timeout = self->timeout};
	uint32_t journal = 0;
	bool durable = false;
	struct rows rows = {0};
	PyObject *result = NULL;

	if (!arguments_sort("push_many", "the rows", args, nargs, kwnames, order, 1, 3, sorted) ||
	    (sorted[1] && !parse_timeout(sorted[1], &waiting.timeout)) ||
	    (sorted[2] && !parse_flag(sorted[2], &durable)))
		return NULL;
	/* producer_usable() comes last: getting the rows may run any code. */
	if (rows_from(self, sorted[0], &rows) && producer_usable(self) &&
	    (!durable || journal_find(self, &journal))) {
		enum retry retry = RETRY_AGAIN;
		uint64_t message_id = shmring_claimed(ring_of(&self->handle)->core);
		int status = SHMRING_OK;

		if (rows.count)
			while ((status = push_rows(self, &rows, &message_id)) != SHMRING_OK &&
			       (retry = producer_retry(self, status, rows.count, &waiting)) == RETRY_AGAIN)
				;
		if (status == SHMRING_OK) {
			if (!durable || !rows.count ||
			    journal_await(self, journal, message_id + rows.count - 1, &waiting))
				result = PyLong_FromUnsignedLongLong(message_id);
		} else if (retry == RETRY_OVER)
			result = producer_full(self, rows.count, &waiting);
	}
	rows_free(&rows);
	return result;
}
