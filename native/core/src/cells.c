/* Places in a mapped ring, for callers outside of the core. */
#include "cells.h"

void *shmring_slot(const shmring *r, uint64_t sequence)
{
	return slot_at(r, sequence);
}

uint64_t shmring_slots_for(uint64_t length, bool aligned)
{
	/* Slots begin at multiples of 4, so at most 60 bytes are skipped. */
	uint64_t skip = aligned ? BODY_ALIGN - 4 : 0;
	uint64_t slots = length / SLOT_BYTES + (length % SLOT_BYTES + skip + SLOT_BYTES - 1) / SLOT_BYTES;

	return slots ? slots : 1;
}

uint64_t shmring_claimed(const shmring *r)
{
	return load_acquire(&r->cursors->claim.v);
}

uint64_t shmring_floor(const shmring *r)
{
	return load_acquire(&r->cursors->floor.v);
}
