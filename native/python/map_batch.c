/* map_batch(): a leased record batch as Arrow arrays over its slots, or over a copy of them, for pyarrow. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arrow.h"
#include "consumers.h"
#include "ipc_read.h"

#define BODY_ALIGNMENT 64 /* of a copy, as Arrow recommends it */

struct mapping {
	struct handle *lease; /* pinned for as long as the mapping is made */
	const struct ipc_layout *layout;
	const uint8_t *message;
	uint64_t bytes;
	bool copy;
	bool every_offset; /* check each one, in a copy of the offsets */
};

/* --- a lease that arrays let go: in any thread, also while Python ends ------------------------ */

/* The thread that ends Python; 0: Python has not begun to end. */
static _Atomic unsigned long ending_thread;

/* Threads that are letting a lease go and have not seen that Python ends. */
static _Atomic int threads_inside;

/* Python's PyGILState_Check(), which the limited API lacks; NULL: this Python has none. */
static int (*has_the_gil)(void);

/* A thread inside takes less: 5 s each to hand back, to leave the branch and to detach, if another process is
 * stopped while it joins or recovers. */
#define END_TIMEOUT_NS (20 * INT64_C(1000000000))

static void await_threads_inside(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	int64_t deadline = deadline_after(END_TIMEOUT_NS);

	while (atomic_load_explicit(&threads_inside, memory_order_seq_cst) > 0 && deadline_after(0) < deadline)
		nanosleep(&pause, NULL);
}

/* A thread that asks for the GIL after Python has ended does not come back. So this call waits for the threads
 * that may be about to ask. Its store and its load are in one order with those of let_lease_go(): this call sees
 * each thread that does not see the end. */
static PyObject *note_end(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
	atomic_store_explicit(&ending_thread, PyThread_get_thread_ident(), memory_order_seq_cst);
	Py_BEGIN_ALLOW_THREADS await_threads_inside();
	Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* In the child, which has none of the other threads. */
static void forget_threads(void)
{
	atomic_store_explicit(&threads_inside, 0, memory_order_relaxed);
}

static PyMethodDef note_end_method = {"note_end", note_end, METH_NOARGS, NULL};

static void find_has_the_gil(void)
{
	void *found = dlsym(RTLD_DEFAULT, "PyGILState_Check");

	memcpy(&has_the_gil, &found, sizeof found);
}

/* Called when the module is there. Only the main interpreter ends Python. */
bool mapped_prepare(void)
{
	PyObject *atexit;
	PyObject *call;
	PyObject *done;

	if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0)
		return true;
	find_has_the_gil();
	(void)pthread_atfork(NULL, NULL, forget_threads);
	atomic_store_explicit(&ending_thread, 0, memory_order_relaxed);
	atexit = PyImport_ImportModule("atexit");
	call = atexit ? PyCFunction_New(&note_end_method, NULL) : NULL;
	done = call ? PyObject_CallMethod(atexit, "register", "O", call) : NULL;
	Py_XDECREF(atexit);
	Py_XDECREF(call);
	Py_XDECREF(done);
	return done != NULL;
}

/* While Python ends, two threads may go on: the one that ends it, which keeps its state to the last, and one that
 * has the GIL, as Python does not end under it. Others might not come back from asking for the GIL: the leases
 * that they drop stay held until the process ends, as those of a dead reader do. */
static bool may_go_on(unsigned long ending)
{
	if (!PyGILState_GetThisThreadState())
		return false;
	return ending == PyThread_get_thread_ident() || (has_the_gil && Py_IsInitialized() && has_the_gil());
}

static void unpin(struct handle *lease)
{
	PyGILState_STATE gil = PyGILState_Ensure();

	(void)handle_unpin(lease);
	Py_DECREF((PyObject *)lease);
	PyGILState_Release(gil);
}

/* A lease that was pinned and referenced. */
static void let_lease_go(void *context)
{
	unsigned long ending;

	atomic_fetch_add_explicit(&threads_inside, 1, memory_order_seq_cst);
	ending = atomic_load_explicit(&ending_thread, memory_order_seq_cst);
	if (ending == 0 && Py_IsInitialized())
		unpin(context);
	atomic_fetch_sub_explicit(&threads_inside, 1, memory_order_release);
	if (ending && may_go_on(ending))
		unpin(context);
}

/* --- the bytes under the arrays -------------------------------------------------------------- */

static uint8_t *copy_body(const uint8_t *body, uint64_t bytes)
{
	uint8_t *copy = aligned_alloc(BODY_ALIGNMENT, (bytes / BODY_ALIGNMENT + 1) * BODY_ALIGNMENT);

	if (!copy || bytes < GIL_FREE_BYTES)
		return copy ? memcpy(copy, body, bytes) : NULL;
	Py_BEGIN_ALLOW_THREADS memcpy(copy, body, bytes);
	Py_END_ALLOW_THREADS return copy;
}

static enum ipc_read over_copy(struct mapping *m, struct ipc_batch *batch, const uint8_t *body,
			       struct ArrowArray *array)
{
	uint8_t *copy = copy_body(body, batch->frame.body_bytes);
	enum ipc_read read;

	if (!copy)
		return IPC_NO_MEMORY;
	read = ipc_arrays(m->layout, batch, copy, m->every_offset, (struct ipc_owner){free, copy}, array);
	if (read != IPC_READ)
		free(copy);
	return read;
}

static enum ipc_read over_slots(struct mapping *m, struct ipc_batch *batch, const uint8_t *body,
				struct ArrowArray *array)
{
	struct ipc_owner owner = {let_lease_go, m->lease};
	enum ipc_read read = ipc_arrays(m->layout, batch, body, m->every_offset, owner, array);

	if (read == IPC_READ) {
		handle_pin(m->lease);
		Py_INCREF((PyObject *)m->lease);
	}
	return read;
}

/* Makes the arrays, which the caller releases. They pin the lease, unless they lie over a copy. Raises only when
 * memory is short. */
static enum ipc_read map_message(struct mapping *m, struct ArrowArray *array)
{
	struct ipc_batch batch;
	enum ipc_read read = ipc_batch_open(m->layout, m->message, m->bytes, &batch);
	const uint8_t *body = m->message + batch.frame.body;

	/* Not every library reads numbers at unaligned addresses. */
	if (read == IPC_READ)
		read = m->copy || (uintptr_t)body % 8 ? over_copy(m, &batch, body, array)
						      : over_slots(m, &batch, body, array);
	ipc_batch_close(&batch);
	if (read == IPC_NO_MEMORY)
		PyErr_NoMemory();
	return read;
}

/* --- the call ------------------------------------------------------------------------------------ */

/* Hands the arrays to an importer of pyarrow. */
static PyObject *import_array(PyObject *import, struct ArrowArray *array, PyObject *schema)
{
	PyObject *address = PyLong_FromVoidPtr(array);
	PyObject *batch = address ? PyObject_CallFunctionObjArgs(import, address, schema, NULL) : NULL;

	Py_XDECREF(address);
	if (array->release)
		array->release(array);
	return batch;
}

/* True if `head` lies behind the first `skip` bytes of the message; what follows is mapped. */
static bool step_over(struct mapping *m, uint64_t skip, const Py_buffer *head)
{
	uint64_t bytes = skip + (uint64_t)head->len;

	if (m->bytes < bytes || memcmp(m->message + skip, head->buf, (size_t)head->len) != 0)
		return false;
	m->message += bytes;
	m->bytes -= bytes;
	return true;
}

/* map_batch(lease, layout, skip, head, copy, every_offset, import, schema): returns import(address, schema), or
 * None if what follows `skip` bytes of the message is not `head` and one batch of that layout. */
PyObject *map_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	const struct state *state = PyModule_GetState(module);
	struct lease *lease;
	struct mapping m = {0};
	struct ArrowArray array;
	enum ipc_read read = IPC_FOREIGN;
	uint64_t skip;
	Py_buffer head;

	if (nargs != 8 || !Py_IS_TYPE(args[0], state->lease) || !Py_IS_TYPE(args[1], state->arrow_layout)) {
		PyErr_SetString(PyExc_TypeError, "map_batch() wants a Lease, an ArrowLayout and six more");
		return NULL;
	}
	lease = (struct lease *)args[0];
	if (!parse_count(args[2], "skip", UINT32_MAX, &skip) || !parse_flag(args[4], &m.copy) ||
	    !parse_flag(args[5], &m.every_offset) || PyObject_GetBuffer(args[3], &head, PyBUF_SIMPLE))
		return NULL;
	if (!lease_readable(lease)) {
		PyBuffer_Release(&head);
		return NULL;
	}
	handle_pin(&lease->handle);
	m.lease = &lease->handle;
	m.layout = &((const struct arrow_layout *)args[1])->layout;
	m.message = lease->message.data;
	m.bytes = lease->message.length;
	if (step_over(&m, skip, &head))
		read = map_message(&m, &array);
	(void)handle_unpin(&lease->handle);
	PyBuffer_Release(&head);
	if (read == IPC_READ)
		return import_array(args[6], &array, args[7]);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
