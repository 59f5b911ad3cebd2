/* Which kinds may be published. Readers trust the kind before they read the bytes:
 * they step over an aborted claim, end their iteration at an end marker, and parse
 * messages that are marked as record batches. */
#include <string.h>

#include "core.h"

static_assert((int)SHMRING_KIND_BYTES == KIND_BYTES && (int)SHMRING_KIND_END == KIND_END &&
		  (int)SHMRING_KIND_ARROW_BATCH == KIND_ARROW_BATCH &&
		  (int)SHMRING_KIND_ARROW_STREAM == KIND_ARROW_STREAM,
	      "the header's kinds are the layout's");

/* The head of an encapsulated IPC message: ff ff ff ff, the size of its metadata
 * (at least one word of a flat buffer), and the metadata itself. */
static bool is_encapsulated(const uint8_t *data, uint64_t length)
{
	uint32_t head[2];

	if (length < sizeof head)
		return false;
	memcpy(head, data, sizeof head);
	return head[0] == UINT32_MAX && head[1] >= 8 && head[1] <= length - sizeof head;
}

int kind_check_reserved(const shmring *r, uint8_t kind, const uint8_t *data, uint64_t length)
{
	switch (kind) {
	case KIND_END:
		if (length)
			return fail(SHMRING_E_INVALID, "ring \"%s\": an end marker must be empty, not %llu bytes",
				    r->name, (unsigned long long)length);
		return SHMRING_OK;
	case KIND_ARROW_BATCH:
		if (!r->header.schema_bytes)
			return fail(SHMRING_E_INVALID,
				    "ring \"%s\": kind %d must be a record batch of the ring's schema, and the "
				    "ring was made without one",
				    r->name, kind);
		break;
	case KIND_ARROW_STREAM:
		break;
	default:
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\": kind %d is reserved; it must be %d (bytes), or %d to 255 as you like",
			    r->name, kind, SHMRING_KIND_BYTES, SHMRING_KIND_USER);
	}
	if (!is_encapsulated(data, length))
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\": kind %d must be an Arrow IPC message, and these %llu bytes are not; "
			    "write record batches with an Arrow writer, or mark the message with %d to 255",
			    r->name, kind, (unsigned long long)length, SHMRING_KIND_USER);
	return SHMRING_OK;
}
