/* push() and push_many(), and the wait for room of every call that publishes. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "handle.h"

/* --- trying again ------------------------------------------------------------------ */

/* Decides how to go on while another thread copies into this producer's claim without the GIL. */
static enum retry stand_by(struct producer *self, struct wait_state *waiting)
{
	if (waiting->deadline == 0)
		waiting->deadline = deadline_after(waiting->timeout);
	else if (deadline_after(0) > waiting->deadline) {
		PyErr_Format(error_class(ring_of(&self->handle)->state, SHMRING_E_CLAIM_OPEN),
			     "another thread is pushing a large message through this producer of ring \"%U\"; "
			     "give each thread its own producer",
			     ring_of(&self->handle)->label);
		return RETRY_RAISED;
	}
	handle_pause(&self->handle);
	return PyErr_CheckSignals() ? RETRY_RAISED : RETRY_AGAIN;
}

static int wait_space(struct handle *handle, uint64_t slots, int64_t deadline)
{
	struct producer *self = (struct producer *)handle;

	return shmring_wait_space(self->core, slots, deadline, self->wait);
}

/* Decides how to go on after a producer call of the core returned `status`: retry, give up, or raise. */
enum retry producer_retry(struct producer *self, int status, uint64_t slots, struct wait_state *waiting)
{
	enum retry retry;

	if (!producer_usable(self)) /* another thread closed the producer while this call copied without the GIL */
		return RETRY_RAISED;
	retry = status == STATUS_BUSY ? stand_by(self, waiting)
				      : handle_retry(&self->handle, status, waiting, wait_space, slots);
	return retry != RETRY_RAISED && !producer_usable(self) ? RETRY_RAISED : retry;
}

PyObject *raise_full(struct producer *self, const struct wait_state *waiting)
{
	const shmring *ring = ring_of(&self->handle)->core;
	char holder[EXPLANATION_BYTES];
	struct shmring_holder found;
	PyObject *seconds;

	shmring_explain_full(ring, holder, sizeof holder);
	if (shmring_find_holder(ring, &found) == SHMRING_OK && found.kind == SHMRING_HELD_BY_LEASE &&
	    found.pid == (uint32_t)getpid()) {
		size_t used = strlen(holder);

		(void)snprintf(holder + used, sizeof holder - used,
			       ", which is this process: a lease is open, or a view of one lives");
	}
	seconds = seconds_text(waiting->timeout);
	if (seconds)
		PyErr_Format(ring_of(&self->handle)->state->full,
			     "ring \"%U\" was full for %U s, and nothing was published: %s. If that is to be "
			     "expected, wait longer (timeout) or give the ring more slots",
			     ring_of(&self->handle)->label, seconds, holder);
	Py_XDECREF(seconds);
	return NULL;
}

/* Ends a push that found the ring full until its deadline: counts `messages` as dropped, or raises Full. */
static PyObject *producer_full(struct producer *self, uint64_t messages, const struct wait_state *waiting)
{
	if (!self->drop)
		return raise_full(self, waiting);
	for (uint64_t i = 0; i < messages; i++)
		shmring_count_dropped(self->core);
	return PyLong_FromLong(-1);
}

/* --- push ------------------------------------------------------------------------ */

struct rows {
	const void *data;
	size_t stride;
	uint64_t count;
	uint32_t length;
	uint32_t *lengths; /* NULL: every row has `length` bytes */
	/* `buffer` and `copy` keep the rows alive */
	Py_buffer buffer;
	void *copy;
};

static int push_aligned(struct producer *self, const struct pushing *m, uint64_t *message_id)
{
	int64_t lo = shmring_next(self->core, (uint32_t)shmring_slots_for(m->length, true));
	uint8_t *slot;
	uint8_t shift;
	int status;

	if (lo < 0)
		return (int)lo;
	slot = shmring_slot(ring_of(&self->handle)->core, (uint64_t)lo);
	shift = shift_for(slot, m->align);
	if (m->fill)
		m->fill(slot + shift, m->data);
	else
		memcpy(slot + shift, m->data, m->length);
	*message_id = (uint64_t)lo;
	status = shmring_publish(self->core, (uint32_t)m->length, m->kind, shift);
	if (status) /* the bytes do not have the format of their kind */
		(void)shmring_abort(self->core);
	return status;
}

static inline int push_once(struct producer *self, const struct pushing *m, uint64_t *message_id)
{
	const struct rows *rows = m->rows;

	if (m->align >= 0 && m->length <= UINT32_MAX)
		return push_aligned(self, m, message_id);
	if (!rows)
		return shmring_push(self->core, m->data, m->length, m->kind, message_id);
	return shmring_push_many(self->core, rows->data, rows->stride,
				 rows->count > UINT32_MAX ? UINT32_MAX : (uint32_t)rows->count, rows->lengths,
				 rows->length, message_id);
}

/* Pushes a large message without the GIL; `busy` keeps other threads out meanwhile. */
static int push_large(struct producer *self, const struct pushing *m, uint64_t *message_id)
{
	int status;

	self->busy = getpid();
	handle_pin(&self->handle);
	Py_BEGIN_ALLOW_THREADS status = push_once(self, m, message_id);
	Py_END_ALLOW_THREADS self->busy = 0;
	(void)handle_unpin(&self->handle);
	return status;
}

static int push_now(struct producer *self, const struct pushing *m, uint64_t *message_id)
{
	if (producer_busy(self))
		return STATUS_BUSY;
	if (m->length < GIL_FREE_BYTES || self->claimed)
		return push_once(self, m, message_id);
	return push_large(self, m, message_id);
}

/* Finishes a push whose first try returned `status`: tries again until the push succeeds or its time is over. Then
 * waits for the journal if the message is durable. */
static PyObject *push_on(struct producer *self, const struct pushing *m, int64_t timeout, uint32_t journal,
			 int status, uint64_t message_id)
{
	struct wait_state waiting = {.timeout = timeout};
	uint64_t messages = m->rows ? m->rows->count : 1;

	while (status) {
		enum retry retry =
		    producer_retry(self, status, shmring_slots_for(m->length, m->align >= 0), &waiting);

		if (retry == RETRY_OVER)
			return producer_full(self, messages, &waiting);
		if (retry == RETRY_RAISED)
			return NULL;
		status = push_now(self, m, &message_id);
	}
	if (m->durable && !journal_await(self, journal, message_id + messages - 1, &waiting))
		return NULL;
	return PyLong_FromUnsignedLongLong(message_id);
}

/* Returns the first message's number, -1 if it was dropped, or NULL with an exception. */
PyObject *push_message(struct producer *self, const struct pushing *m, int64_t timeout)
{
	uint64_t message_id = 0;
	uint32_t journal = 0;
	int status;

	if (m->durable && !journal_find(self, &journal))
		return NULL;
	status = push_now(self, m, &message_id);
	return status || m->durable ? push_on(self, m, timeout, journal, status, message_id)
				    : PyLong_FromUnsignedLongLong(message_id);
}

static bool get_bytes(PyObject *data, Py_buffer *buffer)
{
	if (PyObject_GetBuffer(data, buffer, PyBUF_SIMPLE) == 0)
		return true;
	if (PyUnicode_Check(data))
		PyErr_SetString(PyExc_TypeError, "a message is bytes, not str; push(text.encode()) sends text");
	else if (!PyObject_CheckBuffer(data))
		PyErr_Format(
		    PyExc_TypeError,
		    "a message is bytes or another object with the buffer protocol (bytearray, memoryview, "
		    "numpy array), not %R",
		    (PyObject *)Py_TYPE(data));
	else {
		PyErr_Clear();
		PyErr_SetString(PyExc_BufferError,
				"a message must be contiguous in memory; copy it first, e.g. with bytes()");
	}
	return false;
}

/* Pushes an object that is not bytes, or a message with options. */
__attribute__((noinline)) static PyObject *push_any(struct producer *self, PyObject *const *args, Py_ssize_t nargs,
						    PyObject *kwnames)
{
	const struct names *names = &ring_of(&self->handle)->state->names;
	PyObject *const order[] = {NULL, names->timeout, names->kind, names->durable, names->align};
	struct pushing m = {.align = -1, .kind = SHMRING_KIND_BYTES};
	PyObject *sorted[5] = {NULL};
	int64_t timeout = self->timeout;
	PyObject *result;
	Py_buffer buffer;

	/* producer_usable() comes last: getting the buffer may run code that closes the producer. */
	if (!arguments_sort("push", "the message: push(b\"...\")", args, nargs, kwnames, order, 1, 5, sorted) ||
	    (sorted[1] && !parse_timeout(sorted[1], &timeout)) || (sorted[2] && !parse_kind(sorted[2], &m.kind)) ||
	    (sorted[3] && !parse_flag(sorted[3], &m.durable)) ||
	    (sorted[4] && !parse_align(sorted[4], &m.align)) || !get_bytes(sorted[0], &buffer))
		return NULL;
	m.data = buffer.buf;
	m.length = (size_t)buffer.len;
	result = producer_usable(self) ? push_message(self, &m, timeout) : NULL;
	PyBuffer_Release(&buffer);
	return result;
}

/* Pushes bytes after a first try that returned `status`. */
__attribute__((cold, noinline)) static PyObject *push_later(struct producer *self, PyObject *data, int status)
{
	struct pushing m = {.align = -1,
			    .kind = SHMRING_KIND_BYTES,
			    .data = PyBytes_AsString(data),
			    .length = (size_t)Py_SIZE(data)};

	return push_on(self, &m, self->timeout, 0, status, 0);
}

PyObject *producer_push(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct producer *self = (struct producer *)op;
	uint64_t message_id;
	int status;

	/* The fast path is for bytes without options, and a producer that no other thread is using. */
	if (__builtin_expect(nargs != 1 || kwnames || !PyBytes_CheckExact(args[0]) || self->handle.closed ||
				 self->busy || Py_SIZE(args[0]) >= GIL_FREE_BYTES,
			     0))
		return push_any(self, args, nargs, kwnames);
	status = shmring_push(self->core, PyBytes_AsString(args[0]), (size_t)Py_SIZE(args[0]), SHMRING_KIND_BYTES,
			      &message_id);
	if (__builtin_expect(status != SHMRING_OK, 0))
		return push_later(self, args[0], status);
	return PyLong_FromLongLong((long long)message_id);
}

/* Pushes for an event loop. Returns the message's number; None if the ring is full; Ellipsis if other tasks have
 * to run first. */
static PyObject *push_in_turn(struct producer *self, const struct pushing *m)
{
	struct wait_state waiting = {.timeout = 0};
	uint64_t message_id = 0;
	int status;

	if (!producer_usable(self))
		return NULL;
	if (++self->handle.streak > STREAK) {
		self->handle.streak = 0;
		return Py_NewRef(Py_Ellipsis);
	}
	while ((status = push_now(self, m, &message_id))) {
		enum retry retry =
		    producer_retry(self, status, shmring_slots_for(m->length, m->align >= 0), &waiting);

		if (retry == RETRY_RAISED)
			return NULL;
		if (retry == RETRY_OVER) {
			self->handle.streak = 0;
			Py_RETURN_NONE;
		}
	}
	return PyLong_FromUnsignedLongLong(message_id);
}

/* push_now(producer, data, kind, align): pushes for an event loop; push_in_turn() says what is returned. */
PyObject *producer_push_now(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	struct state *state = PyModule_GetState(module);
	struct pushing m = {.align = -1};
	PyObject *result;
	Py_buffer buffer;

	if (nargs != 4 || !PyObject_TypeCheck(args[0], state->producer))
		return PyErr_Format(PyExc_TypeError, "push_now() takes a producer, data, a kind and an alignment");
	if (!parse_kind(args[2], &m.kind) || !parse_align(args[3], &m.align) || !get_bytes(args[1], &buffer))
		return NULL;
	m.data = buffer.buf;
	m.length = (size_t)buffer.len;
	result = push_in_turn((struct producer *)args[0], &m);
	PyBuffer_Release(&buffer);
	return result;
}

PyObject *producer_push_end(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct producer *self = (struct producer *)op;
	PyObject *const order[] = {ring_of(&self->handle)->state->names.timeout};
	PyObject *sorted[1] = {NULL};
	int64_t timeout = self->timeout;

	if (!arguments_sort("push_end", NULL, args, nargs, kwnames, order, 0, 1, sorted) ||
	    (sorted[0] && !parse_timeout(sorted[0], &timeout)) || !producer_usable(self))
		return NULL;
	return push_message(self, &(struct pushing){.data = "", .align = -1, .kind = SHMRING_KIND_END}, timeout);
}

/* --- push_many(): rows from a buffer or a list -------------------------------------- */

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

static inline bool copy_bytes(struct producer *self, uint64_t row, const void *data, Py_ssize_t length,
			      uint8_t *to, uint32_t *copied)
{
	if (length > SHMRING_SLOT_BYTES)
		return too_long(self, row, (uint64_t)length);
	memcpy(to, data, (size_t)length);
	*copied = (uint32_t)length;
	return true;
}

static inline bool copy_row(struct producer *self, uint64_t row, PyObject *item, uint8_t *to, uint32_t *copied)
{
	Py_buffer buffer;
	bool fits;

	if (PyBytes_CheckExact(item))
		return copy_bytes(self, row, PyBytes_AsString(item), Py_SIZE(item), to, copied);
	if (!PyObject_CheckBuffer(item)) {
		PyErr_Format(PyExc_TypeError, "row %llu is not bytes but %R", (unsigned long long)row,
			     (PyObject *)Py_TYPE(item));
		return false;
	}
	if (PyObject_GetBuffer(item, &buffer, PyBUF_SIMPLE))
		return false;
	fits = copy_bytes(self, row, buffer.buf, buffer.len, to, copied);
	PyBuffer_Release(&buffer);
	return fits;
}

/* Copies the rows of a list, because the list and its items may change while this call waits. */
static bool rows_from_list(struct producer *self, PyObject *list, struct rows *rows)
{
	PyObject *items = PySequence_Tuple(list);
	uint64_t count = items ? (uint64_t)PyTuple_Size(items) : 0;
	uint8_t *copy = items ? PyMem_Malloc(count * (SHMRING_SLOT_BYTES + sizeof *rows->lengths) + 1) : NULL;
	uint32_t *lengths = copy ? (uint32_t *)(copy + count * SHMRING_SLOT_BYTES) : NULL;
	bool copied = copy != NULL;

	if (items && !copy)
		PyErr_NoMemory();
	for (uint64_t i = 0; copied && i < count; i++)
		copied = copy_row(self, i, PyTuple_GetItem(items, (Py_ssize_t)i), copy + i * SHMRING_SLOT_BYTES,
				  &lengths[i]);
	Py_XDECREF(items);
	rows->data = rows->copy = copy;
	rows->stride = SHMRING_SLOT_BYTES;
	rows->count = count;
	rows->lengths = lengths;
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

PyObject *producer_push_many(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct producer *self = (struct producer *)op;
	const struct names *names = &ring_of(&self->handle)->state->names;
	PyObject *const order[] = {NULL, names->timeout, names->durable};
	PyObject *sorted[3] = {NULL};
	int64_t timeout = self->timeout;
	struct rows rows = {0};
	struct pushing m = {.align = -1, .rows = &rows};
	PyObject *result = NULL;
	uint32_t journal;

	if (!arguments_sort("push_many", "the rows", args, nargs, kwnames, order, 1, 3, sorted) ||
	    (sorted[1] && !parse_timeout(sorted[1], &timeout)) ||
	    (sorted[2] && !parse_flag(sorted[2], &m.durable)))
		return NULL;
	/* producer_usable() comes last: getting the rows may run code that closes the producer. */
	if (rows_from(self, sorted[0], &rows) && producer_usable(self)) {
		m.length = rows.count * SHMRING_SLOT_BYTES;
		if (rows.count)
			result = push_message(self, &m, timeout);
		else if (!m.durable || journal_find(self, &journal))
			result = PyLong_FromUnsignedLongLong(shmring_claimed(ring_of(&self->handle)->core));
	}
	rows_free(&rows);
	return result;
}
