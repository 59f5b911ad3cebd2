/* Rings, producers, consumers and leases; and the functions of each file that other files call.
 *
 * Lifetimes. A handle stands on another: lease -> consumer -> ring, producer ->
 * ring. Each handle holds a Python reference to the handle below, and none to a handle
 * above: there are no cycles, and the garbage collector is not needed. A handle also
 * pins the handle below until its own finish() has run. A handle that the user closes
 * refuses further calls at once; the core's handle stays until the last pin is gone (a
 * thread in a wait, a living lease, an exported buffer). A ring closes its producers
 * and consumers; a lease outlives the closing of its consumer.
 *
 * Threads. The core's producers and consumers want one thread at a time, and the
 * GIL sees to that: a free-threaded Python turns it on when it loads this module.
 * A thread calls the core for a producer or consumer with the GIL held, except for
 *   - the _wait functions, which touch no state of the handle;
 *   - copies of a MiB or more, while `busy` keeps other threads out of that
 *     producer (push.c) and the reader holds a lease (take.c);
 *   - calls that the core locks itself: attach, join, close, recover and the like.
 * A thread pins the handles that it uses before it gives up the GIL, and checks
 * again whether they are closed when it has the GIL back. Every call of Python
 * that may run code or raise an exception may give the GIL up.
 *
 * Fork. The child's handles are the parent's, and the core refuses them. The
 * child lacks the parent's other threads: their pins are never given back and
 * keep the mapping until the child ends, and nothing in the child may wait for
 * such a thread.
 */
#ifndef SHMRING_BINDING_HANDLE_H
#define SHMRING_BINDING_HANDLE_H

#include <sys/types.h>
#include <unistd.h>

#include "state.h"

struct handle {
	PyObject ob_base;
	struct handle *below; /* handle on which this one stands; NULL for a ring */
	struct handle *above; /* list of the handles that close with this one */
	struct handle *next; /* next handle in the same list `above` */
	struct handle **link; /* address of the pointer to this handle in its list; NULL: in no list */
	int (*finish)(struct handle *); /* closes the core's handle; returns a status */
	void (*interrupt)(struct handle *); /* ends the waits in the core's handle; NULL: nothing waits in it */
	size_t pins; /* 1 until closed, plus 1 for each call without the GIL, handle above and exported buffer */
	size_t awaited; /* pins of threads in wait_any(), which wait for several handles */
	pid_t awaited_in; /* process of the last thread in `awaited`: a forked child has none of these threads */
	bool closed;
	/* The next three fields are for tasks of an event loop, see wait.c. */
	uint8_t misses; /* polls in a row that found nothing before a wait; at most MOST_MISSES */
	uint8_t skips; /* how many of the next waits begin without a poll */
	uint16_t streak; /* calls in a row that did not have to wait */
	bool visited; /* its ring is closing this handle: close_above() frees the memory, not handle_free() */
	bool collected;
};

struct ring {
	struct handle handle;
	struct state *state;
	shmring *core;
	PyObject *label; /* name of the ring in error messages */
	/* Functions of the GPU's runtime that has page-locked ("pinned") the ring's memory; `unregister` is NULL
	 * if the memory is not pinned. These fields have nothing to do with the handle's pins. */
	int (*unregister)(void *);
	int (*last_error)(void);
	int pinned_as; /* DLPack device type of the pinned memory */
	pid_t pinned_in; /* process that pinned the memory: a forked child has the mapping unpinned */
};

/* The entry for `closed` in the member tables of all handles. */
#define MEMBER_CLOSED {"closed", T_BOOL, offsetof(struct handle, closed), READONLY, "whether close() was called"}

/* A loop over a consumer or a batch. */
struct iterator {
	PyObject ob_base;
	PyObject *over;
	uint64_t number; /* consumer: its `ends` when the loop began; batch: index of the next message */
};

/* State of a call that tries again: its timeout, and the times when it gives up. */
struct wait_state {
	int64_t timeout; /* nanoseconds; 0: one try */
	int64_t deadline; /* end of the timeout on CLOCK_MONOTONIC; 0: not computed yet */
	int64_t grace; /* time before which the call does not give up because of lost races */
	unsigned contended; /* number of lost races */
};

enum retry {
	RETRY_RAISED = -1,
	RETRY_OVER = 0, /* the time is over */
	RETRY_AGAIN = 1, /* try again */
};

/* Number of calls in a row that did not have to wait, after which the event loop's other tasks have their turn: a
 * choice, some 0.2 ms of calls. */
#define STREAK 256

/* A function that waits in the core, without the GIL. */
typedef int wait_function(struct handle *handle, uint64_t wanted, int64_t deadline);

/* handle.c */
struct handle *handle_new(PyTypeObject *type, size_t nbytes, struct ring *ring, int (*finish)(struct handle *));
bool handle_opened(struct handle *handle, int status);
int handle_shut(struct handle *handle);
int handle_finish(struct handle *handle);
void handle_free(struct handle *handle);
void handle_dealloc(PyObject *self);
void warn_dropped(const PyObject *dropped, const char *format, ...);
PyObject *handle_enter(PyObject *self, PyObject *ignored);
PyObject *handle_close_method(PyObject *self, PyObject *ignored);
PyObject *handle_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *iterator_new(PyTypeObject *type, PyObject *over, uint64_t number);
void iterator_dealloc(PyObject *self);
bool ring_hold(struct ring *ring);
bool ring_is_pinned(const struct ring *ring);
PyObject *raise_closed(const struct handle *handle, const char *what);
int64_t monotonic_ns(void);
int64_t deadline_after(int64_t timeout);
void handle_pause(struct handle *handle);
int handle_wait(struct handle *handle, wait_function *wait, uint64_t wanted, int64_t deadline);
enum retry handle_waited(struct handle *handle, int status);
enum retry handle_retry(struct handle *handle, int status, struct wait_state *waiting, wait_function *wait,
			uint64_t wanted);

static inline void handle_pin(struct handle *handle)
{
	handle->pins++;
}

/* Gives back a pin. The last pin closes the core's handle. */
static inline int handle_unpin(struct handle *handle)
{
	return --handle->pins ? SHMRING_OK : handle_finish(handle);
}

static inline int handle_close(struct handle *handle)
{
	return handle->closed ? SHMRING_OK : handle_shut(handle);
}

static inline void handle_init(struct handle *handle, struct handle *below, int (*finish)(struct handle *))
{
	handle->below = (struct handle *)Py_XNewRef((PyObject *)below);
	handle->above = NULL;
	handle->link = NULL;
	handle->finish = finish;
	handle->interrupt = NULL;
	handle->pins = 1;
	handle->closed = false;
	handle->awaited = 0;
	handle->misses = 0;
	handle->skips = 0;
	handle->streak = 0;
	handle->visited = false;
	handle->collected = false;
	if (below)
		handle_pin(below);
}

/* Returns the ring of a producer or a consumer. */
static inline struct ring *ring_of(const struct handle *handle)
{
	return (struct ring *)handle->below;
}

static inline PyObject *raise_status(struct ring *ring, int status)
{
	return raise_error(ring->state, status);
}

/* Returns None, or NULL with an exception if `status` is an error. */
static inline PyObject *result_of(struct ring *ring, int status)
{
	return status ? raise_status(ring, status) : Py_NewRef(Py_None);
}

/* ring.c */
PyObject *ring_wrap(struct state *state, PyObject *label, shmring *core);
extern PyType_Spec ring_spec;

/* view.c */
struct lease;
struct view;
PyObject *view_new(struct state *state, PyObject *owner, struct handle *pinned, const void *data, uint64_t nbytes,
		   bool readonly);
PyObject *view_lend(struct state *state, struct lease *lease, const struct shmring_message *message,
		    struct view **turn);
void view_settle(struct view **turn);
void views_take_back(struct view **list);
extern PyType_Spec view_spec;

/* --- producers -------------------------------------------------------------------- */

enum when_full {
	FULL_BLOCK = 0,
	FULL_RAISE = 1,
	FULL_DROP = 2,
};

/* Name of the journal's branch: a message that this branch has released is on disk. */
#define JOURNAL_BRANCH "journal"

struct producer {
	struct handle handle;
	shmring_producer *core;
	int64_t timeout; /* how long calls without a timeout wait: FOREVER or 0 */
	uint8_t wait; /* enum shmring_wait_strategy */
	bool drop; /* on a full ring, count the message as dropped and return -1 */
	bool claimed; /* a Claim is open */
	int aborted; /* status of the abort, if closing the producer aborted an open claim */
	pid_t busy; /* the process in which a thread copies without the GIL; 0: none */
};

static inline bool producer_usable(struct producer *self)
{
	return !self->handle.closed || raise_closed(&self->handle, "producer");
}

/* Returns true while a thread copies without the GIL. Returns false in a forked child, which does not have this
 * thread: the caller goes on, and the core refuses the call, because the producer is the parent's. */
static inline bool producer_busy(const struct producer *self)
{
	return self->busy && self->busy == getpid();
}

/* Returns the offset in its slot at which a message has to begin so that its byte `align` lies on a
 * 64-byte boundary; 0 if `align` is -1. */
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
	STATUS_BUSY = 1, /* besides the core's statuses: another thread copies without the GIL */
};

struct pushing {
	const void *data;
	size_t
	    length; /* bytes of the message (at most UINT32_MAX if `fill` is set), or of the slots of all `rows` */
	int64_t align; /* byte of the message that lies on a 64-byte boundary; -1: none */
	void (*fill)(void *to, const void *data); /* writes the message; NULL: copy the bytes at `data` */
	const struct rows *rows; /* rows to push instead of `data`, each a message; NULL: one message */
	uint8_t kind;
	bool durable;
};

PyObject *push_message(struct producer *producer, const struct pushing *message, int64_t timeout);
enum retry producer_retry(struct producer *producer, int status, uint64_t slots, struct wait_state *waiting);
PyObject *raise_full(struct producer *producer, const struct wait_state *waiting);
PyObject *producer_push(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *producer_push_now(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *producer_push_end(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *producer_push_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* arrow.c */
PyObject *arrow_layout(PyObject *module, PyObject *schema);
PyObject *push_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *map_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *same_columns(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
extern PyType_Spec arrow_layout_spec;

/* sequence.c */
PyObject *producer_next(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *producer_done(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *producer_abort(PyObject *self, PyObject *ignored);
PyObject *producer_available(PyObject *self, PyObject *ignored);
PyObject *producer_slot(PyObject *self, PyObject *sequence);

/* producer.c */
PyObject *producer_open(struct ring *ring, const char *name, int when_full, int wait);
extern PyType_Spec producer_spec;
extern PyType_Spec claim_spec;

/* --- consumers, their leases and their batches ------------------------------------ */

struct taken {
	uint64_t sequence;
	uint64_t first;
	uint64_t end;
};

struct consumer {
	struct handle handle;
	shmring_consumer *core;
	PyObject *branch;
	PyObject *dead_letters; /* producer of the ring for dead letters, for the core only; NULL: none */
	uint32_t branch_id;
	uint8_t wait; /* enum shmring_wait_strategy */
	bool exclusive;
	bool end_markers; /* end markers are delivered as messages */
	bool abandoned; /* abandon() was called: the branch delivers the leased messages again */
	bool kept; /* some messages could not be handed back: closing the consumer hands them back */
	uint64_t max_slots; /* maximum number of slots of a batch; 0: no bound */
	uint64_t ends; /* number of ends of the stream that the core has told this consumer of */
	long long waited_ns; /* time that calls have waited for messages */
	bool calls; /* wait_any() of other threads is interrupted, so that they see the new value of `ends` */
	struct taken *taken; /* messages that next() took and done() has not released */
	size_t taken_count;
	size_t taken_room;
};

/* A Lease, or a Batch. The user closes it, and every buffer over it pins it. */
struct lease {
	struct handle handle;
	struct shmring_lease range;
	struct shmring_message *messages; /* messages of a Batch, read when first asked for; else NULL */
	struct shmring_message message; /* the message of a Lease */
	bool nacked; /* closing hands the messages back instead of releasing them */
	struct shmring_copy copy; /* copy of the message after its slots were released; `at` is NULL: none */
	struct view *views; /* list of the views that were lent to loops over a batch */
	Py_ssize_t shape[2];
	Py_ssize_t strides[2];
};

static inline bool consumer_usable(struct consumer *self)
{
	return !self->handle.closed || raise_closed(&self->handle, "consumer");
}

/* Turns Invalid into Damaged, for calls that give taken messages back. The core answers Invalid if the consumer
 * does not hold the messages. This consumer has taken them, so the records in the ring's file must be damaged. */
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
PyObject *lease_is_released(PyObject *module, PyObject *lease);
PyObject *lease_is_used(PyObject *module, PyObject *lease);
PyObject *lease_own(PyObject *module, PyObject *lease);
PyObject *lease_release(PyObject *self, PyObject *ignored);
PyObject *lease_nack(PyObject *self, PyObject *ignored);
PyObject *lease_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *lease_get_redelivered(PyObject *self, void *closure);
PyObject *lease_get_deliveries(PyObject *self, void *closure);
void lease_dealloc(PyObject *self);
void lease_releasebuffer(PyObject *self, Py_buffer *buffer);
extern PyType_Spec lease_spec;

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

/* wait.c: waits for consumers and producers */
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

/* mapped.c */
bool mapped_prepare(void);
void let_lease_go(void *lease);

#endif
