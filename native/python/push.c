/* push(), and how every publishing call waits for room. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "consumers.h"
#include "producers.h"

/* --- trying again ------------------------------------------------------------------ */

/* Another thread copies into this producer's claim without the GIL. */
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

/* What to do after a call on the core's producer has answered `status`. */
enum retry producer_retry(struct producer *self, int status, uint64_t slots, struct wait_state *waiting)
{
	enum retry retry;

	if (!producer_usable(self)) /* closed while this call copied */
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

/* The ring was full until the end, and `messages` were not published. */
PyObject *producer_full(struct producer *self, uint64_t messages, const struct wait_state *waiting)
{
	if (!self->drop)
		return raise_full(self, waiting);
	for (uint64_t i = 0; i < messages; i++)
		shmring_count_dropped(self->core);
	return PyLong_FromLong(-1);
}

/* --- push ------------------------------------------------------------------------ */

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
	if (status) /* a kind that it is not */
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

static int push_now(struct producer *self, const struct pushing *m, uint64_t *message_id)
{
	if (producer_busy(self))
		return STATUS_BUSY;
	if (m->length < GIL_FREE_BYTES || self->claimed)
		return push_once(self, m, message_id);
	return push_large(self, m, message_id);
}

/* Goes on after a first try, which answered `status`; waits for the journal if the message is durable. */
static PyObject *push_on(struct producer *self, const struct pushing *m, int64_t timeout, uint32_t journal,
			 int status, uint64_t message_id)
{
	struct wait_state waiting = {.timeout = timeout};

	while (status) {
		enum retry retry =
		    producer_retry(self, status, shmring_slots_for(m->length, m->align >= 0), &waiting);

		if (retry == RETRY_OVER)
			return producer_full(self, 1, &waiting);
		if (retry == RETRY_RAISED)
			return NULL;
		status = push_now(self, m, &message_id);
	}
	if (m->durable && !journal_await(self, journal, message_id, &waiting))
		return NULL;
	return PyLong_FromUnsignedLongLong(message_id);
}

/* Returns the message's number, -1 if it was dropped, or NULL with an exception. */
PyObject *push_message(struct producer *self, const struct pushing *m, int64_t timeout)
{
	uint64_t message_id = 0;
	uint32_t journal = 0;
	int status;

	if (m->durable && !journal_find(self, &journal))
		return NULL;
	status = push_now(self, m, &message_id);
	return push_on(self, m, timeout, journal, status, message_id);
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

	/* producer_usable() comes last: getting the buffer may run any code. */
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

/* Bytes that did not go at once. */
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

	/* This straight path: bytes without options, into a producer that no other thread is using. */
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

/* For an event loop: the message's number; None: the ring is full; Ellipsis: others are to have their turn. */
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

/* push_now(producer, data, kind, align) */
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
