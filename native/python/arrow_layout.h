/* How the record batches of a schema are laid out, as an object. */
#ifndef SHMRING_BINDING_ARROW_LAYOUT_H
#define SHMRING_BINDING_ARROW_LAYOUT_H

#include "arrow.h"
#include "ipc_format.h"

/* _shmring.ArrowLayout */
struct arrow_layout {
	PyObject ob_base;
	PyObject *capsule; /* keeps the schema alive */
	struct ipc_layout layout;
};

PyObject *arrow_layout(PyObject *module, PyObject *schema);
extern PyType_Spec arrow_layout_spec;

#endif
