/* Exports one piece of the ring's memory and keeps its owner alive, also when
 * the memoryview over it has been handed on to numpy or Arrow. */
#include "handle.h"

struct view {
	PyObject ob_base;
	PyObject *owner;
	struct handle *pinned;
	void *data;
	Py_ssize_t nbytes;
	bool readonly;
};

/* A memoryview of [data, data + nbytes). `owner` lives until the last buffer over it is gone, and `pinned`,
 * which is the owner or a handle below it, stays pinned. Called under the owner's guard. */
PyObject *view_new(struct state *state, PyObject *owner, struct handle *pinned, const void *data, uint64_t nbytes,
		   bool readonly)
{
	struct view *view = PyObject_New(struct view, state->view);
	PyObject *memory;

	if (!view)
		return NULL;
	view->owner = Py_NewRef(owner);
	view->pinned = pinned;
	view->data = (void *)data;
	view->nbytes = (Py_ssize_t)nbytes;
	view->readonly = readonly;
	handle_pin(pinned);
	memory = PyMemoryView_FromObject((PyObject *)view);
	Py_DECREF((PyObject *)view);
	return memory;
}

static void view_dealloc(PyObject *self)
{
	struct view *view = (struct view *)self;
	PyTypeObject *type = Py_TYPE(self);

	handle_let_go(view->pinned);
	Py_DECREF(view->owner);
	PyObject_Free(self);
	Py_DECREF(type);
}

static int view_getbuffer(PyObject *self, Py_buffer *buffer, int flags)
{
	struct view *view = (struct view *)self;

	return PyBuffer_FillInfo(buffer, self, view->data, view->nbytes, view->readonly, flags);
}

static PyType_Slot slots[] = {
    {Py_tp_dealloc, view_dealloc},
    {Py_bf_getbuffer, view_getbuffer},
    {0, NULL},
};

PyType_Spec view_spec = MADE_HERE("shmring._shmring.View", struct view, slots);
