/* Arrays of the Arrow C data interface. */
#include <stdlib.h>

#include "arrow.h"

/* The capsules that keep schema and array alive, or NULL with an exception. */
PyObject *arrow_import(PyObject *object, const struct ArrowSchema **schema, const struct ArrowArray **array)
{
	PyObject *capsules = PyObject_CallMethod(object, "__arrow_c_array__", NULL);

	if (!capsules)
		return NULL;
	if (!PyTuple_Check(capsules) || PyTuple_Size(capsules) != 2) {
		PyErr_SetString(PyExc_TypeError, "__arrow_c_array__() must return two capsules");
		Py_DECREF(capsules);
		return NULL;
	}
	*schema = PyCapsule_GetPointer(PyTuple_GetItem(capsules, 0), "arrow_schema");
	*array = *schema ? PyCapsule_GetPointer(PyTuple_GetItem(capsules, 1), "arrow_array") : NULL;
	if (!*array)
		Py_CLEAR(capsules);
	return capsules;
}

/* Exports a batch of pyarrow without its schema, which would cost as much again; the caller releases it. */
bool arrow_export(PyObject *batch, PyObject *method, struct ArrowArray *array)
{
	PyObject *address = PyLong_FromVoidPtr(array);
	PyObject *done = address ? PyObject_CallMethodObjArgs(batch, method, address, NULL) : NULL;

	Py_XDECREF(address);
	Py_XDECREF(done);
	return done != NULL;
}

bool arrow_refuse_nulls(const struct ArrowArray *array, const char *what)
{
	const uint8_t *valid = array->buffers[0];

	if (!valid || array->null_count == 0)
		return true;
	for (int64_t i = array->offset; i < array->offset + array->length; i++)
		if (!(valid[i / 8] >> (i % 8) & 1)) {
			PyErr_Format(PyExc_ValueError, "%s cannot be null; fill or drop the nulls first", what);
			return false;
		}
	return true;
}

/* The first row of an array of fixed-size binary, and the length of each row. */
const uint8_t *arrow_fixed_rows(const struct ArrowSchema *schema, const struct ArrowArray *array, uint64_t *width)
{
	const uint8_t *data = array->buffers[1];

	*width = strtoul(schema->format + 2, NULL, 10);
	return data ? data + (uint64_t)array->offset * *width : (const uint8_t *)"";
}
