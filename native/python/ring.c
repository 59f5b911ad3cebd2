/* _shmring.Ring: one attached ring. */
#include <string.h>
#include <unistd.h>

#include "handle.h"

/* --- lifetime -------------------------------------------------------------- */

/* Ends the pinning of the memory by a GPU's runtime, and returns the runtime's error, or 0. Reading
 * last_error() clears the error, which the runtime would otherwise report to the next caller in this process. */
static int unpin_mapping(struct ring *ring)
{
	int (*unregister)(void *) = ring_is_pinned(ring) ? ring->unregister : NULL;
	size_t bytes;
	int error;

	ring->unregister = NULL;
	error = unregister ? unregister(shmring_memory(ring->core, &bytes)) : 0;
	if (error)
		(void)ring->last_error();
	return error;
}

static int ring_finish(struct handle *handle)
{
	struct ring *ring = (struct ring *)handle;
	shmring *core = ring->core;

	Py_BEGIN_ALLOW_THREADS(void) unpin_mapping(ring);
	ring->core = NULL;
	shmring_close(core);
	Py_END_ALLOW_THREADS return SHMRING_OK;
}

static void ring_dealloc(PyObject *self)
{
	struct ring *ring = (struct ring *)self;

	(void)handle_close(&ring->handle);
	Py_DECREF(ring->label);
	handle_free(&ring->handle);
}

/* Makes a Ring, which owns the core's handle from here on. Closes the core's handle if the Ring cannot be made. */
PyObject *ring_wrap(struct state *state, PyObject *label, shmring *core)
{
	struct ring *ring = PyObject_New(struct ring, state->ring);

	if (!ring) {
		shmring_close(core);
		return NULL;
	}
	handle_init(&ring->handle, NULL, ring_finish);
	ring->state = state;
	ring->core = core;
	ring->label = Py_NewRef(label);
	ring->unregister = NULL;
	return (PyObject *)ring;
}

/* Gives back the pin of ring_hold(), and returns `result`. A caller makes the exception of a failed call first:
 * the last unpin closes the ring, and closing may overwrite the core's error text. */
static PyObject *let_go_with(struct ring *ring, PyObject *result)
{
	(void)handle_unpin(&ring->handle);
	return result;
}

/* --- producers and branches -------------------------------------------------- */

static PyObject *ring_producer(PyObject *self, PyObject *args)
{
	struct ring *ring = (struct ring *)self;
	const char *name;
	int when_full;
	int wait;

	if (!PyArg_ParseTuple(args, "zii", &name, &when_full, &wait) || !ring_hold(ring))
		return NULL;
	return let_go_with(ring, producer_open(ring, name, when_full, wait));
}

/* Converts (start, sequence, exclusive, ephemeral, drop_oldest, upstream) for PyArg_ParseTuple(). */
static int read_branch_options(PyObject *given, void *result)
{
	struct shmring_branch_options *options = result;
	unsigned long long sequence;
	unsigned long long upstream;

	if (!PyArg_ParseTuple(given, "bKO&O&O&K", &options->start, &sequence, parse_flag, &options->exclusive,
			      parse_flag, &options->ephemeral, parse_flag, &options->drop_oldest, &upstream))
		return 0;
	options->sequence = sequence;
	options->upstream = upstream;
	return 1;
}

static PyObject *ring_join(PyObject *self, PyObject *args)
{
	struct ring *ring = (struct ring *)self;
	struct shmring_branch_options options;
	const char *branch;
	const char *name;
	int wait;

	if (!PyArg_ParseTuple(args, "szO&i", &branch, &name, read_branch_options, &options, &wait) ||
	    !ring_hold(ring))
		return NULL;
	return let_go_with(ring, consumer_open(ring, branch, &options, name, wait));
}

static PyObject *number_or_error(struct ring *ring, int status, unsigned long number)
{
	return status ? raise_status(ring, status) : PyLong_FromUnsignedLong(number);
}

static PyObject *ring_subscribe(PyObject *self, PyObject *args)
{
	struct ring *ring = (struct ring *)self;
	struct shmring_branch_options options;
	const char *branch;
	int status;

	if (!PyArg_ParseTuple(args, "sO&", &branch, read_branch_options, &options) || !ring_hold(ring))
		return NULL;
	Py_BEGIN_ALLOW_THREADS status = shmring_subscribe(ring->core, branch, &options, NULL);
	Py_END_ALLOW_THREADS return let_go_with(ring, result_of(ring, status));
}

static PyObject *ring_unsubscribe(PyObject *self, PyObject *args)
{
	struct ring *ring = (struct ring *)self;
	const char *branch;
	int status;

	if (!PyArg_ParseTuple(args, "s", &branch) || !ring_hold(ring))
		return NULL;
	Py_BEGIN_ALLOW_THREADS status = shmring_unsubscribe(ring->core, branch);
	Py_END_ALLOW_THREADS return let_go_with(ring, result_of(ring, status));
}

static PyObject *set_upstreams(PyObject *self, PyObject *args,
			       int (*change)(shmring *ring, uint32_t id, uint64_t upstream))
{
	struct ring *ring = (struct ring *)self;
	unsigned long long upstream;
	unsigned id;
	int status;

	if (!PyArg_ParseTuple(args, "IK", &id, &upstream) || !ring_hold(ring))
		return NULL;
	Py_BEGIN_ALLOW_THREADS status = change(ring->core, id, upstream);
	Py_END_ALLOW_THREADS return let_go_with(ring, result_of(ring, status));
}

static PyObject *ring_follow(PyObject *self, PyObject *args)
{
	return set_upstreams(self, args, shmring_follow);
}

static PyObject *ring_unfollow(PyObject *self, PyObject *args)
{
	return set_upstreams(self, args, shmring_unfollow);
}

static PyObject *ring_find_branch(PyObject *self, PyObject *args)
{
	struct ring *ring = (struct ring *)self;
	const char *branch;
	uint32_t id;
	int status;

	if (!PyArg_ParseTuple(args, "s", &branch) || !ring_hold(ring))
		return NULL;
	status = shmring_find_branch(ring->core, branch, &id);
	return let_go_with(ring, number_or_error(ring, status, id));
}

static PyObject *ring_waiting(PyObject *self, PyObject *args)
{
	struct ring *ring = (struct ring *)self;
	uint64_t messages = 0;
	unsigned id;
	int status;

	if (!PyArg_ParseTuple(args, "I", &id) || !ring_hold(ring))
		return NULL;
	status = shmring_count_waiting(ring->core, id, &messages);
	return let_go_with(ring, number_or_error(ring, status, messages));
}

static PyObject *raise_recovering(struct ring *ring)
{
	return PyErr_Format(error_class(ring->state, SHMRING_CONTENDED),
			    "ring \"%U\": another process is recovering it right now; there is nothing more to do",
			    ring->label);
}

static PyObject *ring_recover(PyObject *self, PyObject *Py_UNUSED(ignored))
{
	struct ring *ring = (struct ring *)self;
	unsigned count = 0;
	int status;

	if (!ring_hold(ring))
		return NULL;
	Py_BEGIN_ALLOW_THREADS status = shmring_recover(ring->core, &count);
	Py_END_ALLOW_THREADS return let_go_with(
	    ring, status == SHMRING_CONTENDED ? raise_recovering(ring) : number_or_error(ring, status, count));
}

/* --- a GPU's runtime ----------------------------------------------------------- */

/* Pins the ring's memory for a GPU. The caller keeps other threads from pinning and unpinning meanwhile. */
static PyObject *ring_pin(PyObject *self, PyObject *args)
{
	struct ring *ring = (struct ring *)self;
	unsigned long long
	    functions[3]; /* addresses of the runtime's functions: register, unregister, last error */
	unsigned flags;
	size_t bytes;
	int device;
	int error = 0;

	if (!PyArg_ParseTuple(args, "KKKIi", &functions[0], &functions[1], &functions[2], &flags, &device) ||
	    !ring_hold(ring))
		return NULL;
	if (!ring_is_pinned(ring)) {
		int (*register_memory)(void *, size_t, unsigned) =
		    (int (*)(void *, size_t, unsigned))(uintptr_t)functions[0];
		void *memory = shmring_memory(ring->core, &bytes);

		ring->last_error = (int (*)(void))(uintptr_t)functions[2];
		Py_BEGIN_ALLOW_THREADS error = register_memory(memory, bytes, flags);
		if (error)
			(void)ring->last_error();
		Py_END_ALLOW_THREADS ring->pinned_as = device;
		ring->pinned_in = getpid();
		ring->unregister = error ? NULL : (int (*)(void *))(uintptr_t)functions[1];
	}
	return let_go_with(ring, PyLong_FromLong(error));
}

static PyObject *ring_unpin(PyObject *self, PyObject *Py_UNUSED(ignored))
{
	struct ring *ring = (struct ring *)self;
	int error;

	if (!ring_hold(ring))
		return NULL;
	Py_BEGIN_ALLOW_THREADS error = unpin_mapping(ring);
	Py_END_ALLOW_THREADS return let_go_with(ring, PyLong_FromLong(error));
}

static PyObject *get_pinned(PyObject *self, void *Py_UNUSED(ignored))
{
	return PyBool_FromLong(ring_is_pinned((struct ring *)self));
}

/* --- observing ----------------------------------------------------------------- */

static PyObject *look_at(PyObject *self, PyObject *(*at)(struct ring *))
{
	struct ring *ring = (struct ring *)self;

	return ring_hold(ring) ? let_go_with(ring, at(ring)) : NULL;
}

static PyObject *flag(bool value)
{
	return value ? Py_True : Py_False;
}

/* CHANGE: edit this for a new option of a ring */
static PyObject *look_at_info(struct ring *ring)
{
	struct shmring_info info;

	shmring_get_info(ring->core, &info);
	return Py_BuildValue(
	    "{s:K,s:I,s:I,s:I,s:O,s:O,s:i,s:K,s:K,s:K,s:y#,s:I,s:I,s:y#}", "slots", (unsigned long long)info.slots,
	    "participants", info.participants, "layout_major", info.layout_major, "layout_minor",
	    info.layout_minor, "single_producer", flag(info.single_producer), "checksum", flag(info.checksum),
	    "clock", (int)info.clock, "file_bytes", (unsigned long long)info.file_bytes, "first_sequence",
	    (unsigned long long)info.first_sequence, "created_ns", (unsigned long long)info.created_ns, "uuid",
	    (const char *)info.uuid, (Py_ssize_t)sizeof info.uuid, "owner_uid", info.owner_uid, "mode", info.mode,
	    "schema", (const char *)info.schema, (Py_ssize_t)info.schema_bytes);
}

/* Decodes a name from the ring; other processes may have written any bytes. */
static PyObject *text(const char *name, size_t room)
{
	return PyUnicode_DecodeUTF8(name, (Py_ssize_t)strnlen(name, room), "replace");
}

static PyObject *branch_dict(const struct shmring_branch_info *info)
{
	return Py_BuildValue("{s:I,s:N,s:O,s:O,s:O,s:K,s:K,s:K,s:K,s:I,s:I}", "id", info->id, "name",
			     text(info->name, sizeof info->name), "exclusive", flag(info->exclusive), "ephemeral",
			     flag(info->ephemeral), "drop_oldest", flag(info->drop_oldest), "upstream",
			     (unsigned long long)info->upstream, "position", (unsigned long long)info->position,
			     "released", (unsigned long long)info->released, "ends",
			     (unsigned long long)info->ends, "consumers", info->consumers, "orphans",
			     info->orphans);
}

/* Memory for the bytes of one message. */
struct room {
	char *bytes;
	Py_ssize_t nbytes;
};

/* Returns a description of the branch, seat or slot with number `index`. Returns NULL without an exception if this
 * branch, seat or slot is not in use, and NULL with an exception after an error. */
typedef PyObject *item_function(struct ring *ring, uint64_t index, const struct room *room);

static PyObject *list_of(struct ring *ring, uint64_t first, uint64_t end, item_function *item_at,
			 const struct room *room)
{
	PyObject *list = PyList_New(0);

	for (uint64_t index = first; list && index < end; index++) {
		PyObject *item = item_at(ring, index, room);

		if (item ? PyList_Append(list, item) : PyErr_Occurred() != NULL)
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	return list;
}

static PyObject *branch_record(struct ring *ring, uint64_t id, const struct room *Py_UNUSED(room))
{
	struct shmring_branch_info info;
	int status = shmring_branch_info(ring->core, (uint32_t)id, &info);

	if (status)
		return status == SHMRING_E_NO_BRANCH ? NULL : raise_status(ring, status);
	return branch_dict(&info);
}

static PyObject *look_at_branches(struct ring *ring)
{
	return list_of(ring, 0, SHMRING_MAX_BRANCHES, branch_record, NULL);
}

/* CHANGE: edit this for a new counter that each participant has */
static PyObject *seat_dict(const struct shmring_participant_info *info)
{
	return Py_BuildValue(
	    "{s:I,s:I,s:I,s:I,s:I,s:O,s:O,s:K,s:N,s:N,s:N,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:I}",
	    "seat", info->seat, "state", info->state, "role", info->role, "branch", info->branch, "pid", info->pid,
	    "alive", flag(info->alive), "stopped", flag(info->stopped), "joined_ns",
	    (unsigned long long)info->joined_ns, "name", text(info->name, sizeof info->name), "claim",
	    sequence_or_none(info->claim), "hold", sequence_or_none(info->hold), "messages",
	    (unsigned long long)info->messages, "bytes", (unsigned long long)info->bytes, "full_waits",
	    (unsigned long long)info->full_waits, "empty_waits", (unsigned long long)info->empty_waits,
	    "contended", (unsigned long long)info->contended, "recovered", (unsigned long long)info->recovered,
	    "overrun", (unsigned long long)info->overrun, "dropped", (unsigned long long)info->dropped,
	    "redelivered", (unsigned long long)info->redelivered, "synced_ns", (unsigned long long)info->synced_ns,
	    "most_delivered", sequence_or_none(info->most_delivered), "deliveries", info->deliveries);
}

static PyObject *seat_at(struct ring *ring, uint64_t seat, const struct room *Py_UNUSED(room))
{
	struct shmring_participant_info info;
	int status = shmring_participant_info(ring->core, (uint32_t)seat, &info);

	if (status)
		return status == SHMRING_UNAVAILABLE ? NULL : raise_status(ring, status);
	return seat_dict(&info);
}

static PyObject *look_at_seats(struct ring *ring)
{
	struct shmring_info info;

	shmring_get_info(ring->core, &info);
	return list_of(ring, 0, info.participants, seat_at, NULL);
}

static PyObject *look_at_holder(struct ring *ring)
{
	char words[EXPLANATION_BYTES];
	struct shmring_holder h;

	if (shmring_find_holder(ring->core, &h) != SHMRING_OK)
		Py_RETURN_NONE;
	shmring_explain_full(ring->core, words, sizeof words);
	return Py_BuildValue("{s:N,s:N,s:N,s:O,s:O,s:N,s:K,s:K,s:N,s:N}", "branch",
			     h.branch < 0 ? Py_NewRef(Py_None) : text(h.branch_name, sizeof h.branch_name), "name",
			     h.seat < 0 ? Py_NewRef(Py_None) : text(h.name, sizeof h.name), "pid",
			     h.seat < 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(h.pid), "alive",
			     flag(h.alive), "stopped", flag(h.stopped), "sequence", sequence_or_none(h.sequence),
			     "slots", (unsigned long long)h.slots, "kind", (unsigned long long)h.kind, "age_s",
			     h.age_ns < 0 ? Py_NewRef(Py_None) : PyFloat_FromDouble((double)h.age_ns / 1e9),
			     "words", PyUnicode_DecodeUTF8(words, (Py_ssize_t)strlen(words), "replace"));
}

static PyObject *row_at(struct ring *ring, uint64_t index, const struct room *room)
{
	struct shmring_row row;
	int status = shmring_table_row(ring->core, index, &row, room->bytes, (size_t)room->nbytes);

	if (status == SHMRING_E_DAMAGED || (status == SHMRING_OK && !row.filled))
		return NULL; /* leave out this row: it has no message, or is damaged */
	if (status)
		return raise_status(ring, status);
	return Py_BuildValue("(KKKIIiy#)", (unsigned long long)row.slot, (unsigned long long)row.message_id,
			     (unsigned long long)row.time, row.length, row.reference_count, (int)row.kind,
			     room->bytes,
			     (Py_ssize_t)row.length < room->nbytes ? (Py_ssize_t)row.length : room->nbytes);
}

static PyObject *ring_rows(PyObject *self, PyObject *args)
{
	struct ring *ring = (struct ring *)self;
	unsigned long long first;
	unsigned long long end;
	struct room room;
	PyObject *list;

	if (!PyArg_ParseTuple(args, "KKn", &first, &end, &room.nbytes))
		return NULL;
	if (room.nbytes < 0)
		return PyErr_Format(PyExc_ValueError, "capacity must not be negative, not %zd", room.nbytes);
	room.bytes = PyMem_Malloc((size_t)room.nbytes + 1);
	if (!room.bytes)
		return PyErr_NoMemory();
	list = ring_hold(ring) ? let_go_with(ring, list_of(ring, first, end, row_at, &room)) : NULL;
	PyMem_Free(room.bytes);
	return list;
}

static PyObject *look_at_claimed(struct ring *ring)
{
	return PyLong_FromUnsignedLongLong(shmring_claimed(ring->core));
}

static PyObject *look_at_floor(struct ring *ring)
{
	return PyLong_FromUnsignedLongLong(shmring_floor(ring->core));
}

/* Defines the method or property for an observing function. */
#define LOOK(name, ignored_type)                                                                                  \
	static PyObject *get_##name(PyObject *self, ignored_type *Py_UNUSED(ignored))                             \
	{                                                                                                         \
		return look_at(self, look_at_##name);                                                             \
	}                                                                                                         \
	_Static_assert(true, #name)

LOOK(info, PyObject);
LOOK(branches, PyObject);
LOOK(seats, PyObject);
LOOK(holder, PyObject);
LOOK(claimed, void);
LOOK(floor, void);

/* Methods for shmring.Ring, which documents them; _shmring.pyi has their types. */
static PyMethodDef methods[] = {
    {"producer", ring_producer, METH_VARARGS, NULL},
    {"join", ring_join, METH_VARARGS, NULL},
    {"subscribe", ring_subscribe, METH_VARARGS, NULL},
    {"unsubscribe", ring_unsubscribe, METH_VARARGS, NULL},
    {"follow", ring_follow, METH_VARARGS, NULL},
    {"unfollow", ring_unfollow, METH_VARARGS, NULL},
    {"find_branch", ring_find_branch, METH_VARARGS, NULL},
    {"waiting", ring_waiting, METH_VARARGS, NULL},
    {"holder", get_holder, METH_NOARGS, NULL},
    {"recover", ring_recover, METH_NOARGS, NULL},
    {"info", get_info, METH_NOARGS, NULL},
    {"branches", get_branches, METH_NOARGS, NULL},
    {"participants", get_seats, METH_NOARGS, NULL},
    {"rows", ring_rows, METH_VARARGS, NULL},
    {"pin", ring_pin, METH_VARARGS, NULL},
    {"unpin", ring_unpin, METH_NOARGS, NULL},
    {"close", handle_close_method, METH_NOARGS, NULL},
    {0},
};

static PyGetSetDef getset[] = {
    {"claimed", get_claimed, NULL, "sequence that the next claim will get", NULL},
    {"floor", get_floor, NULL, "lowest sequence that is still held", NULL},
    {"pinned", get_pinned, NULL, "whether a GPU's runtime has pinned the memory", NULL},
    {0},
};

static PyMemberDef members[] = {
    MEMBER_CLOSED,
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {Py_tp_doc, "A ring that this process has attached; shmring.Ring wraps it."},
    {0, NULL},
};

PyType_Spec ring_spec = MADE_HERE("shmring._shmring.Ring", struct ring, slots);
