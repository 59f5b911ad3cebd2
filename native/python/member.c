/* _shmring.Member, the users' Consumer: pop, lease, lease_many, iteration. */
#include <string.h>
#include <time.h>

#include "binding.h"

/* Joining and recovering take microseconds; who takes longer is stopped. */
#define NACK_PATIENCE_NS (5 * INT64_C(1000000000))

/* --- lifetime ------------------------------------------------------------------ */

static void member_finish(struct handle *handle)
{
	struct member *self = (struct member *)handle;
	shmring_member *core = self->core;

	self->core = NULL;
	/* What next() took and nobody was done() with is no more dealt with than a lease. */
	if (self->kept || self->taken_count)
		self->abandoned = true;
	Py_BEGIN_ALLOW_THREADS if (self->abandoned) shmring_member_abandon(core);
	else shmring_member_close(core);
	Py_END_ALLOW_THREADS
}

/* For as long as others may well be at it; what stays held then is handed back by closing. */
int member_hand_back(struct member *self, uint64_t first, uint64_t end)
{
	struct timespec moment = {.tv_nsec = 50000};
	int64_t deadline = 0;
	int status;

	handle_pin(&self->handle);
	while ((status = shmring_nack(self->core, first, end)) == SHMRING_CONTENDED) {
		if (deadline == 0)
			deadline = deadline_after(NACK_PATIENCE_NS);
		else if (deadline_after(0) > deadline)
			break;
		Py_BEGIN_ALLOW_THREADS nanosleep(&moment, NULL);
		Py_END_ALLOW_THREADS
	}
	self->kept |= status != SHMRING_OK;
	handle_unpin(&self->handle);
	return status;
}

PyObject *member_open(struct ring *ring, const char *branch, const struct shmring_branch_options *options,
		      const char *name, int wait)
{
	struct member *self = PyObject_New(struct member, ring->state->member);
	struct shmring_branch_info info;
	int status;

	if (!self)
		return NULL;
	memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
	self->handle.closed = true; /* until it is open */
	self->handle.wait = (uint8_t)wait;
	self->branch = PyUnicode_FromString(branch);
	if (!self->branch) {
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	ring_pin(ring);
	Py_BEGIN_ALLOW_THREADS status = shmring_join(ring->core, branch, options, name, &self->core);
	Py_END_ALLOW_THREADS if (status)
	{
		raise_status(ring, status);
		Py_CLEAR(self);
	}
	else
	{
		self->handle.closed = false;
		handle_init(&self->handle, ring, member_finish);
		self->branch_id = shmring_member_branch(self->core);
		self->exclusive =
		    shmring_branch_info(ring->core, self->branch_id, &info) == SHMRING_OK && info.exclusive;
		if (ring->closed)
			handle_close(&self->handle);
	}
	ring_unpin(ring);
	return (PyObject *)self;
}

static void member_dealloc(PyObject *op)
{
	struct member *self = (struct member *)op;
	PyTypeObject *type = Py_TYPE(op);

	handle_close(&self->handle);
	Py_XDECREF((PyObject *)self->handle.ring);
	Py_XDECREF(self->branch);
	PyMem_Free(self->taken);
	PyObject_Free(op);
	Py_DECREF(type);
}

static PyObject *member_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
	handle_close(&((struct member *)self)->handle);
	Py_RETURN_NONE;
}

static PyObject *member_abandon(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct member *self = (struct member *)op;

	if (!self->handle.closed)
		self->abandoned = true;
	return member_close(op, NULL);
}

static PyObject *member_hear_ends(PyObject *op, PyObject *since)
{
	struct member *self = (struct member *)op;
	unsigned long long ends = PyLong_AsUnsignedLongLong(since);

	if (PyErr_Occurred() || !member_usable(self))
		return NULL;
	handle_pin(&self->handle);
	if (self->core)
		shmring_member_hear_ends(self->core, ends);
	handle_unpin(&self->handle);
	Py_RETURN_NONE;
}

static PyObject *member_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
	return member_close(self, NULL);
}

/* --- trying again ---------------------------------------------------------------- */

bool member_usable(struct member *self)
{
	if (self->handle.closed)
		raise_closed(self->handle.ring, "consumer");
	return !self->handle.closed;
}

void raise_lapsed(struct member *self)
{
	struct state *state = self->handle.ring->state;
	PyObject *text = error_text();
	uint64_t first;
	uint64_t end;
	PyObject *error;

	shmring_member_lapsed(self->core, &first, &end);
	error = text ? PyObject_CallFunction(state->lapsed, "NKK", text, (unsigned long long)first,
					     (unsigned long long)(end - 1))
		     : NULL;
	if (error)
		PyErr_SetObject(state->lapsed, error);
	Py_XDECREF(error);
}

/* What to do after shmring_take() has answered `status`. */
static enum retry member_retry(struct member *self, int status, struct patience *patience)
{
	enum retry retry;

	if (status == SHMRING_CONTENDED) {
		retry = handle_contended(&self->handle, patience);
	} else if (status == SHMRING_LAPSED) {
		raise_lapsed(self);
		return RETRY_RAISED;
	} else if (status != SHMRING_UNAVAILABLE) {
		raise_status(self->handle.ring, status);
		return RETRY_RAISED;
	} else if (patience->timeout == 0) {
		return RETRY_OVER;
	} else {
		if (patience->deadline == 0)
			patience->deadline = deadline_after(patience->timeout);
		handle_pin(&self->handle);
		Py_BEGIN_ALLOW_THREADS status =
		    shmring_wait_message(self->core, patience->deadline, self->handle.wait);
		Py_END_ALLOW_THREADS handle_unpin(&self->handle);
		retry = handle_waited(&self->handle, status);
	}
	return retry != RETRY_RAISED && !member_usable(self) ? RETRY_RAISED : retry;
}

static void raise_empty(struct member *self, int64_t timeout)
{
	struct ring *ring = self->handle.ring;
	char reason[EXPLANATION_BYTES];
	PyObject *seconds;

	if (timeout == 0) { /* a poll, which may be a hot loop: it wants an answer, no reasons */
		PyErr_Format(ring->state->empty, "no message for branch \"%U\" of ring \"%U\" now", self->branch,
			     ring->label);
		return;
	}
	shmring_explain_empty(self->core, reason, sizeof reason);
	seconds = seconds_text(timeout);
	if (seconds)
		PyErr_Format(ring->state->empty, "no message for branch \"%U\" of ring \"%U\" within %U s: %s",
			     self->branch, ring->label, seconds, reason);
	Py_XDECREF(seconds);
}

void raise_end(struct member *self)
{
	PyErr_Format(self->handle.ring->state->end_of_stream,
		     "the stream has ended: branch \"%U\" of ring \"%U\" has come to an end marker", self->branch,
		     self->handle.ring->label);
}

/* --- taking ------------------------------------------------------------------------ */

enum taking {
	TAKING_RAISED,
	TAKING_END, /* an end marker; nothing is held */
	TAKING_DONE,
};

/* Takes messages and reads the first. `ends` is what self->ends was when this thread
 * began: of threads that share a member the core tells one of an end. */
static enum taking take(struct member *self, uint32_t messages, uint64_t slots, int64_t timeout, uint64_t ends,
			struct shmring_lease *lease, struct shmring_message *message)
{
	struct patience patience = {.timeout = timeout};
	uint64_t position;
	enum retry retry;
	int status;

	for (;;) {
		if (self->ends != ends)
			return TAKING_END;
		status = shmring_take(self->core, messages, slots, lease);
		if (status == SHMRING_OK)
			break;
		if (status == SHMRING_ENDED) {
			self->ends++;
			return TAKING_END;
		}
		retry = member_retry(self, status, &patience);
		if (retry == RETRY_OVER)
			raise_empty(self, timeout);
		if (retry != RETRY_AGAIN)
			return TAKING_RAISED;
	}
	position = lease->first;
	status = shmring_read(self->handle.ring->core, &position, lease->end, message);
	/* In a batch a damaged message must not cost the others: the batch says
	 * so when it is read. */
	if (status == SHMRING_OK || messages > 1)
		return TAKING_DONE;
	raise_status(self->handle.ring, status);
	(void)shmring_release(self->core, lease->first, lease->end);
	return TAKING_RAISED;
}

static bool parse_only_timeout(struct member *self, const char *function, PyObject *const *args, Py_ssize_t nargs,
			       PyObject *kwnames, int64_t *timeout)
{
	PyObject *const order[] = {self->handle.ring->state->names.timeout};
	PyObject *sorted[1] = {NULL};

	return arguments_sort(function, args, nargs, kwnames, order, 0, 1, sorted) &&
	       (!sorted[0] || parse_timeout(sorted[0], timeout));
}

/* The message as bytes, released. NULL without an exception at an end marker. */
static PyObject *pop_bytes(struct member *self, int64_t timeout, uint64_t ends)
{
	struct shmring_lease lease;
	struct shmring_message message;
	PyObject *bytes;

	if (take(self, 1, 1, timeout, ends, &lease, &message) != TAKING_DONE)
		return NULL;
	if (message.length < GIL_FREE_BYTES) {
		bytes = PyBytes_FromStringAndSize(message.data, message.length);
	} else {
		/* The lease keeps the message where it is, the pin the member. */
		bytes = PyBytes_FromStringAndSize(NULL, message.length);
		if (bytes) {
			char *to = PyBytes_AsString(bytes);

			handle_pin(&self->handle);
			Py_BEGIN_ALLOW_THREADS memcpy(to, message.data, message.length);
			Py_END_ALLOW_THREADS(void) shmring_release(self->core, lease.first, lease.end);
			handle_unpin(&self->handle);
			return bytes;
		}
	}
	if (bytes)
		(void)shmring_release(self->core, lease.first, lease.end);
	else
		(void)member_hand_back(self, lease.first, lease.end);
	return bytes;
}

static PyObject *member_pop(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct member *self = (struct member *)op;
	int64_t timeout = FOREVER;
	PyObject *bytes;

	if ((nargs || kwnames) && !parse_only_timeout(self, "pop", args, nargs, kwnames, &timeout))
		return NULL;
	if (!member_usable(self))
		return NULL;
	bytes = pop_bytes(self, timeout, self->ends);
	if (!bytes && !PyErr_Occurred())
		raise_end(self);
	return bytes;
}

static PyObject *member_iternext(PyObject *op)
{
	struct member *self = (struct member *)op;

	return member_usable(self) ? pop_bytes(self, FOREVER, self->ends) : NULL;
}

/* A loop over a member. Each ends at an end marker, also where threads share it. */
struct member_iterator {
	PyObject ob_base;
	struct member *member;
	uint64_t ends;
};

static PyObject *member_iter(PyObject *op)
{
	struct member *self = (struct member *)op;
	struct member_iterator *iterator =
	    PyObject_New(struct member_iterator, self->handle.ring->state->member_iterator);

	if (!iterator)
		return NULL;
	iterator->member = (struct member *)Py_NewRef(op);
	iterator->ends = self->ends;
	return (PyObject *)iterator;
}

static void iterator_dealloc(PyObject *op)
{
	PyTypeObject *type = Py_TYPE(op);

	Py_DECREF((PyObject *)((struct member_iterator *)op)->member);
	PyObject_Free(op);
	Py_DECREF(type);
}

static PyObject *iterator_next(PyObject *op)
{
	struct member_iterator *self = (struct member_iterator *)op;

	return member_usable(self->member) ? pop_bytes(self->member, FOREVER, self->ends) : NULL;
}

static PyType_Slot iterator_slots[] = {
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, iterator_next},
    {0, NULL},
};

PyType_Spec member_iterator_spec = {
    .name = "shmring.ConsumerIterator",
    .basicsize = sizeof(struct member_iterator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = iterator_slots,
};

static PyObject *take_lease(struct member *self, PyTypeObject *type, uint32_t messages, int64_t timeout)
{
	struct shmring_lease range;
	struct shmring_message message;
	PyObject *lease;

	switch (take(self, messages, messages == 1 ? 1 : UINT64_MAX, timeout, self->ends, &range, &message)) {
	case TAKING_RAISED:
		return NULL;
	case TAKING_END:
		raise_end(self);
		return NULL;
	case TAKING_DONE:
		break;
	}
	lease = lease_new(self, type, &range);
	if (lease)
		((struct lease *)lease)->message = message;
	else
		(void)member_hand_back(self, range.first, range.end);
	return lease;
}

static PyObject *member_lease(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct member *self = (struct member *)op;
	int64_t timeout = FOREVER;

	if (!parse_only_timeout(self, "lease", args, nargs, kwnames, &timeout) || !member_usable(self))
		return NULL;
	return take_lease(self, self->handle.ring->state->lease, 1, timeout);
}

static PyObject *member_lease_many(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct member *self = (struct member *)op;
	const struct names *names = &self->handle.ring->state->names;
	PyObject *const order[] = {names->max_messages, names->timeout};
	PyObject *sorted[2] = {NULL};
	int64_t timeout = FOREVER;
	uint64_t messages;

	if (!arguments_sort("lease_many", args, nargs, kwnames, order, 1, 2, sorted))
		return NULL;
	if (!sorted[0]) {
		PyErr_SetString(PyExc_TypeError, "lease_many() wants the largest number of messages");
		return NULL;
	}
	if (!parse_count(sorted[0], "max_messages", INT64_MAX, &messages) ||
	    (sorted[1] && !parse_timeout(sorted[1], &timeout)) || !member_usable(self))
		return NULL;
	if (messages == 0) {
		PyErr_SetString(PyExc_ValueError, "max_messages must be at least 1, not 0");
		return NULL;
	}
	return take_lease(self, self->handle.ring->state->batch,
			  messages > UINT32_MAX ? UINT32_MAX : (uint32_t)messages, timeout);
}

/* --- the type ------------------------------------------------------------------------ */

static PyObject *get_branch(PyObject *op, void *Py_UNUSED(closure))
{
	return Py_NewRef(((struct member *)op)->branch);
}

static PyObject *get_branch_id(PyObject *op, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLong(((struct member *)op)->branch_id);
}

static bool position(struct member *self, uint64_t *sequence)
{
	struct shmring_branch_info info;
	int status;

	if (!member_usable(self))
		return false;
	status = shmring_branch_info(self->handle.ring->core, self->branch_id, &info);
	if (status)
		raise_status(self->handle.ring, status);
	*sequence = info.position;
	return status == SHMRING_OK;
}

static PyObject *get_position(PyObject *op, void *Py_UNUSED(closure))
{
	uint64_t sequence;

	return position((struct member *)op, &sequence) ? PyLong_FromUnsignedLongLong(sequence) : NULL;
}

static PyObject *get_hold(PyObject *op, void *Py_UNUSED(closure))
{
	struct member *self = (struct member *)op;
	uint64_t hold;

	if (!member_usable(self))
		return NULL;
	hold = shmring_member_hold(self->core);
	if (hold == UINT64_MAX)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(hold);
}

static PyObject *get_lag(PyObject *op, void *Py_UNUSED(closure))
{
	struct member *self = (struct member *)op;
	uint64_t sequence;
	uint64_t claimed;

	if (!position(self, &sequence))
		return NULL;
	claimed = shmring_claimed(self->handle.ring->core);
	return PyLong_FromUnsignedLongLong(claimed > sequence ? claimed - sequence : 0);
}

static PyObject *get_closed(PyObject *op, void *Py_UNUSED(closure))
{
	return PyBool_FromLong(((struct member *)op)->handle.closed);
}

static PyObject *member_repr(PyObject *op)
{
	struct member *self = (struct member *)op;

	return PyUnicode_FromFormat("<shmring.Consumer \"%U\" of ring \"%U\"%s>", self->branch,
				    self->handle.ring->label, self->handle.closed ? ", closed" : "");
}

PyDoc_STRVAR(pop_doc, "pop($self, *, timeout=None)\n--\n\n"
		      "Take one message as bytes; it is released at once.\n\n"
		      "Parameters\n----------\n"
		      "timeout : seconds to wait for a message; None waits for ever, 0 does not wait\n\n"
		      "Raises\n------\n"
		      "Empty : no message in time\n"
		      "EndOfStream : the stream has ended; the next call goes on behind the end\n"
		      "Lapsed : the branch was too slow and lost messages; the next call goes on behind them\n"
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
    {"pop", FASTCALL(member_pop), METH_FASTCALL | METH_KEYWORDS, pop_doc},
    {"lease", FASTCALL(member_lease), METH_FASTCALL | METH_KEYWORDS, lease_doc},
    {"lease_many", FASTCALL(member_lease_many), METH_FASTCALL | METH_KEYWORDS, lease_many_doc},
    {"next", member_next, METH_NOARGS,
     "next($self, /)\n--\n\nTake one message: its sequence, -1 (empty) or -2 (lost a race)."},
    {"done", member_done, METH_O,
     "done($self, sequence, /)\n--\n\nRelease it; on an exclusive branch everything up to it."},
    {"available", member_available, METH_NOARGS,
     "available($self, /)\n--\n\nHow far an exclusive branch may be read without asking again (exclusive)."},
    {"slot", member_slot, METH_O,
     "slot($self, sequence, /)\n--\n\nThe 300 bytes of a slot, read-only. Yours until done()."},
    {"close", member_close, METH_NOARGS,
     "close($self, /)\n--\n\nLeave the branch, as soon as the last lease is released."},
    {"abandon", member_abandon, METH_NOARGS,
     "abandon($self, /)\n--\n\nLeave as if this process had died: what is leased and not released yet is\n"
     "delivered again, to the branch's other consumers or to the next one."},
    {"hear_ends", member_hear_ends, METH_O,
     "hear_ends($self, since, /)\n--\n\nBe told of the ends of the stream that came since the branch had come to\n"
     "`since` of them, as if this consumer had joined then (see \"ends\" in Ring.branches()). Before the\n"
     "first message is taken."},
    {"__enter__", handle_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(member_exit), METH_FASTCALL, NULL},
    {0},
};

static PyObject *get_end_markers(PyObject *op, void *Py_UNUSED(closure))
{
	return PyBool_FromLong(((struct member *)op)->end_markers);
}

static int set_end_markers(PyObject *op, PyObject *value, void *Py_UNUSED(closure))
{
	struct member *self = (struct member *)op;
	int wanted = value ? PyObject_IsTrue(value) : 0;

	if (wanted < 0)
		return -1;
	self->end_markers = wanted;
	handle_pin(&self->handle);
	if (self->core)
		shmring_member_take_ends(self->core, wanted);
	handle_unpin(&self->handle);
	return 0;
}

static PyGetSetDef getset[] = {
    {"branch", get_branch, NULL, "name of the branch", NULL},
    {"branch_id", get_branch_id, NULL, "number of the branch", NULL},
    {"position", get_position, NULL, "next sequence that the branch will take", NULL},
    {"hold", get_hold, NULL, "lowest sequence that this consumer holds, or None", NULL},
    {"lag", get_lag, NULL, "slots between the branch's position and the producers' claim", NULL},
    {"end_markers", get_end_markers, set_end_markers,
     "whether an end marker that this consumer comes to first is a message of kind 2, for who passes\n"
     "messages on; else it is EndOfStream",
     NULL},
    {"closed", get_closed, NULL, "whether close() was called", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, member_dealloc},
    {Py_tp_repr, member_repr},
    {Py_tp_iter, member_iter},
    {Py_tp_iternext, member_iternext},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_doc, "A member of a branch; made by Ring.consumer(). Iterating it pops bytes until the stream ends.\n"
		"Threads may share it: an end ends the loop, and the call that waits, of each of them."},
    {0, NULL},
};

PyType_Spec member_spec = {
    .name = "shmring.Consumer",
    .basicsize = sizeof(struct member),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
