/* Items of a durable queue on their way in. */
#include <string.h>

#include "items.h"

/* Items of this average length are written from their own memory; shorter ones are gathered first. */
#define LONG_ITEM (2 << 10)

struct source {
	const uint8_t *data;
	uint64_t length;
};

struct packing {
	PyObject *objects; /* a tuple of bytes */
	struct source *items; /* in these */
	uint64_t count;
};

/* --- where they come from -------------------------------------------------------------- */

static bool is_too_long(struct state *state, uint64_t index, Py_ssize_t length)
{
	if (length <= UINT32_MAX)
		return false;
	PyErr_Format(error_class(state, SHMRING_E_TOO_LARGE), "item %llu has %zd bytes; the largest is %u",
		     (unsigned long long)index, length, UINT32_MAX);
	return true;
}

/* Copies an object that is not bytes, because it may change. */
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
		if (taken)
			p->items[i] =
			    (struct source){(const uint8_t *)PyBytes_AsString(item), (uint64_t)PyBytes_Size(item)};
	}
	Py_XDECREF(all);
	return taken;
}

/* --- packing --------------------------------------------------------------------------- */

static uint64_t measure(const struct packing *p)
{
	uint64_t nbytes = 0;

	for (uint64_t i = 0; i < p->count; i++)
		nbytes += p->items[i].length;
	return nbytes;
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

/* pack(items): the buffers to be written one after the other, which are the items themselves or all of them in
 * one, and their table. */
PyObject *pack_items(PyObject *module, PyObject *items)
{
	struct packing p = {0};
	PyObject *parts = NULL;
	PyObject *table = NULL;

	if (take_items(&p, PyModule_GetState(module), items)) {
		uint64_t nbytes = measure(&p);
		bool gathered = nbytes < p.count * LONG_ITEM || p.count == 0;

		parts = gathered ? Py_BuildValue("[N]", PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes))
				 : PySequence_List(p.objects);
		table = parts ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)p.count * 8) : NULL;
		if (table) {
			uint8_t *to = gathered ? (uint8_t *)PyBytes_AsString(PyList_GetItem(parts, 0)) : NULL;
			uint32_t *into = (uint32_t *)PyBytes_AsString(table);

			if (nbytes < GIL_FREE_BYTES)
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
