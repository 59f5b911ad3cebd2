/* What the files of the Python binding share. The binding translates: it knows
 * no offset of the ring file and no memory ordering.
 *
 * Threads. The core's producers and members want one thread at a time, and the
 * GIL gives them that: every core call is made with the GIL held, save for
 *   - the _wait functions, which touch no state of the handle;
 *   - copies of a MiB or more, while `busy` keeps other threads out of that
 *     producer (see producer.c) and the reader holds a lease (see member.c);
 *   - what the core locks itself: attach, join, close, recover and the like.
 * A module that does not declare Py_MOD_GIL_NOT_USED gets the GIL back in a
 * free-threaded interpreter, so this holds there too.
 *
 * Lifetimes. Lease -> member -> ring and claim -> producer -> ring by strong
 * references, so there are no cycles and nothing needs the collector. What the
 * user closes is closed for him at once; the core's handle stays until its last
 * pin is gone (a thread in a wait, a living lease, an exported buffer).
 */
#ifndef SHMRING_BINDING_H
#define SHMRING_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "shmring.h"

enum when_full {
	FULL_BLOCK = 0,
	FULL_RAISE = 1,
	FULL_DROP = 2,
};

#define FOREVER INT64_MAX
/* The branch whose release means that a message is on disk. */
#define JOURNAL_BRANCH "journal"
#define GIL_FREE_BYTES (1 << 20) /* a copy this large is worth giving up the GIL */

enum {
	ERROR_CLASSES = 22,
};

/* Keyword names, interned once so that a call compares pointers. */
struct names {
	PyObject *timeout;
	PyObject *kind;
	PyObject *durable;
	PyObject *align;
	PyObject *nbytes;
	PyObject *max_messages;
};

/* References and nothing else: module.c visits them as one array. */
struct state {
	PyTypeObject *ring;
	PyTypeObject *producer;
	PyTypeObject *claim;
	PyTypeObject *member;
	PyTypeObject *member_iterator;
	PyTypeObject *lease;
	PyTypeObject *batch;
	PyTypeObject *view;
	PyObject *errors[ERROR_CLASSES]; /* in the order of status.c */
	PyObject *full;
	PyObject *empty;
	PyObject *end_of_stream;
	PyObject *lapsed;
	PyObject *not_durable;
	struct names names;
};

struct handle;

struct ring {
	PyObject ob_base;
	struct state *state;
	shmring *core;
	PyObject *label; /* how messages call this ring */
	struct handle *handles; /* producers and members that are not closed */
	size_t pins; /* handles of the core, exported memory, calls without the GIL */
	bool closed;
	bool checksum;
	bool scattered;
};

/* What producers and members have in common. */
struct handle {
	PyObject ob_base;
	struct ring *ring;
	struct handle *previous;
	struct handle *next;
	void (*finish)(struct handle *); /* closes the core's handle */
	size_t pins; /* threads without the GIL, leases */
	bool closed;
	uint8_t wait; /* enum shmring_wait_strategy */
};

struct producer {
	struct handle handle;
	shmring_producer *core;
	int64_t timeout; /* where a call names none: FOREVER or 0 */
	bool drop; /* full: count the message and return -1 */
	bool busy; /* a thread copies without the GIL */
	bool claimed; /* a Claim is open */
};

struct taken {
	uint64_t sequence;
	uint64_t first;
	uint64_t end;
};

struct member {
	struct handle handle;
	shmring_member *core;
	PyObject *branch;
	uint32_t branch_id;
	bool exclusive;
	bool end_markers; /* are delivered as messages */
	uint64_t ends; /* of the stream that the core has told this member of */
	bool abandoned; /* what it holds is to be delivered again */
	bool kept; /* something that could not be handed back: closing does it */
	struct taken *taken; /* by next(), not yet done() */
	size_t taken_count;
	size_t taken_room;
};

struct lease {
	PyObject ob_base;
	struct member *member;
	struct shmring_lease range;
	struct shmring_message *messages; /* a batch reads them when first asked */
	struct shmring_message message; /* a lease's only one */
	Py_ssize_t exports;
	bool released; /* by the user */
	bool nacked; /* and not released, but handed back */
	bool *parts; /* messages of a batch that are to be handed back; NULL: none */
	bool held; /* by the core */
	Py_ssize_t shape[2];
	Py_ssize_t strides[2];
};

/* How long a call goes on trying. */
struct patience {
	int64_t timeout; /* ns; 0: one try */
	int64_t deadline; /* 0: not needed yet */
	int64_t grace; /* lost races are no reason to give up before */
	unsigned contended;
};

enum retry {
	RETRY_RAISED = -1,
	RETRY_OVER = 0, /* time is up */
	RETRY_AGAIN = 1,
};

/* status.c */
int errors_load(struct state *state);
PyObject *error_class(struct state *state, int status);
PyObject *error_text(void);
#define EXPLANATION_BYTES 512 /* of the core's words about who holds what */
PyObject *raise_error(struct state *state, int status);
PyObject *raise_status(struct ring *ring, int status);
PyObject *raise_closed(struct ring *ring, const char *what);

/* arguments.c */
bool arguments_sort(const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
		    PyObject *const *names, int positional, int count, PyObject **out);
bool parse_timeout(PyObject *seconds, int64_t *timeout);
bool parse_kind(PyObject *number, uint8_t *kind);
bool parse_count(PyObject *number, const char *what, uint64_t most, uint64_t *count);
int64_t deadline_after(int64_t timeout);
PyObject *seconds_text(int64_t timeout);

/* ring.c */
PyObject *ring_wrap(struct state *state, PyObject *label, shmring *core);
void ring_unpin(struct ring *ring);
bool ring_usable(struct ring *ring);
extern PyType_Spec ring_spec;

/* handle.c */
void handle_init(struct handle *handle, struct ring *ring, void (*finish)(struct handle *));
void handle_close(struct handle *handle);
void handle_unpin(struct handle *handle);
enum retry handle_contended(struct handle *handle, struct patience *patience);
enum retry handle_waited(struct handle *handle, int status);
PyObject *handle_enter(PyObject *self, PyObject *ignored);

/* producer.c */
enum {
	STATUS_BUSY = 1, /* beside the core's: another thread copies without the GIL */
};
PyObject *producer_open(struct ring *ring, const char *name, int when_full, int wait);
enum retry producer_retry(struct producer *producer, int status, uint64_t slots, struct patience *patience);
PyObject *raise_full(struct producer *producer, const struct patience *patience);
PyObject *producer_full(struct producer *producer, uint64_t messages, const struct patience *patience);
bool producer_usable(struct producer *producer);
extern PyType_Spec producer_spec;

/* rows.c */
bool journal_find(struct producer *self, uint32_t *branch);
bool journal_await(struct producer *self, uint32_t branch, uint64_t message_id, struct patience *patience);
PyObject *producer_wait_durable(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *producer_push_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* claim.c */
/* Where a message begins in its slot; `align` is the byte of it that is to lie on
 * a 64-byte boundary, or -1. */
static inline uint8_t shift_for(const void *slot, int64_t align)
{
	return align < 0 ? 0 : (uint8_t)(-((uintptr_t)slot + (uintptr_t)align) % 64);
}

bool parse_align(PyObject *value, int64_t *align);
PyObject *producer_claim(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
extern PyType_Spec claim_spec;

/* member.c */
PyObject *member_open(struct ring *ring, const char *branch, const struct shmring_branch_options *options,
		      const char *name, int wait);
bool member_usable(struct member *member);
void raise_lapsed(struct member *member);
int member_hand_back(struct member *member, uint64_t first, uint64_t end);
void raise_end(struct member *member);
extern PyType_Spec member_spec;
extern PyType_Spec member_iterator_spec;

/* member_sequence.c */
PyObject *member_next(PyObject *self, PyObject *ignored);
PyObject *member_done(PyObject *self, PyObject *sequence);
PyObject *member_available(PyObject *self, PyObject *ignored);
PyObject *member_slot(PyObject *self, PyObject *sequence);

/* lease.c */
PyObject *lease_new(struct member *member, PyTypeObject *type, const struct shmring_lease *range);
void lease_unexport(PyObject *lease);
extern PyType_Spec lease_spec;

bool lease_readable(struct lease *lease);
PyObject *lease_release(PyObject *self, PyObject *ignored);
PyObject *lease_nack(PyObject *self, PyObject *ignored);
PyObject *lease_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *lease_get_redelivered(PyObject *self, void *closure);
void lease_dealloc(PyObject *self);
void lease_releasebuffer(PyObject *self, Py_buffer *buffer);

/* batch.c */
extern PyType_Spec batch_spec;

/* view.c */
PyObject *view_new(struct state *state, PyObject *owner, void (*release)(PyObject *owner), void *data,
		   Py_ssize_t nbytes, bool readonly);
extern PyType_Spec view_spec;

/* METH_FASTCALL functions have another type than PyCFunction. */
#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

static inline void ring_pin(struct ring *ring)
{
	ring->pins++;
}

static inline void handle_pin(struct handle *handle)
{
	handle->pins++;
}

#endif
