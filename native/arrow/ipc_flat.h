/* Flat buffers, read without trust: every step is checked against the number of bytes, and returns false if
 * a table, list or field does not lie inside. The bytes are a private copy, begin at a multiple of 8, and
 * are little-endian, as this machine is. */
#ifndef SHMRING_IPC_FLAT_H
#define SHMRING_IPC_FLAT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct flat {
	const uint8_t *bytes;
	uint64_t size;
};

/* A table, and the list of its fields' places. */
struct flat_table {
	const struct flat *in;
	uint64_t at;
	uint64_t bytes;
	uint64_t fields;
	uint64_t fields_bytes;
};

/* `count` elements at `at`. */
struct flat_vector {
	uint64_t at;
	uint64_t count;
};

static inline bool flat_holds(const struct flat *in, uint64_t at, uint64_t bytes)
{
	return at <= in->size && bytes <= in->size - at;
}

static inline uint32_t flat_u32(const struct flat *in, uint64_t at)
{
	uint32_t value;

	memcpy(&value, in->bytes + at, sizeof value);
	return value;
}

static inline uint16_t flat_u16(const struct flat *in, uint64_t at)
{
	uint16_t value;

	memcpy(&value, in->bytes + at, sizeof value);
	return value;
}

static inline bool flat_table_at(const struct flat *in, uint64_t at, struct flat_table *table)
{
	int64_t fields;

	if (at % 4 || !flat_holds(in, at, 4))
		return false;
	fields = (int64_t)at - (int32_t)flat_u32(in, at);
	if (fields < 0 || fields % 2 || !flat_holds(in, (uint64_t)fields, 4))
		return false;
	*table = (struct flat_table){
	    .in = in,
	    .at = at,
	    .bytes = flat_u16(in, (uint64_t)fields + 2),
	    .fields = (uint64_t)fields,
	    .fields_bytes = flat_u16(in, (uint64_t)fields),
	};
	return table->fields_bytes >= 4 && table->fields_bytes % 2 == 0 && table->bytes >= 4 &&
	       flat_holds(in, table->fields, table->fields_bytes) && flat_holds(in, at, table->bytes);
}

/* The place to which an offset points. */
static inline bool flat_follow(const struct flat *in, uint64_t at, uint64_t *to)
{
	*to = at + flat_u32(in, at);
	return *to != at && flat_holds(in, *to, 4);
}

static inline bool flat_root(const struct flat *in, struct flat_table *table)
{
	uint64_t at;

	return flat_holds(in, 0, 4) && flat_follow(in, 0, &at) && flat_table_at(in, at, table);
}

/* The place of field `index`, which has `bytes` bytes; 0: the field has its default. */
static inline bool flat_field(const struct flat_table *table, unsigned index, unsigned bytes, uint64_t *at)
{
	uint64_t entry = 4 + 2 * (uint64_t)index;
	uint64_t offset = entry < table->fields_bytes ? flat_u16(table->in, table->fields + entry) : 0;

	*at = offset ? table->at + offset : 0;
	return offset == 0 || (offset >= 4 && offset + bytes <= table->bytes && *at % bytes == 0);
}

/* A number of 1, 2, 4 or 8 bytes; the caller's value stays if the field has its default. */
static inline bool flat_number(const struct flat_table *table, unsigned index, unsigned bytes, void *value)
{
	uint64_t at;

	if (!flat_field(table, index, bytes, &at))
		return false;
	if (at)
		memcpy(value, table->in->bytes + at, bytes);
	return true;
}

/* A table in a field; at == 0: there is none. */
static inline bool flat_inner(const struct flat_table *table, unsigned index, struct flat_table *inner)
{
	uint64_t at;

	inner->at = 0;
	return flat_field(table, index, 4, &at) &&
	       (at == 0 || (flat_follow(table->in, at, &at) && flat_table_at(table->in, at, inner)));
}

/* Elements of `bytes` bytes each, at a multiple of `alignment`; none if there is no list. */
static inline bool flat_elements(const struct flat_table *table, unsigned index, unsigned bytes,
				 unsigned alignment, struct flat_vector *vector)
{
	const struct flat *in = table->in;
	uint64_t at;

	*vector = (struct flat_vector){0};
	if (!flat_field(table, index, 4, &at))
		return false;
	if (at == 0)
		return true;
	if (!flat_follow(in, at, &at) || at % 4)
		return false;
	*vector = (struct flat_vector){at + 4, flat_u32(in, at)};
	return vector->at % alignment == 0 && vector->count <= (in->size - vector->at) / bytes;
}

#endif
