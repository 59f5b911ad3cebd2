/* Handles: how they close while calls are under way, and how calls try again without the GIL. */
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "handle.h"

/* Number of retries after lost races before the call lets other threads run. The call retries first because a
 * retry is likely to succeed, and takes less time than giving up the GIL. The number is a choice. */
#define CONTENDED_SPIN 32
/* Nanoseconds for which a call retries after lost races even if its timeout is over, or was 0: a lost race does
 * not mean that the ring is full or empty. A choice: far more than a race lasts. */
#define CONTENDED_GRACE_NS 10000000
/* Maximum number of naps, 50 us each (0.1 s together), in which close() waits until other threads unpin the
 * handle. */
#define MOST_NAPS 2000

static int nap(struct handle *Py_UNUSED(handle), uint64_t Py_UNUSED(wanted), int64_t Py_UNUSED(deadline))
{
	return nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* --- lifetime ---------------------------------------------------------------------- */

/* Makes a producer or a consumer, closed until handle_opened(). */
struct handle *handle_new(PyTypeObject *type, size_t nbytes, struct ring *ring, int (*finish)(struct handle *))
{
	struct handle *handle = PyObject_New(struct handle, type);

	if (!handle)
		return NULL;
	memset((char *)handle + sizeof(PyObject), 0, nbytes - sizeof(PyObject));
	handle_init(handle, &ring->handle, finish);
	handle->closed = true;
	return handle;
}

static void unlink_above(struct handle *handle)
{
	if (!handle->link)
		return;
	*handle->link = handle->next;
	if (handle->next)
		handle->next->link = handle->link;
	handle->link = NULL;
}

/* Finishes the opening of a handle. `status` is the result of the core, which opened the handle without the GIL.
 * Returns false, with an exception, if the core failed; the handle is freed then. The caller has pinned the ring,
 * but another thread may have closed the ring while the core ran: the new handle is then closed, too. */
bool handle_opened(struct handle *handle, int status)
{
	struct handle *below = handle->below;

	if (status) {
		raise_status(ring_of(handle), status);
		(void)handle_unpin(below);
		Py_DECREF((PyObject *)handle);
		return false;
	}
	handle->closed = false;
	handle->next = below->above;
	if (handle->next)
		handle->next->link = &handle->next;
	below->above = handle;
	handle->link = &below->above;
	if (below->closed) /* closed while the core ran: close_above() did not see this handle yet */
		(void)handle_close(handle);
	return true;
}

int handle_finish(struct handle *handle)
{
	int status = handle->finish(handle);

	if (handle->below)
		(void)handle_unpin(handle->below);
	return status;
}

static void free_memory(struct handle *handle)
{
	Py_XDECREF((PyObject *)handle->below);
	object_free((PyObject *)handle);
}

/* Closes the handles in the list `above`: a ring's producers and consumers. While a handle closes, another thread
 * may drop the last reference to the handle. `visited` then keeps handle_free() from freeing the memory, and this
 * function frees the memory afterwards. (A reference taken here would come too late if the handle is already being
 * freed.) */
static void close_above(struct handle *handle)
{
	struct handle *above;

	while ((above = handle->above)) {
		unlink_above(above);
		above->visited = true;
		(void)handle_close(above);
		above->visited = false;
		if (above->collected)
			free_memory(above);
	}
}

/* Lets close() wait until other threads in wait_for_any() have unpinned this handle. Only the last unpin closes
 * the core's handle, and so leaves the branch. If close() returned earlier, a program that joins an exclusive
 * branch again right after close() would be refused. */
static void stand_by_for_waiters(struct handle *handle)
{
	for (int i = 0; i < MOST_NAPS && handle->awaited && handle->awaited_in == getpid(); i++)
		(void)handle_wait(handle, nap, 0, 0);
}

int handle_shut(struct handle *handle)
{
	handle->closed = true;
	if (handle->interrupt && handle->pins > 1) {
		handle->interrupt(handle);
		stand_by_for_waiters(handle);
	}
	unlink_above(handle);
	close_above(handle);
	return handle_unpin(handle);
}

void handle_free(struct handle *handle)
{
	handle->collected = true;
	if (!handle->visited)
		free_memory(handle);
}

void handle_dealloc(PyObject *self)
{
	(void)handle_close((struct handle *)self);
	handle_free((struct handle *)self);
}

/* Warns that the program dropped an object that it had to close. Keeps an exception that is being raised. The
 * object is being freed, so the warning cannot refer to it, and an exception that a filter makes of the warning
 * cannot be raised. */
void warn_dropped(const PyObject *dropped, const char *format, ...)
{
	PyObject *type, *value, *traceback, *text;
	va_list arguments;

	PyErr_Fetch(&type, &value, &traceback);
	va_start(arguments, format);
	text = PyUnicode_FromFormatV(format, arguments);
	va_end(arguments);
	if (!text || PyErr_WarnFormat(PyExc_ResourceWarning, 1, "%U", text))
		PyErr_WriteUnraisable((PyObject *)Py_TYPE(dropped));
	Py_XDECREF(text);
	PyErr_Restore(type, value, traceback);
}

PyObject *handle_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
	return Py_NewRef(self);
}

PyObject *handle_close_method(PyObject *self, PyObject *Py_UNUSED(ignored))
{
	(void)handle_close((struct handle *)self);
	Py_RETURN_NONE;
}

PyObject *handle_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
	return handle_close_method(self, NULL);
}

/* Pins a ring that is open; else raises Closed. */
bool ring_hold(struct ring *ring)
{
	if (ring->handle.closed)
		return raise_closed(&ring->handle, "handle");
	handle_pin(&ring->handle);
	return true;
}

bool ring_is_pinned(const struct ring *ring)
{
	return ring->unregister && ring->pinned_in == getpid();
}

PyObject *raise_closed(const struct handle *handle, const char *what)
{
	const struct ring *ring = handle->below ? ring_of(handle) : (const struct ring *)handle;

	return PyErr_Format(error_class(ring->state, SHMRING_E_CLOSED), "this %s of ring \"%U\" was closed%s",
			    what, ring->label, handle->below ? "" : "; attach again");
}

/* --- iteration ------------------------------------------------------------------------ */

PyObject *iterator_new(PyTypeObject *type, PyObject *over, uint64_t number)
{
	struct iterator *self = PyObject_New(struct iterator, type);

	if (!self)
		return NULL;
	self->over = Py_NewRef(over);
	self->number = number;
	return (PyObject *)self;
}

void iterator_dealloc(PyObject *op)
{
	Py_DECREF(((struct iterator *)op)->over);
	object_free(op);
}

/* --- trying again, without the GIL --------------------------------------------------- */

int64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t deadline_after(int64_t timeout)
{
	int64_t now;

	if (timeout == FOREVER)
		return FOREVER;
	now = monotonic_ns();
	return timeout > FOREVER - now ? FOREVER : now + timeout;
}

static int yield(struct handle *Py_UNUSED(handle), uint64_t Py_UNUSED(wanted), int64_t Py_UNUSED(deadline))
{
	return sched_yield();
}

/* Sleeps a moment without the GIL, so that the thread or process that stands in the way can go on: a thread that
 * copies a large message, or a process that holds the admin lock. */
void handle_pause(struct handle *handle)
{
	(void)handle_wait(handle, nap, 0, 0);
}

int handle_wait(struct handle *handle, wait_function *wait, uint64_t wanted, int64_t deadline)
{
	int status;

	handle_pin(handle);
	Py_BEGIN_ALLOW_THREADS status = wait(handle, wanted, deadline);
	Py_END_ALLOW_THREADS(void) handle_unpin(handle);
	return status;
}

/* Decides how to go on after a wait of the core returned `status`. If the handle was closed during the wait,
 * returns RETRY_AGAIN for any status: the caller then finds the handle closed, and raises Closed. An error of the
 * core is not raised then, because closing the handle may have overwritten the core's text about the error. */
enum retry handle_waited(struct handle *handle, int status)
{
	if (handle->closed)
		return RETRY_AGAIN;
	if (status != SHMRING_OK && status != SHMRING_AGAIN && status != SHMRING_TIMEOUT &&
	    status != SHMRING_UNAVAILABLE) {
		raise_status(ring_of(handle), status);
		return RETRY_RAISED;
	}
	if (PyErr_CheckSignals())
		return RETRY_RAISED;
	return status == SHMRING_TIMEOUT ? RETRY_OVER : RETRY_AGAIN;
}

/* Decides how to go on after a lost race. The winner has done its work, so the next try is likely to
 * succeed; after every CONTENDED_SPIN tries other threads get the GIL. */
static enum retry retry_contended(struct handle *handle, struct wait_state *waiting)
{
	int64_t now;

	if (++waiting->contended % CONTENDED_SPIN)
		return RETRY_AGAIN;
	now = deadline_after(0);
	if (waiting->deadline == 0)
		waiting->deadline = deadline_after(waiting->timeout);
	if (waiting->contended == CONTENDED_SPIN)
		waiting->grace = now + CONTENDED_GRACE_NS;
	else if (now > waiting->grace && now > waiting->deadline)
		return RETRY_OVER;
	(void)handle_wait(handle, yield, 0, 0);
	return PyErr_CheckSignals() ? RETRY_RAISED : RETRY_AGAIN;
}

/* Decides how to go on after a call of the core returned the error or refusal `status`. The handle may
 * have been closed when this returns. */
enum retry handle_retry(struct handle *handle, int status, struct wait_state *waiting, wait_function *wait,
			uint64_t wanted)
{
	if (status == SHMRING_UNAVAILABLE && waiting->timeout == 0)
		return RETRY_OVER;
	if (status == SHMRING_CONTENDED)
		return retry_contended(handle, waiting);
	if (status != SHMRING_UNAVAILABLE) {
		raise_status(ring_of(handle), status);
		return RETRY_RAISED;
	}
	if (waiting->deadline == 0)
		waiting->deadline = deadline_after(waiting->timeout);
	return handle_waited(handle, handle_wait(handle, wait, wanted, waiting->deadline));
}
