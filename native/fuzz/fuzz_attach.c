/* Fuzzes the header of a ring's file: attach must map the file or say why not. */
#include "fuzz.h"

static struct header good;
static int fd = -1;

static void set_up(void)
{
	shmring_close(fuzz_ring());
	fd = open(ring_path(), O_RDWR);
	NEED(fd >= 0 && pread(fd, &good, sizeof good, 0) == sizeof good);
}

static void use(const shmring *r)
{
	struct shmring_info info;
	struct shmring_row row;
	uint8_t message[400];

	shmring_get_info(r, &info);
	for (uint64_t i = 0; i < info.slots && i < 64; i++)
		(void)shmring_table_row(r, i, &row, message, sizeof message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input in = {data, size};
	struct header h;
	uint64_t flags;
	size_t at;
	shmring *r;

	if (fd < 0)
		set_up();
	h = good;
	flags = fuzz_take(&in, 1);
	at = fuzz_take(&in, 1) % sizeof h;
	memcpy((uint8_t *)&h + at, in.bytes, in.left < sizeof h - at ? in.left : sizeof h - at);
	if (flags & 1) /* sign the header, as a hostile peer can; without that, attach refuses a random header */
		h.crc = header_crc(&h);
	/* Never zero: attach would wait a second for the process that makes the ring. */
	h.magic = h.magic ? h.magic : 1;
	NEED(pwrite(fd, &h, sizeof h, 0) == sizeof h);
	if (shmring_attach(ring_path(), flags & 2 ? SHMRING_READ_ONLY : 0, &r) == SHMRING_OK) {
		use(r);
		shmring_close(r);
	}
	return 0;
}
