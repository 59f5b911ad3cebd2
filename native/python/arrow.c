/* Arrays of the Arrow C data interface. */
#include "arrow.h"

/* Exports a batch of pyarrow without its schema, which would cost as much again; the caller releases it. */
bool arrow_export(PyObject *batch, PyObject *method, struct ArrowArray *array)
{
	PyObject *address = PyLong_FromVoidPtr(array);
	PyObject *done = address ? PyObject_CallMethodObjArgs(batch, method, address, NULL) : NULL;

	Py_XDECREF(address);
	Py_XDECREF(done);
	return done != NULL;
}

/* --- columns over the same memory ---------------------------------------------------- */

/* So many places are looked at for each column: a function that drops or adds some moves the others a little. */
#define NEAR 64

/* True if the arrays have the same values, because these lie at the same place. Their types must be one. */
static bool is_same(const struct ArrowArray *one, const struct ArrowArray *other)
{
	if (one->length != other->length || one->offset != other->offset || one->n_buffers != other->n_buffers ||
	    one->n_children != other->n_children || one->dictionary || other->dictionary)
		return false;
	for (int64_t i = 0; i < one->n_buffers; i++)
		if (one->buffers[i] != other->buffers[i])
			return false;
	for (int64_t i = 0; i < one->n_children; i++)
		if (!is_same(one->children[i], other->children[i]))
			return false;
	return true;
}

/* Where a column is found, looked for from `first` on; -1: not near it. */
static int64_t find(const struct ArrowArray *column, const struct ArrowArray *in, int64_t first)
{
	for (int64_t i = 0; i < in->n_children && i < NEAR; i++)
		if (is_same(column, in->children[(first + i) % in->n_children]))
			return (first + i) % in->n_children;
	return -1;
}

static PyObject *places(const struct ArrowArray *batch, const struct ArrowArray *in)
{
	PyObject *found = PyList_New((Py_ssize_t)batch->n_children);
	int64_t next = 0;

	for (int64_t i = 0; found && i < batch->n_children; i++) {
		int64_t at = find(batch->children[i], in, next);
		PyObject *place = PyLong_FromLongLong(at);

		if (!place || PyList_SetItem(found, (Py_ssize_t)i, place))
			Py_CLEAR(found);
		if (at >= 0)
			next = at + 1;
	}
	return found;
}

/* same_columns(batch, other) -> [int]: both are pyarrow's. For each column of the batch, where the other one has
 * arrays of the same length at the same addresses; -1: it has none that was found. */
PyObject *same_columns(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	const struct state *state = PyModule_GetState(module);
	struct ArrowArray batch, other;
	PyObject *found;

	if (nargs != 2) {
		PyErr_SetString(PyExc_TypeError, "same_columns() wants two batches");
		return NULL;
	}
	if (!arrow_export(args[0], state->names.export_to_c, &batch))
		return NULL;
	if (!arrow_export(args[1], state->names.export_to_c, &other)) {
		batch.release(&batch);
		return NULL;
	}
	found = places(&batch, &other);
	other.release(&other);
	batch.release(&batch);
	return found;
}

/* --- how record batches of a schema are laid out ------------------------------------- */

/* arrow_layout(schema): None if a column has a type that push_batch() does not write. */
PyObject *arrow_layout(PyObject *module, PyObject *schema)
{
	struct state *state = PyModule_GetState(module);
	PyObject *capsule = PyObject_CallMethod(schema, "__arrow_c_schema__", NULL);
	const struct ArrowSchema *root = capsule ? PyCapsule_GetPointer(capsule, "arrow_schema") : NULL;
	struct arrow_layout *self = root ? PyObject_New(struct arrow_layout, state->arrow_layout) : NULL;

	if (!self) {
		Py_XDECREF(capsule);
		return NULL;
	}
	self->capsule = capsule;
	if (ipc_layout_of(&self->layout, root))
		return (PyObject *)self;
	if (!self->layout.fields)
		PyErr_NoMemory();
	Py_DECREF((PyObject *)self);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void layout_dealloc(PyObject *op)
{
	struct arrow_layout *self = (struct arrow_layout *)op;

	ipc_layout_free(&self->layout);
	Py_DECREF(self->capsule);
	object_free(op);
}

static PyType_Slot slots[] = {
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_doc, "How record batches of a schema are laid out in IPC messages; made by arrow_layout()."},
    {0, NULL},
};

PyType_Spec arrow_layout_spec = MADE_HERE("shmring._shmring.ArrowLayout", struct arrow_layout, slots);
