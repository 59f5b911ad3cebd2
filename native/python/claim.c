/* _shmring.Claim: a message that is filled in place. */
#include <string.h>

#include "producers.h"

struct claim {
	PyObject ob_base;
	struct producer *producer;
	uint64_t message_id;
	void *data;
	size_t nbytes;
	uint8_t shift;
	bool open;
};

/* A closed producer has aborted its claim, or will do so. */
static int abort_if_open(struct producer *producer)
{
	return producer->handle.closed ? SHMRING_OK : shmring_abort(producer->core);
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

PyObject *producer_claim(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
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

	if (self->open)
		(void)claim_abort(self);
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
		(void)claim_abort(self); /* the exception on its way says more */
		Py_RETURN_NONE;
	}
	return claim_usable(self) ? claim_commit_bytes(self, self->nbytes, SHMRING_KIND_BYTES) : NULL;
}

/* The mapping stays while a buffer over it lives, also past the commit. */
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

static PyMethodDef methods[] = {
    {"commit", FASTCALL(claim_commit), METH_FASTCALL | METH_KEYWORDS,
     "commit($self, nbytes=None, /, *, kind=0)\n--\n\n"
     "Publish the message, or its first `nbytes` bytes; `kind` as for push(). Do not write into views of\n"
     "it afterwards."},
    {"abort", claim_abort_method, METH_NOARGS, "abort($self, /)\n--\n\nGive the claim up: readers step over it."},
    {"__enter__", handle_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(claim_exit), METH_FASTCALL, NULL},
    {0},
};

static PyGetSetDef getset[] = {
    {"buffer", get_buffer, NULL,
     "writable memoryview of exactly the claimed bytes; its first content is not defined. Views stay\n"
     "readable after the commit, but the ring reuses the memory: do not write into them then",
     NULL},
    {0},
};

static PyMemberDef members[] = {
    {"message_id", T_ULONGLONG, offsetof(struct claim, message_id), READONLY, "sequence of the message"},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, claim_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {Py_bf_getbuffer, claim_getbuffer},
    {Py_bf_releasebuffer, claim_releasebuffer},
    {Py_tp_doc,
     "Room for one message; made by Producer.claim(). A claim that is dropped without commit() is aborted."},
    {0, NULL},
};

PyType_Spec claim_spec = MADE_HERE("shmring.Claim", struct claim, slots);
