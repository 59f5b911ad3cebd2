/* What the machine can do without any ring.
 *
 *   limits memcpy block=BYTES working=BYTES from=block|set seconds=S
 *   limits handover block=BYTES working=BYTES seconds=S
 *   limits cacheline seconds=S
 *   limits futex seconds=S
 *
 * Prints one JSON object.
 */
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "bench.h"

/* Blocks, copied one after the other to the next place in a working set: from
 * another set of the same size, or from one block that stays in the cache. */
static void measure_memcpy(char **argv)
{
	size_t block = number(argv, "block", 1 << 20);
	size_t blocks = number(argv, "working", block) / block;
	double seconds = atof(option(argv, "seconds", "0.5"));
	size_t bytes = (blocks ? blocks : 1) * block;
	size_t step = strcmp(option(argv, "from", "set"), "block") ? block : 0;
	char *from = malloc(bytes);
	char *to = malloc(bytes);
	uint64_t copies = 0;
	double start, stop;

	if (!from || !to)
		die("malloc");
	pin(0);
	memset(from, 1, bytes);
	memset(to, 2, bytes);
	start = now();
	do {
		for (size_t at = 0, source = 0; at < bytes; at += block, source += step) {
			memcpy(to + at, from + source, block);
			__asm__ volatile("" ::"r"(to) : "memory");
			copies++;
		}
		stop = now();
	} while (stop - start < seconds);
	printf("{\"gb_s\": %.4f}\n", (double)copies * (double)block / (stop - start) / 1e9);
	free(from);
	free(to);
}

/* One process copies blocks into shared memory, the other reads every byte; two
 * cursors and nothing else. A queue can hardly be faster. */
static void measure_handover(char **argv)
{
	struct {
		_Alignas(128) _Atomic uint64_t written;
		_Alignas(128) _Atomic uint64_t read;
		_Alignas(128) _Atomic bool over;
		uint64_t total;
	} *c = shared(4096);
	size_t block = number(argv, "block", 1 << 18);
	size_t blocks = number(argv, "working", 16 * block) / block;
	double seconds = atof(option(argv, "seconds", "0.5"));
	char *set = shared(blocks * block);
	char *from = malloc(block);
	double start, stop;
	uint64_t n = 0;

	if (!from)
		die("malloc");
	memset(from, 1, block);
	memset(set, 2, blocks * block);
	if (child() == 0) {
		uint64_t total = 0;

		pin(1);
		for (uint64_t at = 0;; at++) {
			while (atomic_load_explicit(&c->written, memory_order_acquire) <= at) {
				if (atomic_load(&c->over) && atomic_load(&c->written) <= at) {
					c->total = total;
					_exit(0);
				}
				relax();
			}
			total += sum_bytes(set + at % blocks * block, block);
			atomic_store_explicit(&c->read, at + 1, memory_order_release);
		}
	}
	pin(0);
	start = now();
	do {
		while (n - atomic_load_explicit(&c->read, memory_order_acquire) >= blocks)
			relax();
		memcpy(set + n % blocks * block, from, block);
		atomic_store_explicit(&c->written, ++n, memory_order_release);
	} while (now() - start < seconds);
	while (atomic_load_explicit(&c->read, memory_order_acquire) < n)
		relax();
	stop = now();
	atomic_store(&c->over, true);
	wait_for_children();
	if (c->total != n * sum_bytes(from, block))
		die("the reader saw other bytes");
	printf("{\"gb_s\": %.4f}\n", (double)n * (double)block / (stop - start) / 1e9);
	free(from);
}

/* A word that goes to and fro between two cores. */
static void measure_cacheline(char **argv)
{
	enum { TRIPS = 1000 };
	_Atomic uint64_t *word = shared(4096);
	double seconds = atof(option(argv, "seconds", "0.5"));
	struct times times;
	double start, before;
	uint64_t k = 0;

	if (child() == 0) {
		pin(1);
		for (uint64_t next = 1;; next += 2) {
			uint64_t seen;

			while ((seen = atomic_load_explicit(word, memory_order_acquire)) < next)
				relax();
			if (seen == UINT64_MAX)
				_exit(0);
			atomic_store_explicit(word, next + 1, memory_order_release);
		}
	}
	pin(0);
	times_init(&times, 1 << 20);
	start = before = now();
	do {
		double after;

		for (int i = 0; i < TRIPS; i++) {
			atomic_store_explicit(word, k + 1, memory_order_release);
			k += 2;
			while (atomic_load_explicit(word, memory_order_acquire) != k)
				relax();
		}
		after = now();
		times_add(&times, (after - before) / TRIPS);
		before = after;
	} while (before - start < seconds);
	atomic_store(word, UINT64_MAX);
	wait_for_children();
	times_print(&times);
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Two processes that wake each other; neither spins. */
static void measure_futex(char **argv)
{
	_Atomic uint32_t *ping = shared(4096);
	_Atomic uint32_t *pong = ping + 512;
	double seconds = atof(option(argv, "seconds", "0.5"));
	struct times times;
	double start, before;

	if (child() == 0) {
		pin(1);
		for (uint32_t next = 1;; next++) {
			uint32_t seen;

			while ((seen = atomic_load(ping)) == next - 1)
				futex_wait(ping, next - 1);
			if (seen == UINT32_MAX)
				_exit(0);
			atomic_store(pong, next);
			futex_wake(pong);
		}
	}
	pin(0);
	times_init(&times, 1 << 20);
	start = before = now();
	for (uint32_t k = 1; before - start < seconds; k++) {
		double after;

		atomic_store(ping, k);
		futex_wake(ping);
		while (atomic_load(pong) != k)
			futex_wait(pong, k - 1);
		after = now();
		times_add(&times, after - before);
		before = after;
	}
	atomic_store(ping, UINT32_MAX);
	futex_wake(ping);
	wait_for_children();
	times_print(&times);
}

int main(int argc, char **argv)
{
	static const struct measurement known[] = {
	    {"memcpy", measure_memcpy},
	    {"handover", measure_handover},
	    {"cacheline", measure_cacheline},
	    {"futex", measure_futex},
	    {0},
	};

	return measure(argc, argv, known);
}
