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
	PyObject *lent; /* weak reference to the memoryview if the lease takes it back; else NULL */
	struct view *next; /* next view of the same lease */
	struct view **link; /* pointer to this view: the list's head, or a `next` */
	bool listed; /* in the list of a lease's views */
};

static void enlist(struct view *view, struct view **list)
{
	view->next = *list;
	if (view->next)
		view->next->link = &view->next;
	view->link = list;
	*list = view;
}

static void unlist(struct view *view)
{
	*view->link = view->next;
	if (view->next)
		view->next->link = view->link;
}

/* Returns a memoryview of [data, data + nbytes). `owner` lives until the last buffer over it is gone, and
 * `pinned`, which is the owner or a handle below it, stays pinned. A view of a leased message is in `list`, and
 * views_take_back() releases the view if it is `lent`. */
PyObject *view_new(struct state *state, PyObject *owner, struct handle *pinned, const void *data, uint64_t nbytes,
		   bool readonly, struct view **list, bool lent)
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
	view->lent = NULL;
	view->listed = false;
	handle_pin(pinned);
	memory = PyMemoryView_FromObject((PyObject *)view);
	if (memory && lent && !(view->lent = PyWeakref_NewRef(memory, NULL)))
		Py_CLEAR(memory);
	if (memory && list) {
		enlist(view, list);
		view->listed = true;
	}
	Py_DECREF((PyObject *)view);
	return memory;
}

/* Releases a memoryview, unless there is a buffer over it, as a numpy array's. */
static void take_back(const struct view *view)
{
	PyObject *memory = PyObject_CallNoArgs(view->lent);
	PyObject *done = memory && !Py_IsNone(memory) ? PyObject_CallMethod(memory, "release", NULL) : NULL;

	PyErr_Clear();
	Py_XDECREF(done);
	Py_XDECREF(memory);
}

/* Releases the lent memoryviews in `list`. Views that are not lent, or are in use, stay in the list. */
void views_take_back(struct view **list)
{
	struct view *todo = *list, *view;

	*list = NULL;
	if (todo)
		todo->link = &todo;
	while ((view = todo)) {
		unlist(view);
		enlist(view, list);
		if (view->lent)
			take_back(view);
	}
}

static void view_dealloc(PyObject *self)
{
	struct view *view = (struct view *)self;

	if (view->listed)
		unlist(view);
	Py_XDECREF(view->lent);
	(void)handle_unpin(view->pinned);
	Py_DECREF(view->owner);
	object_free(self);
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
