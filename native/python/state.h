/* The base of every file of the Python binding: the module's state, its
 * exceptions, how arguments are read. The binding translates: it knows no
 * offset of the ring file and no memory ordering. A file calls only files of
 * lower layers (README.md). */
#ifndef SHMRING_BINDING_STATE_H
#define SHMRING_BINDING_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <structmember.h>

#include "shmring.h"

#define FOREVER INT64_MAX
/* Minimum bytes of a copy for which the GIL is given up. A choice: copying 1 MB takes only 0.1 ms, while getting
 * the GIL back takes up to 5 ms if another thread runs (sys.getswitchinterval()). */
#define GIL_FREE_BYTES (1 << 20)

enum {
	/* CHANGE: edit this for a new error */
	ERROR_CLASSES = 22,
};

/* Names of keyword arguments. They are interned once, because a call then only compares pointers. */
struct names {
	PyObject *timeout;
	PyObject *kind;
	PyObject *durable;
	PyObject *align;
	PyObject *nbytes;
	PyObject *max_messages;
	PyObject *export_to_c;
};

/* State of the module. It has only references, because module.c visits all of them as one array. */
struct state {
	PyTypeObject *ring;
	PyTypeObject *producer;
	PyTypeObject *claim;
	PyTypeObject *consumer;
	PyTypeObject *consumer_iterator;
	PyTypeObject *lease;
	PyTypeObject *batch;
	PyTypeObject *batch_iterator;
	PyTypeObject *view;
	PyTypeObject *arrow_layout;
	PyTypeObject *bell;
	PyObject *errors[ERROR_CLASSES]; /* classes of exceptions, in the order of the table in status.c */
	PyObject *full;
	PyObject *empty;
	PyObject *end_of_stream;
	PyObject *overrun;
	PyObject *not_durable;
	struct names names;
};

/* Casts a function with keywords, or a METH_FASTCALL function, whose type is not PyCFunction. */
#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

/* The spec of a type whose instances only this module makes. */
#define MADE_HERE(type_name, type, type_slots)                                                                    \
	{.name = type_name,                                                                                       \
	 .basicsize = sizeof(type),                                                                               \
	 .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,                                         \
	 .slots = type_slots}

/* Returns a sequence as a Python int; None for UINT64_MAX, with which the core says that there is no sequence. */
static inline PyObject *sequence_or_none(uint64_t sequence)
{
	return sequence == UINT64_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(sequence);
}

/* Frees an object of a MADE_HERE type that has dropped all its references. */
static inline void object_free(PyObject *op)
{
	PyTypeObject *type = Py_TYPE(op);

	PyObject_Free(op);
	Py_DECREF(type);
}

/* status.c */
int errors_load(struct state *state);
PyObject *error_class(struct state *state, int status);
PyObject *error_text(void);
#define EXPLANATION_BYTES 512 /* room for the core's text about the holder that a caller waits for */
PyObject *raise_with(PyObject *class, PyObject *arguments);
PyObject *raise_error(struct state *state, int status);

/* arguments.c */
bool arguments_sort(const char *function, const char *wants, PyObject *const *args, Py_ssize_t nargs,
		    PyObject *kwnames, PyObject *const *names, int positional, int count, PyObject **out);
bool parse_timeout(PyObject *seconds, int64_t *timeout);
bool parse_kind(PyObject *number, uint8_t *kind);
bool parse_align(PyObject *number, int64_t *align);
int parse_flag(PyObject *value, void *flag);
bool parse_count(PyObject *number, const char *what, uint64_t most, uint64_t *count);
PyObject *seconds_text(int64_t timeout);

/* items.c */
PyObject *extents_of(PyObject *module, PyObject *args);
PyObject *runs_of(PyObject *module, PyObject *args);
PyObject *pack_items(PyObject *module, PyObject *items);
PyObject *unpack_items(PyObject *module, PyObject *args);
PyObject *unpack_item(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *stack_nodes(PyObject *module, PyObject *args);
PyObject *stack_walk(PyObject *module, PyObject *args);

#endif
