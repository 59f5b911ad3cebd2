/* Removing rings, and those of the dead. */
#include "folder.h"
#include "core.h"

FOLDER_TEST(only_the_ring_that_is_meant_is_unlinked)
{
	shmring *first, *second;

	CHECK_IS(shmring_unlink(at, NULL, NULL, NULL), SHMRING_E_NOT_FOUND);
	first = make(at, &small);
	NEED(unlink(at) == 0);
	second = make(at, &small);
	CHECK_IS(shmring_unlink(at, first->header.uuid, NULL, NULL), SHMRING_E_NOT_FOUND);
	CHECK(is_at(at, second));
	CHECK_IS(shmring_unlink(at, second->header.uuid, NULL, NULL), SHMRING_OK);
	CHECK(access(at, F_OK) != 0);
}

static int answer_of_remove;

static int replace_and_remove(const char *path, void *context)
{
	shmring *other = context;

	/* Every unlink, also gc's, tries the lock that is held now. */
	CHECK_IS(shmring_reap(path), 0);
	CHECK(is_at(path, other));
	return answer_of_remove;
}

FOLDER_TEST(the_lock_is_held_while_a_name_is_taken_away)
{
	shmring *r = make(at, &small);

	answer_of_remove = SHMRING_E_PERMISSION;
	CHECK_IS(shmring_unlink(at, NULL, replace_and_remove, r), SHMRING_E_PERMISSION);
	CHECK(is_at(at, r));
	shmring_close(r); /* with the lock, which is free again */
}

static int hold_the_ring(void *path)
{
	shmring *r = ring_again(path);

	(void)r;
	kill(getpid(), SIGSTOP);
	return 0;
}

FOLDER_TEST(reap_unlinks_the_rings_of_the_dead_and_no_others)
{
	shmring *r = make(at, &small);
	int status;
	pid_t pid;

	CHECK_IS(shmring_reap(at), 0); /* we live */
	shmring_close(r);
	CHECK_IS(shmring_reap(at), 0); /* closed in order */
	pid = spawn(hold_the_ring, at);
	NEED(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
	CHECK_IS(shmring_reap(at), 0);
	kill(pid, SIGKILL);
	CHECK_IS(reap(pid), -SIGKILL);
	CHECK_IS(shmring_reapable(at), 1);
	CHECK(access(at, F_OK) == 0);
	CHECK_IS(shmring_reap(at), 1);
	CHECK(access(at, F_OK) != 0);
	CHECK_IS(shmring_reap(at), 0);
}

FOLDER_TEST(advice_to_collect_a_ring_of_the_dead_can_be_typed_into_a_shell)
{
	char path[200], command[256];
	shmring *r;
	pid_t pid;
	int status;

	snprintf(path, sizeof path, "%s/it's a ring", folder);
	snprintf(command, sizeof command, "`shmring gc '%s/it'\\''s a ring'`", folder);
	shmring_close(make(path, &small));
	pid = spawn(hold_the_ring, path);
	NEED(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
	kill(pid, SIGKILL);
	CHECK_IS(reap(pid), -SIGKILL);
	CHECK_IS(shmring_create(path, &small, &r), SHMRING_E_EXISTS);
	CHECK(strstr(shmring_error_message(), command));
}

FOLDER_TEST(rubbish_behind_a_header_is_no_ring_of_the_dead)
{
	shmring *r, *other;

	r = make(at, &small);
	other = ring_again(at);
	memset(&r->seats[9], 0x5a, sizeof r->seats[9]);
	CHECK_IS(shmring_reap(at), 0); /* we live */
	shmring_close(other);
	shmring_close(r);
	CHECK_IS(shmring_reapable(at), SHMRING_E_DAMAGED);
	CHECK_IS(shmring_reap(at), SHMRING_E_DAMAGED);
	CHECK(strstr(shmring_error_message(), "entries are damaged"));
	CHECK_IS(shmring_unlink(at, NULL, NULL, NULL), SHMRING_OK);
}

FOLDER_TEST(a_temporary_ring_is_reaped_when_nobody_living_is_attached)
{
	shmring *r = make(at, &(struct shmring_options){.slots = 1024, .temporary = true});

	CHECK_IS(shmring_reap(at), 0);
	shmring_close(r);
	r = ring_again(at);
	CHECK_IS(shmring_reap(at), 0);
	CHECK_IS(shmring_reapable(at), 0);
	shmring_close(r);
	CHECK_IS(shmring_reapable(at), 1);
	CHECK_IS(shmring_reap(at), 1);
	CHECK(access(at, F_OK) != 0);
}

FOLDER_TEST(a_draft_is_known_by_its_name_and_its_header)
{
	const char *foreign[] = {".shmring-new-", ".shmring-new-notes",
				 ".shmring-new-01234567-89ab-cdef-0123-456789abcdef"};
	char path[200];
	uint8_t zeroes[8192] = {0};
	shmring *r;

	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s/%s", folder, foreign[i]);
		write_file(path, zeroes, sizeof zeroes);
		CHECK(shmring_reap(path) <= 0);
		CHECK(access(path, F_OK) == 0);
		unlink(path);
	}
	r = make(path, &small); /* a ring, and not the one that the name says */
	shmring_close(r);
	CHECK_IS(shmring_reap(path), 0);
	CHECK(access(path, F_OK) == 0);
}

/* --- in use --------------------------------------------------------------------------- */

/* Returns the answer of a long wait, and checks the answer of the next try. */
static int wait_and_take(shmring_consumer *m)
{
	struct shmring_wait one = {.consumer = m};
	struct shmring_lease l;
	int status, alone;

	m->wait = (struct wait_memory){.took_ns = INT64_MAX};
	alone = shmring_wait_message(m, INT64_MAX, SHMRING_WAIT_DEFAULT);
	status = shmring_take(m, 1, 1, &l);
	CHECK_IS(alone, status == SHMRING_UNAVAILABLE ? SHMRING_AGAIN : SHMRING_OK);
	m->wait = (struct wait_memory){.took_ns = INT64_MAX};
	CHECK_IS(shmring_wait_any(&one, 1, NULL, 0, INT64_MAX, SHMRING_WAIT_DEFAULT), alone);
	CHECK_IS(one.ready, alone == SHMRING_OK);
	CHECK_IS(shmring_take(m, 1, 1, &l), status);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_UNAVAILABLE); /* the usual answer, until the next wait */
	return status;
}

static bool says(const char *text, const char *what)
{
	bool found = strstr(text, what);

	if (!found)
		printf("  \"%s\" is not in: %s\n", what, text);
	return found;
}

FOLDER_TEST(a_producer_on_a_full_ring_whose_file_was_removed_is_told_if_nobody_reads_it)
{
	shmring *r = make(at, &small);
	shmring_producer *p;
	shmring_consumer *m;
	char text[600];

	p = producer_of(r);
	m = consumer_of(r, "b");
	push_n(p, 0, 1024);
	NEED(unlink(at) == 0);
	for (int left = 0; left < 2; left++) {
		p->wait = (struct wait_memory){.took_ns = INT64_MAX};
		CHECK_IS(shmring_wait_space(p, 1, INT64_MAX, SHMRING_WAIT_DEFAULT),
			 left ? SHMRING_OK : SHMRING_AGAIN);
		CHECK_IS(push_number(p, 0), left ? SHMRING_E_NOT_FOUND : SHMRING_UNAVAILABLE);
		CHECK_IS(shmring_wait_released(r, 0, 1024, INT64_MAX, SHMRING_WAIT_DEFAULT),
			 left ? SHMRING_E_NOT_FOUND : SHMRING_AGAIN);
		if (!left) {
			shmring_consumer_abandon(m);
			continue;
		}
		shmring_explain_full(r, text, sizeof text);
		CHECK(says(text, "no consumer is attached"));
	}
}

FOLDER_TEST(a_ring_that_was_unlinked_on_purpose_is_used_on)
{
	shmring *r, *other;
	shmring_consumer *m;

	r = make(at, &small);
	m = consumer_of(r, "b");
	answer_of_remove = SHMRING_OK;
	CHECK_IS(shmring_unlink(at, NULL, replace_and_remove, r), SHMRING_OK); /* it stays */
	CHECK_IS(r->cursors->unlinked.v, 0);
	CHECK_IS(shmring_unlink(at, NULL, NULL, NULL), SHMRING_OK);
	CHECK_IS(wait_and_take(m), SHMRING_UNAVAILABLE);
	other = make(at, &small);
	CHECK_IS(wait_and_take(m), SHMRING_UNAVAILABLE);
}
