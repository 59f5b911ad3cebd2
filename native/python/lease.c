/* _shmring.Lease: one message that is read in place. The code shared with Batch is here, too: it decides how long
 * the core's hold lasts. */
#include <stdio.h>

#include "device.h"

/* Hands messages back. Tries again while another process holds the admin lock, to join or to recover. After a
 * failure, for example if the lock stays held for seconds, closing the consumer hands the messages back. */
int consumer_hand_back(struct consumer *self, uint64_t first, uint64_t end)
{
	int64_t since = deadline_after(0);
	int status;

	handle_pin(&self->handle);
	while ((status = shmring_nack(self->core, first, end)) == SHMRING_CONTENDED) {
		if (!shmring_nack_again(self->core, since))
			break;
		handle_pause(&self->handle);
	}
	self->kept |= status != SHMRING_OK;
	(void)handle_unpin(&self->handle);
	return status_of_taken(status);
}

/* Releases the messages, or hands them back. Called when the user has closed the lease and the last buffer over
 * the messages is gone: by any thread, because the garbage collector may free that buffer in any thread. */
static int lease_finish(struct handle *handle)
{
	struct lease *self = (struct lease *)handle;
	struct consumer *consumer = (struct consumer *)handle->below;

	if (self->copy.at) {
		shmring_drop_copy(lease_ring(self)->core, &self->copy);
		return SHMRING_OK;
	}
	if (consumer->abandoned)
		return SHMRING_OK;
	if (self->nacked)
		return consumer_hand_back(consumer, self->range.first, self->range.end);
	return status_of_taken(shmring_release(consumer->core, self->range.first, self->range.end));
}

PyObject *lease_new(struct consumer *consumer, PyTypeObject *type, const struct shmring_lease *range)
{
	struct lease *self = PyObject_New(struct lease, type);

	if (!self)
		return NULL;
	handle_init(&self->handle, &consumer->handle, lease_finish);
	self->range = *range;
	self->messages = NULL;
	self->nacked = false;
	self->copy.at = NULL;
	self->message.data = NULL;
	self->views = NULL;
	self->shape[0] = range->messages;
	self->shape[1] = SHMRING_SLOT_BYTES;
	self->strides[0] = SHMRING_SLOT_BYTES;
	self->strides[1] = 1;
	return (PyObject *)self;
}

/* Takes back the memoryviews that a loop over the batch has lent, and closes the lease. Two kinds of objects keep
 * the slots taken for as long as they live: objects that the user has made of the lent memoryviews, for example
 * numpy arrays, and memoryviews that the user has requested without a loop. */
static int close_released(struct lease *self)
{
	if (self->handle.closed)
		return SHMRING_OK;
	if (self->views)
		views_take_back(&self->views);
	return handle_close(&self->handle);
}

static int close_nacked(struct lease *self)
{
	if (!self->handle.closed)
		self->nacked = true;
	return close_released(self);
}

/* Closes a lease by the function `close`, and returns None or raises. Pins the consumer meanwhile: if closing the
 * lease closed the consumer, too, the core's text of the error could be lost. If the lease is closed already, does
 * nothing: its consumer may be closed, too, and must not be pinned then. */
static PyObject *closed_by(int (*close)(struct lease *), struct lease *self)
{
	struct handle *consumer = self->handle.below;
	PyObject *result;

	if (self->handle.closed)
		Py_RETURN_NONE;
	handle_pin(consumer);
	result = result_of(lease_ring(self), close(self));
	(void)handle_unpin(consumer);
	return result;
}

/* Warns of a lease that was dropped while open. The branch delivers its messages again, so a loop that drops every
 * lease gets the same messages for ever. */
static void warn_of_dropped(const struct lease *self)
{
	const struct consumer *consumer = (const struct consumer *)self->handle.below;
	unsigned long long first = self->range.first;
	char messages[64];

	if (self->range.messages == 1)
		(void)snprintf(messages, sizeof messages, "message %llu", first);
	else
		(void)snprintf(messages, sizeof messages, "%u messages from %llu on", self->range.messages, first);
	warn_dropped(
	    (const PyObject *)self,
	    "ring \"%U\": the lease of %s was dropped without release(): branch \"%U\" delivers it again; "
	    "use a `with` block, or call release() or nack()",
	    lease_ring(self)->label, messages, consumer->branch);
}

/* Hands back a lease that is still open. There is no warning if the consumer was abandoned, if the message was
 * copied out of the ring, or in a forked child, whose parent has the lease. */
void lease_dealloc(PyObject *op)
{
	struct lease *self = (struct lease *)op;
	bool is_held =
	    !self->handle.closed && !self->copy.at && !((struct consumer *)self->handle.below)->abandoned;

	if (close_nacked(self) != SHMRING_E_FORKED && is_held)
		warn_of_dropped(self);
	PyMem_Free(self->messages);
	handle_free(&self->handle);
}

PyObject *lease_release(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	return closed_by(close_released, (struct lease *)op);
}

PyObject *lease_nack(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct lease *self = (struct lease *)op;

	return lease_readable(self) ? closed_by(close_nacked, self) : NULL;
}

/* Ends a `with` block: releases the lease, or hands it back after an exception. A failure to hand it back is not
 * raised, because the block's exception says more; closing the consumer hands the lease back then. */
PyObject *lease_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
	if (nargs == 0 || args[0] == Py_None)
		return lease_release(op, NULL);
	(void)close_nacked((struct lease *)op);
	Py_RETURN_NONE;
}

void lease_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(buffer))
{
	(void)handle_unpin((struct handle *)op);
}

bool lease_readable(struct lease *self)
{
	struct ring *ring = lease_ring(self);

	if (self->handle.closed)
		PyErr_Format(error_class(ring->state, SHMRING_E_CLOSED),
			     "this lease of ring \"%U\" was released; take what you need before, or keep a view",
			     ring->label);
	return !self->handle.closed;
}

PyObject *lease_get_redelivered(PyObject *op, void *Py_UNUSED(closure))
{
	return PyBool_FromLong(((struct lease *)op)->range.redelivered);
}

PyObject *lease_get_deliveries(PyObject *op, void *Py_UNUSED(closure))
{
	return PyLong_FromLong(((struct lease *)op)->range.redelivered + 1);
}

/* is_released(lease): true if its user has closed the lease; buffers over it may live still. */
PyObject *lease_is_released(PyObject *Py_UNUSED(module), PyObject *op)
{
	return PyBool_FromLong(((struct lease *)op)->handle.closed);
}

/* is_used(lease): true if the lease was not released, or a buffer over it lives. */
PyObject *lease_is_used(PyObject *Py_UNUSED(module), PyObject *op)
{
	return PyBool_FromLong(((struct lease *)op)->handle.pins > 0);
}

/* own(lease): gives a message's slots back to the ring while the message is still in use. A copy of the message
 * takes the place of the slots, in memory of this process and at the same address, so buffers over the message
 * stay valid. Returns False, and does nothing, if the lease no longer holds the slots or is to be handed back, or
 * if a GPU's runtime has pinned the ring's memory. During the call no thread of the process may use the ring
 * without the GIL. */
PyObject *lease_own(PyObject *Py_UNUSED(module), PyObject *op)
{
	struct lease *self = (struct lease *)op;
	struct ring *ring = lease_ring(self);
	struct consumer *consumer = (struct consumer *)self->handle.below;
	struct shmring_copy copy = {0};
	int status;

	if (self->handle.pins == 0 || self->copy.at || self->nacked || consumer->abandoned || ring_is_pinned(ring))
		Py_RETURN_FALSE;
	status =
	    shmring_release_copied(consumer->core, self->range.first, self->range.end, self->message.data, &copy);
	if (status)
		return raise_status(ring, status_of_taken(status));
	self->copy = copy;
	Py_RETURN_TRUE;
}

/* --- the type -------------------------------------------------------------------- */

static int lease_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
	struct lease *self = (struct lease *)op;

	if (!lease_readable(self) ||
	    PyBuffer_FillInfo(buffer, op, (void *)self->message.data, self->message.length, 1, flags))
		return -1;
	handle_pin(&self->handle);
	return 0;
}

static PyObject *get_data(PyObject *op, void *Py_UNUSED(closure))
{
	return PyMemoryView_FromObject(op);
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
     "Hand the message back, now or when the last view of it is gone: the branch delivers it again, marked\n"
     "as redelivered. An exception that leaves the ``with`` does the same, and so does dropping a lease\n"
     "without release(), with a ResourceWarning.\n\n"
     "Raises\n------\n"
     "Contended, TooManyLeases : it cannot be handed back now; closing the consumer does it"},
    DEVICE_METHODS,
    {"__enter__", handle_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(lease_exit), METH_FASTCALL, NULL},
    {0},
};

static PyGetSetDef getset[] = {
    {"data", get_data, NULL,
     "the message: a read-only memoryview of the ring's memory. The message stays leased while this view, or\n"
     "a numpy array or Arrow buffer made of it, lives",
     NULL},
    {"redelivered", lease_get_redelivered, NULL,
     "whether an earlier consumer held this message, and died or handed it back", NULL},
    {"deliveries", lease_get_deliveries, NULL,
     "times that it was delivered, this one included; 256 for more than 255", NULL},
    {0},
};

static PyMemberDef members[] = {
    {"message_id", T_ULONGLONG, offsetof(struct lease, message.message_id), READONLY, "sequence of the message"},
    {"time", T_ULONGLONG, offsetof(struct lease, message.time), READONLY,
     "when it was published, ns since 1970; 0 if the ring keeps no time"},
    {"kind", T_UBYTE, offsetof(struct lease, message.kind), READONLY, "the mark given to push()"},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, lease_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {Py_sq_length, lease_length},
    {Py_bf_getbuffer, lease_getbuffer},
    {Py_bf_releasebuffer, lease_releasebuffer},
    {Py_tp_doc, "A message that is read in place; made by Consumer.lease(). len() is its size in bytes.\n\n"
		"As a context manager it releases the message at the end, and hands it back after an exception."},
    {0, NULL},
};

PyType_Spec lease_spec = MADE_HERE("shmring.Lease", struct lease, slots);
