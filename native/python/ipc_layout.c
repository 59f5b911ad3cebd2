/* _shmring.ArrowLayout: how the record batches of a schema are laid out in IPC messages. */
#include <string.h>

#include "ipc.h"

/* arrow_layout(schema): None where a type is not one of those that are written here. */
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
	PyTypeObject *type = Py_TYPE(op);

	ipc_layout_free(&self->layout);
	Py_DECREF(self->capsule);
	PyObject_Free(op);
	Py_DECREF(type);
}

/* --- another schema ------------------------------------------------------------------ */

/* Pairs of a key and a value, each a length and its bytes, behind their number. */
static size_t metadata_size(const char *metadata)
{
	const char *at = metadata;
	int32_t pairs;

	memcpy(&pairs, at, sizeof pairs);
	at += sizeof pairs;
	for (int64_t i = 0; i < 2 * (int64_t)pairs; i++) {
		int32_t length;

		memcpy(&length, at, sizeof length);
		at += sizeof length + (size_t)length;
	}
	return (size_t)(at - metadata);
}

static bool same_metadata(const char *one, const char *other)
{
	size_t size;

	if (!one || !other)
		return one == other;
	size = metadata_size(one);
	return size == metadata_size(other) && memcmp(one, other, size) == 0;
}

static bool same_name(const char *one, const char *other)
{
	return strcmp(one ? one : "", other ? other : "") == 0;
}

static bool field_agrees(const struct ipc_field **next, const struct ArrowSchema *given)
{
	const struct ArrowSchema *own = (*next)++->schema;

	if (given->n_children != own->n_children || given->dictionary || given->flags != own->flags ||
	    strcmp(given->format, own->format) != 0 || !same_name(given->name, own->name) ||
	    !same_metadata(given->metadata, own->metadata))
		return false;
	for (int64_t i = 0; i < given->n_children; i++)
		if (!field_agrees(next, given->children[i]))
			return false;
	return true;
}

/* Whether the schema says the same of every column: type, name, nullability and metadata, which hold
 * extension types. */
bool ipc_agrees(const struct ipc_layout *layout, const struct ArrowSchema *schema)
{
	const struct ipc_field *next = layout->fields + 1;

	if (strcmp(schema->format, "+s") != 0 || schema->n_children != layout->fields->schema->n_children)
		return false;
	for (int64_t i = 0; i < schema->n_children; i++)
		if (!field_agrees(&next, schema->children[i]))
			return false;
	return true;
}

/* --- the type ------------------------------------------------------------------------ */

static PyType_Slot slots[] = {
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_doc, "How record batches of a schema are laid out in IPC messages; made by arrow_layout()."},
    {0, NULL},
};

PyType_Spec ipc_layout_spec = MADE_HERE("shmring._shmring.ArrowLayout", struct arrow_layout, slots);
