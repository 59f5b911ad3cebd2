/* Arrays that come through the Arrow C data interface, and how a schema's batches are laid out in messages. */
#ifndef SHMRING_BINDING_ARROW_H
#define SHMRING_BINDING_ARROW_H

#include "ipc_format.h"
#include "state.h"

/* _shmring.ArrowLayout */
struct arrow_layout {
	PyObject ob_base;
	PyObject *capsule; /* keeps the schema alive */
	struct ipc_layout layout;
};

bool arrow_export(PyObject *batch, PyObject *method, struct ArrowArray *array);
PyObject *same_columns(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *arrow_layout(PyObject *module, PyObject *schema);
extern PyType_Spec arrow_layout_spec;

#endif
