/* The core's statuses as the classes of shmring.errors. */
#include <string.h>

#include "state.h"

static const struct {
	int status;
	const char *name; /* class of shmring.errors; NULL if `builtin` is set */
	PyObject **builtin;
} classes[] = {
    /* CHANGE: edit this for a new error */
    {SHMRING_E_SYSTEM, "ShmringError", NULL}, /* first row: the class of every status without a row */
    {SHMRING_CONTENDED, "Contended", NULL},
    {SHMRING_E_INVALID, NULL, &PyExc_ValueError},
    {SHMRING_E_NOT_FOUND, "RingNotFound", NULL},
    {SHMRING_E_EXISTS, "RingExists", NULL},
    {SHMRING_E_NOT_A_RING, "NotARing", NULL},
    {SHMRING_E_VERSION, "VersionMismatch", NULL},
    {SHMRING_E_DAMAGED, "Damaged", NULL},
    {SHMRING_E_PERMISSION, "PermissionRefused", NULL},
    {SHMRING_E_NO_SPACE, "NoSpace", NULL},
    {SHMRING_E_TOO_LARGE, "MessageTooLarge", NULL},
    {SHMRING_E_SECOND_PRODUCER, "SecondProducer", NULL},
    {SHMRING_E_SECOND_CONSUMER, "SecondConsumer", NULL},
    {SHMRING_E_LIMIT, "LimitReached", NULL},
    {SHMRING_E_LEASES, "TooManyLeases", NULL},
    {SHMRING_E_CLAIM_OPEN, "ClaimOpen", NULL},
    {SHMRING_E_NO_BRANCH, "BranchNotFound", NULL},
    {SHMRING_E_DROPPED, "BranchDropped", NULL},
    {SHMRING_E_CLOSED, "Closed", NULL},
    {SHMRING_E_FORKED, "ForkedHandle", NULL},
    {SHMRING_E_NO_MEMORY, NULL, &PyExc_MemoryError},
};

_Static_assert(sizeof classes / sizeof *classes <= ERROR_CLASSES, "room for every class");

int errors_load(struct state *state)
{
	PyObject *module = PyImport_ImportModule("shmring.errors");

	if (!module)
		return -1;
	for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
		if (classes[i].builtin)
			state->errors[i] = Py_NewRef(*classes[i].builtin);
		else
			state->errors[i] = PyObject_GetAttrString(module, classes[i].name);
		if (!state->errors[i])
			break;
	}
	state->full = PyObject_GetAttrString(module, "Full");
	state->empty = PyObject_GetAttrString(module, "Empty");
	state->end_of_stream = PyObject_GetAttrString(module, "EndOfStream");
	state->overrun = PyObject_GetAttrString(module, "Overrun");
	state->not_durable = PyObject_GetAttrString(module, "NotDurable");
	Py_DECREF(module);
	return PyErr_Occurred() ? -1 : 0;
}

PyObject *error_class(struct state *state, int status)
{
	for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
		if (classes[i].status == status)
			return state->errors[i];
	return state->errors[0];
}

/* Returns the text of the core's last failing call in this thread. The text may quote a path with any
 * bytes, and may be cut in the middle of a character. */
PyObject *error_text(void)
{
	const char *message = shmring_error_message();

	return PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "backslashreplace");
}

/* Raises an exception of a class and takes over the reference to its arguments, which are a text or a tuple. If
 * the arguments are NULL, making them has failed, and the exception that is set already stays. Returns NULL. */
PyObject *raise_with(PyObject *class, PyObject *arguments)
{
	if (arguments)
		PyErr_SetObject(class, arguments);
	Py_XDECREF(arguments);
	return NULL;
}

PyObject *raise_error(struct state *state, int status)
{
	return raise_with(error_class(state, status), error_text());
}
