/* Fuzzes cursors, seats and control entries: observers with a read-only map must see
 * rows or get an error, and change nothing. */
#include "fuzz.h"

static shmring *writer, *reader;
static uint8_t *image;
static size_t bytes;

static void set_up(void)
{
	writer = fuzz_ring();
	NEED(shmring_attach(ring_path(), SHMRING_READ_ONLY, &reader) == SHMRING_OK);
	fuzz_fence(reader);
	bytes = (size_t)(writer->slots - (uint8_t *)writer->cursors);
	image = malloc(bytes);
	NEED(image);
	memcpy(image, writer->cursors, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input in = {data, size};
	struct shmring_row row;
	struct shmring_participant_info seat;
	struct shmring_branch_info branch;
	uint8_t message[2000];
	uint32_t id;

	if (!writer)
		set_up();
	memcpy(writer->cursors, image, bytes);
	fuzz_scribble(writer, &in);
	for (uint64_t i = 0; i < 40; i++)
		if (shmring_table_row(reader, i, &row, message, sizeof message) == SHMRING_OK && row.filled)
			NEED(row.length <= 1024 * SLOT_BYTES);
	for (uint32_t i = 0; i < FUZZ_SEATS; i++)
		(void)shmring_participant_info(reader, i, &seat);
	for (uint32_t i = 0; i < BRANCHES; i++)
		(void)shmring_branch_info(reader, i, &branch);
	(void)shmring_find_branch(reader, "b", &id);
	return 0;
}
