/* Waiting for several; what an event loop's tasks ask. */
#ifndef SHMRING_BINDING_WAIT_H
#define SHMRING_BINDING_WAIT_H

#include "state.h"

/* wait.c */
PyObject *wait_for_any(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *decline(PyObject *module, PyObject *consumer);
PyObject *give_up(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *should_try(PyObject *module, PyObject *handle);
PyObject *has_tried(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
extern PyType_Spec bell_spec;

#endif
