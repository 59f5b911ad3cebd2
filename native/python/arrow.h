/* Arrays that come through the Arrow C data interface. */
#ifndef SHMRING_BINDING_ARROW_H
#define SHMRING_BINDING_ARROW_H

#include "arrow_abi.h"
#include "state.h"

/* arrow.c */
PyObject *arrow_import(PyObject *object, const struct ArrowSchema **schema, const struct ArrowArray **array);
bool arrow_export(PyObject *batch, PyObject *method, struct ArrowArray *array);
bool arrow_refuse_nulls(const struct ArrowArray *array, const char *what);
const uint8_t *arrow_fixed_rows(const struct ArrowSchema *schema, const struct ArrowArray *array, uint64_t *width);

/* same_columns.c */
PyObject *same_columns(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
