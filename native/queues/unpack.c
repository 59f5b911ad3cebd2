/* Items of a durable queue on their way out: checked and turned into bytes. */
#include "items.h"

struct block {
	const uint8_t *data;
	uint64_t start; /* where in the file it was read */
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

/* The item's bytes in the block; NULL if a part is missing, or they do not match the checksum. */
static const uint8_t *find(const struct block *block, const struct place *place)
{
	uint64_t at = place->offset - block->start;

	if (place->offset < block->start || at > block->length || place->length > block->length - at)
		return NULL;
	return shmring_crc32c(0, block->data + at, place->length) == place->crc ? block->data + at : NULL;
}

/* unpack(into, block, start, places, begin, end): append items to a list while they are good. */
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
	Py_buffer places;
	bool good = true;

	if (!PyArg_ParseTuple(args, "O!SKOKK", &PyList_Type, &into, &data, &start, &object, &begin, &end) ||
	    !get_block(data, start, &block) || !get_places(object, &places, begin, end))
		return NULL;
	for (at = begin; at < end; at++) {
		const struct place *place = (const struct place *)places.buf + at;
		const uint8_t *bytes = find(&block, place);
		PyObject *item;

		if (!bytes)
			break;
		item = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)place->length);
		good = item && PyList_Append(into, item) == 0;
		Py_XDECREF(item);
		if (!good)
			break;
	}
	PyBuffer_Release(&places);
	return good ? PyLong_FromUnsignedLongLong(at - begin) : NULL;
}

/* unpack_one(block, start, places, index): bytes, or None where unpack() would stop. */
PyObject *unpack_item(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
	unsigned long long start;
	unsigned long long index;
	struct block block;
	Py_buffer places;
	PyObject *item;

	if (nargs != 4)
		return PyErr_Format(PyExc_TypeError, "unpack_one() takes 4 arguments (%zd given)", nargs);
	start = PyLong_AsUnsignedLongLong(args[1]);
	index = PyLong_AsUnsignedLongLong(args[3]);
	if (!get_block(args[0], start, &block) || PyErr_Occurred() ||
	    !get_places(args[2], &places, index, index + 1))
		return NULL;
	{
		const struct place *place = (const struct place *)places.buf + index;
		const uint8_t *bytes = find(&block, place);

		item = bytes ? PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)place->length)
			     : Py_NewRef(Py_None);
	}
	PyBuffer_Release(&places);
	return item;
}
