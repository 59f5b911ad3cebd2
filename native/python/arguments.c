/* Parsing of arguments, for calls that must be quick. */
#include <math.h>

#include "state.h"

static int name_index(PyObject *name, PyObject *const *names, int count)
{
	for (int i = 0; i < count; i++)
		if (name == names[i])
			return i;
	for (int i = 0; i < count; i++) /* compares texts: the name may not be interned */
		if (names[i] && PyUnicode_Compare(name, names[i]) == 0)
			return i;
	return -1;
}

/* Stores the arguments of a fastcall in `out`. names[i] is the keyword of out[i], or NULL if the argument has
 * none; the first `positional` arguments may be given by position. If an argument is not given, its value in `out`
 * does not change. If `wants` is not NULL, the first argument must be given: `wants` describes it in the error. */
bool arguments_sort(const char *function, const char *wants, PyObject *const *args, Py_ssize_t nargs,
		    PyObject *kwnames, PyObject *const *names, int positional, int count, PyObject **out)
{
	Py_ssize_t keywords = kwnames ? PyTuple_Size(kwnames) : 0;

	if (nargs > positional) {
		PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)", function,
			     positional, nargs);
		return false;
	}
	for (Py_ssize_t i = 0; i < nargs; i++)
		out[i] = args[i];
	for (Py_ssize_t i = 0; i < keywords; i++) {
		PyObject *name = PyTuple_GetItem(kwnames, i);
		int at = name_index(name, names, count);

		if (at < 0) {
			PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function,
				     name);
			return false;
		}
		if (at < nargs) {
			PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", function,
				     name);
			return false;
		}
		out[at] = args[nargs + i];
	}
	if (wants && !out[0]) {
		PyErr_Format(PyExc_TypeError, "%s() wants %s", function, wants);
		return false;
	}
	return true;
}

/* Reads a timeout in seconds; None means for ever. */
bool parse_timeout(PyObject *seconds, int64_t *timeout)
{
	double value;

	if (seconds == Py_None) {
		*timeout = FOREVER;
		return true;
	}
	value = PyFloat_AsDouble(seconds);
	if (value == -1.0 && PyErr_Occurred()) {
		if (PyErr_ExceptionMatches(PyExc_TypeError))
			PyErr_Format(PyExc_TypeError, "timeout must be a number of seconds or None, not %R",
				     seconds);
		return false;
	}
	if (isnan(value) || value < 0) {
		PyErr_Format(PyExc_ValueError,
			     "timeout must be 0 (do not wait), a number of seconds or None (for ever), not %R",
			     seconds);
		return false;
	}
	*timeout = value >= 9e9 ? FOREVER : (int64_t)ceil(value * 1e9);
	return true;
}

bool parse_kind(PyObject *number, uint8_t *kind)
{
	long value = PyLong_AsLong(number);

	if (value == -1 && PyErr_Occurred())
		return false;
	if (value < 0 || value > UINT8_MAX) { /* the core refuses the reserved kinds */
		PyErr_Format(PyExc_ValueError, "kind must be 0, or %d to 255, not %ld", SHMRING_KIND_USER, value);
		return false;
	}
	*kind = (uint8_t)value;
	return true;
}

bool parse_align(PyObject *number, int64_t *align)
{
	if (number == Py_None)
		return true;
	*align = PyLong_AsLongLong(number);
	if (*align == -1 && PyErr_Occurred())
		return false;
	if (*align >= 0 && *align % 4 == 0)
		return true;
	PyErr_Format(PyExc_ValueError, "align must be a multiple of 4, not %S", number);
	return false;
}

/* Stores the truth of `value` in the bool at `flag`. The signature is that of a converter ("O&") for
 * PyArg_ParseTuple(), whose format "p" would store an int. */
int parse_flag(PyObject *value, void *flag)
{
	int truth = PyObject_IsTrue(value);

	*(bool *)flag = truth > 0;
	return truth >= 0;
}

bool parse_count(PyObject *number, const char *what, uint64_t most, uint64_t *count)
{
	long long value = PyLong_AsLongLong(number);

	if (value == -1 && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError))
		return false;
	if (PyErr_Occurred() || value < 0 || (unsigned long long)value > most) {
		PyErr_Clear();
		PyErr_Format(PyExc_ValueError, "%s must be from 0 to %llu, not %S", what, (unsigned long long)most,
			     number);
		return false;
	}
	*count = (uint64_t)value;
	return true;
}

/* Formats a timeout for error messages: PyErr_Format has no %g. */
PyObject *seconds_text(int64_t timeout)
{
	char text[32];

	PyOS_snprintf(text, sizeof text, "%.6g", (double)timeout / 1e9);
	return PyUnicode_FromString(text);
}
