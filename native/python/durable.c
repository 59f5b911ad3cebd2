/* push(durable=True): the journal is a branch of the ring, and messages that the branch
 * has released are on disk (src/shmring/durable/journal/journaller.py). */
#include <string.h>

#include "handle.h"

static bool raise_not_durable(struct producer *self, uint64_t message_id, const char *why)
{
	const struct ring *ring = ring_of(&self->handle);
	PyObject *text = PyUnicode_FromFormat(
	    "ring \"%U\": message %llu is published, but %s; wait_durable() goes on waiting for it", ring->label,
	    (unsigned long long)message_id, why);

	return raise_with(ring->state->not_durable, Py_BuildValue("(NK)", text, (unsigned long long)message_id));
}

/* Returns true if the branch with this number is a journal's: it has the journal's name, and is exclusive. Callers
 * check again after each wait: after the journal's branch is dropped, another branch may get the same number. */
static bool is_journal(struct producer *self, uint32_t branch, struct shmring_branch_info *info)
{
	return shmring_branch_info(ring_of(&self->handle)->core, branch, info) == SHMRING_OK && info->exclusive &&
	       strcmp(info->name, JOURNAL_BRANCH) == 0;
}

static bool journal_lives(struct producer *self, uint32_t branch)
{
	struct shmring_branch_info info;

	return is_journal(self, branch, &info) && info.consumers > 0;
}

static bool find_journal_branch(struct producer *self, uint32_t *branch)
{
	struct ring *ring = ring_of(&self->handle);
	struct shmring_branch_info info;

	if (shmring_find_branch(ring->core, JOURNAL_BRANCH, branch) || !is_journal(self, *branch, &info)) {
		PyErr_Format(error_class(ring->state, SHMRING_E_NO_BRANCH),
			     "ring \"%U\" has no journal, whose branch is exclusive; start one with "
			     "ring.journal(path) or `shmring journal run`",
			     ring->label);
		return false;
	}
	return true;
}

/* Finds the journal's branch. Returns false, with an exception, if no journal would make a message durable. */
bool journal_find(struct producer *self, uint32_t *branch)
{
	struct ring *ring = ring_of(&self->handle);

	if (!find_journal_branch(self, branch))
		return false;
	if (!journal_lives(self, *branch)) {
		PyErr_Format(ring->state->not_durable,
			     "ring \"%U\": no process runs its journal now, and nothing was published; start it "
			     "again with ring.journal(path) or `shmring journal run`",
			     ring->label);
		return false;
	}
	return true;
}

bool journal_await(struct producer *self, uint32_t branch, uint64_t message_id, struct wait_state *waiting)
{
	struct shmring_branch_info info;
	enum retry retry;
	bool journalled;
	int status;

	if (!producer_usable(self)) /* another thread closed the producer while this call copied */
		return false;
	/* A timeout of 0 limits only the wait for room in the ring: the call always waits for the disk. */
	if (waiting->deadline == 0)
		waiting->deadline = waiting->timeout ? deadline_after(waiting->timeout) : FOREVER;
	do {
		handle_pin(&self->handle);
		Py_BEGIN_ALLOW_THREADS status = shmring_wait_released(
		    ring_of(&self->handle)->core, branch, message_id + 1, waiting->deadline, self->wait);
		Py_END_ALLOW_THREADS journalled = status == SHMRING_OK && is_journal(self, branch, &info);
		(void)handle_unpin(&self->handle);
		if (journalled)
			return true;
		if (status == SHMRING_OK || status == SHMRING_E_NO_BRANCH)
			return raise_not_durable(self, message_id, "the journal's branch was dropped");
		retry = handle_waited(&self->handle, status);
		if (retry != RETRY_RAISED && !producer_usable(self))
			return false;
		if (retry == RETRY_OVER) {
			char why[EXPLANATION_BYTES] = "was not on disk in time: ";
			size_t used = strlen(why);

			shmring_explain_branch(ring_of(&self->handle)->core, branch, why + used,
					       sizeof why - used);
			return raise_not_durable(self, message_id, why);
		}
	} while (retry == RETRY_AGAIN && journal_lives(self, branch));
	return retry == RETRY_AGAIN ? raise_not_durable(self, message_id, "no process runs its journal any more")
				    : false;
}

PyObject *producer_wait_durable(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct producer *self = (struct producer *)op;
	struct ring *ring = ring_of(&self->handle);
	PyObject *const order[] = {NULL, ring->state->names.timeout};
	PyObject *sorted[2] = {NULL};
	struct wait_state waiting = {.timeout = FOREVER};
	uint64_t message_id, claimed;
	uint32_t branch;

	if (!arguments_sort("wait_durable", "the message_id", args, nargs, kwnames, order, 1, 2, sorted) ||
	    !parse_count(sorted[0], "message_id", INT64_MAX, &message_id) ||
	    (sorted[1] && !parse_timeout(sorted[1], &waiting.timeout)) || !producer_usable(self) ||
	    !find_journal_branch(self, &branch))
		return NULL;
	claimed = shmring_claimed(ring->core);
	if (message_id >= claimed) {
		PyErr_Format(PyExc_ValueError, "ring \"%U\": no message %llu has been pushed; the next is %llu",
			     ring->label, (unsigned long long)message_id, (unsigned long long)claimed);
		return NULL;
	}
	waiting.deadline = deadline_after(waiting.timeout);
	if (!journal_await(self, branch, message_id, &waiting))
		return NULL;
	Py_RETURN_NONE;
}

/* count_synced(consumer, ns): adds `ns` to the time that the consumer has spent writing messages to disk. */
PyObject *count_synced(PyObject *module, PyObject *args)
{
	struct state *state = PyModule_GetState(module);
	struct consumer *consumer;
	unsigned long long ns;

	if (!PyArg_ParseTuple(args, "O!K", state->consumer, &consumer, &ns))
		return NULL;
	if (!consumer->handle.closed)
		shmring_count_synced(consumer->core, ns);
	Py_RETURN_NONE;
}
