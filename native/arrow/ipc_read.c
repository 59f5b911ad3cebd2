/* Reads a record batch message as arrays over its bytes, without a copy. The metadata is copied before it is
 * checked, because a peer could change the message after the check. */
#include <stdatomic.h>
#include <stdlib.h>

#include "ipc.h"

/* --- flat buffers -------------------------------------------------------------------------- */

/* A flat buffer that is not trusted. The bool functions on a flat buffer return false if the table, list or field
 * that they look for does not lie within the `size` bytes. `bytes` begins at a multiple of 8, and is
 * little-endian, like this machine. */
struct flat {
	const uint8_t *bytes;
	uint64_t size;
};

/* A table, and the list of its fields' offsets (its vtable). */
struct flat_table {
	const struct flat *in;
	uint64_t at;
	uint64_t bytes;
	uint64_t fields;
	uint64_t fields_bytes;
};

/* A list: `count` elements, of which the first is at offset `at`. */
struct flat_vector {
	uint64_t at;
	uint64_t count;
};

static bool flat_holds(const struct flat *in, uint64_t at, uint64_t bytes)
{
	return at <= in->size && bytes <= in->size - at;
}

static uint32_t flat_u32(const struct flat *in, uint64_t at)
{
	uint32_t value;

	memcpy(&value, in->bytes + at, sizeof value);
	return value;
}

static uint16_t flat_u16(const struct flat *in, uint64_t at)
{
	uint16_t value;

	memcpy(&value, in->bytes + at, sizeof value);
	return value;
}

static bool flat_table_at(const struct flat *in, uint64_t at, struct flat_table *table)
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

/* Reads the reference at `at`, a distance in bytes, and stores in *to the position that it points to. All
 * positions are counted from the beginning of the flat buffer. */
static bool flat_follow(const struct flat *in, uint64_t at, uint64_t *to)
{
	*to = at + flat_u32(in, at);
	return *to != at && flat_holds(in, *to, 4);
}

static bool flat_root(const struct flat *in, struct flat_table *table)
{
	uint64_t at;

	return flat_holds(in, 0, 4) && flat_follow(in, 0, &at) && flat_table_at(in, at, table);
}

/* Stores in *at the position of field `index`, which has `bytes` bytes. Stores 0 if the table leaves the field
 * out: the field then has its default value. */
static bool flat_field(const struct flat_table *table, unsigned index, unsigned bytes, uint64_t *at)
{
	uint64_t entry = 4 + 2 * (uint64_t)index;
	uint64_t offset = entry < table->fields_bytes ? flat_u16(table->in, table->fields + entry) : 0;

	*at = offset ? table->at + offset : 0;
	return offset == 0 || (offset >= 4 && offset + bytes <= table->bytes && *at % bytes == 0);
}

/* Reads a field with a number of 1, 2, 4 or 8 bytes. If the table leaves the field out, *value does not change, so
 * the caller stores the default there first. */
static bool flat_number(const struct flat_table *table, unsigned index, unsigned bytes, void *value)
{
	uint64_t at;

	if (!flat_field(table, index, bytes, &at))
		return false;
	if (at)
		memcpy(value, table->in->bytes + at, bytes);
	return true;
}

/* Finds the table that field `index` points to; inner->at is 0 if there is none. */
static bool flat_inner(const struct flat_table *table, unsigned index, struct flat_table *inner)
{
	uint64_t at;

	inner->at = 0;
	return flat_field(table, index, 4, &at) &&
	       (at == 0 || (flat_follow(table->in, at, &at) && flat_table_at(table->in, at, inner)));
}

/* Finds the list that field `index` points to. Its elements have `bytes` bytes each, and begin at a multiple of
 * `alignment`. The vector is empty if there is no list. */
static bool flat_elements(const struct flat_table *table, unsigned index, unsigned bytes, unsigned alignment,
			  struct flat_vector *vector)
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

/* --- the message ------------------------------------------------------------------------ */

struct prefix {
	uint32_t continuation;
	uint32_t size;
};

/* Fields of the table Message (Message.fbs of Arrow's format). */
enum {
	MESSAGE_VERSION,
	MESSAGE_HEADER_TYPE,
	MESSAGE_HEADER,
	MESSAGE_BODY_BYTES,
};

/* Fields of the table RecordBatch. */
enum {
	BATCH_ROWS,
	BATCH_NODES,
	BATCH_EXTENTS,
	BATCH_COMPRESSION,
	BATCH_VARIADIC_COUNTS,
};

#define TABLES_BYTES 4096 /* maximum bytes of metadata besides nodes and extents; writers need far fewer */

static enum ipc_answer read_message(const struct flat *metadata, uint64_t most_body, struct flat_table *header,
				    uint64_t *body)
{
	struct flat_table message;
	int16_t version = 0;
	uint8_t type = 0;
	int64_t body_bytes = 0;

	if (!flat_root(metadata, &message) || !flat_number(&message, MESSAGE_VERSION, sizeof version, &version) ||
	    !flat_number(&message, MESSAGE_HEADER_TYPE, sizeof type, &type) ||
	    !flat_number(&message, MESSAGE_BODY_BYTES, sizeof body_bytes, &body_bytes))
		return IPC_DAMAGED; /* the metadata points outside of itself */
	if (version != IPC_VERSION_5 || type != IPC_HEADER_RECORD_BATCH)
		return IPC_FOREIGN;
	if (!flat_inner(&message, MESSAGE_HEADER, header) || header->at == 0)
		return IPC_DAMAGED; /* the metadata points outside of itself */
	if (body_bytes < 0 || (uint64_t)body_bytes > most_body)
		return IPC_DAMAGED; /* the message's body is cut off */
	*body = (uint64_t)body_bytes;
	return IPC_DONE;
}

static enum ipc_answer read_record_batch(const struct flat_table *header, const struct ipc_layout *layout,
					 struct ipc_batch *batch)
{
	struct flat_vector nodes;
	struct flat_vector extents;
	struct flat_vector counts;
	uint64_t compression;

	if (!flat_number(header, BATCH_ROWS, sizeof batch->rows, &batch->rows) ||
	    !flat_elements(header, BATCH_NODES, sizeof(struct ipc_node), 8, &nodes) ||
	    !flat_elements(header, BATCH_EXTENTS, sizeof(struct ipc_extent), 8, &extents) ||
	    !flat_field(header, BATCH_COMPRESSION, 4, &compression) ||
	    !flat_elements(header, BATCH_VARIADIC_COUNTS, 8, 8, &counts))
		return IPC_DAMAGED; /* the metadata points outside of itself */
	if (compression)
		return IPC_FOREIGN; /* the message's body is compressed */
	if (nodes.count != layout->field_count - 1 || extents.count != layout->buffer_count || counts.count)
		return IPC_FOREIGN; /* the batch's columns are not those of the schema */
	if (batch->rows < 0 || batch->rows > IPC_MOST_ROWS)
		return IPC_FOREIGN; /* the number of rows is out of range */
	batch->nodes = (const struct ipc_node *)(header->in->bytes + nodes.at);
	batch->extents = (const struct ipc_extent *)(header->in->bytes + extents.at);
	return IPC_DONE;
}

/* Checks that a message of `bytes` bytes begins with a record batch of the layout, and reads its metadata. The
 * caller calls ipc_batch_close() in any case. */
enum ipc_answer ipc_batch_open(const struct ipc_layout *layout, const uint8_t *message, uint64_t bytes,
			       struct ipc_batch *batch)
{
	uint64_t most = TABLES_BYTES + layout->field_count * sizeof(struct ipc_node) +
			layout->buffer_count * sizeof(struct ipc_extent);
	struct prefix prefix = {0};
	struct flat_table header;
	struct flat metadata;
	enum ipc_answer read;

	*batch = (struct ipc_batch){0};
	if (bytes >= sizeof prefix)
		memcpy(&prefix, message, sizeof prefix);
	if (prefix.continuation != IPC_CONTINUATION)
		return IPC_DAMAGED; /* the message does not begin like an IPC message */
	if (prefix.size > bytes - sizeof prefix)
		return IPC_DAMAGED; /* the message's metadata is cut off */
	if (prefix.size > most)
		return IPC_FOREIGN; /* the metadata is larger than the columns need */
	batch->metadata = malloc(prefix.size + !prefix.size);
	if (!batch->metadata)
		return IPC_NO_MEMORY;
	memcpy(batch->metadata, message + sizeof prefix, prefix.size);
	batch->body = sizeof prefix + prefix.size;
	metadata = (struct flat){batch->metadata, prefix.size};
	read = read_message(&metadata, bytes - batch->body, &header, &batch->body_bytes);
	return read == IPC_DONE ? read_record_batch(&header, layout, batch) : read;
}

void ipc_batch_close(struct ipc_batch *batch)
{
	free(batch->metadata);
}

/* --- the arrays' lives --------------------------------------------------------------------- */

/* All arrays of a batch, in one piece of memory. The user may move a child out of its parent array, and may
 * release the arrays in any order and in any thread. The release of the last array frees the memory. */
struct family {
	_Atomic uint32_t alive; /* number of arrays that are not released */
	struct ipc_owner owner;
	struct ArrowArray *arrays; /* arrays of the columns and of all their children */
	struct ArrowArray **children;
	const void **buffers;
	uint8_t *private_offsets; /* offsets copied out of the message; NULL if the message's own are used */
};

static void family_free(struct family *family)
{
	free(family->private_offsets);
	free(family);
}

static void release_array(struct ArrowArray *array)
{
	struct family *family = array->private_data;

	for (int64_t i = 0; i < array->n_children; i++)
		if (array->children[i]->release)
			array->children[i]->release(array->children[i]);
	array->release = NULL;
	/* Release: this thread's use of the bytes is over before the count falls. Acquire: the thread that
	 * releases the last array sees that all other threads' use is over, before the bytes may be overwritten.
	 */
	if (atomic_fetch_sub_explicit(&family->alive, 1, memory_order_acq_rel) != 1)
		return;
	family->owner.let_go(family->owner.context);
	family_free(family);
}

static struct family *family_new(const struct ipc_layout *layout)
{
	uint32_t below = layout->field_count - 1;
	struct family *family =
	    calloc(1, sizeof *family + below * (sizeof *family->arrays + sizeof *family->children) +
			  (layout->buffer_count + 1) * sizeof *family->buffers);

	if (!family)
		return NULL;
	family->arrays = (struct ArrowArray *)(family + 1);
	family->children = (struct ArrowArray **)(family->arrays + below);
	family->buffers = (const void **)(family->children + below);
	atomic_init(&family->alive, layout->field_count);
	return family;
}

/* --- one array after the other --------------------------------------------------------- */

struct building {
	struct ipc_batch *batch;
	const uint8_t *body;
	struct family *family;
	const struct ipc_field *field;
	const struct ipc_node *node;
	const struct ipc_extent *extent;
	struct ArrowArray *array;
	struct ArrowArray **child;
	const void **buffer;
	uint8_t *offsets; /* room for the next copied offsets; NULL: offsets are used where they are */
};

static const int64_t no_offset; /* the only offset, 0, of an array without values */

/* Finds the message's next buffer, which must have at least `needed` bytes. */
static enum ipc_answer next_buffer(struct building *b, uint64_t needed, const uint8_t **from, uint64_t *bytes)
{
	const struct ipc_extent *e = b->extent++;
	uint64_t body_bytes = b->batch->body_bytes;

	if (e->offset < 0 || e->length < 0 || (uint64_t)e->offset > body_bytes ||
	    (uint64_t)e->length > body_bytes - (uint64_t)e->offset)
		return IPC_DAMAGED; /* a buffer lies outside of the body */
	if ((uint64_t)e->length < needed)
		return IPC_DAMAGED; /* a buffer is too short for its rows */
	if (e->offset % 8)
		return IPC_FOREIGN; /* a buffer does not begin at a multiple of 8 bytes */
	*from = b->body + e->offset;
	*bytes = (uint64_t)e->length;
	return IPC_DONE;
}

static enum ipc_answer add_buffer(struct building *b, uint64_t needed)
{
	const uint8_t *from = NULL;
	uint64_t bytes;
	enum ipc_answer read = next_buffer(b, needed, &from, &bytes);

	*b->buffer++ = from;
	return read;
}

static uint64_t bits_bytes(int64_t length)
{
	return ((uint64_t)length + 7) / 8;
}

static enum ipc_answer add_validity(struct building *b, const struct ArrowArray *array)
{
	enum ipc_answer read = add_buffer(b, array->null_count ? bits_bytes(array->length) : 0);

	if (!array->null_count)
		b->buffer[-1] = NULL;
	return read;
}

static bool offsets_rise(const uint8_t *offsets, uint32_t width, int64_t length)
{
	bool rise = true;

	for (int64_t i = 0; i < length; i++)
		rise &= ipc_offset_at(offsets, width, i) <= ipc_offset_at(offsets, width, i + 1);
	return rise;
}

/* Adds the offsets of an array, and stores the last offset in *last. If the offsets are copied, all of them
 * are checked. If not, only the first and the last are checked: a check of all would prove nothing, because a peer
 * may still change the offsets. */
static enum ipc_answer add_offsets(struct building *b, const struct ArrowArray *array, uint32_t width,
				   int64_t *last)
{
	uint64_t needed = array->length ? ((uint64_t)array->length + 1) * width : 0;
	const uint8_t *offsets = NULL;
	uint64_t bytes;
	enum ipc_answer read = next_buffer(b, needed, &offsets, &bytes);
	int64_t first;

	*last = 0;
	*b->buffer++ = &no_offset;
	if (read != IPC_DONE || array->length == 0)
		return read;
	if (b->offsets) {
		offsets = memcpy(b->offsets, offsets, needed);
		b->offsets += ipc_padded(needed);
	}
	first = ipc_offset_at(offsets, width, 0);
	*last = ipc_offset_at(offsets, width, array->length);
	if (first < 0 || *last < first || (b->offsets && !offsets_rise(offsets, width, array->length)))
		return IPC_DAMAGED; /* the column's offsets go backwards */
	b->buffer[-1] = offsets;
	return IPC_DONE;
}

static enum ipc_answer add_array(struct building *b, int64_t length, struct ArrowArray *array);

/* Adds the children of an array. Each child must have `length` values. With `or_more`, `length` is the array's
 * last offset, and a child may have more values than that: offsets may leave out the child's last values. */
static enum ipc_answer add_children(struct building *b, struct ArrowArray *array, const struct ipc_field *field,
				    int64_t length, bool or_more)
{
	struct ArrowArray **children = b->child;

	array->n_children = field->schema->n_children;
	array->children = children;
	b->child += array->n_children;
	for (int64_t i = 0; i < array->n_children; i++) {
		struct ArrowArray *child = b->array++;
		enum ipc_answer read;

		children[i] = child;
		if (or_more ? b->node->length < length : b->node->length != length)
			return IPC_DAMAGED; /* a column is too short or too long */
		read = add_array(b, b->node->length, child);
		if (read != IPC_DONE)
			return read;
	}
	return IPC_DONE;
}

static enum ipc_answer add_values(struct building *b, const struct ipc_field *field, struct ArrowArray *array)
{
	int64_t length = array->length;
	enum ipc_answer read;
	int64_t last;

	switch (field->values) {
	case VALUES_NONE:
		return IPC_DONE;
	case VALUES_FIXED:
		return add_buffer(b, (uint64_t)length * field->width);
	case VALUES_BITS:
		return add_buffer(b, bits_bytes(length));
	case VALUES_BYTES:
		read = add_offsets(b, array, field->width, &last);
		return read == IPC_DONE ? add_buffer(b, (uint64_t)last) : read;
	case VALUES_LIST:
		read = add_offsets(b, array, field->width, &last);
		return read == IPC_DONE ? add_children(b, array, field, last, true) : read;
	case VALUES_FIXED_LIST:
		if (field->width && length > IPC_MOST_ROWS / field->width)
			return IPC_FOREIGN; /* the number of rows is out of range */
		return add_children(b, array, field, length * field->width, false);
	case VALUES_STRUCT:
		break;
	}
	return add_children(b, array, field, length, false);
}

static enum ipc_answer add_array(struct building *b, int64_t length, struct ArrowArray *array)
{
	const struct ipc_field *field = b->field++;
	const struct ipc_node *node = b->node++;
	enum ipc_answer read;

	array->release = release_array;
	array->private_data = b->family;
	array->length = length;
	array->null_count = field->values == VALUES_NONE ? length : node->null_count;
	array->n_buffers = field->buffers;
	array->buffers = b->buffer;
	if (length < 0 || length > IPC_MOST_ROWS)
		return IPC_FOREIGN; /* the number of rows is out of range */
	if (array->null_count < 0 || array->null_count > length)
		return IPC_DAMAGED; /* the column has more nulls than rows */
	read = field->buffers ? add_validity(b, array) : IPC_DONE;
	return read == IPC_DONE ? add_values(b, field, array) : read;
}

/* Computes the bytes for copies of all offsets. Returns false if the offsets need more bytes than the body has. In
 * a valid batch they never do, but a hostile peer could make many columns share one offsets buffer, so that the
 * copies would need far more memory than the message. */
static bool offsets_bytes(const struct ipc_layout *layout, const struct ipc_batch *batch, uint64_t *bytes)
{
	uint64_t body_bytes = batch->body_bytes;
	uint64_t needed = 0;

	*bytes = 8;
	for (uint32_t i = 1; i < layout->field_count; i++) {
		const struct ipc_field *field = &layout->fields[i];
		uint64_t length = (uint64_t)batch->nodes[i - 1].length;

		if ((field->values != VALUES_BYTES && field->values != VALUES_LIST) || length == 0)
			continue;
		if (length >= body_bytes / field->width)
			return false;
		needed += (length + 1) * field->width;
		*bytes += ipc_padded((length + 1) * field->width);
	}
	return needed <= body_bytes;
}

/* Makes arrays over the batch's body. The address `body` is a multiple of 8, and the bytes there stay valid until
 * owner.let_go() is called. The bytes may be a copy, or a part of the message, which a peer may still change. With
 * `every_offset`, all offsets are copied and checked. */
enum ipc_answer ipc_arrays(const struct ipc_layout *layout, struct ipc_batch *batch, const uint8_t *body,
			   bool every_offset, struct ipc_owner owner, struct ArrowArray *root)
{
	struct family *family;
	struct building b;
	uint64_t bytes;
	enum ipc_answer read;

	if (every_offset && !offsets_bytes(layout, batch, &bytes))
		return IPC_DAMAGED; /* a buffer is too short for its rows */
	family = family_new(layout);
	if (family && every_offset)
		family->private_offsets = malloc(bytes);
	if (!family || (every_offset && !family->private_offsets)) {
		free(family);
		return IPC_NO_MEMORY;
	}
	family->owner = owner;
	b = (struct building){
	    .batch = batch,
	    .body = body,
	    .family = family,
	    .field = layout->fields + 1,
	    .node = batch->nodes,
	    .extent = batch->extents,
	    .array = family->arrays,
	    .child = family->children,
	    .buffer = family->buffers + 1, /* the first buffer is the validity of the batch itself: NULL */
	    .offsets = family->private_offsets,
	};
	*root = (struct ArrowArray){
	    .length = batch->rows,
	    .n_buffers = 1,
	    .buffers = family->buffers,
	    .release = release_array,
	    .private_data = family,
	};
	read = add_children(&b, root, layout->fields, batch->rows, false);
	if (read != IPC_DONE)
		family_free(family);
	return read;
}
