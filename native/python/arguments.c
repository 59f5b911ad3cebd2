/* Parsing of arguments, for calls that must be quick. */
#include <math.h>
#include <stdarg.h>

#include "state.h"

static int name_index(PyObject *name, PyObject *const *names, int count)
{
	for (int i = 0; i < count; i++)
		if (name == names[i])
			return i;
	for (int i = 0; i < count; i++) /* compare texts, because not every name is interned */
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

/* Parses a number from 0 to `most`. The format `rule`, with its arguments, is the beginning of the error for any
 * other number. The text is made only for an error, because calls for each message parse numbers. */
static bool parse_number(PyObject *number, uint64_t most, uint64_t *value, const char *rule, ...)
{
	long long found = PyLong_AsLongLong(number);
	PyObject *text;
	va_list arguments;

	if (found >= 0 && (unsigned long long)found <= most) {
		*value = (uint64_t)found;
		return true;
	}
	if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError))
		return false;
	PyErr_Clear();
	va_start(arguments, rule);
	text = PyUnicode_FromFormatV(rule, arguments);
	va_end(arguments);
	if (text)
		PyErr_Format(PyExc_ValueError, "%U, not %S", text, number);
	Py_XDECREF(text);
	return false;
}

bool parse_kind(PyObject *number, uint8_t *kind)
{
	uint64_t value;

	/* The core refuses the reserved kinds. */
	if (!parse_number(number, UINT8_MAX, &value, "kind must be 0, or %d to 255", SHMRING_KIND_USER))
		return false;
	*kind = (uint8_t)value;
	return true;
}

bool parse_align(PyObject *number, int64_t *align)
{
	static const char rule[] = "align must be a multiple of 4";
	uint64_t value;

	if (number == Py_None)
		return true;
	if (!parse_number(number, INT64_MAX, &value, rule))
		return false;
	*align = (int64_t)value;
	if (value % 4 == 0)
		return true;
	PyErr_Format(PyExc_ValueError, "%s, not %S", rule, number);
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
	return parse_number(number, most, count, "%s must be from 0 to %llu", what, (unsigned long long)most);
}

/* Formats a timeout for error messages: PyErr_Format has no %g. */
PyObject *seconds_text(int64_t timeout)
{
	char text[32];

	PyOS_snprintf(text, sizeof text, "%.6g", (double)timeout / 1e9);
	return PyUnicode_FromString(text);
}
