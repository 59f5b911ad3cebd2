/* One side of a pair: `produce|consume bytes RING COUNT`, or `produce|consume arrow RING FILE...`
 * with a file for each message, from which it comes or into which it goes: C knows nothing of
 * Arrow but the bytes. */
#include <shmring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 0, END = 2, ARROW_BATCH = 3, MOST = 1 << 20 };

static char expected[MOST];

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

static uint32_t from_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	size_t length = file ? fread(expected, 1, MOST, file) : 0;

	if (!file || !length)
		exit(2);
	fclose(file);
	return (uint32_t)length;
}

/* An Arrow body, which begins behind the metadata, lies on a 64-byte boundary. */
static void push(shmring *ring, shmring_producer *producer, uint32_t length, uint8_t kind)
{
	uint32_t slots = (uint32_t)shmring_slots_for(length, kind == ARROW_BATCH);
	uint32_t metadata = 0;
	uint8_t shift = 0;
	int64_t sequence;
	char *slot;

	while ((sequence = shmring_next(producer, slots)) < 0)
		if (sequence == SHMRING_UNAVAILABLE)
			(void)shmring_wait_space(producer, slots, INT64_MAX, SHMRING_WAIT_DEFAULT);
		else if (sequence != SHMRING_CONTENDED)
			check((int)sequence);
	slot = shmring_slot(ring, (uint64_t)sequence);
	if (kind == ARROW_BATCH) {
		memcpy(&metadata, expected + 4, 4);
		shift = (uint8_t)(-((uintptr_t)slot + 8 + metadata) % 64);
	}
	memcpy(slot + shift, expected, length);
	check(shmring_publish(producer, length, kind, shift));
}

static bool is_expected(const struct shmring_message *found, int i)
{
	return found->length == numbered(i) && memcmp(found->data, expected, found->length) == 0;
}

static void to_file(const char *path, const struct shmring_message *found)
{
	FILE *file = fopen(path, "wb");

	if (!file || fwrite(found->data, 1, found->length, file) != found->length || fclose(file))
		exit(2);
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

static void take(shmring *ring, shmring_consumer *consumer, int i, uint8_t kind, const char *path)
{
	struct shmring_message found;
	struct shmring_lease lease;

	check(next(consumer, &lease));
	check(shmring_read(ring, &(uint64_t){lease.first}, lease.end, &found));
	if (found.kind != kind || (kind != ARROW_BATCH && !is_expected(&found, i))) {
		fprintf(stderr, "message %llu differs\n", (unsigned long long)found.message_id);
		exit(3);
	}
	if (kind == ARROW_BATCH)
		to_file(path, &found);
	check(shmring_release(consumer, lease.first, lease.end));
}

int main(int argc, char **argv)
{
	struct shmring_branch_options options = {.start = SHMRING_EARLIEST};
	bool arrow = argc > 4 && strcmp(argv[2], "arrow") == 0;
	int count = arrow ? argc - 4 : atoi(argv[4]);
	uint8_t kind = arrow ? ARROW_BATCH : BYTES;
	shmring_producer *producer = NULL;
	shmring_consumer *consumer = NULL;
	struct shmring_lease lease;
	shmring *ring;

	check(shmring_attach(argv[3], 0, &ring));
	if (strcmp(argv[1], "produce") == 0)
		check(shmring_producer_open(ring, "c", &producer));
	else
		check(shmring_join(ring, "pair", &options, "c", &consumer));
	for (int i = 0; i < count; i++)
		if (producer)
			push(ring, producer, arrow ? from_file(argv[4 + i]) : numbered(i), kind);
		else
			take(ring, consumer, i, kind, arrow ? argv[4 + i] : "");
	if (producer)
		push(ring, producer, 0, END);
	else if (next(consumer, &lease) != SHMRING_ENDED)
		return 4;
	shmring_producer_close(producer);
	shmring_consumer_close(consumer);
	shmring_close(ring);
	return 0;
}
