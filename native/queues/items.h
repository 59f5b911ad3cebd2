/* Items of the durable queues: their places, and how they are checked. */
#ifndef SHMRING_QUEUES_ITEMS_H
#define SHMRING_QUEUES_ITEMS_H

#include "state.h"

/* In memory: an item's bytes in a file. Python slices arrays of these and knows their size. */
struct place {
	uint64_t offset;
	uint32_t length;
	uint32_t crc;
};

/* places.c */
bool get_places(PyObject *object, Py_buffer *buffer, uint64_t begin, uint64_t end);
PyObject *places_of(PyObject *module, PyObject *args);
PyObject *runs_of(PyObject *module, PyObject *args);
PyObject *reverse_places(PyObject *module, PyObject *places);

/* pack.c, unpack.c, stacks.c: functions of the module */
PyObject *pack_items(PyObject *module, PyObject *items);
PyObject *unpack_items(PyObject *module, PyObject *args);
PyObject *unpack_item(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *stack_nodes(PyObject *module, PyObject *args);
PyObject *stack_walk(PyObject *module, PyObject *args);

#endif
