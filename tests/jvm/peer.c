/* One side of a pair: `produce RING COUNT` or `consume RING`, messages of every length. */
#include <shmring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int status)
{
	if (status) {
		fprintf(stderr, "%d: %s\n", status, shmring_error_message());
		exit(1);
	}
}

/* i, then as many dots as make i mod 700 bytes. */
static size_t message(int i, char *bytes)
{
	int number = sprintf(bytes, "%d", i);
	int length = i % 700 > number ? i % 700 : number;

	memset(bytes + number, '.', (size_t)(length - number));
	return (size_t)length;
}

static void push(shmring_producer *producer, const void *data, size_t length, uint8_t kind)
{
	uint64_t id;
	int status;

	while ((status = shmring_push(producer, data, length, kind, &id)) == SHMRING_UNAVAILABLE ||
	       status == SHMRING_CONTENDED)
		(void)shmring_wait_space(producer, shmring_slots_for(length, false), INT64_MAX,
					 SHMRING_WAIT_DEFAULT);
	check(status);
}

static void produce(shmring *ring, int count)
{
	shmring_producer *producer;
	char bytes[1024];

	check(shmring_producer_open(ring, "c", &producer));
	for (int i = 0; i < count; i++)
		push(producer, bytes, message(i, bytes), 0);
	push(producer, NULL, 0, 2);
	shmring_producer_close(producer);
}

static void consume(shmring *ring)
{
	struct shmring_branch_options options = {.start = SHMRING_EARLIEST};
	shmring_member *member;
	struct shmring_lease lease;
	struct shmring_message found = {0};
	char expected[1024];

	check(shmring_join(ring, "pair", &options, "c", &member));
	for (int i = 0; found.kind != 2; i++) {
		int status;

		while ((status = shmring_take(member, 1, UINT64_MAX, &lease)) == SHMRING_UNAVAILABLE ||
		       status == SHMRING_CONTENDED)
			(void)shmring_wait_message(member, INT64_MAX, SHMRING_WAIT_DEFAULT);
		check(status);
		check(shmring_read(ring, &(uint64_t){lease.first}, lease.end, &found));
		if (found.kind == 2)
			printf("%d\n", i);
		else if (found.length != message(i, expected) || memcmp(found.data, expected, found.length))
			exit(2);
		check(shmring_release(member, lease.first, lease.end));
	}
	shmring_member_close(member);
}

int main(int argc, char **argv)
{
	shmring *ring;

	if (argc < 3)
		return 3;
	check(shmring_attach(argv[2], 0, &ring));
	if (strcmp(argv[1], "produce") == 0)
		produce(ring, atoi(argv[3]));
	else
		consume(ring);
	shmring_close(ring);
	return 0;
}
