/* One side of a pair: `produce|consume RING COUNT`. */
#include <shmring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 0, END = 2 };

static char expected[700];

static void check(int status)
{
	if (status) {
		fprintf(stderr, "%d: %s\n", status, shmring_error_message());
		exit(1);
	}
}

/* i, then as many dots as make i mod 700 bytes. */
static uint32_t numbered(int i)
{
	uint32_t number = (uint32_t)sprintf(expected, "%d", i);
	uint32_t length = (uint32_t)i % 700 > number ? (uint32_t)i % 700 : number;

	memset(expected + number, '.', length - number);
	return length;
}

static void push(shmring *ring, shmring_producer *producer, uint32_t length, uint8_t kind)
{
	uint32_t slots = (uint32_t)shmring_slots_for(length, false);
	int64_t sequence;

	while ((sequence = shmring_next(producer, slots)) < 0)
		if (sequence == SHMRING_UNAVAILABLE)
			(void)shmring_wait_space(producer, slots, INT64_MAX, SHMRING_WAIT_DEFAULT);
		else if (sequence != SHMRING_CONTENDED)
			check((int)sequence);
	memcpy(shmring_slot(ring, (uint64_t)sequence), expected, length);
	check(shmring_publish(producer, length, kind, 0));
}

static bool is_expected(const struct shmring_message *found, int i)
{
	return found->length == numbered(i) && memcmp(found->data, expected, found->length) == 0;
}

static int next(shmring_consumer *consumer, struct shmring_lease *lease)
{
	int status;

	while ((status = shmring_take(consumer, 1, UINT64_MAX, lease)) == SHMRING_UNAVAILABLE ||
	       status == SHMRING_CONTENDED)
		if (status == SHMRING_UNAVAILABLE)
			(void)shmring_wait_message(consumer, INT64_MAX, SHMRING_WAIT_DEFAULT);
	return status;
}

static void take(shmring *ring, shmring_consumer *consumer, int i)
{
	struct shmring_message found;
	struct shmring_lease lease;

	check(next(consumer, &lease));
	check(shmring_read(ring, &(uint64_t){lease.first}, lease.end, &found));
	if (found.kind != BYTES || !is_expected(&found, i)) {
		fprintf(stderr, "message %llu differs\n", (unsigned long long)found.message_id);
		exit(3);
	}
	check(shmring_release(consumer, lease.first, lease.end));
}

int main(int argc, char **argv)
{
	struct shmring_branch_options options = {.start = SHMRING_EARLIEST};
	int count = argc > 3 ? atoi(argv[3]) : 0;
	shmring_producer *producer = NULL;
	shmring_consumer *consumer = NULL;
	struct shmring_lease lease;
	shmring *ring;

	check(shmring_attach(argv[2], 0, &ring));
	if (strcmp(argv[1], "produce") == 0)
		check(shmring_producer_open(ring, "c", &producer));
	else
		check(shmring_join(ring, "pair", &options, "c", &consumer));
	for (int i = 0; i < count; i++)
		if (producer)
			push(ring, producer, numbered(i), BYTES);
		else
			take(ring, consumer, i);
	if (producer)
		push(ring, producer, 0, END);
	else if (next(consumer, &lease) != SHMRING_ENDED)
		return 4;
	shmring_producer_close(producer);
	shmring_consumer_close(consumer);
	shmring_close(ring);
	return 0;
}
