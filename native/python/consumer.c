/* _shmring.Consumer, the class that users import as shmring.Consumer. */
#include "handle.h"

static int consumer_finish(struct handle *handle)
{
	struct consumer *self = (struct consumer *)handle;
	shmring_consumer *core = self->core;

	self->core = NULL;
	/* Abandoning a consumer delivers its messages again: open leases, messages that could not be handed back,
	 * and messages that next() took and done() has not released. */
	if (self->kept || self->taken_count)
		self->abandoned = true;
	Py_BEGIN_ALLOW_THREADS if (self->abandoned) shmring_consumer_abandon(core);
	else shmring_consumer_close(core);
	Py_END_ALLOW_THREADS Py_CLEAR(self->dead_letters);
	return SHMRING_OK;
}

static void consumer_interrupt(struct handle *handle)
{
	shmring_consumer_interrupt(((struct consumer *)handle)->core, true);
}

PyObject *consumer_open(struct ring *ring, const char *branch, const struct shmring_branch_options *options,
			const char *name, int wait)
{
	struct handle *handle = handle_new(ring->state->consumer, sizeof(struct consumer), ring, consumer_finish);
	struct consumer *self = (struct consumer *)handle;
	struct shmring_branch_info info;
	int status;

	if (!self)
		return NULL;
	handle->interrupt = consumer_interrupt;
	self->wait = (uint8_t)wait;
	Py_BEGIN_ALLOW_THREADS status = shmring_join(ring->core, branch, options, name, &self->core);
	if (status == SHMRING_OK) {
		self->branch_id = shmring_consumer_branch(self->core);
		self->exclusive =
		    shmring_branch_info(ring->core, self->branch_id, &info) == SHMRING_OK && info.exclusive;
	}
	Py_END_ALLOW_THREADS if (!handle_opened(handle, status)) return NULL;
	self->branch = PyUnicode_FromString(branch);
	if (!self->branch)
		Py_CLEAR(self);
	return (PyObject *)self;
}

/* set_aside(consumer, max_deliveries, producer): turns dead letters on. From now on only the consumer uses the
 * producer, which belongs to another ring. */
PyObject *consumer_set_aside(PyObject *module, PyObject *args)
{
	struct state *state = PyModule_GetState(module);
	struct consumer *self;
	struct producer *producer;
	unsigned int most;
	int status;

	if (!PyArg_ParseTuple(args, "O!IO!", state->consumer, &self, &most, state->producer, &producer))
		return NULL;
	Py_BEGIN_ALLOW_THREADS status = shmring_consumer_dead_letters(self->core, most, producer->core);
	Py_END_ALLOW_THREADS if (status == SHMRING_OK) self->dead_letters = Py_NewRef((PyObject *)producer);
	return result_of(ring_of(&self->handle), status);
}

static void consumer_dealloc(PyObject *op)
{
	struct consumer *self = (struct consumer *)op;

	(void)handle_close(&self->handle);
	Py_XDECREF(self->branch);
	PyMem_Free(self->taken);
	handle_free(&self->handle);
}

static PyObject *consumer_abandon(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct consumer *self = (struct consumer *)op;

	if (!self->handle.closed)
		self->abandoned = true;
	return handle_close_method(op, NULL);
}

/* --- the type ------------------------------------------------------------------------ */

static bool position(struct consumer *self, uint64_t *sequence)
{
	struct shmring_branch_info info;
	int status;

	if (!consumer_usable(self))
		return false;
	status = shmring_branch_info(ring_of(&self->handle)->core, self->branch_id, &info);
	if (status)
		raise_status(ring_of(&self->handle), status);
	*sequence = info.position;
	return status == SHMRING_OK;
}

static PyObject *get_position(PyObject *op, void *Py_UNUSED(closure))
{
	uint64_t sequence;

	return position((struct consumer *)op, &sequence) ? PyLong_FromUnsignedLongLong(sequence) : NULL;
}

static PyObject *get_hold(PyObject *op, void *Py_UNUSED(closure))
{
	struct consumer *self = (struct consumer *)op;

	return consumer_usable(self) ? sequence_or_none(shmring_consumer_hold(self->core)) : NULL;
}

static PyObject *get_lag(PyObject *op, void *Py_UNUSED(closure))
{
	struct consumer *self = (struct consumer *)op;
	uint64_t sequence;
	uint64_t claimed;

	if (!position(self, &sequence))
		return NULL;
	claimed = shmring_claimed(ring_of(&self->handle)->core);
	return PyLong_FromUnsignedLongLong(claimed > sequence ? claimed - sequence : 0);
}

static PyObject *consumer_repr(PyObject *op)
{
	struct consumer *self = (struct consumer *)op;

	return PyUnicode_FromFormat("<shmring.Consumer \"%U\" of ring \"%U\"%s>", self->branch,
				    ring_of(&self->handle)->label, self->handle.closed ? ", closed" : "");
}

PyDoc_STRVAR(pop_doc, "pop($self, *, timeout=None)\n--\n\n"
		      "Take one message as bytes; it is released at once.\n\n"
		      "Parameters\n----------\n"
		      "timeout : seconds to wait for a message; None waits for ever, 0 does not wait\n\n"
		      /* CHANGE: edit this for a new error */
		      "Raises\n------\n"
		      "Empty : no message in time\n"
		      "EndOfStream : the stream has ended; the next call goes on behind the end\n"
		      "Overrun : the branch was too slow and lost messages; the next call goes on behind them\n"
		      "BranchDropped : the branch was dropped meanwhile\n"
		      "Damaged : the message contradicts itself or its checksum; the next call goes on behind it");

PyDoc_STRVAR(lease_doc, "lease($self, *, timeout=None)\n--\n\n"
			"Take one message and read it in place.\n\n"
			"    with inp.lease(timeout=1.0) as m:\n"
			"        use(m.data)\n\n"
			"Nobody overwrites it until it is released: on leaving the `with`, by release() or when\n"
			"the lease is dropped, but not before the last view of its data is gone.\n\n"
			"Parameters and errors as of pop(), and\n\n"
			"Raises\n------\n"
			"TooManyLeases : this consumer holds 48 separate leases already");

PyDoc_STRVAR(lease_many_doc,
	     "lease_many($self, max_messages, /, *, timeout=None)\n--\n\n"
	     "Take the messages that are there, at least one and at most `max_messages`, at once.\n\n"
	     "    with inp.lease_many(1024, timeout=1.0) as b:\n"
	     "        use(b.array, b.lengths, b.message_ids)\n\n"
	     "Parameters\n----------\n"
	     "max_messages : how many at most\n"
	     "timeout : seconds to wait for the first; None waits for ever, 0 does not wait\n\n"
	     "Errors as of lease()");

static PyMethodDef methods[] = {
    {"pop", FASTCALL(consumer_pop), METH_FASTCALL | METH_KEYWORDS, pop_doc},
    {"lease", FASTCALL(consumer_lease), METH_FASTCALL | METH_KEYWORDS, lease_doc},
    {"lease_many", FASTCALL(consumer_lease_many), METH_FASTCALL | METH_KEYWORDS, lease_many_doc},
    {"next", consumer_next, METH_NOARGS,
     "next($self, /)\n--\n\nTake one message: its sequence, -1 (empty) or -2 (lost a race)."},
    {"done", consumer_done, METH_O,
     "done($self, sequence, /)\n--\n\nRelease the message; on an exclusive branch everything up to it."},
    {"available", consumer_available, METH_NOARGS,
     "available($self, /)\n--\n\nThe sequence behind the last one that can be read now; exclusive branches only."},
    {"slot", consumer_slot, METH_O,
     "slot($self, sequence, /)\n--\n\nThe 300 bytes of a slot, read-only. They stay until done()."},
    {"close", handle_close_method, METH_NOARGS,
     "close($self, /)\n--\n\nLeave the branch when the last lease is released."},
    {"abandon", consumer_abandon, METH_NOARGS,
     "abandon($self, /)\n--\n\nLeave as if this process had died: the branch delivers its leased messages\n"
     "again, to the other consumers or to the next one."},
    {"__enter__", handle_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(handle_exit), METH_FASTCALL, NULL},
    {0},
};

static PyObject *get_end_markers(PyObject *op, void *Py_UNUSED(closure))
{
	return PyBool_FromLong(((struct consumer *)op)->end_markers);
}

static int set_end_markers(PyObject *op, PyObject *value, void *Py_UNUSED(closure))
{
	struct consumer *self = (struct consumer *)op;
	int wanted = value ? PyObject_IsTrue(value) : 0;

	if (wanted < 0)
		return -1;
	self->end_markers = wanted;
	if (self->core)
		shmring_consumer_take_ends(self->core, wanted);
	return 0;
}

static PyObject *get_max_slots(PyObject *op, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(((struct consumer *)op)->max_slots);
}

static int set_max_slots(PyObject *op, PyObject *value, void *Py_UNUSED(closure))
{
	struct consumer *self = (struct consumer *)op;
	uint64_t wanted = 0;

	if (value && !parse_count(value, "max_slots", INT64_MAX, &wanted))
		return -1;
	self->max_slots = wanted;
	return 0;
}

static PyGetSetDef getset[] = {
    {"position", get_position, NULL, "next sequence that the branch will take", NULL},
    {"hold", get_hold, NULL, "lowest sequence that this consumer holds, or None", NULL},
    {"lag", get_lag, NULL, "slots between the branch's position and the producers' claim", NULL},
    {"end_markers", get_end_markers, set_end_markers,
     "whether an end marker that this consumer reaches first is a message of kind 2, to be passed on.\n"
     "False: it raises EndOfStream",
     NULL},
    {"max_slots", get_max_slots, set_max_slots,
     "slots that a batch of lease_many() has at most, but for one message that is larger; 0: no bound", NULL},
    {0},
};

static PyMemberDef members[] = {
    MEMBER_CLOSED,
    {"branch", T_OBJECT, offsetof(struct consumer, branch), READONLY, "name of the branch"},
    {"waited_ns", T_LONGLONG, offsetof(struct consumer, waited_ns), READONLY,
     "nanoseconds that calls of this consumer have waited for messages"},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, consumer_dealloc},
    {Py_tp_members, members},
    {Py_tp_repr, consumer_repr},
    {Py_tp_iter, consumer_iter},
    {Py_tp_iternext, consumer_iternext},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_doc,
     "A consumer of a branch; made by Ring.consumer(). Iterating it pops bytes until the stream ends.\n"
     "Threads may share a consumer: an end marker ends each thread's loop and each thread's waiting call."},
    {0, NULL},
};

PyType_Spec consumer_spec = MADE_HERE("shmring.Consumer", struct consumer, slots);
