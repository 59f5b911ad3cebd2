/* A forked child has no part in the ring until it attaches. */
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "death.h"

/* --- fork ------------------------------------------------------------------------------ */

struct inherited {
	shmring *r;
	shmring_producer *p;
	shmring_consumer *m;
};

static char fork_path[64];

static int use_and_attach_again(void *argument)
{
	struct inherited copy = *(struct inherited *)argument;
	shmring *own;
	shmring_producer *p;

	own = ring_again(fork_path);
	p = producer_of(own);
	if (push_number(p, 42))
		return 1;
	shmring_producer_close(p);
	shmring_close(own);
	{
		struct shmring_lease l;
		shmring_producer *q;
		shmring_consumer *m;
		uint32_t branch;

		CHECK_IS(shmring_publish(copy.p, 8, 0, 0), SHMRING_E_FORKED);
		CHECK_IS(shmring_publish_ones(copy.p, 0, NULL, 8), SHMRING_E_FORKED);
		CHECK_IS(shmring_abort(copy.p), SHMRING_E_FORKED);
		CHECK_IS(shmring_next(copy.p, 1), SHMRING_E_FORKED);
		CHECK_IS(shmring_push(copy.p, "", 0, 0, NULL), SHMRING_E_FORKED);
		CHECK_IS(shmring_push_many(copy.p, "x", 1, 1, NULL, 1, NULL), SHMRING_E_FORKED);
		CHECK_IS(shmring_producer_available(copy.p), SHMRING_E_FORKED);
		CHECK_IS(shmring_take(copy.m, 1, 1, &l), SHMRING_E_FORKED);
		CHECK_IS(shmring_release(copy.m, 0, 1), SHMRING_E_FORKED);
		CHECK_IS(shmring_wait_space(copy.p, 1, INT64_MAX, 0), SHMRING_E_FORKED);
		CHECK_IS(shmring_wait_message(copy.m, INT64_MAX, 0), SHMRING_E_FORKED);
		CHECK_IS(shmring_producer_open(copy.r, "x", &q), SHMRING_E_FORKED);
		CHECK_IS(shmring_join(copy.r, "b", NULL, "x", &m), SHMRING_E_FORKED);
		CHECK_IS(shmring_subscribe(copy.r, "c", NULL, &branch), SHMRING_E_FORKED);
		CHECK_IS(shmring_unsubscribe(copy.r, "b"), SHMRING_E_FORKED);
		CHECK_IS(shmring_follow(copy.r, 0, 0), SHMRING_E_FORKED);
		CHECK_IS(shmring_unfollow(copy.r, 0, 0), SHMRING_E_FORKED);
		CHECK_IS(shmring_recover(copy.r, NULL), SHMRING_E_FORKED);
		CHECK(strstr(shmring_error_message(), "attach again") != NULL);
		shmring_count_dropped(copy.p);
		shmring_producer_close(copy.p);
		shmring_consumer_close(copy.m);
		shmring_close(copy.r);
	}
	return 0;
}

TEST(a_fork_in_the_middle_of_a_claim)
{
	shmring *r = ring_new(), *other = ring_again(ring_path());
	struct inherited h = {r, producer_of(r), consumer_of(r, "b")};
	uint64_t number = 1;
	struct shmring_participant_info seat;

	snprintf(fork_path, sizeof fork_path, "%s", ring_path());
	CHECK_IS(shmring_next(h.p, 1), 0);
	CHECK_IS(reap(spawn(use_and_attach_again, &h)), 0);
	/* The child's end has not ended us. */
	CHECK_IS(recover(other), 0);
	CHECK_IS(shmring_participant_info(other, h.p->seat_index, &seat), SHMRING_OK);
	CHECK(seat.alive && seat.claim == 0 && seat.dropped == 0);
	memcpy(shmring_slot(r, 0), &number, 8);
	CHECK_IS(shmring_publish(h.p, 8, 0, 0), SHMRING_OK);
	CHECK_IS(pop_number(h.m), 1);
	CHECK_IS(pop_number(h.m), 42);
}

static int fork_and_claim(struct puppet *c)
{
	pid_t pid;

	c->p = producer_of(c->r);
	if (shmring_next(c->p, 2) < 0)
		return 1;
	/* No fork handler sees the second. */
	pid = c->step ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
	if (pid == 0) { /* keeps the mapping, and does nothing */
		store_release(&c->n, 1);
		for (int i = 0; i < 3000; i++)
			nap_ms(1);
		_exit(0);
	}
	while (!load_acquire(&c->n)) /* its copy of the locks is closed before fork() returns there */
		nap_ms(1);
	c->lo = (uint64_t)pid;
	return 0;
}

static void check_parent_is_dead(uint64_t unseen)
{
	struct puppet *c = puppet_new(fork_and_claim);
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "b");

	c->step = unseen;
	puppet_die(c);
	NEED((pid_t)c->lo > 0 && kill((pid_t)c->lo, 0) == 0);
	if (children_heed(MADV_DONTFORK)) { /* else the child has its parent's locks */
		CHECK_IS(recover(r), 1);
		CHECK(is_published(r, 0));
	}
	kill((pid_t)c->lo, SIGKILL);
	for (int i = 0; i < 10000 && !is_published(r, 0); i++) { /* once the child is gone, too */
		nap_ms(1);
		(void)recover(r);
	}
	CHECK(is_published(r, 0));
	check_works(r, m);
	end_all();
}

TEST(a_parent_is_dead_although_its_forked_child_lives)
{
	check_parent_is_dead(false);
}

TEST(a_parent_is_dead_although_its_cloned_child_lives)
{
	check_parent_is_dead(true);
}

static bool no_wipe;

/* In place of libc's, and as of a kernel before 4.14. */
int madvise(void *address, size_t length, int advice)
{
	if (no_wipe && advice == MADV_WIPEONFORK) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_madvise, address, length, advice);
}

/* ThreadSanitizer knows nothing of a process in the memory of another one, and crashes in it. */
#ifndef __SANITIZE_THREAD__
static int hang(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return 0;
}

static int clone_sharing_memory(struct puppet *c)
{
	static char stack[65536] __attribute__((aligned(16)));

	(void)producer_of(c->r);
	c->lo = (uint64_t)clone(hang, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
	return 0;
}

/* Stands for a child of vfork or posix_spawn that hangs before it executes its program: the child shares the
 * pages that hold the locks (docs/protocol.md, "Who holds the lock bytes"). */
TEST(a_child_that_shares_its_parents_memory_keeps_its_seats_until_it_ends)
{
	struct puppet *c = puppet_new(clone_sharing_memory);
	shmring *r;

	if (!children_heed(MADV_DONTFORK)) /* nor is there such a child */
		return;
	r = ring_new();
	NEED(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0); /* the child is ours to wait for */
	puppet_die(c);
	NEED((pid_t)c->lo > 0);
	CHECK_IS(recover(r), 0);
	NEED(kill((pid_t)c->lo, SIGKILL) == 0);
	CHECK_IS(reap((pid_t)c->lo), -SIGKILL);
	CHECK_IS(recover(r), 1);
	NEED(prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
}
#endif

static void check_cloned_child(void)
{
	shmring *r = ring_new(), *other = ring_again(ring_path());
	struct inherited h = {r, producer_of(r), consumer_of(r, "b")};
	pid_t pid;

	snprintf(fork_path, sizeof fork_path, "%s", ring_path());
	fflush(stdout);
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0)
		_exit(use_and_attach_again(&h) || check_broken);
	CHECK_IS(reap(pid), 0);
	CHECK_IS(recover(other), 0);
	CHECK_IS(seats_in_use(other), 3);
	CHECK_IS(pop_number(h.m), 42);
	CHECK_IS(push_number(h.p, 43), SHMRING_OK);
	CHECK_IS(pop_number(h.m), 43);
	end_all();
}

TEST(a_cloned_child_has_no_part_in_the_ring_and_ends_none)
{
	check_cloned_child();
}

TEST(where_the_kernel_wipes_nothing_for_children_neither)
{
	bool before = no_wipe;

	no_wipe = true;
	check_cloned_child();
	no_wipe = before;
}

/* --- a child made while another thread is at a lock ------------------------------------ */

static _Thread_local unsigned opens_until_pause;
static uint32_t paused, go_on;

/* In place of libc's. */
int open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (opens_until_pause && --opens_until_pause == 0) {
		store_release(&paused, 1);
		while (!load_acquire(&go_on))
			nap_ms(1);
	}
	return openat(AT_FDCWD, path, flags, mode);
}

static void *attach_and_pause(void *unused)
{
	opens_until_pause = 2; /* to check the file; then to lock, with what guards the list of files */
	shmring_close(ring_again(ring_path()));
	return unused;
}

TEST(a_cloned_child_closes_what_it_has_whatever_lock_a_thread_of_its_parent_holds)
{
	shmring *r = ring_new();
	struct inherited h = {r, producer_of(r), consumer_of(r, "b")};
	pthread_t thread;
	pid_t pid;

	paused = go_on = 0;
	pthread_create(&thread, NULL, attach_and_pause, NULL);
	while (!load_acquire(&paused))
		nap_ms(1);
	fflush(stdout);
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0) {
		shmring_producer_close(h.p);
		shmring_consumer_close(h.m);
		shmring_close(h.r);
		_exit(0);
	}
	CHECK_IS(reap(pid), 0);
	store_release(&go_on, 1);
	pthread_join(thread, NULL);
	CHECK_IS(push_number(h.p, 1), SHMRING_OK);
	CHECK_IS(pop_number(h.m), 1);
}

/* --- a fork while a byte is locked --------------------------------------------------- */

static pid_t forked_holder;
static bool fork_under_lock;

/* In place of libc's, so that the fork comes right after the lock. */
int fcntl(int fd, int command, ...)
{
	va_list args;
	void *argument;
	int answer;

	va_start(args, command);
	argument = va_arg(args, void *);
	va_end(args);
	answer = (int)syscall(SYS_fcntl, fd, command, argument);
	if (command == F_OFD_SETLK && fork_under_lock) {
		fork_under_lock = false;
		forked_holder = fork();
		while (forked_holder == 0)
			pause();
	}
	return answer;
}

TEST(a_child_forked_while_a_ring_is_reaped_holds_no_lock)
{
	shmring *r = ring_new(), *other = NULL;

	fork_under_lock = true;
	CHECK_IS(shmring_reap(ring_path()), 0);
	NEED(!fork_under_lock && forked_holder > 0);
	CHECK_IS(shmring_attach(ring_path(), 0, &other), SHMRING_OK);
	shmring_close(other);
	kill(forked_holder, SIGKILL);
	CHECK_IS(reap(forked_holder), -SIGKILL);
}

/* Before the core asks. */
__attribute__((constructor)) static void see_what_children_heed(void)
{
	no_wipe = !children_heed(MADV_WIPEONFORK); /* then the core is to know that it is not to be had */
}
