/* What producers and members have in common: being closed in the middle of
 * things, and waiting without the GIL. */
#include <sched.h>
#include <time.h>

#include "binding.h"

/* Lost races are retried at once so often before others may run. */
#define CONTENDED_SPIN 32
/* Even a call that does not wait tries for as long to get its turn. */
#define CONTENDED_GRACE_NS 10000000

void handle_init(struct handle *handle, struct ring *ring, void (*finish)(struct handle *))
{
	handle->ring = (struct ring *)Py_NewRef((PyObject *)ring);
	handle->finish = finish;
	handle->previous = NULL;
	handle->next = ring->handles;
	if (ring->handles)
		ring->handles->previous = handle;
	ring->handles = handle;
	ring_pin(ring);
}

static void handle_finish(struct handle *handle)
{
	handle->finish(handle);
	ring_unpin(handle->ring);
}

/* Closed for the user at once; the core's handle when its last pin is gone. */
void handle_close(struct handle *handle)
{
	if (handle->closed)
		return;
	handle->closed = true;
	if (handle->previous)
		handle->previous->next = handle->next;
	else
		handle->ring->handles = handle->next;
	if (handle->next)
		handle->next->previous = handle->previous;
	if (handle->pins == 0)
		handle_finish(handle);
}

void handle_unpin(struct handle *handle)
{
	if (--handle->pins == 0 && handle->closed)
		handle_finish(handle);
}

/* After SHMRING_CONTENDED: the winner of a race has done its work, so that the
 * next try is likely to succeed; now and then others get the GIL. */
enum retry handle_contended(struct handle *handle, struct patience *patience)
{
	int64_t now;

	if (++patience->contended % CONTENDED_SPIN)
		return RETRY_AGAIN;
	now = deadline_after(0);
	if (patience->deadline == 0)
		patience->deadline = deadline_after(patience->timeout);
	if (patience->contended == CONTENDED_SPIN)
		patience->grace = now + CONTENDED_GRACE_NS;
	else if (now > patience->grace && now > patience->deadline)
		return RETRY_OVER;
	handle_pin(handle);
	Py_BEGIN_ALLOW_THREADS sched_yield();
	Py_END_ALLOW_THREADS handle_unpin(handle);
	return PyErr_CheckSignals() ? RETRY_RAISED : RETRY_AGAIN;
}

/* After a _wait function has come back and the GIL is held again. */
enum retry handle_waited(struct handle *handle, int status)
{
	if (status != SHMRING_OK && status != SHMRING_AGAIN && status != SHMRING_TIMEOUT &&
	    status != SHMRING_UNAVAILABLE) {
		raise_status(handle->ring, status);
		return RETRY_RAISED;
	}
	if (PyErr_CheckSignals())
		return RETRY_RAISED;
	return status == SHMRING_TIMEOUT ? RETRY_OVER : RETRY_AGAIN;
}

PyObject *handle_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
	return Py_NewRef(self);
}
