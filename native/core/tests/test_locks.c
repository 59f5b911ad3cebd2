/* Tests of life and death by lock bytes: other code of a process closes or copies
 * descriptors, and children inherit them. */
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "death.h"

enum { NUMBERS = 64 };

/* Closes all descriptors, like daemons and test runners. */
static void close_all(void)
{
	for (int fd = 3; fd < 256; fd++)
		close(fd);
}

static char path_of_all[64];

static void remember_path(void)
{
	snprintf(path_of_all, sizeof path_of_all, "%s", ring_path());
}

/* --- numbers of other files ------------------------------------------------------- */

struct others {
	int count;
	struct stat st[NUMBERS];
};

/* Opens as many files as there may be numbers in use, with locks on none. */
static void open_others(struct others *o, const char *path)
{
	for (o->count = 0; o->count < 32; o->count++) {
		int fd = path ? open(path, O_RDWR) : memfd_create("other", 0);

		NEED(fd >= 3 && fd < NUMBERS && fstat(fd, &o->st[fd]) == 0);
		NEED(lseek(fd, 7, SEEK_SET) == 7);
	}
}

static void check_others(const struct others *o)
{
	for (int i = 0; i < o->count; i++) {
		struct stat st;

		CHECK(fstat(3 + i, &st) == 0 && st.st_ino == o->st[3 + i].st_ino &&
		      st.st_dev == o->st[3 + i].st_dev);
		CHECK_IS(lseek(3 + i, 0, SEEK_CUR), 7);
	}
}

/* --- a foreign close ----------------------------------------------------------------- */

static int hold_and_close_all(struct puppet *c)
{
	struct shmring_lease l;
	int64_t lo;

	c->m = consumer_of(c->r, "b");
	if (shmring_take(c->m, 1, 1, &l))
		return 1;
	c->p = producer_of(c->r);
	lo = shmring_next(c->p, 1);
	c->lo = (uint64_t)lo;
	close_all();
	return lo < 0;
}

RING_TEST(who_has_lost_all_descriptors_lives_until_death)
{
	struct puppet *c = puppet_new(hold_and_close_all);
	pid_t pid;
	uint64_t redelivered;

	CHECK_IS(push_number(p, 1), SHMRING_OK);
	pid = puppet_start(c);
	CHECK_IS(recover(r), 0);
	CHECK(is_hole(r, c->lo));
	CHECK_IS(drain(m, &redelivered), 0);
	puppet_kill(pid);
	CHECK_IS(recover(r), 2);
	CHECK_IS(drain(m, &redelivered), 1 << 1);
	CHECK_IS(redelivered, 1 << 1);
	check_works(r, m);
}

static int go_on_without(struct puppet *c)
{
	shmring_producer *p = producer_of(c->r), *later = NULL;
	shmring_consumer *m = NULL;
	struct shmring_lease l;

	NEED(shmring_join(c->r, "b", NULL, "m", &m) == SHMRING_OK);
	CHECK_IS(shmring_next(p, 1), 1);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_OK);
	close_all();
	memset(shmring_slot(c->r, 1), 0, 8);
	CHECK_IS(shmring_publish(p, 8, 0, 0), SHMRING_OK);
	CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	close_all();
	CHECK_IS(recover(c->r), 0);
	close_all();
	shmring_consumer_close(m);
	close_all();
	CHECK_IS(shmring_producer_open(c->r, "later", &later), SHMRING_OK);
	close_all();
	shmring_producer_close(p);
	close_all();
	CHECK_IS(push_number(later, 2), SHMRING_OK);
	shmring_producer_close(later);
	close_all();
	shmring_close(c->r);
	return check_broken;
}

RING_TEST(who_has_lost_all_descriptors_joins_and_leaves)
{
	struct puppet *c = puppet_new(go_on_without);
	pid_t pid;

	CHECK_IS(push_number(p, 1), SHMRING_OK);
	pid = puppet_start(c);
	CHECK_IS(seats_in_use(r), 2); /* all of the other's have been given back */
	CHECK_IS(recover(r), 0);
	puppet_kill(pid);
	CHECK_IS(pop_number(m), 0);
	CHECK_IS(pop_number(m), 2);
}

/* --- a number that is used again -------------------------------------------------------- */

static int use_numbers_again(void *path)
{
	shmring *r = ring_again(path_of_all);
	shmring_producer *p = producer_of(r), *later = NULL;
	struct others others;
	struct shmring_participant_info seat;

	close_all();
	open_others(&others, path);
	/* Asked of these files, everybody would be dead. */
	CHECK_IS(recover(r), 0);
	CHECK_IS(shmring_participant_info(r, 0, &seat), SHMRING_OK);
	CHECK(seat.alive);
	CHECK_IS(shmring_producer_open(r, "later", &later), SHMRING_OK);
	CHECK_IS(push_number(later, 5), SHMRING_OK);
	shmring_producer_close(later);
	shmring_producer_close(p);
	shmring_close(r);
	check_others(&others);
	return check_broken;
}

TEST(nobody_is_evicted_and_no_file_touched_where_numbers_are_used_again)
{
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "b");

	remember_path();
	CHECK_IS(reap(spawn(use_numbers_again, NULL)), 0);
	CHECK_IS(reap(spawn(use_numbers_again, path_of_all)), 0); /* by the very file */
	CHECK_IS(seats_in_use(r), 1);
	CHECK_IS(pop_number(m), 5);
	CHECK_IS(pop_number(m), 5);
	check_works(r, m);
}

static int close_the_first_of_two(struct puppet *c)
{
	shmring *first = c->r;
	shmring_consumer *m = consumer_of(first, "b");

	close_all();
	c->r = ring_again(c->path); /* under the same number */
	c->m = consumer_of(c->r, "b");
	shmring_consumer_close(m);
	shmring_close(first);
	return 0;
}

TEST(of_two_handles_with_one_number_each_keeps_its_own)
{
	struct puppet *c = puppet_new(close_the_first_of_two);
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "b");
	pid_t pid = puppet_start(c);

	CHECK_IS(recover(r), 0);
	CHECK_IS(seats_in_use(r), 2);
	puppet_kill(pid);
	CHECK_IS(recover(r), 1);
	check_works(r, m);
}

/* --- where nobody can be asked --------------------------------------------------------------- */

static long times_asleep(void)
{
	struct rusage usage;

	NEED(getrusage(RUSAGE_SELF, &usage) == 0);
	return usage.ru_nvcsw;
}

static int lose_an_unlinked_ring(void *argument)
{
	shmring *r = ring_again(path_of_all);
	shmring_producer *p = producer_of(r), *later = NULL;
	shmring_consumer *m = NULL;
	long naps;

	(void)argument;
	unlink(path_of_all);
	CHECK_IS(shmring_producer_open(r, "later", &later), SHMRING_OK); /* needs no name */
	close_all();
	CHECK_IS(recover(r), 0);
	CHECK_IS(push_number(p, 3), SHMRING_OK);
	naps = times_asleep();
	CHECK_IS(shmring_join(r, "b", NULL, "m", &m), SHMRING_E_SYSTEM);
	CHECK(strstr(shmring_error_message(), "joining, leaving"));
	CHECK(strstr(shmring_error_message(), path_of_all));
	/* Another ring of that name is not this one. */
	NEED(shmring_create(path_of_all, &(struct shmring_options){.slots = 1024}, NULL) == SHMRING_OK);
	CHECK_IS(shmring_join(r, "b", NULL, "m", &m), SHMRING_E_SYSTEM);
	CHECK_IS(recover(r), 0);
	unlink(path_of_all); /* beside another ring of that name nobody goes on for longer than a round */
	shmring_producer_close(later);
	shmring_producer_close(p);
	shmring_close(r);
	CHECK(times_asleep() - naps < 100); /* the timeout of 5 s is for others: it is 100,000 naps */
	return check_broken;
}

TEST(nobody_is_evicted_where_nobody_can_be_asked)
{
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "b");

	remember_path();
	CHECK_IS(reap(spawn(lose_an_unlinked_ring, NULL)), 0);
	CHECK_IS(recover(r), 2); /* a participant that could not leave in order counts as dead */
	CHECK_IS(seats_in_use(r), 1);
	CHECK_IS(pop_number(m), 3);
	check_works(r, m);
}

/* --- processes that may only read ---------------------------------------------------------- */

struct reader {
	off_t from;
	size_t step;
	int count;
	int command; /* F_OFD_SETLK or F_SETLK */
	bool ready;
	pid_t pid;
};

static int lock_for_reading(void *argument)
{
	struct reader *reader = argument;
	int fd;

	NEED(getuid() || setuid(65534) == 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* after setuid(), which clears it */
	fd = open(path_of_all, O_RDONLY);
	NEED(fd >= 0 && (getuid() == 0 || open(path_of_all, O_RDWR) < 0));
	for (int i = 0; i < reader->count; i++) {
		struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};

		lock.l_start = reader->from + (off_t)(reader->step * (size_t)i);
		NEED(fcntl(fd, reader->command, &lock) == 0 || errno == EAGAIN); /* somebody lives there */
	}
	store_release(&reader->ready, true);
	for (;;)
		pause();
}

static struct reader *reader_start(off_t from, size_t step, int count, int command)
{
	struct reader *reader = shared_memory(sizeof *reader);

	*reader = (struct reader){.from = from, .step = step, .count = count, .command = command};
	remember_path();
	reader->pid = spawn(lock_for_reading, reader);
	while (!load_acquire(&reader->ready)) {
		NEED(waitpid(reader->pid, NULL, WNOHANG) == 0);
		nap_ms(1);
	}
	return reader;
}

static struct reader *seats_reader(const shmring *r, int count)
{
	return reader_start((off_t)r->header.seats_offset, sizeof(struct seat), count, F_OFD_SETLK);
}

static void reader_end(struct reader *reader)
{
	kill(reader->pid, SIGKILL);
	CHECK_IS(reap(reader->pid), -SIGKILL);
	munmap(reader, sizeof *reader);
}

static shmring *readable_ring(void)
{
	return ring_with(&(struct shmring_options){.slots = 1024, .participants = 8, .mode = 0644});
}

TEST(the_dead_are_found_under_a_readers_lock)
{
	struct puppet *c = puppet_new(hold_and_close_all);
	shmring *r = readable_ring();
	shmring_consumer *m = consumer_of(r, "b");
	shmring_producer *p = producer_of(r);
	struct reader *reader;
	uint64_t redelivered;

	CHECK_IS(push_number(p, 1), SHMRING_OK);
	puppet_die(c);
	reader = seats_reader(r, 8);
	CHECK_IS(recover(r), 2);
	CHECK_IS(drain(m, &redelivered), 1 << 1);
	reader_end(reader);
}

TEST(a_seat_that_a_reader_has_locked_is_passed_over)
{
	shmring *r = readable_ring();
	shmring_producer *own = producer_of(r), *p, *q; /* the handle's seat is no free one */
	struct reader *some = seats_reader(r, 4), *all;

	p = producer_of(r);

	CHECK(p->seat_index >= 4);
	all = seats_reader(r, 8);
	CHECK_IS(shmring_producer_open(r, "q", &q), SHMRING_E_LIMIT);
	CHECK(strstr(shmring_error_message(), "6 are free") != NULL);
	shmring_producer_close(p);
	reader_end(some);
	reader_end(all);
	p = producer_of(r);
	CHECK(p->seat_index < 4);
}

TEST(who_bars_the_admin_lock_by_reading_is_named)
{
	shmring *r = readable_ring();
	struct reader *reader = reader_start(ADMIN_LOCK_OFFSET, 0, 1, F_SETLK);
	shmring_producer *p = NULL;
	char who[32];

	snprintf(who, sizeof who, "read lock of process %d ", (int)reader->pid);
	CHECK_IS(shmring_producer_open(r, "p", &p), SHMRING_CONTENDED);
	CHECK(strstr(shmring_error_message(), who) != NULL);
	reader_end(reader);
	p = producer_of(r);
}

/* --- processes that cannot leave in order ------------------------------------------------------ */

static int stay_in_the_section(struct puppet *c)
{
	return admin_enter(c->r);
}

static void *close_producer(void *p)
{
	shmring_producer_close(p);
	return NULL;
}

static void *abandon_consumer(void *m)
{
	shmring_consumer_abandon(m);
	return NULL;
}

TEST(who_cannot_leave_in_order_is_dead_to_others)
{
	struct puppet *c = puppet_new(stay_in_the_section);
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .single_producer = true});
	struct shmring_branch_options exclusive = {.exclusive = true};
	shmring_consumer *alone = consumer_with(r, "alone", &exclusive), *shared = consumer_of(r, "b"), *m;
	shmring_producer *p = producer_of(r);
	struct shmring_lease l;
	pthread_t thread[2];
	uint64_t redelivered;
	pid_t pid;

	CHECK_IS(push_number(p, 1), SHMRING_OK);
	CHECK_IS(shmring_take(shared, 1, 1, &l), SHMRING_OK);
	pid = puppet_start(c);
	/* At the same time: each waits for 5 s. */
	NEED(pthread_create(&thread[0], NULL, close_producer, p) == 0);
	NEED(pthread_create(&thread[1], NULL, abandon_consumer, shared) == 0);
	shmring_consumer_close(alone);
	NEED(pthread_join(thread[0], NULL) == 0 && pthread_join(thread[1], NULL) == 0);
	puppet_kill(pid);
	/* All of its seats are dead ones; the handle is not. */
	CHECK_IS(shmring_reapable(ring_path()), 0);
	p = producer_of(r);
	CHECK(r->seat == p->seat_index && !r->seatless);
	alone = consumer_with(r, "alone", &exclusive);
	m = consumer_of(r, "b");
	CHECK_IS(drain(m, &redelivered), 1 << 1);
	CHECK_IS(redelivered, 1 << 1);
	CHECK_IS(recover(r), 0);
	CHECK_IS(seats_in_use(r), 3);
	shmring_producer_close(p);
	CHECK_IS(pop_number(alone), 1);
	shmring_consumer_close(alone);
	CHECK_IS(shmring_unsubscribe(r, "alone"), SHMRING_OK);
	check_works(r, m);
}

/* --- while it happens ---------------------------------------------------------------------- */

struct closer {
	shmring *r;
	uint32_t stop;
};

static void *close_and_open(void *argument)
{
	struct closer *c = argument;
	unsigned n = 0;

	while (!load_acquire(&c->stop)) {
		/* By the bare call: ThreadSanitizer takes a close beside a use for a race, which it is meant to
		 * be. */
		for (int fd = 3; fd < 16; fd++)
			syscall(SYS_close, fd);
		if (n++ % 2)
			(void)memfd_create("other", 0);
		sched_yield();
	}
	return NULL;
}

static unsigned seats_of(const shmring *r, pid_t pid)
{
	struct shmring_participant_info seat;
	unsigned n = 0;

	for (uint32_t i = 0; i < r->seat_count; i++)
		n += shmring_participant_info(r, i, &seat) == SHMRING_OK && seat.pid == (uint32_t)pid;
	return n;
}

static int join_and_leave(void *argument)
{
	struct closer c = {.r = ring_again(path_of_all)};
	unsigned rounds = *(unsigned *)argument, joined = 0;
	pthread_t thread;

	NEED(pthread_create(&thread, NULL, close_and_open, &c) == 0);
	for (unsigned i = 0; i < rounds; i++) {
		shmring_producer *p;
		shmring_consumer *m;

		/* Either may lose the descriptor half way: then it says so. */
		if (shmring_producer_open(c.r, "p", &p) == SHMRING_OK) {
			(void)push_number(p, 1);
			shmring_producer_close(p);
			joined++;
		}
		if (shmring_join(c.r, "c", NULL, "m", &m) == SHMRING_OK) {
			(void)pop_number(m);
			shmring_consumer_close(m);
		}
		/* A seat of ours that could not be left in order may be found dead. */
		(void)shmring_recover(c.r, NULL);
		CHECK_IS(seats_of(c.r, getppid()), 2);
	}
	store_release(&c.stop, 1);
	NEED(pthread_join(thread, NULL) == 0);
	CHECK(joined > 0);
	shmring_close(c.r);
	return check_broken;
}

RING_TEST(a_thread_that_closes_everything_all_the_time_evicts_nobody)
{
	unsigned rounds = 300 * stress();
	pid_t pid;
	int status;

	remember_path();
	pid = spawn(join_and_leave, &rounds);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		struct shmring_lease l;

		(void)push_number(p, 2);
		while (shmring_take(m, 16, 1024, &l) == SHMRING_OK)
			CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
		nap_ms(1);
	}
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	(void)shmring_recover(r, NULL);
	CHECK_IS(shmring_unsubscribe(r, "c"), SHMRING_OK);
	CHECK_IS(seats_in_use(r), 2);
	while (pop_number(m) >= 0)
		;
	check_works(r, m);
}
