/* Pushes messages, and takes, reads and releases them; for callgrind, which counts.
 *
 *   shmring_bench_instructions count path=FILE messages=N take=0|1
 */
#include "rings.h"

enum { BYTES = 64 };

static void count(char **argv)
{
	const char *path = option(argv, "path", "/dev/shm/shmring.bench-native");
	uint64_t messages = number(argv, "messages", 1000);
	uint64_t taken = number(argv, "take", 0) ? messages : 0;
	struct shmring_options options = {.slots = 65536};
	struct shmring_branch_options branch = {.start = SHMRING_EARLIEST};
	const char data[BYTES] = {0};
	shmring_producer *producer;
	shmring_consumer *consumer;
	shmring *ring;

	unlink_at_exit(path);
	create(path, &options);
	ring = attach(path);
	must(shmring_producer_open(ring, "producer", &producer), "producer");
	must(shmring_join(ring, "branch", &branch, "consumer", &consumer), "join");
	for (uint64_t i = 0; i < messages; i++) {
		uint64_t id;

		must(shmring_push(producer, data, BYTES, SHMRING_KIND_BYTES, &id), "push");
	}
	for (uint64_t i = 0; i < taken; i++) {
		struct shmring_message message;
		struct shmring_lease lease;
		uint64_t at;

		must(shmring_take(consumer, 1, 1, &lease), "take");
		at = lease.first;
		must(shmring_read(ring, &at, lease.end, &message), "read");
		must(shmring_release(consumer, lease.first, lease.end), "release");
	}
	printf("{}\n");
	shmring_consumer_close(consumer);
	shmring_producer_close(producer);
	shmring_close(ring);
}

int main(int argc, char **argv)
{
	static const struct measurement known[] = {{"count", count}, {0}};

	return measure(argc, argv, known);
}
