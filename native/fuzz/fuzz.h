/* Common parts of the fuzz targets: one small ring, restored before each input, and
 * inputs that say which of the ring's bytes to overwrite. */
#ifndef FUZZ_H
#define FUZZ_H

#include "check.h"

enum { FUZZ_SEATS = 8 };

/* Makes a ring with messages of all kinds and three branches: "b", "f" that follows "b",
 * and "l" with drop_oldest. */
static inline shmring *fuzz_ring(void)
{
	uint64_t number = 0, id;
	/* Begins like an Arrow IPC message. */
	uint8_t long_message[1000] = {0xff, 0xff, 0xff, 0xff, 64};
	shmring *r =
	    ring_with(&(struct shmring_options){.slots = 1024, .participants = FUZZ_SEATS, .checksum = true});
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST};
	shmring_producer *p = producer_of(r);
	uint32_t b;

	NEED(shmring_subscribe(r, "b", &o, &b) == SHMRING_OK);
	o.upstream = UINT64_C(1) << b;
	NEED(shmring_subscribe(r, "f", &o, &b) == SHMRING_OK);
	o = (struct shmring_branch_options){.start = SHMRING_EARLIEST, .drop_oldest = true};
	NEED(shmring_subscribe(r, "l", &o, &b) == SHMRING_OK);
	for (int i = 0; i < 3; i++) {
		NEED(shmring_push_many(p, &number, 0, 5, NULL, 8, &id) == SHMRING_OK);
		NEED(shmring_push(p, long_message, sizeof long_message, KIND_ARROW_STREAM, &id) == SHMRING_OK);
		NEED(shmring_next(p, 3) >= 0 && shmring_abort(p) == SHMRING_OK);
	}
	NEED(shmring_push(p, NULL, 0, KIND_END, &id) == SHMRING_OK);
	shmring_producer_close(p);
	return r;
}

/* Puts inaccessible pages before and after the map: a read beyond the map then crashes. */
static inline void fuzz_fence(const shmring *r)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	(void)mmap(r->base + r->mapped_bytes, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		   -1, 0);
	(void)mmap(r->base - page, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

struct fuzz_input {
	const uint8_t *bytes;
	size_t left;
};

static inline uint64_t fuzz_take(struct fuzz_input *in, size_t n)
{
	uint64_t value = 0;

	if (n > in->left)
		n = in->left;
	memcpy(&value, in->bytes, n);
	in->bytes += n;
	in->left -= n;
	return value;
}

/* Chooses the byte to overwrite: cursors, branches, seats and control entries each get a fair share. */
static inline uint8_t *fuzz_target(const shmring *r, uint64_t choice)
{
	uint64_t at = choice >> 3;

	switch (choice & 7) {
	case 0:
		return (uint8_t *)r->cursors + at % offsetof(struct cursors, branch);
	case 1:
	case 2:
		return (uint8_t *)&r->cursors->branch[at % 5] + (at >> 3) % sizeof(struct branch);
	case 3:
	case 4:
		return (uint8_t *)&r->seats[at % FUZZ_SEATS] + (at >> 3) % sizeof(struct seat);
	default:
		return (uint8_t *)&r->control[at % 32] + (at >> 5) % sizeof(struct control);
	}
}

/* Overwrites up to 15 places of the ring. The input has 3 bytes for each place, 1 byte for the size, and the
 * value, which is a whole word in half of the cases. */
static inline void fuzz_scribble(const shmring *r, struct fuzz_input *in)
{
	for (uint64_t n = fuzz_take(in, 1) % 16; n && in->left; n--) {
		uint8_t *p = fuzz_target(r, fuzz_take(in, 3));
		uint64_t how = fuzz_take(in, 1), what;

		if (how & 1) {
			p -= (uintptr_t)p % 8;
			what = fuzz_take(in, 8);
			memcpy(p, &what, 8);
		} else {
			*p = (uint8_t)fuzz_take(in, 1);
		}
	}
}

#endif
