/* push(), and what every call does that the ring has no room for yet. */
#include <string.h>

#include "producers.h"

/* --- trying again ------------------------------------------------------------------ */

/* Another thread copies into this producer's claim without the GIL. */
static enum retry stand_by(struct producer *self, struct patience *patience)
{
	if (patience->deadline == 0)
		patience->deadline = deadline_after(patience->timeout);
	else if (deadline_after(0) > patience->deadline) {
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

/* What to do after a call on the core's producer has answered `status`. */
enum retry producer_retry(struct producer *self, int status, uint64_t slots, struct patience *patience)
{
	enum retry retry;

	if (!producer_usable(self)) /* closed while this call copied */
		return RETRY_RAISED;
	retry = status == STATUS_BUSY ? stand_by(self, patience)
				      : handle_retry(&self->handle, status, patience, wait_space, slots);
	return retry != RETRY_RAISED && !producer_usable(self) ? RETRY_RAISED : retry;
}

PyObject *raise_full(struct producer *self, const struct patience *patience)
{
	PyObject *seconds = seconds_text(patience->timeout);
	char holder[EXPLANATION_BYTES];

	shmring_explain_full(ring_of(&self->handle)->core, holder, sizeof holder);
	if (seconds)
		PyErr_Format(ring_of(&self->handle)->state->full,
			     "ring \"%U\" was full for %U s, and this was not published: %s. If that is as it "
			     "should be, wait longer (timeout) or give the ring more slots",
			     ring_of(&self->handle)->label, seconds, holder);
	Py_XDECREF(seconds);
	return NULL;
}

/* The ring was full until the end, and `messages` were not published. */
PyObject *producer_full(struct producer *self, uint64_t messages, const struct patience *patience)
{
	if (!self->drop)
		return raise_full(self, patience);
	for (uint64_t i = 0; i < messages; i++)
		shmring_count_dropped(self->core);
	return PyLong_FromLong(-1);
}

/* --- push ------------------------------------------------------------------------ */

struct pushing {
	const void *data;
	size_t length;
	int64_t align; /* -1: none */
	uint8_t kind;
	bool durable;
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
	memcpy(slot + shift, m->data, m->length);
	*message_id = (uint64_t)lo;
	status = shmring_publish(self->core, (uint32_t)m->length, m->kind, shift);
	if (status) /* a scattered ring's messages have one slot */
		(void)shmring_abort(self->core);
	return status;
}

static int push_once(struct producer *self, const struct pushing *m, uint64_t *message_id)
{
	if (m->align < 0 || m->length > UINT32_MAX)
		return shmring_push(self->core, m->data, m->length, m->kind, message_id);
	return push_aligned(self, m, message_id);
}

/* A large copy, without the GIL; `busy` keeps other threads out meanwhile. */
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

static PyObject *push_bytes(struct producer *self, const struct pushing *m, int64_t timeout)
{
	struct patience patience = {.timeout = timeout};
	uint64_t message_id;
	uint32_t journal = 0;
	enum retry retry;

	if (m->durable && !journal_find(self, &journal))
		return NULL;
	do {
		int status;

		if (producer_busy(self))
			status = STATUS_BUSY;
		else if (m->length < GIL_FREE_BYTES || self->claimed)
			status = push_once(self, m, &message_id);
		else
			status = push_large(self, m, &message_id);
		if (status == SHMRING_OK)
			return m->durable && !journal_await(self, journal, message_id, &patience)
				   ? NULL
				   : PyLong_FromUnsignedLongLong(message_id);
		retry = producer_retry(self, status, shmring_slots_for(m->length, m->align >= 0), &patience);
	} while (retry == RETRY_AGAIN);
	return retry == RETRY_OVER ? producer_full(self, 1, &patience) : NULL;
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

PyObject *producer_push(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct producer *self = (struct producer *)op;
	struct pushing m = {.align = -1, .kind = SHMRING_KIND_BYTES};
	int64_t timeout = self->timeout;
	PyObject *data;
	PyObject *result;
	Py_buffer buffer;

	if (nargs == 1 && !kwnames) {
		data = args[0];
	} else {
		const struct names *names = &ring_of(&self->handle)->state->names;
		PyObject *const order[] = {NULL, names->timeout, names->kind, names->durable, names->align};
		PyObject *sorted[5] = {NULL};

		if (!arguments_sort("push", "the message: push(b\"...\")", args, nargs, kwnames, order, 1, 5,
				    sorted) ||
		    (sorted[1] && !parse_timeout(sorted[1], &timeout)) ||
		    (sorted[2] && !parse_kind(sorted[2], &m.kind)) ||
		    (sorted[3] && !parse_flag(sorted[3], &m.durable)) ||
		    (sorted[4] && !parse_align(sorted[4], &m.align)))
			return NULL;
		data = sorted[0];
	}
	if (PyBytes_CheckExact(data) && !self->handle.closed) {
		m.data = PyBytes_AsString(data);
		m.length = (size_t)Py_SIZE(data);
		return push_bytes(self, &m, timeout);
	}
	/* Usable is asked last: getting the buffer may run any code. */
	if (!get_bytes(data, &buffer))
		return NULL;
	m.data = buffer.buf;
	m.length = (size_t)buffer.len;
	result = producer_usable(self) ? push_bytes(self, &m, timeout) : NULL;
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
	return push_bytes(self, &(struct pushing){.data = "", .align = -1, .kind = SHMRING_KIND_END}, timeout);
}
