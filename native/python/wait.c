/* Waits for several handles, without the GIL, and other calls for an event loop's tasks
 * (src/shmring/ring/event_loop.py).
 */
#include "handle.h"

/* --- the bell ------------------------------------------------------------------------- */

/* A bell ends the wait of a thread, so that the thread looks at a new list of handles. */
struct bell {
	PyObject ob_base;
	uint32_t word;
};

static PyObject *bell_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
	struct bell *self = PyObject_New(struct bell, type);

	if (self)
		self->word = 0;
	return (PyObject *)self;
}

static PyObject *bell_ring(PyObject *op, PyObject *Py_UNUSED(ignored))
{
	shmring_ring_bell(&((struct bell *)op)->word);
	Py_RETURN_NONE;
}

static PyObject *bell_rung(PyObject *op, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLong(__atomic_load_n(&((struct bell *)op)->word, __ATOMIC_ACQUIRE));
}

static PyMethodDef bell_methods[] = {
    {"ring", bell_ring, METH_NOARGS, "ring($self, /)\n--\n\nEnd the wait that has this bell."},
    {0},
};

static PyGetSetDef bell_getset[] = {
    {"rung", bell_rung, NULL, "how often it was rung", NULL},
    {0},
};

static PyType_Slot bell_slots[] = {
    {Py_tp_new, bell_new},
    {Py_tp_dealloc, object_free},
    {Py_tp_methods, bell_methods},
    {Py_tp_getset, bell_getset},
    {0, NULL},
};

PyType_Spec bell_spec = {
    .name = "shmring.Bell", .basicsize = sizeof(struct bell), .flags = Py_TPFLAGS_DEFAULT, .slots = bell_slots};

/* --- the wait --------------------------------------------------------------------------- */

/* The pinned handles of a wait, and an entry for the core for each of them. */
struct list {
	PyObject **handles;
	struct shmring_wait *waits;
	uint32_t count;
	bool ended; /* a consumer was told of an end before the wait */
};

static bool is_consumer(const struct state *state, PyObject *op)
{
	return PyObject_TypeCheck(op, state->consumer);
}

/* Pins a handle. Returns false, without an exception, if the handle is closed. */
static bool pin(struct handle *handle)
{
	if (handle->closed)
		return false;
	handle_pin(handle);
	handle->awaited++;
	handle->awaited_in = getpid();
	return true;
}

/* Returns true if entry `i` is a consumer to which the core has reported an end of the stream since the caller of
 * wait_any() read ends_of(consumer). The entry's field `slots` has the number that ends_of() returned. */
static bool has_ended(const struct list *list, uint32_t i)
{
	return list->waits[i].consumer && ((struct consumer *)list->handles[i])->ends != list->waits[i].slots;
}

/* Lets waits for a consumer sleep again, after consumer_ended() has interrupted them. A closed consumer stays
 * interrupted, because no thread may wait for it any more. */
static void answer_call(struct consumer *consumer)
{
	if (consumer->calls && !consumer->handle.closed)
		shmring_consumer_interrupt(consumer->core, false);
	consumer->calls = false;
}

static void let_go(struct list *list)
{
	for (uint32_t i = 0; i < list->count; i++) {
		struct handle *handle = (struct handle *)list->handles[i];

		if (list->waits[i].consumer)
			answer_call((struct consumer *)handle);
		(void)handle_unpin(handle);
		handle->awaited--;
		Py_DECREF(list->handles[i]);
	}
	PyMem_Free(list->handles);
	PyMem_Free(list->waits);
}

/* Adds one pair (producer, slots) or (consumer, its ends) to the list. A closed handle goes to `ready`: its next
 * call raises Closed. */
static bool add(struct list *list, const struct state *state, PyObject *pair, PyObject *ready)
{
	PyObject *op = PyTuple_Check(pair) && PyTuple_Size(pair) == 2 ? PyTuple_GetItem(pair, 0) : NULL;
	bool consumer = op && is_consumer(state, op);
	uint64_t slots;

	if (!op || (!consumer && !PyObject_TypeCheck(op, state->producer))) {
		PyErr_SetString(PyExc_TypeError, "a wait is for consumers and producers of rings");
		return false;
	}
	slots = PyLong_AsUnsignedLongLong(PyTuple_GetItem(pair, 1));
	if (PyErr_Occurred())
		return false;
	if (!pin((struct handle *)op))
		return PyList_Append(ready, op) == 0;
	list->handles[list->count] = Py_NewRef(op);
	list->waits[list->count] =
	    consumer ? (struct shmring_wait){.consumer = ((struct consumer *)op)->core, .slots = slots}
		     : (struct shmring_wait){.producer = ((struct producer *)op)->core, .slots = slots};
	list->ended |= has_ended(list, list->count);
	list->count++;
	return true;
}

static bool add_all(struct list *list, const struct state *state, PyObject *pairs, PyObject *ready)
{
	Py_ssize_t n = PyList_Size(pairs);

	list->handles = PyMem_Calloc((size_t)n + 1, sizeof *list->handles);
	list->waits = PyMem_Calloc((size_t)n + 1, sizeof *list->waits);
	if (!list->handles || !list->waits) {
		PyErr_NoMemory();
		return false;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *pair = PyList_GetItem(pairs, i);

		if (!pair || !add(list, state, pair, ready))
			return false;
	}
	return true;
}

/* Appends to `ready` the handles that the core has found ready, the handles that were closed during the wait, and
 * the consumers that were told of an end. */
static bool collect(const struct list *list, int status, PyObject *ready)
{
	for (uint32_t i = 0; i < list->count; i++) {
		bool has = status == SHMRING_OK && list->waits[i].ready;

		if ((has || ((struct handle *)list->handles[i])->closed || has_ended(list, i)) &&
		    PyList_Append(ready, list->handles[i]))
			return false;
	}
	return true;
}

/* Waits until a handle is ready, the bell rings, or the deadline has passed. Returns false, with an exception,
 * after an error. */
static bool wait_in_slices(struct list *list, struct state *state, struct bell *bell, uint32_t rung,
			   int64_t deadline, uint8_t strategy, PyObject *ready)
{
	int status;

	do {
		Py_BEGIN_ALLOW_THREADS status = shmring_wait_any(
		    list->waits, list->count, bell ? &bell->word : NULL, rung, deadline, strategy);
		Py_END_ALLOW_THREADS if (status != SHMRING_OK && status != SHMRING_AGAIN &&
					 status != SHMRING_TIMEOUT)
		{
			raise_error(state, status);
			return false;
		}
		if (PyErr_CheckSignals()) {
			for (uint32_t i = 0; i < list->count; i++)
				shmring_consumer_decline(list->waits[i].consumer);
			return false;
		}
		if (!collect(list, status, ready))
			return false;
	} while (status == SHMRING_AGAIN && PyList_Size(ready) == 0 &&
		 !(bell && __atomic_load_n(&bell->word, __ATOMIC_ACQUIRE) != rung));
	return true;
}

/* wait_any([(producer, slots) or (consumer, ends_of(consumer))], timeout, strategy, bell or None, rung): returns
 * the consumers and producers that are ready. `rung` is the number that the caller has read from the bell: the
 * wait ends when the bell's number is no longer `rung`. */
PyObject *wait_for_any(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	struct state *state = PyModule_GetState(module);
	int64_t timeout = FOREVER;
	struct list list = {0};
	unsigned long strategy, rung;
	struct bell *bell;
	PyObject *ready;
	bool done;

	if (nargs != 5 || !PyList_Check(args[0]) ||
	    !(Py_IsNone(args[3]) || PyObject_TypeCheck(args[3], state->bell)))
		return PyErr_Format(PyExc_TypeError, "wait_any() takes a list, a timeout, a strategy, a bell and "
						     "how often that was rung");
	bell = Py_IsNone(args[3]) ? NULL : (struct bell *)args[3];
	strategy = PyLong_AsUnsignedLong(args[2]);
	rung = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLong(args[4]);
	if (PyErr_Occurred() || !parse_timeout(args[1], &timeout))
		return NULL;
	ready = PyList_New(0);
	if (!ready)
		return NULL;
	done = add_all(&list, state, args[0], ready);
	if (done && list.count) { /* look without waiting if a handle was closed, or an end was reported before */
		bool now = PyList_Size(ready) || list.ended;

		done = wait_in_slices(&list, state, bell, (uint32_t)rung, now ? 0 : deadline_after(timeout),
				      (uint8_t)strategy, ready);
	}
	let_go(&list);
	if (!done)
		Py_CLEAR(ready);
	return ready;
}

/* --- tasks -------------------------------------------------------------------------------- */

static struct handle *handle_of(PyObject *module, PyObject *op)
{
	struct state *state = PyModule_GetState(module);

	if (is_consumer(state, op) || PyObject_TypeCheck(op, state->producer))
		return (struct handle *)op;
	PyErr_SetString(PyExc_TypeError, "this is no consumer and no producer of a ring");
	return NULL;
}

/* decline(consumer or producer): passes a wake-up of a consumer on to another consumer of the branch, because the
 * caller takes no message. Does nothing for a producer. */
PyObject *decline(PyObject *module, PyObject *op)
{
	/* A closed consumer needs no call: closing it has passed its wake-up on. */
	if (is_consumer(PyModule_GetState(module), op) && !((struct consumer *)op)->handle.closed)
		shmring_consumer_decline(((struct consumer *)op)->core);
	Py_RETURN_NONE;
}

/* give_up(consumer or producer, timeout): raises Empty or Full. */
PyObject *give_up(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	struct handle *handle = nargs == 2 ? handle_of(module, args[0]) : NULL;
	struct wait_state waiting = {.timeout = FOREVER};

	if (!handle || !parse_timeout(args[1], &waiting.timeout))
		return NULL;
	if (is_consumer(PyModule_GetState(module), args[0])) {
		struct consumer *consumer = (struct consumer *)handle;

		if (consumer_usable(consumer))
			raise_empty(consumer, waiting.timeout);
	} else {
		struct producer *producer = (struct producer *)handle;

		if (producer_usable(producer))
			raise_full(producer, &waiting);
	}
	return NULL;
}

/* Maximum of `misses`. A miss is a poll that was made before a wait and found nothing. Polling saves time only if
 * messages come sooner than a sleeping thread wakes up; misses show that messages come later. So after n misses in
 * a row, the next 2^n - 1 waits do not poll: at most 63. */
enum { MOST_MISSES = 6 };

/* should_try(consumer or producer): returns whether to poll for a moment before a wait. */
PyObject *should_try(PyObject *module, PyObject *op)
{
	struct handle *handle = handle_of(module, op);

	if (!handle)
		return NULL;
	if (handle->skips == 0)
		Py_RETURN_TRUE;
	handle->skips--;
	Py_RETURN_FALSE;
}

/* has_tried(consumer or producer, found): notes whether polling before a wait found something. */
PyObject *has_tried(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	struct handle *handle = nargs == 2 ? handle_of(module, args[0]) : NULL;

	if (!handle)
		return NULL;
	if (Py_IsTrue(args[1]))
		handle->misses = 0;
	else if (handle->misses < MOST_MISSES)
		handle->misses++;
	handle->skips = (uint8_t)((1 << handle->misses) - 1);
	Py_RETURN_NONE;
}
