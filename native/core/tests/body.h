/* What messages of traffic say: whose they are, which one, and whether they are whole. */
#ifndef SHMRING_BODY_H
#define SHMRING_BODY_H

#include "check.h"

struct body {
	uint32_t producer;
	uint32_t length;
	uint64_t number;
	uint32_t crc; /* of what follows */
	uint8_t rest[];
} __attribute__((packed));

static inline void body_fill(void *slot, uint32_t producer, uint64_t number, uint32_t length, uint64_t *seed)
{
	struct body *b = slot;
	uint32_t rest = length - (uint32_t)sizeof *b;

	for (uint32_t i = 0; i < rest; i++)
		b->rest[i] = (uint8_t)(*seed >> (i % 56));
	b->producer = producer;
	b->length = length;
	b->number = number;
	b->crc = shmring_crc32c(producer, b->rest, rest);
	random_next(seed);
}

/* Reads the head into *b; false if the message is not as it was filled. */
static inline bool body_read(const struct shmring_message *m, struct body *b)
{
	if (m->length < sizeof *b)
		return false;
	memcpy(b, m->data, sizeof *b);
	return b->length == m->length &&
	       b->crc == shmring_crc32c(b->producer, (const uint8_t *)m->data + sizeof *b, b->length - sizeof *b);
}

#endif
