/* Producers, and what each file offers to the others. */
#ifndef SHMRING_BINDING_PRODUCERS_H
#define SHMRING_BINDING_PRODUCERS_H

#include <unistd.h>

#include "handle.h"

enum when_full {
	FULL_BLOCK = 0,
	FULL_RAISE = 1,
	FULL_DROP = 2,
};

/* A message that this branch has released is on disk. */
#define JOURNAL_BRANCH "journal"

struct producer {
	struct handle handle;
	shmring_producer *core;
	int64_t timeout; /* of calls that name none: FOREVER or 0 */
	uint8_t wait; /* enum shmring_wait_strategy */
	bool drop; /* full: count the message and return -1 */
	bool claimed; /* a Claim is open */
	pid_t busy; /* the process in which a thread copies without the GIL; 0: none */
};

static inline bool producer_usable(struct producer *self)
{
	return !self->handle.closed || raise_closed(&self->handle, "producer");
}

/* A forked child has no such thread: there the core reports the error. */
static inline bool producer_busy(const struct producer *self)
{
	return self->busy && self->busy == getpid();
}

/* Where a message begins in its slot; the byte `align` of the message lies on a
 * 64-byte boundary then; -1: no byte has to. */
static inline uint8_t shift_for(const void *slot, int64_t align)
{
	return align < 0 ? 0 : (uint8_t)(-((uintptr_t)slot + (uintptr_t)align) % 64);
}

/* durable.c */
bool journal_find(struct producer *self, uint32_t *branch);
bool journal_await(struct producer *self, uint32_t branch, uint64_t message_id, struct wait_state *waiting);
PyObject *producer_wait_durable(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* push.c */
enum {
	STATUS_BUSY = 1, /* beside the core's: another thread copies without the GIL */
};

struct pushing {
	const void *data;
	size_t length; /* of the message; up to UINT32_MAX where it is filled */
	int64_t align; /* -1: none */
	void (*fill)(void *to, const void *data); /* writes an aligned message; NULL: `data` is its bytes */
	uint8_t kind;
	bool durable;
};

PyObject *push_message(struct producer *producer, const struct pushing *message, int64_t timeout);
enum retry producer_retry(struct producer *producer, int status, uint64_t slots, struct wait_state *waiting);
PyObject *raise_full(struct producer *producer, const struct wait_state *waiting);
PyObject *producer_full(struct producer *producer, uint64_t messages, const struct wait_state *waiting);
PyObject *producer_push(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *producer_push_now(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *producer_push_end(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* rows.c */
PyObject *producer_push_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* push_batch.c */
PyObject *push_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* claim.c */
PyObject *producer_claim(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
extern PyType_Spec claim_spec;

/* sequence.c */
PyObject *producer_next(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *producer_done(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *producer_abort(PyObject *self, PyObject *ignored);
PyObject *producer_available(PyObject *self, PyObject *ignored);
PyObject *producer_slot(PyObject *self, PyObject *sequence);

/* producer.c */
PyObject *producer_open(struct ring *ring, const char *name, int when_full, int wait);
extern PyType_Spec producer_spec;

#endif
