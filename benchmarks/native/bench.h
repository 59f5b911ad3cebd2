/* Common parts of the native benchmarks: clocks, cores, options, child processes. */
#ifndef SHMRING_BENCH_H
#define SHMRING_BENCH_H

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* The n-th core that this process may use; nothing happens on a single core. */
static inline void pin(int n)
{
	cpu_set_t allowed, one;
	int cores;

	if (sched_getaffinity(0, sizeof allowed, &allowed) || (cores = CPU_COUNT(&allowed)) < 2)
		return;
	n %= cores;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET(cpu, &allowed) && n-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			(void)sched_setaffinity(0, sizeof one, &one);
			return;
		}
	}
}

/* Memory that a child shares with its parent. */
static inline void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

/* Nobody outlives the runner, whatever ends it. */
static inline void die_with_parent(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static inline pid_t child(void)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid == 0)
		die_with_parent();
	return pid;
}

static inline void wait_for_children(void)
{
	int status;

	while (wait(&status) > 0)
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			fprintf(stderr, "a child process failed\n");
			exit(1); /* takes the other children along */
		}
}

/* The value of `key=value` among the arguments. */
static inline const char *option(char **argv, const char *key, const char *otherwise)
{
	size_t n = strlen(key);

	for (; *argv; argv++)
		if (!strncmp(*argv, key, n) && (*argv)[n] == '=')
			return *argv + n + 1;
	return otherwise;
}

static inline uint64_t number(char **argv, const char *key, uint64_t otherwise)
{
	const char *text = option(argv, key, NULL);

	return text ? strtoull(text, NULL, 10) : otherwise;
}

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
/* memcpy() chooses the widest registers that the machine has: so does the reader. */
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

/* Every byte, as 64-bit words in sums that do not wait for each other. */
WIDEST static uint64_t sum_bytes(const void *data, size_t n)
{
	enum { LANES = 32 };
	const uint8_t *p = data;
	uint64_t lane[LANES] = {0};
	uint64_t total = 0;
	size_t i = 0;

	for (; i + sizeof lane <= n; i += sizeof lane) {
		uint64_t word[LANES];

		memcpy(word, p + i, sizeof word);
		for (int k = 0; k < LANES; k++)
			lane[k] += word[k];
	}
	for (int k = 0; k < LANES; k++)
		total += lane[k];
	for (; i + 8 <= n; i += 8) {
		uint64_t word;

		memcpy(&word, p + i, 8);
		total += word;
	}
	for (; i < n; i++)
		total += p[i];
	return total;
}

/* Durations of single round trips, in nanoseconds. */
struct times {
	uint32_t *ns;
	size_t count;
	size_t room;
};

static inline int compare_ns(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static inline void times_init(struct times *t, size_t room)
{
	t->ns = malloc(room * sizeof *t->ns);
	if (!t->ns)
		die("malloc");
	t->count = 0;
	t->room = room;
}

static inline void times_add(struct times *t, double seconds)
{
	if (t->count < t->room)
		t->ns[t->count++] = (uint32_t)(seconds * 1e9);
}

static inline void times_print(struct times *t)
{
	if (!t->count)
		die("no round trip was measured");
	qsort(t->ns, t->count, sizeof *t->ns, compare_ns);
	printf("{\"median_ns\": %u, \"p99_ns\": %u, \"p999_ns\": %u, \"count\": %zu}\n", t->ns[t->count / 2],
	       t->ns[t->count - 1 - t->count / 100], t->ns[t->count - 1 - t->count / 1000], t->count);
	free(t->ns);
}

/* Measurements of a program, chosen by its first argument; the last entry has no name. */
struct measurement {
	const char *name;
	void (*run)(char **argv);
};

static inline int measure(int argc, char **argv, const struct measurement *known)
{
	const char *what = argc > 1 ? argv[1] : "";

	die_with_parent();
	for (const struct measurement *m = known; m->name; m++)
		if (!strcmp(what, m->name)) {
			m->run(argv);
			return 0;
		}
	fprintf(stderr, "usage: %s", argv[0]);
	for (const struct measurement *m = known; m->name; m++)
		fprintf(stderr, "%c%s", m == known ? ' ' : '|', m->name);
	fprintf(stderr, " [key=value ...]\n");
	return 2;
}

#endif
