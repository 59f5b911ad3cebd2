/* A view exports a piece of the ring's memory to Python. It keeps the owner of this memory (a lease, for example)
 * alive for as long as the memoryview, or any numpy or Arrow array made from the memoryview, is in use. */
#include "handle.h"

struct view {
	PyObject ob_base;
	PyObject *owner;
	struct handle *pinned;
	void *data;
	Py_ssize_t nbytes;
	bool readonly;
	PyObject *memory; /* memoryview that the lending iterator still holds; else NULL */
	PyObject *lent; /* weak reference to a memoryview that the program has kept; else NULL */
	struct view *next; /* next view that the same lease has lent */
	struct view **link; /* address of the pointer to this view in the lease's list; NULL if not lent */
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

static struct view *view_make(struct state *state, PyObject *owner, struct handle *pinned, const void *data,
			      uint64_t nbytes, bool readonly)
{
	struct view *view = PyObject_New(struct view, state->view);

	if (!view)
		return NULL;
	view->owner = Py_NewRef(owner);
	view->pinned = pinned;
	view->data = (void *)data;
	view->nbytes = (Py_ssize_t)nbytes;
	view->readonly = readonly;
	view->memory = view->lent = NULL;
	view->link = NULL;
	return view;
}

/* Returns a memoryview of [data, data + nbytes). While the memoryview, or an array made from the memoryview, is in
 * use, `owner` is not freed, and the handle `pinned` has a pin: so a lease is not released, and a ring stays open.
 * `pinned` is `owner` itself, or the ring that `owner` uses. */
PyObject *view_new(struct state *state, PyObject *owner, struct handle *pinned, const void *data, uint64_t nbytes,
		   bool readonly)
{
	struct view *view = view_make(state, owner, pinned, data, nbytes, readonly);
	PyObject *memory = view ? PyMemoryView_FromObject((PyObject *)view) : NULL;

	Py_XDECREF((PyObject *)view);
	return memory;
}

/* Lends a memoryview of a leased message to a loop, until views_take_back() releases the memoryview.
 * views_take_back() could find every memoryview by a weak reference, but making a weak reference costs as much as
 * the rest of an iteration. So the iterator first keeps a strong reference, in `turn`, for two iterations. By then
 * the loop's variable has usually dropped the memoryview, and no weak reference is needed. */
PyObject *view_lend(struct state *state, struct lease *lease, const struct shmring_message *message,
		    struct view **turn)
{
	struct view *view =
	    view_make(state, (PyObject *)lease, &lease->handle, message->data, message->length, true);

	if (!view)
		return NULL;
	view->memory = PyMemoryView_FromObject((PyObject *)view);
	if (!view->memory) {
		Py_DECREF((PyObject *)view);
		return NULL;
	}
	enlist(view, &lease->views);
	view_settle(turn);
	*turn = view;
	return Py_NewRef(view->memory);
}

/* Drops the iterator's strong reference to a memoryview. If the program has kept the memoryview, makes a weak
 * reference, by which views_take_back() finds it. If there is no memory for the weak reference, the memoryview
 * keeps the slots for as long as it lives. */
void view_settle(struct view **turn)
{
	struct view *view = *turn;
	PyObject *memory;

	if (!view)
		return;
	*turn = NULL;
	memory = view->memory;
	if (Py_REFCNT(memory) > 1) {
		PyObject *type, *value, *traceback;

		PyErr_Fetch(&type, &value, &traceback);
		view->lent = PyWeakref_NewRef(memory, NULL);
		PyErr_Restore(type, value, traceback);
	}
	view->memory = NULL;
	Py_DECREF(memory);
	Py_DECREF((PyObject *)view);
}

/* Releases a memoryview, unless an object still uses its memory, e.g. a numpy array. */
static void take_back(const struct view *view)
{
	PyObject *memory = view->memory ? Py_NewRef(view->memory)
			   : view->lent ? PyObject_CallNoArgs(view->lent)
					: NULL;
	PyObject *done = memory && !Py_IsNone(memory) ? PyObject_CallMethod(memory, "release", NULL) : NULL;

	PyErr_Clear();
	Py_XDECREF(done);
	Py_XDECREF(memory);
}

/* Releases the lent memoryviews in `list`. Views that are in use stay in the list. */
void views_take_back(struct view **list)
{
	struct view *todo = *list, *view;

	*list = NULL;
	if (todo)
		todo->link = &todo;
	while ((view = todo)) {
		unlist(view);
		enlist(view, list);
		take_back(view);
	}
}

static void view_dealloc(PyObject *self)
{
	struct view *view = (struct view *)self;

	if (view->link)
		unlist(view);
	Py_XDECREF(view->lent);
	Py_DECREF(view->owner);
	object_free(self);
}

static int view_getbuffer(PyObject *self, Py_buffer *buffer, int flags)
{
	struct view *view = (struct view *)self;

	if (PyBuffer_FillInfo(buffer, self, view->data, view->nbytes, view->readonly, flags))
		return -1;
	handle_pin(view->pinned);
	return 0;
}

static void view_releasebuffer(PyObject *self, Py_buffer *Py_UNUSED(buffer))
{
	(void)handle_unpin(((struct view *)self)->pinned);
}

static PyType_Slot slots[] = {
    {Py_tp_dealloc, view_dealloc},
    {Py_bf_getbuffer, view_getbuffer},
    {Py_bf_releasebuffer, view_releasebuffer},
    {0, NULL},
};

PyType_Spec view_spec = MADE_HERE("shmring._shmring.View", struct view, slots);
