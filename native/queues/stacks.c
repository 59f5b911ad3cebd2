/* The nodes of the append-only queue's stacks; their format: queues/append_only_file.py. */
#include <stddef.h>
#include <string.h>

#include "items.h"

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

/* stack_nodes(places, position, below, salt, backwards): the nodes of these items for `position`,
 * the lowest first: that of the first item, or of the last one. */
PyObject *stack_nodes(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long position;
	unsigned long long below;
	unsigned salt;
	int backwards;
	PyObject *object;
	PyObject *nodes;
	Py_buffer places;
	uint64_t count;

	if (!PyArg_ParseTuple(args, "OKKIp", &object, &position, &below, &salt, &backwards) ||
	    !get_places(object, &places, 0, 0))
		return NULL;
	count = (uint64_t)places.len / sizeof(struct place);
	nodes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(struct node)));
	if (nodes) {
		struct node *to = (struct node *)PyBytes_AsString(nodes);

		for (uint64_t i = 0; i < count; i++) {
			const struct place *place =
			    (const struct place *)places.buf + (backwards ? count - 1 - i : i);

			to[i] = (struct node){place->offset, below, place->length, place->crc, 0, 0};
			to[i].check = check_of(&to[i], salt);
			below = position + i * sizeof(struct node);
		}
	}
	PyBuffer_Release(&places);
	return nodes;
}

/* Reads the node at a position; false if the block does not have it, or it is damaged. */
static bool read_node(struct node *node, const char *block, uint64_t length, uint64_t start, uint64_t link,
		      uint32_t salt)
{
	if (link < start || length < sizeof *node || link - start > length - sizeof *node)
		return false;
	memcpy(node, block + (link - start), sizeof *node);
	/* Lower nodes were written before. */
	return node->check == check_of(node, salt) && node->below < link;
}

/* stack_walk(block, start, link, salt, adjacent): the places of the items from the node at `link` downwards, as
 * far as their nodes are in the block (and stand side by side, if only those are wanted), and the link that
 * leads on: 0 at the bottom. */
PyObject *stack_walk(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long start;
	unsigned long long link;
	struct node node;
	unsigned salt;
	int adjacent;
	struct place *found;
	uint64_t count = 0;
	PyObject *places;
	Py_ssize_t length;
	const char *block;

	if (!PyArg_ParseTuple(args, "y#KKIp", &block, &length, &start, &link, &salt, &adjacent))
		return NULL;
	places = PyByteArray_FromStringAndSize(NULL, length / (Py_ssize_t)sizeof node * (Py_ssize_t)sizeof *found);
	if (!places)
		return NULL;
	found = (struct place *)PyByteArray_AsString(places);
	while (link && read_node(&node, block, (uint64_t)length, start, link, salt)) {
		bool on = !adjacent || node.below + sizeof node == link;

		found[count++] = (struct place){node.item, node.length, node.crc};
		link = node.below;
		if (!on)
			break;
	}
	if (PyByteArray_Resize(places, (Py_ssize_t)(count * sizeof *found)))
		Py_CLEAR(places);
	return places ? Py_BuildValue("NK", places, link) : NULL;
}
