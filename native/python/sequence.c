/* The low-level calls: next(), done(), available() and slot() of producers and consumers. */
#include "handle.h"

static PyObject *slot(PyObject *op, uint64_t sequence, bool readonly)
{
	struct ring *ring = ring_of((struct handle *)op);

	return view_new(ring->state, op, &ring->handle, shmring_slot(ring->core, sequence), SHMRING_SLOT_BYTES,
			readonly);
}

/* --- producers ----------------------------------------------------------------------- */

static bool low_level_usable(struct producer *self)
{
	if (!producer_usable(self))
		return false;
	if (!producer_busy(self))
		return true;
	PyErr_Format(error_class(ring_of(&self->handle)->state, SHMRING_E_CLAIM_OPEN),
		     "another thread is pushing through this producer of ring \"%U\"",
		     ring_of(&self->handle)->label);
	return false;
}

PyObject *producer_next(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
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
		return raise_status(ring_of(&self->handle), (int)sequence);
	return PyLong_FromLongLong(sequence);
}

PyObject *producer_done(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
	struct producer *self = (struct producer *)op;
	uint64_t last;
	uint64_t length = SHMRING_SLOT_BYTES;

	if (nargs < 1 || nargs > 2)
		return PyErr_Format(PyExc_TypeError, "done() takes a sequence and a length (%zd given)", nargs);
	if (!parse_count(args[0], "sequence", INT64_MAX, &last) ||
	    (nargs == 2 && !parse_count(args[1], "length", SHMRING_SLOT_BYTES, &length)) ||
	    !low_level_usable(self))
		return NULL;
	return result_of(ring_of(&self->handle), shmring_publish_ones(self->core, last, NULL, (uint32_t)length));
}

PyObject *producer_abort(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct producer *self = (struct producer *)op;

	return low_level_usable(self) ? result_of(ring_of(&self->handle), shmring_abort(self->core)) : NULL;
}

PyObject *producer_available(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct producer *self = (struct producer *)op;
	int64_t end;

	if (!low_level_usable(self))
		return NULL;
	end = shmring_producer_available(self->core);
	return end < 0 ? raise_status(ring_of(&self->handle), (int)end) : PyLong_FromLongLong(end);
}

PyObject *producer_slot(PyObject *op, PyObject *number)
{
	uint64_t sequence;

	return parse_count(number, "sequence", INT64_MAX, &sequence) && producer_usable((struct producer *)op)
		   ? slot(op, sequence, false)
		   : NULL;
}

/* --- consumers ------------------------------------------------------------------------- */

static bool taken_add(struct consumer *self, uint64_t sequence, const struct shmring_lease *lease)
{
	if (self->taken_count == self->taken_room) {
		size_t room = self->taken_room ? 2 * self->taken_room : 16;
		struct taken *more = PyMem_Realloc(self->taken, room * sizeof *more);

		if (!more) {
			PyErr_NoMemory();
			return false;
		}
		self->taken = more;
		self->taken_room = room;
	}
	self->taken[self->taken_count++] = (struct taken){sequence, lease->first, lease->end};
	return true;
}

/* Records a message that was taken, for done(). Returns false, with an exception, after an error: a message that
 * cannot be read is then released, any other message is handed back. */
static bool keep(struct consumer *self, const struct shmring_lease *lease, int64_t *sequence)
{
	struct ring *ring = ring_of(&self->handle);
	struct shmring_message message;
	uint64_t position = lease->first;
	int status = shmring_read(ring->core, &position, lease->end, &message);
	bool kept;

	handle_pin(&self->handle);
	kept = status == SHMRING_OK && taken_add(self, message.message_id, lease);
	if (kept) {
		*sequence = (int64_t)message.message_id;
	} else if (status) {
		raise_not_read(ring, status, position);
		(void)shmring_release(self->core, lease->first, lease->end);
	} else {
		(void)consumer_hand_back(self, lease->first, lease->end);
	}
	(void)handle_unpin(&self->handle);
	return kept;
}

/* Takes up to `messages` messages. Sets *sequence to the sequence of the first message taken, or to
 * SHMRING_UNAVAILABLE or SHMRING_CONTENDED. Returns false if an exception is set. */
static bool take_run(struct consumer *self, uint32_t messages, uint64_t slots, int64_t *sequence)
{
	struct ring *ring = ring_of(&self->handle);
	struct shmring_lease lease;
	int status = shmring_take(self->core, messages, slots, &lease);

	/* next() never returns SHMRING_CONTENDED for an exclusive branch, because its consumer has no rival. The
	 * core may return it all the same, e.g. if the push of a dead letter loses a race. */
	if (status == SHMRING_CONTENDED && self->exclusive)
		status = SHMRING_UNAVAILABLE;
	*sequence = status;
	if (status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED)
		return true;
	if (status == SHMRING_OK)
		return keep(self, &lease, sequence);
	if (status == SHMRING_OVERRUN) {
		raise_overrun(self);
	} else if (status == SHMRING_ENDED) {
		consumer_ended(self);
		raise_end(self);
	} else {
		raise_status(ring, status);
	}
	return false;
}

PyObject *consumer_next(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct consumer *self = (struct consumer *)op;
	int64_t sequence;

	if (!consumer_usable(self) || !take_run(self, 1, 1, &sequence))
		return NULL;
	return PyLong_FromLongLong(sequence);
}

static bool release_run(struct consumer *self, size_t i)
{
	struct taken t = self->taken[i];
	int status;

	self->taken[i] = self->taken[--self->taken_count];
	status = status_of_taken(shmring_release(self->core, t.first, t.end));
	if (status)
		raise_status(ring_of(&self->handle), status);
	return status == SHMRING_OK;
}

static PyObject *not_taken(struct consumer *self, uint64_t sequence)
{
	return PyErr_Format(
	    PyExc_ValueError,
	    "branch \"%U\" of ring \"%U\": sequence %llu was not taken by next(), or is done already",
	    self->branch, ring_of(&self->handle)->label, (unsigned long long)sequence);
}

/* Releases all messages of an exclusive consumer up to `last`. The program may also have read messages after the
 * one from next(), up to available(). These messages are not taken yet. This function takes them first, because
 * only taken messages can be released. */
static PyObject *done_exclusive(struct consumer *self, uint64_t last)
{
	struct shmring_branch_info info;
	bool taken = false;
	uint64_t end = 0;
	int64_t sequence;
	int status;

	for (size_t i = 0; i < self->taken_count; i++) {
		taken |= self->taken[i].first <= last;
		if (self->taken[i].end > end)
			end = self->taken[i].end;
	}
	if (!taken) { /* raise if `last` lies before the branch's position: its message was released before */
		status = shmring_branch_info(ring_of(&self->handle)->core, self->branch_id, &info);
		if (status)
			return raise_status(ring_of(&self->handle), status);
		if (last < info.position)
			return not_taken(self, last);
	}
	while (end <= last) {
		uint64_t slots = end ? last + 1 - end : 1;

		if (!take_run(self, slots > UINT32_MAX ? UINT32_MAX : (uint32_t)slots, slots, &sequence))
			return NULL;
		if (sequence < 0)
			return not_taken(self, last);
		end = self->taken[self->taken_count - 1].end;
	}
	for (size_t i = self->taken_count; i-- > 0;)
		if (self->taken[i].first <= last && !release_run(self, i))
			return NULL;
	Py_RETURN_NONE;
}

PyObject *consumer_done(PyObject *op, PyObject *number)
{
	struct consumer *self = (struct consumer *)op;
	uint64_t sequence;

	if (!parse_count(number, "sequence", INT64_MAX, &sequence) || !consumer_usable(self))
		return NULL;
	if (self->exclusive)
		return done_exclusive(self, sequence);
	for (size_t i = self->taken_count; i-- > 0;)
		if (self->taken[i].first <= sequence && sequence < self->taken[i].end) {
			if (!release_run(self, i))
				return NULL;
			Py_RETURN_NONE;
		}
	return not_taken(self, sequence);
}

PyObject *consumer_available(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	struct consumer *self = (struct consumer *)op;

	if (!consumer_usable(self))
		return NULL;
	if (!self->exclusive)
		return PyErr_Format(
		    PyExc_ValueError,
		    "branch \"%U\" of ring \"%U\": available() wants an exclusive branch, which has one "
		    "consumer at a time",
		    self->branch, ring_of(&self->handle)->label);
	/* The program reads a message at each sequence before the result. If next() has just taken a message of
	 * several slots, the result is the sequence of its second slot, because no message begins there. */
	if (self->taken_count) {
		const struct taken *last = &self->taken[self->taken_count - 1];

		if (last->end - last->sequence > 1)
			return PyLong_FromUnsignedLongLong(last->sequence + 1);
	}
	return PyLong_FromUnsignedLongLong(shmring_consumer_available(self->core));
}

PyObject *consumer_slot(PyObject *op, PyObject *number)
{
	uint64_t sequence;

	return parse_count(number, "sequence", INT64_MAX, &sequence) && consumer_usable((struct consumer *)op)
		   ? slot(op, sequence, true)
		   : NULL;
}
