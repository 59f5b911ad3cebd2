/* Rings, from which producers and consumers come. */
#ifndef SHMRING_BINDING_RING_H
#define SHMRING_BINDING_RING_H

#include "consumers.h"
#include "producers.h"

PyObject *ring_wrap(struct state *state, PyObject *label, shmring *core);
extern PyType_Spec ring_spec;

#endif
