/* Which kinds may be published. */
#ifndef SHMRING_KIND_H
#define SHMRING_KIND_H

#include "handles.h"

int kind_check_reserved(const shmring *ring, uint8_t kind, const uint8_t *data, uint64_t length);

/* Users' own numbers, and bytes, need no check of the message. */
static inline bool kind_is_reserved(uint8_t kind)
{
	return (uint8_t)(kind - 1) < SHMRING_KIND_USER - 1;
}

static inline int kind_check(const shmring *ring, uint8_t kind, const uint8_t *data, uint64_t length)
{
	if (__builtin_expect(kind_is_reserved(kind), 0))
		return kind_check_reserved(ring, kind, data, length);
	return SHMRING_OK;
}

#endif
