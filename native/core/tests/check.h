/* A test program in two words: TEST defines, CHECK checks. Its main() is in main.c. */
#ifndef SHMRING_CHECK_H
#define SHMRING_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cells.h"

/* By the lines where they stand: they run in that order. One in a program, however many files
 * include this, as what is weak below. */
__attribute__((weak)) struct check_test {
	void (*run)(void);
	const char *name;
} check_tests[1000];

#define TEST(test)                                                                                                \
	static void test(void);                                                                                   \
	__attribute__((constructor)) static void add_##test(void)                                                 \
	{                                                                                                         \
		check_tests[__LINE__].run = test;                                                                 \
		check_tests[__LINE__].name = #test;                                                               \
	}                                                                                                         \
	static void test(void)

__attribute__((weak)) int check_broken;

#define CHECK(condition)                                                                                          \
	do {                                                                                                      \
		if (!(condition)) {                                                                               \
			check_broken = 1;                                                                         \
			printf("  %s:%d: not true: %s [%s]\n", __FILE__, __LINE__, #condition,                    \
			       shmring_error_message());                                                          \
		}                                                                                                 \
	} while (0)

#define CHECK_IS(actual, expected)                                                                                \
	do {                                                                                                      \
		long long check_a = (long long)(actual), check_e = (long long)(expected);                         \
		if (check_a != check_e) {                                                                         \
			check_broken = 1;                                                                         \
			printf("  %s:%d: %s is %lld, not %lld [%s]\n", __FILE__, __LINE__, #actual, check_a,      \
			       check_e, shmring_error_message());                                                 \
		}                                                                                                 \
	} while (0)

/* For what the rest of the test stands on. */
#define NEED(condition)                                                                                           \
	do {                                                                                                      \
		if (!(condition)) {                                                                               \
			printf("  %s:%d: cannot go on: %s [%s]\n", __FILE__, __LINE__, #condition,                \
			       shmring_error_message());                                                          \
			fflush(stdout);                                                                           \
			_exit(99);                                                                                \
		}                                                                                                 \
	} while (0)

static inline unsigned stress(void)
{
	const char *text = getenv("SHMRING_STRESS");
	int n = text ? atoi(text) : 1;

	return n > 0 ? (unsigned)n : 1;
}

#define RINGS "/dev/shm/shmring-ctest."

/* Process id in the names of all files that a program and its children make in shared memory; see ring_path(). */
__attribute__((weak)) pid_t check_program;

/* Removes the files that this program and killed programs have left. */
static inline void sweep(void)
{
	glob_t found = {0};

	/* The folders' contents first, drafts included. */
	(void)glob(RINGS "*/{.s,}*", GLOB_BRACE, NULL, &found);
	(void)glob(RINGS "*", GLOB_APPEND, NULL, &found);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		pid_t program = atoi(found.gl_pathv[i] + strlen(RINGS));

		if (program == check_program || (program > 0 && kill(program, 0) && errno == ESRCH))
			(void)remove(found.gl_pathv[i]);
	}
	globfree(&found);
}

/* The tests run in a child, so that the parent removes what they leave however they end. */
static inline void run_in_a_child(void)
{
	sigset_t seen, before;
	pid_t child;
	int status = 0, number;

	sigemptyset(&seen);
	check_program = getpid();
	sweep();
	for (size_t i = 0; i < 5; i++)
		sigaddset(&seen, (int[]){SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT}[i]);
	sigprocmask(SIG_BLOCK, &seen, &before);
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		sigprocmask(SIG_SETMASK, &before, NULL);
		return;
	}
	while (waitpid(child, &status, WNOHANG) == 0)
		if (sigwait(&seen, &number) == 0 && number != SIGCHLD)
			kill(child, number);
	sweep();
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		sigprocmask(SIG_SETMASK, &before, NULL);
		raise(WTERMSIG(status));
	}
	_exit(child < 0 ? 99 : WEXITSTATUS(status));
}

static inline const char *ring_path(void)
{
	static char path[64];

	snprintf(path, sizeof path, RINGS "%d.%d", (int)check_program, (int)getpid());
	return path;
}

/* --- closing, after a test, everything that the test opened ---------------- */

enum { OPEN_RINGS, OPEN_PRODUCERS, OPEN_CONSUMERS, OPEN_KINDS };

__attribute__((weak)) void *check_opened[OPEN_KINDS][512];

static inline void exchange_opened(int kind, void *old, void *new)
{
	for (size_t i = 0; i < sizeof *check_opened / sizeof **check_opened; i++) {
		void *expected = old;

		if (__atomic_compare_exchange_n(&check_opened[kind][i], &expected, new, false, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST))
			return;
	}
	NEED(!new);
}

static inline void opened(int kind, void *handle)
{
	exchange_opened(kind, NULL, handle);
}

#define CLOSER(kind, close, type)                                                                                 \
	static inline void tests_##close(type *handle)                                                            \
	{                                                                                                         \
		if (handle)                                                                                       \
			exchange_opened(kind, handle, NULL);                                                      \
		close(handle);                                                                                    \
	}                                                                                                         \
	static inline void all_##close(void)                                                                      \
	{                                                                                                         \
		for (size_t i = 0; i < sizeof *check_opened / sizeof **check_opened; i++)                         \
			tests_##close(check_opened[kind][i]);                                                     \
	}
CLOSER(OPEN_RINGS, shmring_close, shmring)
CLOSER(OPEN_PRODUCERS, shmring_producer_close, shmring_producer)
CLOSER(OPEN_CONSUMERS, shmring_consumer_close, shmring_consumer)
CLOSER(OPEN_CONSUMERS, shmring_consumer_abandon, shmring_consumer)
#define shmring_close tests_shmring_close
#define shmring_producer_close tests_shmring_producer_close
#define shmring_consumer_close tests_shmring_consumer_close
#define shmring_consumer_abandon tests_shmring_consumer_abandon

static inline void end_all(void)
{
	all_shmring_consumer_close();
	all_shmring_producer_close();
	all_shmring_close();
	unlink(ring_path());
}

/* All tests of the program; what main() returns. */
static inline int run_tests(void)
{
	int passed = 0, failed = 0;

	run_in_a_child();
	alarm(600 * stress()); /* a test that hangs is a failed test */
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t line = 0; line < sizeof check_tests / sizeof *check_tests; line++) {
		if (!check_tests[line].run)
			continue;
		check_broken = 0;
		check_tests[line].run();
		end_all();
		failed += check_broken != 0;
		passed += check_broken == 0;
		printf("%s ", check_broken ? "FAILED" : "ok    ");
		for (const char *c = check_tests[line].name; *c; c++)
			putchar(*c == '_' ? ' ' : *c);
		putchar('\n');
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}

/* --- rings ------------------------------------------------------------------ */

static inline void write_file(const char *path, const void *data, size_t n)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	NEED(fd >= 0 && write(fd, data, n) == (ssize_t)n);
	close(fd);
}

/* A new ring; `path` stays good until the next. */
static inline shmring *ring_with(const struct shmring_options *options)
{
	shmring *r = NULL;

	unlink(ring_path());
	NEED(shmring_create(ring_path(), options, &r) == SHMRING_OK);
	opened(OPEN_RINGS, r);
	return r;
}

static inline shmring *ring_new(void)
{
	return ring_with(&(struct shmring_options){.slots = 1024});
}

static inline shmring *ring_as(const char *path, uint32_t flags)
{
	shmring *r = NULL;

	NEED(shmring_attach(path, flags, &r) == SHMRING_OK);
	opened(OPEN_RINGS, r);
	return r;
}

static inline shmring *ring_again(const char *path)
{
	return ring_as(path, 0);
}

/* Changes the ring into one that was made on a kernel without membarrier(2). */
static inline shmring *ring_without_membarrier(shmring *r)
{
	struct header h = r->header;
	int fd = open(ring_path(), O_RDWR);

	h.options |= OPT_FENCES;
	h.crc = header_crc(&h);
	NEED(fd >= 0 && pwrite(fd, &h, sizeof h, 0) == sizeof h);
	close(fd);
	shmring_close(r);
	r = ring_again(ring_path());
	NEED(!r->asymmetric);
	return r;
}

static inline shmring_producer *producer_of(shmring *r)
{
	shmring_producer *p = NULL;

	NEED(shmring_producer_open(r, "producer", &p) == SHMRING_OK);
	opened(OPEN_PRODUCERS, p);
	return p;
}

static inline shmring_consumer *consumer_with(shmring *r, const char *branch,
					      const struct shmring_branch_options *o)
{
	shmring_consumer *m = NULL;

	NEED(shmring_join(r, branch, o, "consumer", &m) == SHMRING_OK);
	opened(OPEN_CONSUMERS, m);
	return m;
}

static inline shmring_consumer *consumer_of(shmring *r, const char *branch)
{
	return consumer_with(r, branch, &(struct shmring_branch_options){.start = SHMRING_EARLIEST});
}

static inline int push_number(shmring_producer *p, uint64_t number)
{
	uint64_t id;

	return shmring_push(p, &number, sizeof number, KIND_BYTES, &id);
}

/* The numbers from `from` on. */
static inline void push_n(shmring_producer *p, uint64_t from, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		NEED(push_number(p, from + i) == SHMRING_OK);
}

static inline void push_end(shmring_producer *p)
{
	NEED(shmring_push(p, NULL, 0, SHMRING_KIND_END, NULL) == SHMRING_OK);
}

static inline struct shmring_lease lease_of(shmring_consumer *m, uint32_t n)
{
	struct shmring_lease lease;

	NEED(shmring_take(m, n, 1024, &lease) == SHMRING_OK);
	return lease;
}

/* Takes one message and releases it; its number, or a negative status. */
static inline int64_t pop_number(shmring_consumer *m)
{
	struct shmring_lease lease;
	struct shmring_message message;
	uint64_t at, number = 0;
	int status;

	do
		status = shmring_take(m, 1, 1024, &lease);
	while (status == SHMRING_CONTENDED);
	if (status)
		return status;
	at = lease.first;
	status = shmring_read(m->ring, &at, lease.end, &message);
	if (status)
		return status;
	if (message.length >= sizeof number)
		memcpy(&number, message.data, sizeof number);
	status = shmring_release(m, lease.first, lease.end);
	return status ? status : (int64_t)number;
}

static inline unsigned seats_in_use(const shmring *r)
{
	struct shmring_participant_info seat;
	unsigned n = 0;

	for (uint32_t i = 0; i < r->seat_count; i++)
		n += shmring_participant_info(r, i, &seat) == SHMRING_OK;
	return n;
}

/* A test on a new ring, with a producer. */
#define PRODUCER_TEST(test)                                                                                       \
	static void test##_on(shmring *, shmring_producer *);                                                     \
	TEST(test)                                                                                                \
	{                                                                                                         \
		shmring *r = ring_new();                                                                          \
                                                                                                                  \
		test##_on(r, producer_of(r));                                                                     \
	}                                                                                                         \
	static void test##_on(__attribute__((unused)) shmring *r, shmring_producer *p)

/* And with a consumer of its branch "b"; the ring is one with these options. */
#define RING_TEST_WITH(test, ...)                                                                                 \
	static void test##_on(shmring *, shmring_producer *, shmring_consumer *);                                 \
	TEST(test)                                                                                                \
	{                                                                                                         \
		shmring *r = ring_with(&(struct shmring_options){__VA_ARGS__});                                   \
		shmring_producer *p = producer_of(r);                                                             \
                                                                                                                  \
		test##_on(r, p, consumer_of(r, "b"));                                                             \
	}                                                                                                         \
	static void test##_on(__attribute__((unused)) shmring *r, __attribute__((unused)) shmring_producer *p,    \
			      __attribute__((unused)) shmring_consumer *m)
#define RING_TEST(test) RING_TEST_WITH(test, .slots = 1024)

/* --- processes --------------------------------------------------------------- */

/* Runs `job` in a child; whatever it returns is its exit code. */
static inline pid_t spawn(int (*job)(void *), void *argument)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int code = job(argument);

		fflush(stdout);
		_exit(code ? code : check_broken);
	}
	return pid;
}

/* The exit code, or minus the signal. */
static inline int reap(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		return -1000;
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static inline int64_t clock_ns(void)
{
	return (int64_t)now_ns(CLOCK_MONOTONIC);
}

static inline void nap_ms(long ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Whether a page marked so is no part of a child (MADV_DONTFORK), or zero there
 * (MADV_WIPEONFORK). qemu-user says yes and does neither: what stands on that cannot be
 * shown there. */
static inline bool children_heed(int advice)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *mark = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ends[2], code;
	pid_t pid;

	NEED(mark != MAP_FAILED && pipe(ends) == 0);
	*mark = 1;
	(void)madvise(mark, page, advice);
	pid = fork();
	if (pid == 0)
		_exit(write(ends[1], mark, 1) == 1 && *mark); /* EFAULT where it is no part */
	code = reap(pid);
	close(ends[0]);
	close(ends[1]);
	munmap(mark, page);
	if (code)
		printf("  (children do not heed madvise(%s) here: an emulator)\n",
		       advice == MADV_DONTFORK ? "MADV_DONTFORK" : "MADV_WIPEONFORK");
	return code == 0;
}

/* Memory that children share with us. */
static inline void *shared_memory(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	NEED(p != MAP_FAILED);
	return p;
}

static inline uint64_t random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

#endif
