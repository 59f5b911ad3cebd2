/* _shmring.Producer. */
#include "producers.h"

static int producer_finish(struct handle *handle)
{
	struct producer *self = (struct producer *)handle;
	shmring_producer *core = self->core;

	self->core = NULL;
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

static PyGetSetDef getset[] = {
    {"closed", handle_get_closed, NULL, "whether close() was called", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_repr, producer_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_doc, "A producer of one ring; made by Ring.producer(). Threads may share it."},
    {0, NULL},
};

PyType_Spec producer_spec = MADE_HERE("shmring.Producer", struct producer, slots);
