/* The places of a durable queue's items (src/shmring/durable/base/items.py), many at a time. */
#include <string.h>

#include "items.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the queues' files are little-endian, and so must the machine be"
#endif

/* A buffer that holds the places [begin, end). */
bool get_places(PyObject *object, Py_buffer *buffer, uint64_t begin, uint64_t end)
{
	if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE))
		return false;
	if (begin <= end && end <= (uint64_t)buffer->len / sizeof(struct place))
		return true;
	PyErr_Format(PyExc_IndexError, "places %llu to %llu of %zd", (unsigned long long)begin,
		     (unsigned long long)end, buffer->len / (Py_ssize_t)sizeof(struct place));
	PyBuffer_Release(buffer);
	return false;
}

/* An entry of a table as the files have it, at any address. */
struct entry {
	uint32_t length;
	uint32_t crc;
};

static void write_places(struct place *to, const char *table, size_t count, uint64_t offset)
{
	for (size_t i = 0; i < count; i++) {
		struct entry entry;

		memcpy(&entry, table + i * sizeof entry, sizeof entry);
		to[i] = (struct place){offset, entry.length, entry.crc};
		offset += entry.length;
	}
}

/* places_of(table, offset): of items that stand side by side from `offset` on. */
PyObject *places_of(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long offset;
	PyObject *places;
	Py_buffer table;
	size_t count;

	if (!PyArg_ParseTuple(args, "y*K", &table, &offset))
		return NULL;
	count = (size_t)table.len / sizeof(struct entry);
	places = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(struct place)));
	if (places)
		write_places((struct place *)PyByteArray_AsString(places), table.buf, count, offset);
	PyBuffer_Release(&table);
	return places;
}

static PyObject *table_of(const struct place *places, uint64_t count)
{
	PyObject *table = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(struct entry)));
	struct entry *to = table ? (struct entry *)PyBytes_AsString(table) : NULL;

	for (uint64_t i = 0; to && i < count; i++)
		to[i] = (struct entry){places[i].length, places[i].crc};
	return table;
}

static uint64_t side_by_side(const struct place *places, uint64_t begin, uint64_t end)
{
	uint64_t i = begin + 1;

	while (i < end && places[i].offset == places[i - 1].offset + places[i - 1].length)
		i++;
	return i;
}

static bool append_run(PyObject *runs, const struct place *places, uint64_t begin, uint64_t end)
{
	const struct place *last = &places[end - 1];
	PyObject *table = table_of(places + begin, end - begin);
	PyObject *run = table ? Py_BuildValue("KKO", (unsigned long long)places[begin].offset,
					      (unsigned long long)(last->offset + last->length), table)
			      : NULL;
	bool appended = run && PyList_Append(runs, run) == 0;

	Py_XDECREF(table);
	Py_XDECREF(run);
	return appended;
}

/* runs_of(places, begin, end): (offset, end, table) of each run of items that stand side by side. */
PyObject *runs_of(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long begin;
	unsigned long long end;
	PyObject *object;
	PyObject *runs;
	Py_buffer places;

	if (!PyArg_ParseTuple(args, "OKK", &object, &begin, &end) || !get_places(object, &places, begin, end))
		return NULL;
	runs = PyList_New(0);
	while (runs && begin < end) {
		uint64_t behind = side_by_side(places.buf, begin, end);

		if (!append_run(runs, places.buf, begin, behind))
			Py_CLEAR(runs);
		begin = behind;
	}
	PyBuffer_Release(&places);
	return runs;
}

/* reverse_places(places): the last first. */
PyObject *reverse_places(PyObject *Py_UNUSED(module), PyObject *object)
{
	PyObject *reversed;
	Py_buffer places;

	if (!get_places(object, &places, 0, 0))
		return NULL;
	reversed = PyByteArray_FromStringAndSize(NULL, places.len);
	if (reversed) {
		size_t count = (size_t)places.len / sizeof(struct place);
		const struct place *from = places.buf;
		struct place *to = (struct place *)PyByteArray_AsString(reversed);

		for (size_t i = 0; i < count; i++)
			to[i] = from[count - 1 - i];
	}
	PyBuffer_Release(&places);
	return reversed;
}
