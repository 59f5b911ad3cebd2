/* Writes a record batch as an encapsulated IPC message. The message is planned from the arrays first and then
 * written in one go, because a claim should last only for the copy. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ipc.h"

/* --- metadata ------------------------------------------------------------------------ */

/* A flat buffer of the tables Message and RecordBatch (Message.fbs of Arrow's format). It is a struct because its
 * shape is the same for all batches of a schema. Each table stands behind its own list of fields (its vtable).
 * Each reference is a distance in bytes from the reference itself. */
struct ipc_metadata {
	uint32_t continuation; /* ff ff ff ff */
	uint32_t size; /* bytes of metadata that follow this field */
	uint32_t root; /* distance to `message` */
	uint16_t message_fields[6]; /* size of this list, size of the table; then the offsets in the table of
					 version, type, header and body */
	int32_t message; /* beginning of the table Message: distance back to its list of fields, message_fields */
	uint32_t header; /* distance to `batch` */
	int64_t body_bytes;
	int16_t version;
	uint8_t header_type;
	uint8_t gap;
	uint16_t batch_fields[5]; /* size of this list, size of the table; then the offsets in the table of
				       length, nodes and buffers */
	uint16_t another_gap;
	int32_t batch;
	uint32_t to_nodes;
	int64_t length;
	uint32_t to_buffers;
	uint32_t node_count;
	struct ipc_node nodes[];
	/* followed by: uint32_t gap, buffer_count; struct ipc_extent buffers[] */
};

#define AT(member) ((uint32_t)offsetof(struct ipc_metadata, member))

static_assert(sizeof(struct ipc_metadata) == 80 && AT(nodes) == 80, "no padding but the gaps");

static uint64_t metadata_bytes(uint32_t nodes, uint32_t buffers)
{
	return sizeof(struct ipc_metadata) + nodes * sizeof(struct ipc_node) + 8 +
	       buffers * sizeof(struct ipc_extent);
}

static uint32_t *buffer_count(struct ipc_metadata *m)
{
	return (uint32_t *)&m->nodes[m->node_count] + 1;
}

static struct ipc_extent *extents(struct ipc_metadata *m)
{
	return (struct ipc_extent *)(buffer_count(m) + 1);
}

static void metadata_begin(struct ipc_metadata *m, uint32_t nodes, uint32_t buffers)
{
	*m = (struct ipc_metadata){
	    .continuation = IPC_CONTINUATION,
	    .size = (uint32_t)metadata_bytes(nodes, buffers) - AT(root),
	    .root = AT(message) - AT(root),
	    .message_fields = {sizeof m->message_fields, AT(gap) + 1 - AT(message), AT(version) - AT(message),
			       AT(header_type) - AT(message), AT(header) - AT(message),
			       AT(body_bytes) - AT(message)},
	    .message = AT(message) - AT(message_fields),
	    .header = AT(batch) - AT(header),
	    .version = IPC_VERSION_5,
	    .header_type = IPC_HEADER_RECORD_BATCH,
	    .batch_fields = {sizeof m->batch_fields, AT(node_count) - AT(batch), AT(length) - AT(batch),
			     AT(to_nodes) - AT(batch), AT(to_buffers) - AT(batch)},
	    .batch = AT(batch) - AT(batch_fields),
	    .to_nodes = AT(node_count) - AT(to_nodes),
	    .to_buffers = AT(nodes) + nodes * (uint32_t)sizeof(struct ipc_node) + 4 - AT(to_buffers),
	    .node_count = nodes,
	};
	buffer_count(m)[-1] = 0;
	*buffer_count(m) = buffers;
}

/* --- the plan -------------------------------------------------------------------------- */

enum how {
	HOW_COPY,
	HOW_SHIFT, /* copy bits that begin at bit `first` of a byte: reads `nbytes` + 1 bytes, writes `nbytes` */
	HOW_SHIFT_LAST, /* like HOW_SHIFT, but the bits end in the first `nbytes` bytes, so only those are read */
	HOW_REBASE_32, /* subtract `first` from 4-byte offsets, because offsets in a message begin at 0 */
	HOW_REBASE_64,
};

struct ipc_part {
	const uint8_t *from;
	uint64_t nbytes;
	int64_t first;
	enum how how;
};

struct plan {
	const struct ipc_field *next;
	struct ipc_message *message;
	struct ipc_node *node;
	struct ipc_extent *extent;
};

static bool is_damaged(struct plan *plan, const char *what)
{
	plan->message->damage = what;
	return false;
}

static const uint8_t no_offset[8]; /* the only offset, 0, of an array without values */

static bool add_part(struct plan *plan, enum how how, const void *from, uint64_t nbytes, int64_t first)
{
	struct ipc_message *m = plan->message;

	if (nbytes && !from)
		return is_damaged(plan, "a buffer is missing");
	*plan->extent++ = (struct ipc_extent){(int64_t)m->body_bytes, (int64_t)nbytes};
	m->parts[m->part_count++] = (struct ipc_part){from, nbytes, first, how};
	m->body_bytes += ipc_padded(nbytes);
	return true;
}

/* Adds the bits [offset, offset + length). */
static bool add_bits(struct plan *plan, const uint8_t *bits, int64_t offset, int64_t length)
{
	int64_t first = offset % 8;
	/* True if the bits lie in one byte more here than they will in the message. */
	bool more = (first + length + 7) / 8 > (length + 7) / 8;

	return add_part(plan,
			first == 0 ? HOW_COPY
			: more     ? HOW_SHIFT
				   : HOW_SHIFT_LAST,
			bits ? bits + offset / 8 : NULL, ((uint64_t)length + 7) / 8, first);
}

static int64_t count_bits(const uint8_t *bits, int64_t offset, int64_t length)
{
	int64_t end = offset + length;
	int64_t count = 0;
	int64_t i = offset;

	for (; i < end && i % 8; i++)
		count += bits[i / 8] >> (i % 8) & 1;
	for (; i + 64 <= end; i += 64) {
		uint64_t word;

		memcpy(&word, bits + i / 8, sizeof word);
		count += __builtin_popcountll(word);
	}
	for (; i < end; i++)
		count += bits[i / 8] >> (i % 8) & 1;
	return count;
}

static int64_t nulls_within(const struct ArrowArray *array, int64_t offset, int64_t length)
{
	const uint8_t *valid = array->buffers[0];

	if (!valid || array->null_count == 0)
		return 0;
	if (array->null_count > 0 && offset == array->offset && length == array->length)
		return array->null_count;
	return length - count_bits(valid, offset, length);
}

/* Adds the offsets of the values [offset, offset + length). Stores in *first and *end the first and the last of
 * these offsets, before `first` is subtracted from them. */
static bool write_offsets(struct plan *plan, const uint8_t *offsets, uint32_t width, int64_t offset,
			  int64_t length, int64_t *first, int64_t *end)
{
	enum how how;

	*first = *end = 0;
	if (length == 0)
		return add_part(plan, HOW_COPY, no_offset, width, 0);
	if (!offsets)
		return is_damaged(plan, "its offsets are missing");
	*first = ipc_offset_at(offsets, width, offset);
	*end = ipc_offset_at(offsets, width, offset + length);
	if (*first < 0 || *end < *first)
		return is_damaged(plan, "its offsets go backwards");
	how = *first == 0 ? HOW_COPY : width == 8 ? HOW_REBASE_64 : HOW_REBASE_32;
	return add_part(plan, how, offsets + offset * width, ((uint64_t)length + 1) * width, *first);
}

static bool write_array(struct plan *plan, const struct ArrowArray *array, int64_t from, int64_t length);

static bool write_children(struct plan *plan, const struct ArrowArray *array, int64_t from, int64_t length)
{
	for (int64_t i = 0; i < array->n_children; i++)
		if (!write_array(plan, array->children[i], from, length))
			return false;
	return true;
}

static bool write_values(struct plan *plan, const struct ipc_field *field, const struct ArrowArray *array,
			 int64_t offset, int64_t length)
{
	const uint8_t *values = array->n_buffers > 1 ? array->buffers[1] : NULL;
	uint32_t width = field->width;
	int64_t first;
	int64_t end;

	switch (field->values) {
	case VALUES_NONE:
		return true;
	case VALUES_FIXED:
		return add_part(plan, HOW_COPY, values ? values + offset * width : NULL, (uint64_t)length * width,
				0);
	case VALUES_BITS:
		return add_bits(plan, values, offset, length);
	case VALUES_BYTES:
		values = array->buffers[2];
		return write_offsets(plan, array->buffers[1], width, offset, length, &first, &end) &&
		       add_part(plan, HOW_COPY, values ? values + first : NULL, (uint64_t)(end - first), 0);
	case VALUES_LIST:
		return write_offsets(plan, values, width, offset, length, &first, &end) &&
		       write_children(plan, array, first, end - first);
	case VALUES_FIXED_LIST:
		return write_children(plan, array, offset * width, length * width);
	case VALUES_STRUCT:
		break;
	}
	return write_children(plan, array, offset, length);
}

static bool shape_fits(const struct ipc_field *field, const struct ArrowArray *array)
{
	return array->n_buffers == field->buffers && array->n_children == field->schema->n_children;
}

/* Adds the values [from, from + length) of an array, counted from the array's own offset. */
static bool write_array(struct plan *plan, const struct ArrowArray *array, int64_t from, int64_t length)
{
	const struct ipc_field *field = plan->next++;
	int64_t offset = array->offset + from;
	int64_t nulls;

	if (!shape_fits(field, array) || array->offset < 0)
		return is_damaged(plan, "it is not laid out as its schema says");
	if (from > array->length - length)
		return is_damaged(plan, "it is too short");
	if (field->values == VALUES_NONE) {
		*plan->node++ = (struct ipc_node){length, length};
		return true;
	}
	nulls = nulls_within(array, offset, length);
	*plan->node++ = (struct ipc_node){length, nulls};
	return (nulls ? add_bits(plan, array->buffers[0], offset, length) : add_part(plan, HOW_COPY, "", 0, 0)) &&
	       write_values(plan, field, array, offset, length);
}

/* Plans the message of a batch that has the layout's schema. If the result is IPC_DONE, the caller calls
 * ipc_free() after use; after any other result there is nothing to free. */
enum ipc_answer ipc_plan(const struct ipc_layout *layout, const struct ArrowArray *batch,
			 struct ipc_message *message)
{
	uint32_t nodes = layout->field_count - 1;
	uint32_t buffers = layout->buffer_count;
	struct plan plan = {.next = layout->fields, .message = message};
	uint64_t meta = metadata_bytes(nodes, buffers);

	if (!shape_fits(plan.next++, batch) || batch->length < 0 || batch->length > IPC_MOST_ROWS ||
	    batch->offset < 0 || nulls_within(batch, batch->offset, batch->length))
		return IPC_FOREIGN;
	message->parts = malloc(buffers * sizeof *message->parts + meta);
	if (!message->parts)
		return IPC_NO_MEMORY;
	message->metadata = (struct ipc_metadata *)(message->parts + buffers);
	message->metadata_bytes = meta;
	message->body_bytes = message->part_count = 0;
	metadata_begin(message->metadata, nodes, buffers);
	plan.node = message->metadata->nodes;
	plan.extent = extents(message->metadata);
	if (!write_children(&plan, batch, batch->offset, batch->length)) {
		message->column = plan.next[-1].schema->name ? plan.next[-1].schema->name : "";
		ipc_free(message);
		return IPC_DAMAGED;
	}
	message->metadata->length = batch->length;
	message->metadata->body_bytes = (int64_t)message->body_bytes;
	return IPC_DONE;
}

void ipc_free(struct ipc_message *message)
{
	free(message->parts);
}

/* --- writing ----------------------------------------------------------------------------- */

static void shift_bits(uint8_t *to, const struct ipc_part *part)
{
	const uint8_t *from = part->from;
	uint64_t last = part->nbytes - 1;

	for (uint64_t i = 0; i < last; i++)
		to[i] = (uint8_t)(from[i] >> part->first | from[i + 1] << (8 - part->first));
	to[last] = (uint8_t)(from[last] >> part->first);
	if (part->how == HOW_SHIFT)
		to[last] |= (uint8_t)(from[last + 1] << (8 - part->first));
}

static void rebase_32(uint8_t *to, const struct ipc_part *part)
{
	for (uint64_t i = 0; i < part->nbytes; i += sizeof(int32_t)) {
		int32_t offset;

		memcpy(&offset, part->from + i, sizeof offset);
		offset = (int32_t)(offset - part->first);
		memcpy(to + i, &offset, sizeof offset);
	}
}

static void rebase_64(uint8_t *to, const struct ipc_part *part)
{
	for (uint64_t i = 0; i < part->nbytes; i += sizeof(int64_t)) {
		int64_t offset;

		memcpy(&offset, part->from + i, sizeof offset);
		offset -= part->first;
		memcpy(to + i, &offset, sizeof offset);
	}
}

static void write_part(uint8_t *to, const struct ipc_part *part)
{
	switch (part->how) {
	case HOW_COPY:
		memcpy(to, part->from, part->nbytes);
		return;
	case HOW_SHIFT:
	case HOW_SHIFT_LAST:
		shift_bits(to, part);
		return;
	case HOW_REBASE_32:
		rebase_32(to, part);
		return;
	case HOW_REBASE_64:
		rebase_64(to, part);
		return;
	}
}

/* Writes the head, and then the planned message. */
void ipc_write(void *to, const void *message)
{
	const struct ipc_message *m = message;
	uint8_t *at = to;

	memcpy(at, m->head, m->head_bytes);
	at += m->head_bytes;
	memcpy(at, m->metadata, m->metadata_bytes);
	at += m->metadata_bytes;
	for (uint32_t i = 0; i < m->part_count; i++) {
		const struct ipc_part *part = &m->parts[i];

		if (part->nbytes == 0)
			continue;
		at += ipc_padded(part->nbytes);
		memset(at - IPC_ALIGNMENT, 0, IPC_ALIGNMENT);
		write_part(at - ipc_padded(part->nbytes), part);
	}
}
