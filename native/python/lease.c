/* _shmring.Lease: one message that is read in place. What it shares with a
 * Batch is here too: how long the core's hold lasts. */
#include "binding.h"

PyObject *lease_new(struct member *member, PyTypeObject *type, const struct shmring_lease *range)
{
	struct lease *self = PyObject_New(struct lease, type);

	if (!self)
		return NULL;
	self->member = (struct member *)Py_NewRef((PyObject *)member);
	self->range = *range;
	self->messages = NULL;
	self->exports = 0;
	self->released = false;
	self->nacked = false;
	self->parts = NULL;
	self->held = true;
	handle_pin(&member->handle);
	return (PyObject *)self;
}

/* Some messages of a batch are handed back, the others released. Lowest first: a
 * piece at an end of what is held needs no further entry. */
static int settle_parts(struct lease *self)
{
	struct member *member = self->member;
	uint64_t first = self->range.first;
	int failed = SHMRING_OK;

	for (size_t i = 0, n = self->range.messages; i < n;) {
		bool back = self->parts[i];
		uint64_t end;
		int status;

		while (i < n && self->parts[i] == back)
			i++;
		end = i < n ? self->messages[i].message_id : self->range.end;
		status = back ? member_hand_back(member, first, end) : shmring_release(member->core, first, end);
		failed = failed ? failed : status;
		first = end;
	}
	return failed;
}

/* Gives the slots back when the user has released the lease and no buffer over
 * it is left, whichever comes last. Buffers may die in any thread, also without
 * the user's doing: the GIL makes that thread alone with the member. */
static int lease_settle(struct lease *self)
{
	struct member *member = self->member;
	int status;

	if (!self->released || self->exports || !self->held)
		return SHMRING_OK;
	self->held = false;
	if (member->abandoned)
		status = SHMRING_OK;
	else if (self->nacked)
		status = member_hand_back(member, self->range.first, self->range.end);
	else if (self->parts)
		status = settle_parts(self);
	else
		status = shmring_release(member->core, self->range.first, self->range.end);
	handle_unpin(&member->handle);
	return status;
}

void lease_dealloc(PyObject *op)
{
	struct lease *self = (struct lease *)op;
	PyTypeObject *type = Py_TYPE(op);

	if (!self->released) /* nobody has said that it is dealt with */
		self->nacked = self->released = true;
	(void)lease_settle(self);
	Py_DECREF((PyObject *)self->member);
	PyMem_Free(self->messages);
	PyMem_Free(self->parts);
	PyObject_Free(op);
	Py_DECREF(type);
}

PyObject *lease_release(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct lease *self = (struct lease *)op;
	int status;

	self->released = true;
	status = lease_settle(self);
	if (status)
		return raise_status(self->member->handle.ring, status);
	Py_RETURN_NONE;
}

PyObject *lease_nack(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct lease *self = (struct lease *)op;

	if (!lease_readable(self))
		return NULL;
	self->nacked = true;
	return lease_release(op, NULL);
}

/* Left with an exception, it goes back. The exception says more than a failure
 * of that, after which closing the consumer hands it back. */
PyObject *lease_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
	struct lease *self = (struct lease *)op;

	if (nargs == 0 || args[0] == Py_None)
		return lease_release(op, NULL);
	if (!self->released)
		self->nacked = self->released = true;
	(void)lease_settle(self);
	Py_RETURN_NONE;
}

void lease_unexport(PyObject *op)
{
	struct lease *self = (struct lease *)op;

	self->exports--;
	(void)lease_settle(self);
}

void lease_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(buffer))
{
	lease_unexport(op);
}

bool lease_readable(struct lease *self)
{
	struct ring *ring = self->member->handle.ring;

	if (self->released)
		PyErr_Format(error_class(ring->state, SHMRING_E_CLOSED),
			     "this lease of ring \"%U\" was released; take what you need before, or keep a view",
			     ring->label);
	return !self->released;
}

PyObject *lease_get_redelivered(PyObject *op, void *Py_UNUSED(closure))
{
	return PyBool_FromLong(((struct lease *)op)->range.redelivered);
}

/* --- the type -------------------------------------------------------------------- */

static int lease_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
	struct lease *self = (struct lease *)op;

	if (!lease_readable(self) ||
	    PyBuffer_FillInfo(buffer, op, (void *)self->message.data, self->message.length, 1, flags))
		return -1;
	self->exports++;
	return 0;
}

static PyObject *get_data(PyObject *op, void *Py_UNUSED(closure))
{
	return lease_readable((struct lease *)op) ? PyMemoryView_FromObject(op) : NULL;
}

static PyObject *get_message_id(PyObject *op, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(((struct lease *)op)->message.message_id);
}

static PyObject *get_time(PyObject *op, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(((struct lease *)op)->message.time);
}

static PyObject *get_kind(PyObject *op, void *Py_UNUSED(closure))
{
	return PyLong_FromLong(((struct lease *)op)->message.kind);
}

static Py_ssize_t lease_length(PyObject *op)
{
	return ((struct lease *)op)->message.length;
}

static PyMethodDef methods[] = {
    {"release", lease_release, METH_NOARGS,
     "release($self, /)\n--\n\nGive the slots back, now or when the last view of them is gone."},
    {"nack", lease_nack, METH_NOARGS,
     "nack($self, /)\n--\n\n"
     "Hand the message back, now or when the last view of it is gone: it is delivered again, marked as\n"
     "redelivered, to whoever takes next on the branch. Leaving a ``with`` with an exception does that, too,\n"
     "and so does a lease that is collected without release().\n\n"
     "Raises\n------\n"
     "Contended, LimitReached, TooManyLeases : it could not be handed back now; closing the consumer does it"},
    {"__enter__", handle_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(lease_exit), METH_FASTCALL, NULL},
    {0},
};

static PyGetSetDef getset[] = {
    {"data", get_data, NULL,
     "the message, a read-only memoryview of the ring's memory. While it, or a numpy array or Arrow buffer\n"
     "made of it, lives, the message stays leased",
     NULL},
    {"message_id", get_message_id, NULL, "sequence of the message", NULL},
    {"time", get_time, NULL, "when it was published, ns since 1970; 0 if the ring keeps no time", NULL},
    {"kind", get_kind, NULL, "the mark given to push()", NULL},
    {"redelivered", lease_get_redelivered, NULL, "whether a consumer that died, or handed it back, held it before",
     NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, lease_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_sq_length, lease_length},
    {Py_bf_getbuffer, lease_getbuffer},
    {Py_bf_releasebuffer, lease_releasebuffer},
    {Py_tp_doc, "A message that is read in place; made by Consumer.lease(). len() is its size in bytes.\n\n"
		"A context manager: leaving it releases the message, leaving it with an exception hands it back."},
    {0, NULL},
};

PyType_Spec lease_spec = {
    .name = "shmring.Lease",
    .basicsize = sizeof(struct lease),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
