/* Bodies of the traffic tests' messages (producer, number, checksum), and the ways in which senders and
 * takers wait. */
#ifndef SHMRING_BODY_H
#define SHMRING_BODY_H

#include "check.h"

struct body {
	uint32_t producer;
	uint32_t length;
	uint64_t number;
	uint32_t crc; /* checksum of the bytes behind this field */
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

static inline const char *branch_name(uint32_t branch)
{
	static _Thread_local char name[16];

	snprintf(name, sizeof name, "b%u", branch);
	return name;
}

/* Claims as soon as there is room. */
static inline uint64_t claim(shmring_producer *p, uint32_t slots, uint8_t strategy)
{
	for (;;) {
		int64_t lo = shmring_next(p, slots);

		if (lo >= 0)
			return (uint64_t)lo;
		if (lo == SHMRING_UNAVAILABLE)
			(void)shmring_wait_space(p, slots, INT64_MAX, strategy);
		else
			NEED(lo == SHMRING_CONTENDED);
	}
}

/* Where there is nothing, it waits for a while first. */
static inline int take(shmring_consumer *m, uint32_t messages, uint64_t slots, uint8_t strategy,
		       struct shmring_lease *l)
{
	int status = shmring_take(m, messages, slots, l);

	if (status == SHMRING_UNAVAILABLE)
		(void)shmring_wait_message(m, clock_ns() + 20000000, strategy);
	return status;
}

#endif
