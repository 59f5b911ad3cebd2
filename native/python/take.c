/* Calls that take messages: pop(), lease(), lease_many(), iteration. */
#include <string.h>

#include "handle.h"

/* --- trying again ------------------------------------------------------------------ */

void raise_overrun(struct consumer *self)
{
	uint64_t first;
	uint64_t end;

	shmring_consumer_overrun(self->core, &first, &end);
	raise_with(ring_of(&self->handle)->state->overrun,
		   Py_BuildValue("(NKK)", error_text(), (unsigned long long)first, (unsigned long long)(end - 1)));
}

/* Raises for a message that was there when it was taken and cannot be read now. */
void raise_not_read(struct ring *ring, int status, uint64_t position)
{
	if (status == SHMRING_UNAVAILABLE)
		PyErr_Format(
		    error_class(ring->state, SHMRING_E_DAMAGED),
		    "ring \"%U\": a message at or before %llu was there when it was taken, and is not any "
		    "more; something has written over the ring",
		    ring->label, (unsigned long long)position);
	else
		raise_status(ring, status);
}

static int wait_message(struct handle *handle, uint64_t Py_UNUSED(wanted), int64_t deadline)
{
	struct consumer *self = (struct consumer *)handle;
	int64_t begun = monotonic_ns();
	int status = shmring_wait_message(self->core, deadline, self->wait);

	/* Add atomically: several threads may wait with this consumer, and no thread has the GIL here. */
	__atomic_fetch_add(&self->waited_ns, monotonic_ns() - begun, __ATOMIC_RELAXED);
	return status;
}

/* Decides how to go on after shmring_take() returned `status`: retry, give up, or raise. */
static enum retry consumer_retry(struct consumer *self, int status, struct wait_state *waiting)
{
	enum retry retry;

	if (status == SHMRING_OVERRUN) {
		raise_overrun(self);
		return RETRY_RAISED;
	}
	retry = handle_retry(&self->handle, status, waiting, wait_message, 0);
	/* Wake another consumer: this thread may have been woken for a message, which it does not take. */
	if (retry == RETRY_RAISED && !self->handle.closed)
		shmring_consumer_decline(self->core);
	return retry != RETRY_RAISED && !consumer_usable(self) ? RETRY_RAISED : retry;
}

void raise_empty(struct consumer *self, int64_t timeout)
{
	struct ring *ring = ring_of(&self->handle);
	char reason[EXPLANATION_BYTES];
	PyObject *seconds;

	if (timeout == 0) { /* do not search for the holder: a program may poll in a hot loop */
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

PyObject *raise_end(struct consumer *self)
{
	return PyErr_Format(ring_of(&self->handle)->state->end_of_stream,
			    "the stream has ended: branch \"%U\" of ring \"%U\" has reached an end marker",
			    self->branch, ring_of(&self->handle)->label);
}

/* Counts an end of the stream, for all threads that share this consumer: the core reports an end to only one of
 * them. The core wakes the threads in pop() and the like, which then look at `ends`. Threads that wait for several
 * handles, as an event loop's thread does, are interrupted here: the interrupt lasts until one of these threads
 * has ended its wait (answer_call() in wait.c). */
void consumer_ended(struct consumer *self)
{
	self->ends++;
	if (self->handle.awaited == 0)
		return;
	self->calls = true;
	shmring_consumer_interrupt(self->core, true);
}

/* Raises EndOfStream if the consumer's number of ends is no longer `ends`. Before that, passes a wake-up of this
 * thread on to another consumer: the wake-up may have been for a message, which this thread does not take. */
static PyObject *raise_ended(struct consumer *self, uint64_t ends)
{
	if (!consumer_usable(self))
		return NULL;
	if (self->ends == ends)
		Py_RETURN_NONE;
	shmring_consumer_decline(self->core);
	return raise_end(self);
}

/* --- taking ------------------------------------------------------------------------ */

enum taking {
	TAKING_RAISED,
	TAKING_END, /* an end marker; nothing is held */
	TAKING_DONE,
};

/* Takes one message and describes it in `message`. If `message` is NULL, takes up to `messages` messages without
 * reading them: a damaged message among them is reported when the batch is read, and the others are not lost. */
static inline int take_now(struct consumer *self, uint32_t messages, struct shmring_lease *lease,
			   struct shmring_message *message)
{
	return message ? shmring_take_one(self->core, lease, message)
		       : shmring_take(self->core, messages, self->max_slots ? self->max_slots : UINT64_MAX, lease);
}

/* Goes on after a first try to take, which returned `status`. `ends` is the value of self->ends before that try.
 * The core tells only one thread of an end; another thread notices the end because self->ends is no longer `ends`.
 */
static enum taking take_on(struct consumer *self, uint32_t messages, int64_t timeout, uint64_t ends, int status,
			   struct shmring_lease *lease, struct shmring_message *message)
{
	struct wait_state waiting = {.timeout = timeout};
	enum retry retry;

	while (status) {
		if (status == SHMRING_ENDED) {
			consumer_ended(self);
			return TAKING_END;
		}
		retry = consumer_retry(self, status, &waiting);
		if (retry == RETRY_OVER)
			raise_empty(self, timeout);
		if (retry != RETRY_AGAIN)
			return TAKING_RAISED;
		if (self->ends != ends) {
			shmring_consumer_decline(self->core);
			return TAKING_END;
		}
		status = take_now(self, messages, lease, message);
	}
	return TAKING_DONE;
}

static bool parse_only_timeout(struct consumer *self, const char *function, PyObject *const *args,
			       Py_ssize_t nargs, PyObject *kwnames, int64_t *timeout)
{
	PyObject *const order[] = {ring_of(&self->handle)->state->names.timeout};
	PyObject *sorted[1] = {NULL};

	return arguments_sort(function, NULL, args, nargs, kwnames, order, 0, 1, sorted) &&
	       (!sorted[0] || parse_timeout(sorted[0], timeout));
}

/* Copies a large message without the GIL: the lease keeps the message where it is. */
__attribute__((noinline)) static PyObject *copy_large(const struct shmring_message *message)
{
	PyObject *bytes = PyBytes_FromStringAndSize(NULL, message->length);
	char *to = bytes ? PyBytes_AsString(bytes) : NULL;

	if (!bytes)
		return NULL;
	Py_BEGIN_ALLOW_THREADS memcpy(to, message->data, message->length);
	Py_END_ALLOW_THREADS return bytes;
}

/* Returns a taken message as bytes, and releases it. */
static inline PyObject *copy_out(struct consumer *self, const struct shmring_lease *lease,
				 const struct shmring_message *message)
{
	PyObject *bytes;

	handle_pin(&self->handle); /* another thread may close the consumer meanwhile, also during a hand-back */
	bytes = __builtin_expect(message->length >= GIL_FREE_BYTES, 0)
		    ? copy_large(message)
		    : PyBytes_FromStringAndSize(message->data, message->length);
	if (__builtin_expect(bytes != NULL, 1))
		(void)shmring_release(self->core, lease->first, lease->end);
	else
		(void)consumer_hand_back(self, lease->first, lease->end);
	(void)handle_unpin(&self->handle);
	return bytes;
}

/* Takes a message, releases it, and returns it as bytes; NULL without an exception at an end marker. self->ends is
 * still the value from before the first try, because no other thread runs during that try. */
static inline PyObject *pop_bytes(struct consumer *self, int64_t timeout)
{
	struct shmring_lease lease;
	struct shmring_message message;
	int status;

	status = shmring_take_one(self->core, &lease, &message);
	if (__builtin_expect(status, 0) &&
	    take_on(self, 1, timeout, self->ends, status, &lease, &message) != TAKING_DONE)
		return NULL;
	return copy_out(self, &lease, &message);
}

static inline PyObject *pop_or_raise(struct consumer *self, int64_t timeout)
{
	PyObject *bytes = consumer_usable(self) ? pop_bytes(self, timeout) : NULL;

	return bytes || PyErr_Occurred() ? bytes : raise_end(self);
}

/* pop() with a timeout. */
__attribute__((noinline)) static PyObject *pop_within(struct consumer *self, PyObject *const *args,
						      Py_ssize_t nargs, PyObject *kwnames)
{
	int64_t timeout = FOREVER;

	return parse_only_timeout(self, "pop", args, nargs, kwnames, &timeout) ? pop_or_raise(self, timeout)
									       : NULL;
}

PyObject *consumer_pop(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct consumer *self = (struct consumer *)op;

	return __builtin_expect(nargs || kwnames, 0) ? pop_within(self, args, nargs, kwnames)
						     : pop_or_raise(self, FOREVER);
}

/* Nanoseconds for which an event loop's call spins for a message, if the consumer's wait strategy spins and the
 * last poll before a wait found a message. A choice, a twentieth of _TRIAL in event_loop.py. */
#define SPIN_NS 5000

/* CHANGE: edit this for a new wait strategy */
static bool spins(const struct consumer *self)
{
	return self->handle.misses == 0 && shmring_describe_wait(self->wait)->look <= SHMRING_LOOK_YIELD;
}

/* Takes for an event loop. Returns a message; None if there is none; Ellipsis if other tasks have to run first. */
static PyObject *take_in_turn(struct consumer *self, uint64_t ends)
{
	struct wait_state waiting = {.timeout = 0};
	struct shmring_lease lease;
	struct shmring_message message;
	bool spun = !spins(self);
	int status;

	if (!consumer_usable(self))
		return NULL;
	if (self->ends != ends)
		return raise_ended(self, ends);
	if (++self->handle.streak > STREAK) {
		self->handle.streak = 0;
		return Py_NewRef(Py_Ellipsis);
	}
	while ((status = shmring_take_one(self->core, &lease, &message))) {
		enum retry retry;

		if (status == SHMRING_ENDED) {
			consumer_ended(self);
			return raise_end(self);
		}
		if (status == SHMRING_UNAVAILABLE && !spun) {
			spun = true;
			(void)shmring_wait_message(self->core, deadline_after(SPIN_NS), SHMRING_WAIT_SPIN);
			continue;
		}
		retry = consumer_retry(self, status, &waiting);
		if (retry == RETRY_RAISED)
			return NULL;
		if (retry == RETRY_OVER) {
			self->handle.streak = 0;
			Py_RETURN_NONE;
		}
	}
	return copy_out(self, &lease, &message);
}

/* ends_of(consumer): returns how many ends of the stream the core has reported to the consumer. */
PyObject *consumer_ends_of(PyObject *module, PyObject *op)
{
	struct state *state = PyModule_GetState(module);

	if (!PyObject_TypeCheck(op, state->consumer))
		return PyErr_Format(PyExc_TypeError, "ends_of() takes a consumer");
	return PyLong_FromUnsignedLongLong(((struct consumer *)op)->ends);
}

/* check_ends(consumer, ends): raises EndOfStream if ends_of(consumer) is no longer `ends`. */
PyObject *consumer_check_ends(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	struct state *state = PyModule_GetState(module);
	uint64_t ends;

	if (nargs != 2 || !PyObject_TypeCheck(args[0], state->consumer))
		return PyErr_Format(PyExc_TypeError, "check_ends() takes a consumer and its ends");
	ends = PyLong_AsUnsignedLongLong(args[1]);
	return PyErr_Occurred() ? NULL : raise_ended((struct consumer *)args[0], ends);
}

/* take_now(consumer, ends): takes for an event loop; `ends` is ends_of(consumer) when the wait began, or None. */
PyObject *consumer_take_now(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	struct state *state = PyModule_GetState(module);
	struct consumer *self;
	uint64_t ends;

	if (nargs != 2 || !PyObject_TypeCheck(args[0], state->consumer))
		return PyErr_Format(PyExc_TypeError, "take_now() takes a consumer and its ends");
	self = (struct consumer *)args[0];
	ends = Py_IsNone(args[1]) ? self->ends : PyLong_AsUnsignedLongLong(args[1]);
	return ends == UINT64_MAX && PyErr_Occurred() ? NULL : take_in_turn(self, ends);
}

PyObject *consumer_iternext(PyObject *op)
{
	struct consumer *self = (struct consumer *)op;

	return consumer_usable(self) ? pop_bytes(self, FOREVER) : NULL;
}

/* Iterates until the next end marker: every loop over a consumer ends there, even if threads share the
 * consumer. */
PyObject *consumer_iter(PyObject *op)
{
	struct consumer *self = (struct consumer *)op;

	return iterator_new(ring_of(&self->handle)->state->consumer_iterator, op, self->ends);
}

static PyObject *consumer_iterator_next(PyObject *op)
{
	const struct iterator *self = (const struct iterator *)op;
	struct consumer *consumer = (struct consumer *)self->over;

	if (!consumer_usable(consumer) || consumer->ends != self->number)
		return NULL;
	return pop_bytes(consumer, FOREVER);
}

static PyType_Slot iterator_slots[] = {
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, consumer_iterator_next},
    {0, NULL},
};

PyType_Spec consumer_iterator_spec = MADE_HERE("shmring.ConsumerIterator", struct iterator, iterator_slots);

/* Returns a Lease of one message, or a Batch of up to `messages`. */
static PyObject *take_lease(struct consumer *self, PyTypeObject *type, uint32_t messages, int64_t timeout)
{
	bool batch = type == ring_of(&self->handle)->state->batch;
	struct shmring_lease range;
	struct shmring_message message = {0};
	uint64_t ends = self->ends;
	int status = take_now(self, messages, &range, batch ? NULL : &message);
	PyObject *lease;

	switch (status ? take_on(self, messages, timeout, ends, status, &range, batch ? NULL : &message)
		       : TAKING_DONE) {
	case TAKING_RAISED:
		return NULL;
	case TAKING_END:
		return raise_end(self);
	case TAKING_DONE:
		break;
	}
	handle_pin(&self->handle);
	lease = lease_new(self, type, &range);
	if (lease)
		((struct lease *)lease)->message = message;
	else
		(void)consumer_hand_back(self, range.first, range.end);
	(void)handle_unpin(&self->handle);
	return lease;
}

PyObject *consumer_lease(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct consumer *self = (struct consumer *)op;
	int64_t timeout = FOREVER;

	if (((nargs || kwnames) && !parse_only_timeout(self, "lease", args, nargs, kwnames, &timeout)) ||
	    !consumer_usable(self))
		return NULL;
	return take_lease(self, ring_of(&self->handle)->state->lease, 1, timeout);
}

PyObject *consumer_lease_many(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct consumer *self = (struct consumer *)op;
	const struct names *names = &ring_of(&self->handle)->state->names;
	PyObject *const order[] = {names->max_messages, names->timeout};
	PyObject *sorted[2] = {NULL};
	int64_t timeout = FOREVER;
	uint64_t messages;

	if (!arguments_sort("lease_many", "the largest number of messages", args, nargs, kwnames, order, 1, 2,
			    sorted) ||
	    !parse_count(sorted[0], "max_messages", INT64_MAX, &messages) ||
	    (sorted[1] && !parse_timeout(sorted[1], &timeout)) || !consumer_usable(self))
		return NULL;
	if (messages == 0) {
		PyErr_SetString(PyExc_ValueError, "max_messages must be at least 1, not 0");
		return NULL;
	}
	return take_lease(self, ring_of(&self->handle)->state->batch,
			  messages > UINT32_MAX ? UINT32_MAX : (uint32_t)messages, timeout);
}
