/* _shmring.Producer: push, and the low level next() and done(). */
#include <string.h>
#include <time.h>

#include "binding.h"

/* --- lifetime ---------------------------------------------------------------- */

static void producer_finish(struct handle *handle)
{
	struct producer *self = (struct producer *)handle;
	shmring_producer *core = self->core;

	self->core = NULL;
	Py_BEGIN_ALLOW_THREADS shmring_producer_close(core);
	Py_END_ALLOW_THREADS
}

PyObject *producer_open(struct ring *ring, const char *name, int when_full, int wait)
{
	struct producer *self = PyObject_New(struct producer, ring->state->producer);
	int status;

	if (!self)
		return NULL;
	memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
	self->handle.closed = true; /* until it is open */
	self->handle.wait = (uint8_t)wait;
	self->timeout = when_full == FULL_BLOCK ? FOREVER : 0;
	self->drop = when_full == FULL_DROP;
	ring_pin(ring);
	Py_BEGIN_ALLOW_THREADS status = shmring_producer_open(ring->core, name, &self->core);
	Py_END_ALLOW_THREADS if (status)
	{
		raise_status(ring, status);
		Py_CLEAR(self);
	}
	else
	{
		self->handle.closed = false;
		handle_init(&self->handle, ring, producer_finish);
		if (ring->closed)
			handle_close(&self->handle);
	}
	ring_unpin(ring);
	return (PyObject *)self;
}

static void producer_dealloc(PyObject *self)
{
	struct producer *producer = (struct producer *)self;
	PyTypeObject *type = Py_TYPE(self);

	handle_close(&producer->handle);
	Py_XDECREF((PyObject *)producer->handle.ring);
	PyObject_Free(self);
	Py_DECREF(type);
}

static PyObject *producer_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
	handle_close(&((struct producer *)self)->handle);
	Py_RETURN_NONE;
}

static PyObject *producer_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
	return producer_close(self, NULL);
}

/* --- trying again -------------------------------------------------------------- */

bool producer_usable(struct producer *self)
{
	if (self->handle.closed)
		raise_closed(self->handle.ring, "producer");
	return !self->handle.closed;
}

/* Another thread copies into this producer's claim without the GIL. */
static enum retry producer_stand_by(struct producer *self, struct patience *patience)
{
	struct timespec moment = {.tv_nsec = 50000};

	if (patience->deadline == 0)
		patience->deadline = deadline_after(patience->timeout);
	else if (deadline_after(0) > patience->deadline) {
		PyErr_Format(error_class(self->handle.ring->state, SHMRING_E_CLAIM_OPEN),
			     "another thread is pushing a large message through this producer of ring \"%U\"; "
			     "give each thread its own producer",
			     self->handle.ring->label);
		return RETRY_RAISED;
	}
	handle_pin(&self->handle);
	Py_BEGIN_ALLOW_THREADS nanosleep(&moment, NULL);
	Py_END_ALLOW_THREADS handle_unpin(&self->handle);
	if (PyErr_CheckSignals() || !producer_usable(self))
		return RETRY_RAISED;
	return RETRY_AGAIN;
}

/* What to do after a call on the core's producer has answered `status`. */
enum retry producer_retry(struct producer *self, int status, uint64_t slots, struct patience *patience)
{
	enum retry retry;

	if (!producer_usable(self)) /* closed while this call copied */
		return RETRY_RAISED;
	if (status == STATUS_BUSY)
		return producer_stand_by(self, patience);
	if (status == SHMRING_CONTENDED)
		retry = handle_contended(&self->handle, patience);
	else if (status != SHMRING_UNAVAILABLE) {
		raise_status(self->handle.ring, status);
		return RETRY_RAISED;
	} else if (patience->timeout == 0) {
		return RETRY_OVER;
	} else {
		if (patience->deadline == 0)
			patience->deadline = deadline_after(patience->timeout);
		handle_pin(&self->handle);
		Py_BEGIN_ALLOW_THREADS status =
		    shmring_wait_space(self->core, slots, patience->deadline, self->handle.wait);
		Py_END_ALLOW_THREADS handle_unpin(&self->handle);
		retry = handle_waited(&self->handle, status);
	}
	return retry != RETRY_RAISED && !producer_usable(self) ? RETRY_RAISED : retry;
}

PyObject *raise_full(struct producer *self, const struct patience *patience)
{
	PyObject *seconds = seconds_text(patience->timeout);
	char holder[EXPLANATION_BYTES];

	shmring_explain_full(self->handle.ring->core, holder, sizeof holder);
	if (seconds)
		PyErr_Format(self->handle.ring->state->full,
			     "ring \"%U\" was full for %U s, and this was not published: %s. If that is as it "
			     "should be, wait longer (timeout) or give the ring more slots",
			     self->handle.ring->label, seconds, holder);
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

static int push_once(struct producer *self, const struct pushing *m, uint64_t *message_id)
{
	int64_t lo;
	uint8_t *slot;
	uint8_t shift;
	int status;

	if (m->align < 0 || m->length > UINT32_MAX)
		return shmring_push(self->core, m->data, m->length, m->kind, message_id);
	lo = shmring_next(self->core, (uint32_t)shmring_slots_for(m->length, true));
	if (lo < 0)
		return (int)lo;
	slot = shmring_slot(self->handle.ring->core, (uint64_t)lo);
	shift = shift_for(slot, m->align);
	memcpy(slot + shift, m->data, m->length);
	*message_id = (uint64_t)lo;
	status = shmring_publish(self->core, (uint32_t)m->length, m->kind, shift);
	if (status) /* a scattered ring's messages have one slot */
		(void)shmring_abort(self->core);
	return status;
}

/* A large copy, without the GIL; `busy` keeps other threads out meanwhile. */
static int push_large(struct producer *self, const struct pushing *m, uint64_t *message_id)
{
	int status;

	self->busy = true;
	handle_pin(&self->handle);
	Py_BEGIN_ALLOW_THREADS status = push_once(self, m, message_id);
	Py_END_ALLOW_THREADS self->busy = false;
	handle_unpin(&self->handle);
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

		if (self->busy)
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

static PyObject *producer_push(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct producer *self = (struct producer *)op;
	struct pushing m = {.align = -1, .kind = SHMRING_KIND_BYTES};
	int64_t timeout = self->timeout;
	int durable = 0;
	PyObject *data;
	PyObject *result;
	Py_buffer buffer;

	if (nargs == 1 && !kwnames) {
		data = args[0];
	} else {
		const struct names *names = &self->handle.ring->state->names;
		PyObject *const order[] = {NULL, names->timeout, names->kind, names->durable, names->align};
		PyObject *sorted[5] = {NULL};

		if (!arguments_sort("push", args, nargs, kwnames, order, 1, 5, sorted))
			return NULL;
		data = sorted[0];
		if (!data) {
			PyErr_SetString(PyExc_TypeError, "push() wants the message: push(b\"...\")");
			return NULL;
		}
		if ((sorted[1] && !parse_timeout(sorted[1], &timeout)) ||
		    (sorted[2] && !parse_kind(sorted[2], &m.kind)) ||
		    (sorted[3] && (durable = PyObject_IsTrue(sorted[3])) < 0) ||
		    (sorted[4] && !parse_align(sorted[4], &m.align)))
			return NULL;
		m.durable = durable;
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

static PyObject *producer_push_end(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct producer *self = (struct producer *)op;
	PyObject *const order[] = {self->handle.ring->state->names.timeout};
	PyObject *sorted[1] = {NULL};
	int64_t timeout = self->timeout;

	if (!arguments_sort("push_end", args, nargs, kwnames, order, 0, 1, sorted) ||
	    (sorted[0] && !parse_timeout(sorted[0], &timeout)) || !producer_usable(self))
		return NULL;
	return push_bytes(self, &(struct pushing){.data = "", .align = -1, .kind = SHMRING_KIND_END}, timeout);
}

/* --- low level ------------------------------------------------------------------- */

static bool low_level_usable(struct producer *self)
{
	if (!producer_usable(self))
		return false;
	if (self->busy)
		PyErr_Format(error_class(self->handle.ring->state, SHMRING_E_CLAIM_OPEN),
			     "another thread is pushing through this producer of ring \"%U\"",
			     self->handle.ring->label);
	return !self->busy;
}

static PyObject *producer_next(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
	struct producer *self = (struct producer *)op;
	uint64_t count = 1;
	int64_t sequence;

	if (nargs > 1)
		return PyErr_Format(PyExc_TypeError, "next() takes at most one argument (%zd given)", nargs);
	if ((nargs && !parse_count(args[0], "count", UINT32_MAX, &count)) || !low_level_usable(self))
		return NULL;
	sequence = shmring_next(self->core, (uint32_t)count);
	if (sequence < 0 && sequence != SHMRING_UNAVAILABLE && sequence != SHMRING_CONTENDED)
		return raise_status(self->handle.ring, (int)sequence);
	return PyLong_FromLongLong(sequence);
}

static PyObject *producer_done(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
	struct producer *self = (struct producer *)op;
	uint64_t last;
	uint64_t length = SHMRING_SLOT_BYTES;
	int status;

	if (nargs < 1 || nargs > 2)
		return PyErr_Format(PyExc_TypeError, "done() takes a sequence and a length (%zd given)", nargs);
	if (!parse_count(args[0], "sequence", INT64_MAX, &last) ||
	    (nargs == 2 && !parse_count(args[1], "length", SHMRING_SLOT_BYTES, &length)) ||
	    !low_level_usable(self))
		return NULL;
	status = shmring_publish_ones(self->core, last, NULL, (uint32_t)length);
	if (status)
		return raise_status(self->handle.ring, status);
	Py_RETURN_NONE;
}

static PyObject *producer_abort(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct producer *self = (struct producer *)op;
	int status;

	if (!low_level_usable(self))
		return NULL;
	status = shmring_abort(self->core);
	if (status)
		return raise_status(self->handle.ring, status);
	Py_RETURN_NONE;
}

static PyObject *producer_available(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct producer *self = (struct producer *)op;
	int64_t end;

	if (!low_level_usable(self))
		return NULL;
	end = shmring_producer_available(self->core);
	return end < 0 ? raise_status(self->handle.ring, (int)end) : PyLong_FromLongLong(end);
}

static void unpin_owner(PyObject *owner)
{
	ring_unpin(((struct producer *)owner)->handle.ring);
}

static PyObject *producer_slot(PyObject *op, PyObject *number)
{
	struct producer *self = (struct producer *)op;
	struct ring *ring = self->handle.ring;
	uint64_t sequence;

	if (!parse_count(number, "sequence", INT64_MAX, &sequence) || !producer_usable(self))
		return NULL;
	ring_pin(ring);
	return view_new(ring->state, op, unpin_owner, shmring_slot(ring->core, sequence), SHMRING_SLOT_BYTES,
			false);
}

/* --- the type ---------------------------------------------------------------------- */

static PyObject *get_closed(PyObject *self, void *Py_UNUSED(closure))
{
	return PyBool_FromLong(((struct producer *)self)->handle.closed);
}

static PyObject *producer_repr(PyObject *op)
{
	struct producer *self = (struct producer *)op;

	return PyUnicode_FromFormat("<shmring.Producer of ring \"%U\"%s>", self->handle.ring->label,
				    self->handle.closed ? ", closed" : "");
}

PyDoc_STRVAR(push_doc,
	     "push($self, data, /, *, timeout=None, kind=0, durable=False, align=None)\n--\n\n"
	     "Publish one message.\n\n"
	     "Parameters\n----------\n"
	     "data : bytes, or any contiguous object with the buffer protocol; any size the ring can hold\n"
	     "timeout : seconds to wait for free slots; None waits for ever, 0 does not wait.\n"
	     "    Not given, the producer's `when_full` decides\n"
	     "kind : 0, or 16 to 255: a mark that travels with the message (of those below, 2 is an end\n"
	     "    marker, 3 and 4 are what an ArrowWriter writes)\n"
	     "durable : return when the ring's journal has it on disk\n"
	     "align : as of claim()\n\n"
	     "Returns\n-------\n"
	     "message_id; -1 if the ring was full and the producer drops (when_full=\"drop\")\n\n"
	     "Raises\n------\n"
	     "Full : not enough slots became free in time; nothing was published\n"
	     "MessageTooLarge : the message can never fit this ring\n"
	     "NotDurable : published, but not on disk in time; or no journal runs, and nothing was published\n"
	     "BranchNotFound : durable, and the ring has no journal\n"
	     "ClaimOpen : a claim of this producer is open\n"
	     "TypeError : data is not bytes-like");

PyDoc_STRVAR(push_many_doc,
	     "push_many($self, rows, /, *, timeout=None, durable=False)\n--\n\n"
	     "Publish each row as one message of at most 300 bytes, all of them in one step.\n\n"
	     "Parameters\n----------\n"
	     "rows : uint8 array of shape (n, k), k <= 300 bytes, each row contiguous; an Arrow array of\n"
	     "    fixed-size binary without nulls; or a list or tuple of bytes-like rows\n"
	     "timeout : seconds to wait for n free slots; None waits for ever, 0 does not wait\n"
	     "durable : return when the ring's journal has all of them on disk\n\n"
	     "Returns\n-------\n"
	     "message_id of the first row; the others follow it one by one. For no rows nothing is\n"
	     "published. -1 if the ring was full and the producer drops\n\n"
	     "Raises\n------\n"
	     "Full : fewer than n slots became free in time; nothing was published\n"
	     "MessageTooLarge : a row exceeds 300 bytes, or n rows can never fit this ring\n"
	     "NotDurable, BranchNotFound : as of push()\n"
	     "TypeError : rows are not bytes");

PyDoc_STRVAR(wait_durable_doc, "wait_durable($self, message_id, /, *, timeout=None)\n--\n\n"
			       "Wait until the ring's journal has a message, and all before it, on disk.\n\n"
			       "Raises\n------\n"
			       "NotDurable : it was not in time, or no journal runs any more\n"
			       "BranchNotFound : the ring has no journal");

PyDoc_STRVAR(
    claim_doc,
    "claim($self, nbytes, /, *, timeout=None, align=None)\n--\n\n"
    "Borrow room for one message, to fill it in place.\n\n"
    "    with out.claim(1_000_000) as slot:\n"
    "        slot.buffer[:] = ...\n\n"
    "Leaving the `with` commits; an exception aborts, and readers step over the hole.\n"
    "A producer has one open claim at a time.\n\n"
    "Parameters\n----------\n"
    "nbytes : size of the message\n"
    "timeout : seconds to wait for free slots; None waits for ever, 0 does not wait\n"
    "align : which byte of the message is to lie on a 64-byte boundary, a multiple of 4; None: whichever\n\n"
    "Raises\n------\n"
    "Full : not enough slots became free in time\n"
    "MessageTooLarge : the message can never fit this ring\n"
    "ClaimOpen : a claim of this producer is open");

static PyMethodDef methods[] = {
    {"push", FASTCALL(producer_push), METH_FASTCALL | METH_KEYWORDS, push_doc},
    {"push_many", FASTCALL(producer_push_many), METH_FASTCALL | METH_KEYWORDS, push_many_doc},
    {"push_end", FASTCALL(producer_push_end), METH_FASTCALL | METH_KEYWORDS,
     "push_end($self, *, timeout=None)\n--\n\nPublish an end marker: it ends the iteration of every consumer of "
     "every branch.\n"
     "Members of a branch share its messages, so each marker ends one of them."},
    {"claim", FASTCALL(producer_claim), METH_FASTCALL | METH_KEYWORDS, claim_doc},
    {"wait_durable", FASTCALL(producer_wait_durable), METH_FASTCALL | METH_KEYWORDS, wait_durable_doc},
    {"next", FASTCALL(producer_next), METH_FASTCALL,
     "next($self, count=1, /)\n--\n\nClaim `count` slots: the first sequence, -1 (full) or -2 (lost a race)."},
    {"done", FASTCALL(producer_done), METH_FASTCALL,
     "done($self, last, length=300, /)\n--\n\nPublish the claim up to `last` as messages of `length` bytes."},
    {"abort", producer_abort, METH_NOARGS, "abort($self, /)\n--\n\nGive up what next() has claimed."},
    {"available", producer_available, METH_NOARGS,
     "available($self, /)\n--\n\nHow far a single producer may go without asking again (exclusive)."},
    {"slot", producer_slot, METH_O,
     "slot($self, sequence, /)\n--\n\nThe 300 bytes of a claimed slot, writable. Yours until done()."},
    {"close", producer_close, METH_NOARGS, "close($self, /)\n--\n\nAbort an open claim and give the seat back."},
    {"__enter__", handle_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(producer_exit), METH_FASTCALL, NULL},
    {0},
};

static PyGetSetDef getset[] = {
    {"closed", get_closed, NULL, "whether close() was called", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, producer_dealloc},
    {Py_tp_repr, producer_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_doc, "A producer of one ring; made by Ring.producer(). Threads may share it."},
    {0, NULL},
};

PyType_Spec producer_spec = {
    .name = "shmring.Producer",
    .basicsize = sizeof(struct producer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
