/* Fuzzes record batch messages; the first byte of the input chooses the schema. A message that the core accepts is
 * read to its last byte, and released piece by piece. */
#include <stdlib.h>
#include <string.h>

#include "ipc.h"

static volatile uint8_t seen; /* combines all bytes read: the compiler can leave no read out */

static void touch(const void *from, uint64_t bytes)
{
	const uint8_t *p = from;

	for (uint64_t i = 0; i < bytes; i++)
		seen ^= p[i];
}

static int64_t offset_at(const uint8_t *offsets, uint32_t width, int64_t i)
{
	int64_t large;
	int32_t small;

	memcpy(&large, offsets + i * width, width);
	memcpy(&small, &large, sizeof small);
	return width == sizeof large ? large : small;
}

static void touch_bytes(const struct ipc_field *field, const struct ArrowArray *array, bool every_offset)
{
	const uint8_t *data = array->buffers[2];

	for (int64_t i = 0; every_offset && i < array->length; i++) {
		int64_t first = offset_at(array->buffers[1], field->width, i);

		touch(data + first, (uint64_t)(offset_at(array->buffers[1], field->width, i + 1) - first));
	}
	touch(data, (uint64_t)offset_at(array->buffers[1], field->width, array->length));
}

/* Checks the first and the last offset, which readers of all values trust. */
static void check_ends(const struct ipc_field *field, const struct ArrowArray *array)
{
	int64_t first = offset_at(array->buffers[1], field->width, 0);
	int64_t last = offset_at(array->buffers[1], field->width, array->length);

	if (first < 0 || last < first || (array->n_children && last > array->children[0]->length))
		abort();
}

static void touch_array(const struct ipc_field **next, const struct ArrowArray *array, bool every_offset)
{
	const struct ipc_field *field = (*next)++;
	uint64_t length = (uint64_t)array->length;

	if (field->buffers && array->buffers[0])
		touch(array->buffers[0], (length + 7) / 8);
	if (field->values == VALUES_FIXED)
		touch(array->buffers[1], length * field->width);
	if (field->values == VALUES_BITS)
		touch(array->buffers[1], (length + 7) / 8);
	if (field->values == VALUES_BYTES || field->values == VALUES_LIST)
		check_ends(field, array);
	if (field->values == VALUES_BYTES)
		touch_bytes(field, array, every_offset);
	for (int64_t i = 0; i < array->n_children; i++)
		touch_array(next, array->children[i], every_offset);
}

static void count_down(void *context)
{
	--*(int *)context;
}

/* Releases the root before one child that was moved out of it: readers may use this order. */
static void drop(struct ArrowArray *root)
{
	struct ArrowArray moved = {0};

	if (root->n_children) {
		moved = *root->children[root->n_children - 1];
		root->children[root->n_children - 1]->release = NULL;
	}
	root->release(root);
	if (moved.release)
		moved.release(&moved);
}

/* Reads a body, which lies in a block of its own: the sanitizer watches both ends of the block. */
static void read_body(const struct ipc_layout *layout, struct ipc_batch *batch, const uint8_t *body,
		      bool every_offset)
{
	struct ArrowArray root;
	int held = 1;
	struct ipc_owner owner = {count_down, &held};

	if (ipc_arrays(layout, batch, body, every_offset, owner, &root) == IPC_DONE) {
		const struct ipc_field *next = layout->fields;

		touch_array(&next, &root, every_offset);
		drop(&root);
		if (held)
			abort();
	}
}

static void read_batch(const struct ipc_layout *layout, const uint8_t *message, uint64_t bytes, bool every_offset)
{
	struct ipc_batch batch;

	if (ipc_batch_open(layout, message, bytes, &batch) == IPC_DONE) {
		uint64_t body_bytes = batch.body_bytes;
		uint8_t *body = malloc(body_bytes + !body_bytes);

		memcpy(body, message + batch.body, body_bytes);
		read_body(layout, &batch, body, every_offset);
		free(body);
	}
	ipc_batch_close(&batch);
}

/* The columns of each schema in seeds.py, as Arrow's C interface has them: parents come first, and the number
 * after a struct's +s is its number of children. */
static const char *const schemas[][16] = {
    {"+s2", "l", "g"},
    {"+s2", "b", "n"},
    {"+s2", "u", "U"},
    {"+s4", "tsu:UTC", "tdD", "d:3,2", "w:3"},
    {"+s4", "+l", "l", "+m", "+s2", "u", "c", "+s1", "+l", "u", "+w:2", "s"},
};

struct building {
	const char *const *next;
	struct ArrowSchema nodes[16];
	struct ArrowSchema *children[16];
	size_t used;
	size_t linked;
};

static struct ArrowSchema *build(struct building *b)
{
	const char *format = *b->next++;
	bool is_struct = strncmp(format, "+s", 2) == 0;
	size_t count = is_struct ? (size_t)(format[2] - '0') : *format == '+';
	struct ArrowSchema *node = &b->nodes[b->used++];
	struct ArrowSchema **children = &b->children[b->linked];

	b->linked += count;
	*node = (struct ArrowSchema){
	    .format = is_struct ? "+s" : format,
	    .name = "",
	    .n_children = (int64_t)count,
	    .children = children,
	};
	for (size_t i = 0; i < count; i++)
		children[i] = build(b);
	return node;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct building building = {0};
	struct ipc_layout layout;
	uint8_t *copy;

	if (size == 0)
		return 0;
	copy = malloc(size - 1 + (size == 1)); /* a block of its own, so that the sanitizer watches its end */
	memcpy(copy, data + 1, size - 1);
	building.next = schemas[data[0] % (sizeof schemas / sizeof *schemas)];
	if (!ipc_layout_of(&layout, build(&building)))
		abort();
	read_batch(&layout, copy, size - 1, false);
	read_batch(&layout, copy, size - 1, true);
	ipc_layout_free(&layout);
	free(copy);
	return 0;
}
