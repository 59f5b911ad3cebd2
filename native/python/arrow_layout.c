/* _shmring.ArrowLayout: how the record batches of a schema are laid out in IPC messages. */
#include "arrow_layout.h"

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

/* --- the type ------------------------------------------------------------------------ */

static PyType_Slot slots[] = {
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_doc, "How record batches of a schema are laid out in IPC messages; made by arrow_layout()."},
    {0, NULL},
};

PyType_Spec arrow_layout_spec = MADE_HERE("shmring._shmring.ArrowLayout", struct arrow_layout, slots);
