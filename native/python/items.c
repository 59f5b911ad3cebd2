/* Functions for items of the durable queues (src/shmring/durable/base/items.py): the extents of many items at a
 * time; items as buffers to write, and as bytes that were read, with checksums; the nodes of the append-only
 * queue's stacks. */
#include <stddef.h>
#include <string.h>

#include "state.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the queues' files are little-endian, and so must the machine be"
#endif

/* --- extents -------------------------------------------------------------------------------- */

/* The extent of an item's bytes in a file. Python code slices arrays of extents, and relies on the size of 16
 * bytes for each. */
struct extent {
	uint64_t offset;
	uint32_t length;
	uint32_t crc;
};

/* Gets the buffer of an object that has extents, and checks that it holds the extents [begin, end). If not,
 * returns false, with an exception. */
static bool get_extents(PyObject *object, Py_buffer *buffer, uint64_t begin, uint64_t end)
{
	if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE))
		return false;
	if (begin <= end && end <= (uint64_t)buffer->len / sizeof(struct extent))
		return true;
	PyErr_Format(PyExc_IndexError, "extents %llu to %llu of %zd", (unsigned long long)begin,
		     (unsigned long long)end, buffer->len / (Py_ssize_t)sizeof(struct extent));
	PyBuffer_Release(buffer);
	return false;
}

/* An entry of a table in a file. It may be unaligned in memory, so entries are copied out before use. */
struct entry {
	uint32_t length;
	uint32_t crc;
};

static void write_extents(struct extent *to, const char *table, size_t count, uint64_t offset)
{
	for (size_t i = 0; i < count; i++) {
		struct entry entry;

		memcpy(&entry, table + i * sizeof entry, sizeof entry);
		to[i] = (struct extent){offset, entry.length, entry.crc};
		offset += entry.length;
	}
}

/* extents_of(table, offset): returns the extents of items that stand side by side from `offset` on. */
PyObject *extents_of(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long offset;
	PyObject *extents;
	Py_buffer table;
	size_t count;

	if (!PyArg_ParseTuple(args, "y*K", &table, &offset))
		return NULL;
	count = (size_t)table.len / sizeof(struct entry);
	extents = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(struct extent)));
	if (extents)
		write_extents((struct extent *)PyByteArray_AsString(extents), table.buf, count, offset);
	PyBuffer_Release(&table);
	return extents;
}

static PyObject *table_of(const struct extent *extents, uint64_t count)
{
	PyObject *table = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(struct entry)));
	struct entry *to = table ? (struct entry *)PyBytes_AsString(table) : NULL;

	for (uint64_t i = 0; to && i < count; i++)
		to[i] = (struct entry){extents[i].length, extents[i].crc};
	return table;
}

static uint64_t side_by_side(const struct extent *extents, uint64_t begin, uint64_t end)
{
	uint64_t i = begin + 1;

	while (i < end && extents[i].offset == extents[i - 1].offset + extents[i - 1].length)
		i++;
	return i;
}

static bool append_run(PyObject *runs, const struct extent *extents, uint64_t begin, uint64_t end)
{
	const struct extent *last = &extents[end - 1];
	PyObject *table = table_of(extents + begin, end - begin);
	PyObject *run = table ? Py_BuildValue("KKO", (unsigned long long)extents[begin].offset,
					      (unsigned long long)(last->offset + last->length), table)
			      : NULL;
	bool appended = run && PyList_Append(runs, run) == 0;

	Py_XDECREF(table);
	Py_XDECREF(run);
	return appended;
}

/* runs_of(extents, begin, end): returns (offset, end, table) for each run of items that stand side by side in the
 * file: where the run's bytes begin and end in the file, and the table of its items. */
PyObject *runs_of(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long begin;
	unsigned long long end;
	PyObject *object;
	PyObject *runs;
	Py_buffer extents;

	if (!PyArg_ParseTuple(args, "OKK", &object, &begin, &end) || !get_extents(object, &extents, begin, end))
		return NULL;
	runs = PyList_New(0);
	while (runs && begin < end) {
		uint64_t behind = side_by_side(extents.buf, begin, end);

		if (!append_run(runs, extents.buf, begin, behind))
			Py_CLEAR(runs);
		begin = behind;
	}
	PyBuffer_Release(&extents);
	return runs;
}

/* --- writing items --------------------------------------------------------------------- */

/* Least average length, in bytes, of items that are each written from their own memory. Shorter items are first
 * copied into one buffer, so that the write has few parts. Half a page is a choice: a larger value copies more
 * bytes, a smaller one makes more parts. */
#define LONG_ITEM (2 << 10)

struct source {
	const uint8_t *data;
	uint64_t length;
};

struct packing {
	PyObject *objects; /* a tuple of bytes */
	struct source *items; /* bytes of each object */
	uint64_t count;
	uint64_t nbytes; /* bytes of all items */
};

static bool is_too_long(struct state *state, uint64_t index, Py_ssize_t length)
{
	if (length <= UINT32_MAX)
		return false;
	PyErr_Format(error_class(state, SHMRING_E_TOO_LARGE), "item %llu has %zd bytes; the largest is %u",
		     (unsigned long long)index, length, UINT32_MAX);
	return true;
}

/* Returns an item as bytes. Copies an object that is not bytes, because the object may change. */
static PyObject *item_bytes(struct state *state, uint64_t index, PyObject *item)
{
	Py_buffer buffer;
	Py_ssize_t length;

	if (PyBytes_CheckExact(item))
		return is_too_long(state, index, PyBytes_Size(item)) ? NULL : Py_NewRef(item);
	if (!PyObject_CheckBuffer(item))
		return PyErr_Format(
		    PyExc_TypeError,
		    "an item is bytes or another object with the buffer protocol (bytearray, memoryview, "
		    "numpy array), but item %llu is %R; encode it first",
		    (unsigned long long)index, (PyObject *)Py_TYPE(item));
	if (PyObject_GetBuffer(item, &buffer, PyBUF_FULL_RO))
		return NULL;
	length = buffer.len;
	PyBuffer_Release(&buffer);
	return is_too_long(state, index, length) ? NULL : PyBytes_FromObject(item);
}

static bool take_items(struct packing *p, struct state *state, PyObject *objects)
{
	PyObject *all = PySequence_Tuple(objects);
	bool taken = all && (p->objects = PyTuple_New(PyTuple_Size(all)));

	p->count = taken ? (uint64_t)PyTuple_Size(all) : 0;
	p->items = PyMem_Calloc(p->count ? p->count : 1, sizeof *p->items);
	if (!p->items && taken) {
		PyErr_NoMemory();
		taken = false;
	}
	for (uint64_t i = 0; taken && i < p->count; i++) {
		PyObject *item = item_bytes(state, i, PyTuple_GetItem(all, (Py_ssize_t)i));

		taken = item && PyTuple_SetItem(p->objects, (Py_ssize_t)i, item) == 0;
		if (!taken)
			break;
		p->items[i] =
		    (struct source){(const uint8_t *)PyBytes_AsString(item), (uint64_t)PyBytes_Size(item)};
		p->nbytes += p->items[i].length;
	}
	Py_XDECREF(all);
	return taken;
}

static void write_items(const struct packing *p, uint8_t *to, uint32_t *table)
{
	for (uint64_t i = 0; i < p->count; i++) {
		const struct source *item = &p->items[i];

		if (to)
			memcpy(to, item->data, item->length);
		to = to ? to + item->length : NULL;
		*table++ = (uint32_t)item->length;
		*table++ = shmring_crc32c(0, item->data, item->length);
	}
}

/* pack(items): returns the buffers to write one after the other (the items themselves, or one buffer with all of
 * them), and the items' table. */
PyObject *pack_items(PyObject *module, PyObject *items)
{
	struct packing p = {0};
	PyObject *parts = NULL;
	PyObject *table = NULL;

	if (take_items(&p, PyModule_GetState(module), items)) {
		bool gathered = p.nbytes < p.count * LONG_ITEM || p.count == 0;

		parts = gathered ? Py_BuildValue("[N]", PyBytes_FromStringAndSize(NULL, (Py_ssize_t)p.nbytes))
				 : PySequence_List(p.objects);
		table = parts ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)p.count * 8) : NULL;
		if (table) {
			uint8_t *to = gathered ? (uint8_t *)PyBytes_AsString(PyList_GetItem(parts, 0)) : NULL;
			uint32_t *into = (uint32_t *)PyBytes_AsString(table);

			if (p.nbytes < GIL_FREE_BYTES)
				write_items(&p, to, into);
			else {
				Py_BEGIN_ALLOW_THREADS write_items(&p, to, into);
				Py_END_ALLOW_THREADS
			}
		}
	}
	Py_XDECREF(p.objects);
	PyMem_Free(p.items);
	if (table)
		return Py_BuildValue("NN", parts, table);
	Py_XDECREF(parts);
	return NULL;
}

/* --- reading items --------------------------------------------------------------------- */

struct block {
	const uint8_t *data;
	uint64_t start; /* offset of the block in the file */
	uint64_t length;
};

static bool get_block(PyObject *data, uint64_t start, struct block *block)
{
	char *bytes;
	Py_ssize_t length;

	if (PyBytes_AsStringAndSize(data, &bytes, &length))
		return false;
	*block = (struct block){(const uint8_t *)bytes, start, (uint64_t)length};
	return true;
}

/* Returns the item's bytes in the block; NULL if a part is missing, or they do not match the checksum. */
static const uint8_t *find_item(const struct block *block, const struct extent *extent)
{
	uint64_t at = extent->offset - block->start;

	if (extent->offset < block->start || at > block->length || extent->length > block->length - at)
		return NULL;
	return shmring_crc32c(0, block->data + at, extent->length) == extent->crc ? block->data + at : NULL;
}

/* unpack(into, block, start, extents, begin, end): appends items to the list `into`, up to the first item that is
 * not whole or is damaged, and returns the number of appended items. */
PyObject *unpack_items(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long start;
	unsigned long long begin;
	unsigned long long end;
	unsigned long long at;
	PyObject *into;
	PyObject *data;
	PyObject *object;
	struct block block;
	Py_buffer extents;
	bool good = true;

	if (!PyArg_ParseTuple(args, "O!SKOKK", &PyList_Type, &into, &data, &start, &object, &begin, &end) ||
	    !get_block(data, start, &block) || !get_extents(object, &extents, begin, end))
		return NULL;
	for (at = begin; at < end; at++) {
		const struct extent *extent = (const struct extent *)extents.buf + at;
		const uint8_t *bytes = find_item(&block, extent);
		PyObject *item;

		if (!bytes)
			break;
		item = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)extent->length);
		good = item && PyList_Append(into, item) == 0;
		Py_XDECREF(item);
		if (!good)
			break;
	}
	PyBuffer_Release(&extents);
	return good ? PyLong_FromUnsignedLongLong(at - begin) : NULL;
}

/* unpack_one(block, start, extents, index): returns an item's bytes, or None if the block does not have all of the
 * item, or the bytes do not match the checksum. */
PyObject *unpack_item(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
	unsigned long long start;
	unsigned long long index;
	struct block block;
	Py_buffer extents;
	const struct extent *extent;
	const uint8_t *bytes;
	PyObject *item;

	if (nargs != 4)
		return PyErr_Format(PyExc_TypeError, "unpack_one() takes 4 arguments (%zd given)", nargs);
	start = PyLong_AsUnsignedLongLong(args[1]);
	index = PyLong_AsUnsignedLongLong(args[3]);
	if (!get_block(args[0], start, &block) || PyErr_Occurred() ||
	    !get_extents(args[2], &extents, index, index + 1))
		return NULL;
	extent = (const struct extent *)extents.buf + index;
	bytes = find_item(&block, extent);
	item = bytes ? PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)extent->length)
		     : Py_NewRef(Py_None);
	PyBuffer_Release(&extents);
	return item;
}

/* --- stacks; their format: queues/append_only_file.py ------------------------------------ */

struct node {
	uint64_t item;
	uint64_t below;
	uint32_t length;
	uint32_t crc;
	uint32_t check;
	uint32_t zero;
};

_Static_assert(sizeof(struct node) == 32, "as the file has it");

static uint32_t check_of(const struct node *node, uint32_t salt)
{
	return shmring_crc32c(salt, node, offsetof(struct node, check));
}

/* stack_nodes(extents, position, below, salt, backwards): returns the nodes of the items with these extents, to be
 * written at `position`. The nodes are in the order of the items, or in reverse with `backwards`. Each node links
 * to the node before it, and the first one to `below`. */
PyObject *stack_nodes(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long position;
	unsigned long long below;
	unsigned salt;
	int backwards;
	PyObject *object;
	PyObject *nodes;
	Py_buffer extents;
	uint64_t count;

	if (!PyArg_ParseTuple(args, "OKKIp", &object, &position, &below, &salt, &backwards) ||
	    !get_extents(object, &extents, 0, 0))
		return NULL;
	count = (uint64_t)extents.len / sizeof(struct extent);
	nodes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(struct node)));
	if (nodes) {
		struct node *to = (struct node *)PyBytes_AsString(nodes);

		for (uint64_t i = 0; i < count; i++) {
			const struct extent *extent =
			    (const struct extent *)extents.buf + (backwards ? count - 1 - i : i);

			to[i] = (struct node){extent->offset, below, extent->length, extent->crc, 0, 0};
			to[i].check = check_of(&to[i], salt);
			below = position + i * sizeof(struct node);
		}
	}
	PyBuffer_Release(&extents);
	return nodes;
}

/* Reads the node at a position; false if the block does not have it, or it is damaged. */
static bool read_node(struct node *node, const char *block, uint64_t length, uint64_t start, uint64_t link,
		      uint32_t salt)
{
	if (link < start || length < sizeof *node || link - start > length - sizeof *node)
		return false;
	memcpy(node, block + (link - start), sizeof *node);
	/* Nodes below this one were written before: a link upwards is damage. */
	return node->check == check_of(node, salt) && node->below < link;
}

static void reverse(struct extent *extents, uint64_t count)
{
	for (uint64_t i = 0; i < count / 2; i++) {
		struct extent low = extents[i];

		extents[i] = extents[count - 1 - i];
		extents[count - 1 - i] = low;
	}
}

/* stack_walk(block, start, link, salt, upwards): returns the extents of the items from the node at `link`
 * downwards, as far as their nodes are in the block, and the link to the next node: 0 at the bottom. With
 * `upwards` the lowest item comes first. Otherwise the highest item comes first, and the walk ends after the first
 * node that does not stand directly behind the node below. */
PyObject *stack_walk(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long start;
	unsigned long long link;
	struct node node;
	unsigned salt;
	int upwards;
	struct extent *found;
	uint64_t count = 0;
	PyObject *extents;
	Py_ssize_t length;
	const char *block;

	if (!PyArg_ParseTuple(args, "y#KKIp", &block, &length, &start, &link, &salt, &upwards))
		return NULL;
	extents =
	    PyByteArray_FromStringAndSize(NULL, length / (Py_ssize_t)sizeof node * (Py_ssize_t)sizeof *found);
	if (!extents)
		return NULL;
	found = (struct extent *)PyByteArray_AsString(extents);
	while (link && read_node(&node, block, (uint64_t)length, start, link, salt)) {
		bool on = upwards || node.below + sizeof node == link;

		found[count++] = (struct extent){node.item, node.length, node.crc};
		link = node.below;
		if (!on)
			break;
	}
	if (upwards)
		reverse(found, count);
	if (PyByteArray_Resize(extents, (Py_ssize_t)(count * sizeof *found)))
		Py_CLEAR(extents);
	return extents ? Py_BuildValue("NK", extents, link) : NULL;
}
