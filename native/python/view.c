/* Exports one piece of the ring's memory and keeps its owner alive, also when
 * the memoryview over it has been handed on to numpy or Arrow. */
#include "binding.h"

struct view {
	PyObject ob_base;
	PyObject *owner;
	void (*release)(PyObject *owner);
	void *data;
	Py_ssize_t nbytes;
	bool readonly;
};

/* A memoryview of [data, data + nbytes). release(owner) is called, and the
 * owner's reference given up, when the last buffer over it is gone; also if
 * this fails. */
PyObject *view_new(struct state *state, PyObject *owner, void (*release)(PyObject *owner), void *data,
		   Py_ssize_t nbytes, bool readonly)
{
	struct view *view = PyObject_New(struct view, state->view);
	PyObject *memory;

	if (!view) {
		release(owner);
		return NULL;
	}
	view->owner = Py_NewRef(owner);
	view->release = release;
	view->data = data;
	view->nbytes = nbytes;
	view->readonly = readonly;
	memory = PyMemoryView_FromObject((PyObject *)view);
	Py_DECREF((PyObject *)view);
	return memory;
}

static void view_dealloc(PyObject *self)
{
	struct view *view = (struct view *)self;
	PyTypeObject *type = Py_TYPE(self);

	view->release(view->owner);
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

PyType_Spec view_spec = {
    .name = "shmring._shmring.View",
    .basicsize = sizeof(struct view),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
