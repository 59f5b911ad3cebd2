/* Limits of the machine without any ring.
 *
 *   limits memcpy block=BYTES working=BYTES seconds=S
 *   limits cacheline seconds=S
 *
 * Prints one JSON object.
 */
#include <stdatomic.h>

#include "bench.h"

/* Blocks, copied one after the other from one working set to another of the same size. */
static void measure_memcpy(char **argv)
{
	size_t block = number(argv, "block", 1 << 20);
	size_t blocks = number(argv, "working", block) / block;
	double seconds = atof(option(argv, "seconds", "0.5"));
	size_t bytes = (blocks ? blocks : 1) * block;
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
		for (size_t at = 0; at < bytes; at += block) {
			memcpy(to + at, from + at, block);
			__asm__ volatile("" ::"r"(to) : "memory");
			copies++;
		}
		stop = now();
	} while (stop - start < seconds);
	printf("{\"gb_s\": %.4f}\n", (double)copies * (double)block / (stop - start) / 1e9);
	free(from);
	free(to);
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

int main(int argc, char **argv)
{
	static const struct measurement known[] = {
	    {"memcpy", measure_memcpy},
	    {"cacheline", measure_cacheline},
	    {0},
	};

	return measure(argc, argv, known);
}
