/* Releases a lease when the arrays over its message are freed: in any thread, also while Python ends. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "handle.h"

/* The thread that ends Python; 0: Python has not begun to end. */
static _Atomic unsigned long ending_thread;

/* Threads that are letting a lease go and have not seen that Python ends. */
static _Atomic int threads_inside;

/* Python's PyGILState_Check(), which the limited API lacks; NULL: this Python has none. */
static int (*has_the_gil)(void);

/* Maximum wait, at the end of Python, for the threads in let_lease_go(). A thread takes at most 15 s: 5 s each to
 * hand messages back, to leave the branch and to detach. It takes so long only if another process is stopped while
 * that process joins or recovers.
 */
#define END_TIMEOUT_NS (20 * INT64_C(1000000000))

static void await_threads_inside(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	int64_t deadline = deadline_after(END_TIMEOUT_NS);

	while (atomic_load_explicit(&threads_inside, memory_order_seq_cst) > 0 && deadline_after(0) < deadline)
		nanosleep(&pause, NULL);
}

/* Notes that Python ends. A thread that asks for the GIL after Python has ended never gets it, so this call waits
 * for the threads in let_lease_go() that may be about to ask. This call stores `ending_thread` and then loads
 * `threads_inside`; let_lease_go() stores and loads them in the other order. All four accesses are sequentially
 * consistent: either let_lease_go() sees that Python ends, or this call sees the thread and waits for it. */
static PyObject *note_end(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
	atomic_store_explicit(&ending_thread, PyThread_get_thread_ident(), memory_order_seq_cst);
	Py_BEGIN_ALLOW_THREADS await_threads_inside();
	Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* Runs in a forked child, which has none of the parent's other threads. */
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

/* Prepares let_lease_go() for the end of Python and for forks, when the module is loaded. Does nothing in a
 * subinterpreter, because Python ends with its main interpreter. */
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

/* Returns true if this thread may ask for the GIL while Python ends. The thread that ends Python may, because
 * Python keeps this thread's state to the last. A thread that has the GIL may ask for it again, because Python
 * does not end before the thread gives the GIL up. Any other thread might never get the GIL: the leases that it
 * drops stay held until the process ends, like the leases of a dead reader. */
static bool may_go_on(unsigned long ending)
{
	if (!PyGILState_GetThisThreadState())
		return false;
	return ending == PyThread_get_thread_ident() || (has_the_gil && Py_IsInitialized() && has_the_gil());
}

static void unpin_handle(struct handle *lease)
{
	PyGILState_STATE gil = PyGILState_Ensure();

	(void)handle_unpin(lease);
	Py_DECREF((PyObject *)lease);
	PyGILState_Release(gil);
}

/* Unpins and dereferences a lease or a batch; any thread may call this. */
void let_lease_go(void *context)
{
	unsigned long ending;

	atomic_fetch_add_explicit(&threads_inside, 1, memory_order_seq_cst);
	ending = atomic_load_explicit(&ending_thread, memory_order_seq_cst);
	if (ending == 0 && Py_IsInitialized())
		unpin_handle(context);
	atomic_fetch_sub_explicit(&threads_inside, 1, memory_order_release);
	if (ending && may_go_on(ending))
		unpin_handle(context);
}
