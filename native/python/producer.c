/* _shmring.Producer; and its Claim, a message that is filled in place. */
#include "handle.h"

/* --- claims ------------------------------------------------------------------------ */

struct claim {
	PyObject ob_base;
	struct producer *producer;
	uint64_t message_id;
	void *data;
	size_t nbytes;
	uint8_t shift;
	bool open;
};

/* Aborts the claim of an open producer. A closed producer has aborted its claim, or will do so. */
static int abort_if_open(struct producer *producer)
{
	return producer->handle.closed ? producer->aborted : shmring_abort(producer->core);
}

static PyObject *claim_new(struct producer *producer, uint64_t message_id, size_t nbytes, int64_t align)
{
	struct ring *ring = ring_of(&producer->handle);
	uint8_t *slot = shmring_slot(ring->core, message_id);
	struct claim *self = PyObject_New(struct claim, ring->state->claim);

	if (!self) {
		(void)abort_if_open(producer);
		return NULL;
	}
	self->producer = (struct producer *)Py_NewRef((PyObject *)producer);
	self->message_id = message_id;
	self->shift = shift_for(slot, align);
	self->data = slot + self->shift;
	self->nbytes = nbytes;
	self->open = true;
	producer->claimed = true;
	return (PyObject *)self;
}

/* CHANGE: edit this for a new option of a ring */
static PyObject *producer_claim(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct producer *self = (struct producer *)op;
	const struct names *names = &ring_of(&self->handle)->state->names;
	PyObject *const order[] = {names->nbytes, names->timeout, names->align};
	PyObject *sorted[3] = {NULL};
	struct wait_state waiting = {.timeout = self->timeout};
	uint64_t nbytes;
	uint64_t slots;
	int64_t align = -1;
	enum retry retry;

	if (!arguments_sort("claim", "the size of the message in bytes", args, nargs, kwnames, order, 1, 3,
			    sorted) ||
	    !parse_count(sorted[0], "nbytes", INT64_MAX, &nbytes) ||
	    (sorted[1] && !parse_timeout(sorted[1], &waiting.timeout)) ||
	    (sorted[2] && !parse_align(sorted[2], &align)) || !producer_usable(self))
		return NULL;
	if (nbytes > UINT32_MAX)
		return PyErr_Format(error_class(ring_of(&self->handle)->state, SHMRING_E_TOO_LARGE),
				    "a message has at most 4 GiB, not %S bytes", sorted[0]);
	slots = shmring_slots_for(nbytes, align >= 0);
	do {
		int64_t status = STATUS_BUSY;

		if (!producer_busy(self)) {
			status = shmring_next(self->core, (uint32_t)slots);
			if (status >= 0)
				return claim_new(self, (uint64_t)status, nbytes, align);
		}
		retry = producer_retry(self, (int)status, slots, &waiting);
	} while (retry == RETRY_AGAIN);
	if (retry == RETRY_OVER && self->drop)
		shmring_count_dropped(self->core);
	return retry == RETRY_OVER ? raise_full(self, &waiting) : NULL;
}

static bool claim_usable(struct claim *self)
{
	struct producer *producer = self->producer;

	if (!self->open)
		PyErr_Format(error_class(ring_of(&producer->handle)->state, SHMRING_E_CLOSED),
			     "this claim of ring \"%U\" was committed or aborted already",
			     ring_of(&producer->handle)->label);
	return self->open && producer_usable(producer);
}

static int claim_abort(struct claim *self)
{
	self->open = false;
	self->producer->claimed = false;
	return abort_if_open(self->producer);
}

static void claim_dealloc(PyObject *op)
{
	struct claim *self = (struct claim *)op;

	if (self->open && claim_abort(self) != SHMRING_E_FORKED)
		warn_dropped(
		    op,
		    "ring \"%U\": the claim of message %llu was dropped without commit() or abort(), so no "
		    "consumer gets the message; use a `with` block, or call commit()",
		    ring_of(&self->producer->handle)->label, (unsigned long long)self->message_id);
	Py_DECREF((PyObject *)self->producer);
	object_free(op);
}

static PyObject *claim_commit_bytes(struct claim *self, uint64_t nbytes, uint8_t kind)
{
	int status = shmring_publish(self->producer->core, (uint32_t)nbytes, kind, self->shift);

	if (!status)
		self->open = self->producer->claimed = false;
	return result_of(ring_of(&self->producer->handle), status);
}

static PyObject *claim_commit(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct claim *self = (struct claim *)op;
	const struct names *names = &ring_of(&self->producer->handle)->state->names;
	PyObject *const order[] = {names->nbytes, names->kind};
	PyObject *sorted[2] = {NULL};
	uint64_t nbytes = self->nbytes;
	uint8_t kind = SHMRING_KIND_BYTES;

	if (!arguments_sort("commit", NULL, args, nargs, kwnames, order, 1, 2, sorted) ||
	    (sorted[0] && sorted[0] != Py_None && !parse_count(sorted[0], "nbytes", self->nbytes, &nbytes)) ||
	    (sorted[1] && !parse_kind(sorted[1], &kind)) || !claim_usable(self))
		return NULL;
	return claim_commit_bytes(self, nbytes, kind);
}

static PyObject *claim_abort_method(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct claim *self = (struct claim *)op;

	return claim_usable(self) ? result_of(ring_of(&self->producer->handle), claim_abort(self)) : NULL;
}

static PyObject *claim_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
	struct claim *self = (struct claim *)op;

	if (!self->open)
		Py_RETURN_NONE;
	if (nargs > 0 && args[0] != Py_None) {
		(void)claim_abort(self); /* ignores an error: the block's exception says more */
		Py_RETURN_NONE;
	}
	return claim_usable(self) ? claim_commit_bytes(self, self->nbytes, SHMRING_KIND_BYTES) : NULL;
}

/* Exports the claim's bytes. The mapping stays while a buffer over it lives, even after the commit. */
static int claim_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
	struct claim *self = (struct claim *)op;

	if (!claim_usable(self) || PyBuffer_FillInfo(buffer, op, self->data, (Py_ssize_t)self->nbytes, 0, flags))
		return -1;
	handle_pin(self->producer->handle.below);
	return 0;
}

static void claim_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(buffer))
{
	(void)handle_unpin(((struct claim *)op)->producer->handle.below);
}

static PyObject *get_buffer(PyObject *op, void *Py_UNUSED(closure))
{
	return PyMemoryView_FromObject(op);
}

static PyMethodDef claim_methods[] = {
    {"commit", FASTCALL(claim_commit), METH_FASTCALL | METH_KEYWORDS,
     "commit($self, nbytes=None, /, *, kind=0)\n--\n\n"
     "Publish the message, or its first `nbytes` bytes; `kind` as for push(). Do not write into views of\n"
     "it afterwards."},
    {"abort", claim_abort_method, METH_NOARGS, "abort($self, /)\n--\n\nGive the claim up: readers step over it."},
    {"__enter__", handle_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(claim_exit), METH_FASTCALL, NULL},
    {0},
};

static PyGetSetDef claim_getset[] = {
    {"buffer", get_buffer, NULL,
     "writable memoryview of exactly the claimed bytes; its first content is not defined. Views stay\n"
     "readable after the commit, but the ring reuses the memory: do not write into them then",
     NULL},
    {0},
};

static PyMemberDef claim_members[] = {
    {"message_id", T_ULONGLONG, offsetof(struct claim, message_id), READONLY, "sequence of the message"},
    {0},
};

static PyType_Slot claim_slots[] = {
    {Py_tp_dealloc, claim_dealloc},
    {Py_tp_methods, claim_methods},
    {Py_tp_members, claim_members},
    {Py_tp_getset, claim_getset},
    {Py_bf_getbuffer, claim_getbuffer},
    {Py_bf_releasebuffer, claim_releasebuffer},
    {Py_tp_doc,
     "Room for one message; made by Producer.claim(). A claim that is dropped without commit() is aborted,\n"
     "with a ResourceWarning."},
    {0, NULL},
};

PyType_Spec claim_spec = MADE_HERE("shmring.Claim", struct claim, claim_slots);

/* --- producers --------------------------------------------------------------------- */

static int producer_finish(struct handle *handle)
{
	struct producer *self = (struct producer *)handle;
	shmring_producer *core = self->core;

	self->core = NULL;
	if (self->claimed)
		self->aborted = shmring_abort(core);
	Py_BEGIN_ALLOW_THREADS shmring_producer_close(core);
	Py_END_ALLOW_THREADS return SHMRING_OK;
}

static void producer_interrupt(struct handle *handle)
{
	shmring_producer_interrupt(((struct producer *)handle)->core, true);
}

PyObject *producer_open(struct ring *ring, const char *name, int when_full, int wait)
{
	struct handle *handle = handle_new(ring->state->producer, sizeof(struct producer), ring, producer_finish);
	struct producer *self = (struct producer *)handle;
	int status;

	if (!self)
		return NULL;
	handle->interrupt = producer_interrupt;
	self->wait = (uint8_t)wait;
	self->timeout = when_full == FULL_BLOCK ? FOREVER : 0;
	self->drop = when_full == FULL_DROP;
	Py_BEGIN_ALLOW_THREADS status = shmring_producer_open(ring->core, name, &self->core);
	Py_END_ALLOW_THREADS return handle_opened(handle, status) ? (PyObject *)self : NULL;
}

static PyObject *producer_repr(PyObject *op)
{
	struct producer *self = (struct producer *)op;

	return PyUnicode_FromFormat("<shmring.Producer of ring \"%U\"%s>", ring_of(&self->handle)->label,
				    self->handle.closed ? ", closed" : "");
}

PyDoc_STRVAR(push_doc,
	     "push($self, data, /, *, timeout=None, kind=0, durable=False, align=None)\n--\n\n"
	     "Publish one message.\n\n"
	     "Parameters\n----------\n"
	     "data : bytes, or any contiguous object with the buffer protocol; any size the ring can hold\n"
	     "timeout : seconds to wait for free slots; None waits for ever, 0 does not wait.\n"
	     "    The default is the producer's `when_full`\n"
	     "kind : 0, or 16 to 255: a mark that travels with the message (2 marks the end of a stream,\n"
	     "    3 and 4 the messages of an ArrowWriter)\n"
	     "durable : return when the ring's journal has the message on disk\n"
	     "align : as for claim()\n\n"
	     "Returns\n-------\n"
	     "message_id; -1 if the ring was full and the producer drops (when_full=\"drop\")\n\n"
	     /* CHANGE: edit this for a new error */
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
	     "rows : uint8 array of shape (n, k), k <= 300 bytes, each row contiguous; or a list or tuple of\n"
	     "    bytes-like rows\n"
	     "timeout : seconds to wait for n free slots; None waits for ever, 0 does not wait\n"
	     "durable : return when the ring's journal has all of them on disk\n\n"
	     "Returns\n-------\n"
	     "message_id of the first row; the others follow it one by one. -1 if the ring was full and the\n"
	     "producer drops. An empty `rows` publishes nothing\n\n"
	     "Raises\n------\n"
	     "Full : fewer than n slots became free in time; nothing was published\n"
	     "MessageTooLarge : a row exceeds 300 bytes, or n rows can never fit this ring\n"
	     "NotDurable, BranchNotFound : as for push()\n"
	     "TypeError : rows are not bytes");

PyDoc_STRVAR(wait_durable_doc, "wait_durable($self, message_id, /, *, timeout=None)\n--\n\n"
			       "Wait until the ring's journal has a message, and all before it, on disk.\n\n"
			       "Raises\n------\n"
			       "NotDurable : the message was not on disk in time, or no journal runs any more\n"
			       "BranchNotFound : the ring has no journal\n"
			       "ValueError : no message has this number yet");

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
    "align : the byte of the message, a multiple of 4, that shall lie on a 64-byte boundary; None: any\n\n"
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
     "Markers side by side are one end if their producers were open at the same time. A producer that "
     "has\npushed nothing since the last end ends a run without messages."},
    {"claim", FASTCALL(producer_claim), METH_FASTCALL | METH_KEYWORDS, claim_doc},
    {"wait_durable", FASTCALL(producer_wait_durable), METH_FASTCALL | METH_KEYWORDS, wait_durable_doc},
    {"next", FASTCALL(producer_next), METH_FASTCALL,
     "next($self, count=1, /)\n--\n\nClaim `count` slots: the first sequence, -1 (full) or -2 (lost a race)."},
    {"done", FASTCALL(producer_done), METH_FASTCALL,
     "done($self, last, length=300, /)\n--\n\nPublish the claim up to `last` as messages of `length` bytes."},
    {"abort", producer_abort, METH_NOARGS, "abort($self, /)\n--\n\nGive up the slots that next() has claimed."},
    {"available", producer_available, METH_NOARGS,
     "available($self, /)\n--\n\nThe sequence behind the last one that a single producer can claim now."},
    {"slot", producer_slot, METH_O,
     "slot($self, sequence, /)\n--\n\nThe 300 bytes of a claimed slot, writable until done()."},
    {"close", handle_close_method, METH_NOARGS, "close($self, /)\n--\n\nAbort an open claim and leave the ring."},
    {"__enter__", handle_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(handle_exit), METH_FASTCALL, NULL},
    {0},
};

static PyMemberDef members[] = {
    MEMBER_CLOSED,
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_repr, producer_repr},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "A producer of one ring; made by Ring.producer(). Threads may share it."},
    {0, NULL},
};

PyType_Spec producer_spec = MADE_HERE("shmring.Producer", struct producer, slots);
