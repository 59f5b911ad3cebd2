/* Consumers, their leases and their batches, and what each file offers to the others. */
#ifndef SHMRING_BINDING_CONSUMERS_H
#define SHMRING_BINDING_CONSUMERS_H

#include "handle.h"

struct taken {
	uint64_t sequence;
	uint64_t first;
	uint64_t end;
};

struct consumer {
	struct handle handle;
	shmring_consumer *core;
	PyObject *branch;
	PyObject *dead_letters; /* a producer, of the core's handle alone; NULL: none */
	uint32_t branch_id;
	uint8_t wait; /* enum shmring_wait_strategy */
	bool exclusive;
	bool end_markers; /* are delivered as messages */
	bool abandoned; /* the branch delivers its leases again */
	bool kept; /* it holds messages that it could not hand back: closing does it */
	uint64_t max_slots; /* of a batch; 0: no bound */
	uint64_t ends; /* ends of the stream that the core has told this consumer of */
	bool calls; /* waits for several, to look at `ends` */
	struct taken *taken; /* messages of next() that have had no done() */
	size_t taken_count;
	size_t taken_room;
};

/* A Lease, or a Batch. The user closes it, and every buffer over it pins it. */
struct lease {
	struct handle handle;
	struct shmring_lease range;
	struct shmring_message *messages; /* a batch reads them when first asked */
	struct shmring_message message; /* a lease's only one */
	bool nacked; /* not released, but handed back */
	struct view *views; /* of messages of a batch */
	Py_ssize_t shape[2];
	Py_ssize_t strides[2];
};

static inline bool consumer_usable(struct consumer *self)
{
	return !self->handle.closed || raise_closed(&self->handle, "consumer");
}

/* Messages that were taken can be given back: if not, something has written over the ring since. */
static inline int status_of_taken(int status)
{
	return status == SHMRING_E_INVALID ? SHMRING_E_DAMAGED : status;
}

static inline struct ring *lease_ring(const struct lease *lease)
{
	return ring_of(lease->handle.below);
}

/* lease.c */
PyObject *lease_new(struct consumer *consumer, PyTypeObject *type, const struct shmring_lease *range);
int consumer_hand_back(struct consumer *consumer, uint64_t first, uint64_t end);
bool lease_readable(struct lease *lease);
PyObject *lease_release(PyObject *self, PyObject *ignored);
PyObject *lease_nack(PyObject *self, PyObject *ignored);
PyObject *lease_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *lease_get_redelivered(PyObject *self, void *closure);
PyObject *lease_get_deliveries(PyObject *self, void *closure);
void lease_dealloc(PyObject *self);
void lease_releasebuffer(PyObject *self, Py_buffer *buffer);
extern PyType_Spec lease_spec;

/* map_batch.c */
PyObject *map_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* batch.c */
extern PyType_Spec batch_spec;
extern PyType_Spec batch_iterator_spec;

/* take.c */
void raise_empty(struct consumer *consumer, int64_t timeout);
void raise_overrun(struct consumer *consumer);
void raise_not_read(struct ring *ring, int status, uint64_t position);
PyObject *raise_end(struct consumer *consumer);
void consumer_ended(struct consumer *consumer);
PyObject *consumer_pop(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *consumer_lease(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *consumer_lease_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *consumer_ends_of(PyObject *module, PyObject *consumer);
PyObject *consumer_check_ends(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *consumer_take_now(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *consumer_iter(PyObject *self);
PyObject *consumer_iternext(PyObject *self);
extern PyType_Spec consumer_iterator_spec;

/* durable.c */
PyObject *count_synced(PyObject *module, PyObject *args);

/* sequence.c */
PyObject *consumer_next(PyObject *self, PyObject *ignored);
PyObject *consumer_done(PyObject *self, PyObject *sequence);
PyObject *consumer_available(PyObject *self, PyObject *ignored);
PyObject *consumer_slot(PyObject *self, PyObject *sequence);

/* wait.c: for producers, too */
PyObject *wait_for_any(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *decline(PyObject *module, PyObject *consumer);
PyObject *give_up(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *should_try(PyObject *module, PyObject *handle);
PyObject *has_tried(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
extern PyType_Spec bell_spec;

/* consumer.c */
PyObject *consumer_open(struct ring *ring, const char *branch, const struct shmring_branch_options *options,
			const char *name, int wait);
PyObject *consumer_set_aside(PyObject *module, PyObject *args);
extern PyType_Spec consumer_spec;

#endif
