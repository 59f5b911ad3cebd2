/* The base of rings, producers, consumers and leases.
 *
 * Lifetimes. A handle stands on another: lease -> consumer -> ring, producer ->
 * ring. It references the one below, so there are no cycles and nothing needs the
 * collector, and pins it until it has finished itself. A handle that the user
 * closes is closed for the user at once; the core's handle stays until the last
 * pin is gone (a thread in a wait, a living lease, an exported buffer). A ring
 * closes its producers and consumers; a lease outlives the closing of its consumer.
 *
 * Threads. The core's producers and consumers want one thread at a time, and the
 * GIL sees to that: a free-threaded Python turns it on when it loads this module.
 * Core calls on a producer or consumer are made with the GIL held, save for
 *   - the _wait functions, which touch no state of the handle;
 *   - copies of a MiB or more, while `busy` keeps other threads out of that
 *     producer (push.c) and the reader holds a lease (take.c);
 *   - what the core locks itself: attach, join, close, recover and the like.
 * A thread pins what it uses before it gives up the GIL, and asks again whether
 * the handle is closed when the GIL is back. Every call of Python that may run
 * code or raise an exception may give the GIL up.
 *
 * Fork. The child's handles are the parent's, and the core refuses them. Calls
 * that other threads of the parent were in never end in the child: pins that
 * nobody gives back keep the mapping until the child ends, and nothing in the
 * child may wait for such a thread.
 */
#ifndef SHMRING_BINDING_HANDLE_H
#define SHMRING_BINDING_HANDLE_H

#include <sys/types.h>

#include "state.h"

struct handle {
	PyObject ob_base;
	struct handle *below; /* what it stands on; NULL: it is a ring */
	struct handle *above; /* the first of those that close with it */
	struct handle *next; /* of those that close with the same handle */
	struct handle **link; /* what points here: `above` or a `next`; NULL: in no such list */
	int (*finish)(struct handle *); /* closes the core's handle; a status */
	void (*interrupt)(struct handle *); /* ends the waits in the core's handle; NULL: nothing waits in it */
	size_t pins; /* one until it is closed, threads without the GIL, handles above, exported memory */
	size_t awaited; /* pins of threads that wait for this one among others */
	pid_t awaited_in; /* the process of the last of them: a child has no such thread */
	bool closed;
	/* Of tasks of an event loop, see wait.c. */
	uint8_t misses; /* tries in a row to await it by asking again and again, all in vain */
	uint8_t skips; /* so many waits without such a try */
	uint16_t streak; /* calls in a row that had not to wait */
	bool visited; /* the ring is closing it, and frees it if it is `collected` meanwhile */
	bool collected;
};

struct ring {
	struct handle handle;
	struct state *state;
	shmring *core;
	PyObject *label; /* how messages call this ring */
	/* Of a GPU's runtime, which has pinned the memory; `unregister` is NULL: it has not. */
	int (*unregister)(void *);
	int (*last_error)(void);
	int pinned_as; /* a DLPack device */
	pid_t pinned_in; /* a child has the mapping, and not the pinning */
};

/* A loop over a consumer or a batch. */
struct iterator {
	PyObject ob_base;
	PyObject *over;
	uint64_t number; /* a consumer's `ends` when the loop began; the batch's next message */
};

/* How long a call goes on trying. */
struct wait_state {
	int64_t timeout; /* ns; 0: one try */
	int64_t deadline; /* 0: not needed yet */
	int64_t grace; /* until then a call does not give up because of lost races */
	unsigned contended;
};

enum retry {
	RETRY_RAISED = -1,
	RETRY_OVER = 0, /* time is up */
	RETRY_AGAIN = 1,
};

/* Calls that need not wait are as many in a row before the loop's other tasks have their turn. */
#define STREAK 256

/* Waits in the core, without the GIL. */
typedef int wait_function(struct handle *handle, uint64_t wanted, int64_t deadline);

/* handle.c */
struct handle *handle_new(PyTypeObject *type, size_t nbytes, struct ring *ring, int (*finish)(struct handle *));
bool handle_opened(struct handle *handle, int status);
int handle_shut(struct handle *handle);
int handle_finish(struct handle *handle);
void handle_free(struct handle *handle);
void handle_dealloc(PyObject *self);
PyObject *handle_enter(PyObject *self, PyObject *ignored);
PyObject *handle_close_method(PyObject *self, PyObject *ignored);
PyObject *handle_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *handle_get_closed(PyObject *self, void *closure);
PyObject *iterator_new(PyTypeObject *type, PyObject *over, uint64_t number);
void iterator_dealloc(PyObject *self);
bool ring_hold(struct ring *ring);
bool ring_is_pinned(const struct ring *ring);
PyObject *raise_closed(const struct handle *handle, const char *what);
int64_t deadline_after(int64_t timeout);
void handle_pause(struct handle *handle);
int handle_wait(struct handle *handle, wait_function *wait, uint64_t wanted, int64_t deadline);
enum retry handle_waited(struct handle *handle, int status);
enum retry handle_retry(struct handle *handle, int status, struct wait_state *waiting, wait_function *wait,
			uint64_t wanted);

static inline void handle_pin(struct handle *handle)
{
	handle->pins++;
}

/* The last pin closes the core's handle. */
static inline int handle_unpin(struct handle *handle)
{
	return --handle->pins ? SHMRING_OK : handle_finish(handle);
}

static inline int handle_close(struct handle *handle)
{
	return handle->closed ? SHMRING_OK : handle_shut(handle);
}

static inline void handle_init(struct handle *handle, struct handle *below, int (*finish)(struct handle *))
{
	handle->below = (struct handle *)Py_XNewRef((PyObject *)below);
	handle->above = NULL;
	handle->link = NULL;
	handle->finish = finish;
	handle->interrupt = NULL;
	handle->pins = 1;
	handle->closed = false;
	handle->awaited = 0;
	handle->misses = 0;
	handle->skips = 0;
	handle->streak = 0;
	handle->visited = false;
	handle->collected = false;
	if (below)
		handle_pin(below);
}

/* The ring of a producer or a consumer. */
static inline struct ring *ring_of(const struct handle *handle)
{
	return (struct ring *)handle->below;
}

static inline PyObject *raise_status(struct ring *ring, int status)
{
	return raise_error(ring->state, status);
}

/* None, or NULL with an exception. */
static inline PyObject *result_of(struct ring *ring, int status)
{
	return status ? raise_status(ring, status) : Py_NewRef(Py_None);
}

/* ring.c */
PyObject *ring_wrap(struct state *state, PyObject *label, shmring *core);
extern PyType_Spec ring_spec;

/* view.c. Views of a lease are in its list while they live. */
struct view;
PyObject *view_of_lease(struct state *state, PyObject *owner, struct handle *lease, const void *data,
			uint64_t nbytes, struct view **list, bool lent);
void views_take_back(struct view **list);
PyObject *view_new(struct state *state, PyObject *owner, struct handle *pinned, const void *data, uint64_t nbytes,
		   bool readonly);
extern PyType_Spec view_spec;

#endif
