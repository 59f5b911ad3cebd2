/* Items of a durable queue on their way in: bytes, rows of an array, Arrow binary. */
#include <string.h>

#include "arrow.h"
#include "items.h"

/* Items of this average length are written from their own memory; shorter ones are gathered first. */
#define LONG_ITEM (2 << 10)

struct source {
	const uint8_t *data;
	uint64_t length;
};

struct packing {
	struct state *state;
	struct source *items;
	uint64_t count;
	/* these keep the items alive */
	PyObject *objects; /* a tuple of bytes */
	PyObject *capsules;
	Py_buffer buffer;
};

static bool reserve(struct packing *p, uint64_t count)
{
	p->count = count;
	p->items = PyMem_Calloc(count ? count : 1, sizeof *p->items);
	if (!p->items)
		PyErr_NoMemory();
	return p->items;
}

static void release(struct packing *p)
{
	PyBuffer_Release(&p->buffer);
	Py_XDECREF(p->objects);
	Py_XDECREF(p->capsules);
	PyMem_Free(p->items);
}

/* --- where they come from -------------------------------------------------------------- */

static bool from_rows(struct packing *p, const uint8_t *data, uint64_t count, Py_ssize_t stride, uint64_t width)
{
	if (!reserve(p, count))
		return false;
	for (uint64_t i = 0; i < count; i++)
		p->items[i] = (struct source){data + (Py_ssize_t)i * stride, width};
	return true;
}

static bool from_array(struct packing *p, PyObject *object)
{
	Py_buffer *b = &p->buffer;

	return get_rows(object, "an array of items", b) &&
	       from_rows(p, b->buf, (uint64_t)b->shape[0], b->strides[0], (uint64_t)b->shape[1]);
}

#define FROM_OFFSETS(name, type)                                                                                  \
	static bool name(struct packing *p, const struct ArrowArray *array)                                       \
	{                                                                                                         \
		const type *offsets = (const type *)array->buffers[1] + array->offset;                            \
		const uint8_t *data = array->buffers[2];                                                          \
                                                                                                                  \
		if (!reserve(p, (uint64_t)array->length))                                                         \
			return false;                                                                             \
		for (uint64_t i = 0; i < p->count; i++)                                                           \
			p->items[i] =                                                                             \
			    (struct source){data + offsets[i], (uint64_t)(offsets[i + 1] - offsets[i])};          \
		return true;                                                                                      \
	}
FROM_OFFSETS(from_binary, int32_t)
FROM_OFFSETS(from_large_binary, int64_t)

static bool from_arrow(struct packing *p, PyObject *object)
{
	const struct ArrowSchema *schema;
	const struct ArrowArray *array;
	uint64_t width;

	p->capsules = arrow_import(object, &schema, &array);
	if (!p->capsules || !arrow_refuse_nulls(array, "an item"))
		return false;
	if (array->length == 0)
		return reserve(p, 0);
	if (strcmp(schema->format, "z") == 0)
		return from_binary(p, array);
	if (strcmp(schema->format, "Z") == 0)
		return from_large_binary(p, array);
	if (strncmp(schema->format, "w:", 2) == 0) {
		const uint8_t *data = arrow_fixed_rows(schema, array, &width);

		return from_rows(p, data, (uint64_t)array->length, (Py_ssize_t)width, width);
	}
	PyErr_Format(PyExc_TypeError,
		     "items are taken from Arrow arrays of binary, large binary or fixed-size binary, not of "
		     "format '%s'; cast them first",
		     schema->format);
	return false;
}

/* Copies an object that is not bytes, because it may change. */
static PyObject *item_bytes(uint64_t index, PyObject *item)
{
	if (PyBytes_CheckExact(item))
		return Py_NewRef(item);
	if (PyObject_CheckBuffer(item))
		return PyBytes_FromObject(item);
	return PyErr_Format(PyExc_TypeError,
			    "an item is bytes or another object with the buffer protocol (bytearray, memoryview, "
			    "numpy array), but item %llu is %R; encode it first",
			    (unsigned long long)index, (PyObject *)Py_TYPE(item));
}

static bool from_objects(struct packing *p, PyObject *objects)
{
	PyObject *all = PySequence_Tuple(objects);
	bool taken =
	    all && reserve(p, (uint64_t)PyTuple_Size(all)) && (p->objects = PyTuple_New((Py_ssize_t)p->count));

	for (uint64_t i = 0; taken && i < p->count; i++) {
		PyObject *item = item_bytes(i, PyTuple_GetItem(all, (Py_ssize_t)i));

		taken = item && PyTuple_SetItem(p->objects, (Py_ssize_t)i, item) == 0;
		if (taken)
			p->items[i] =
			    (struct source){(const uint8_t *)PyBytes_AsString(item), (uint64_t)PyBytes_Size(item)};
	}
	Py_XDECREF(all);
	return taken;
}

static bool from_any(struct packing *p, PyObject *items)
{
	if (PyList_Check(items) || PyTuple_Check(items))
		return from_objects(p, items);
	if (PyObject_HasAttrString(items, "__arrow_c_array__"))
		return from_arrow(p, items);
	if (PyObject_CheckBuffer(items))
		return from_array(p, items);
	return from_objects(p, items);
}

/* --- packing --------------------------------------------------------------------------- */

/* Whether the items are gathered in one buffer before they are written. */
static bool gathers(const struct packing *p, uint64_t nbytes)
{
	return !p->objects || nbytes < p->count * LONG_ITEM || p->count == 0;
}

static bool measure(const struct packing *p, uint64_t *nbytes)
{
	*nbytes = 0;
	for (uint64_t i = 0; i < p->count; i++) {
		if (p->items[i].length > UINT32_MAX) {
			PyErr_Format(error_class(p->state, SHMRING_E_TOO_LARGE),
				     "item %llu has %llu bytes; the largest is %u", (unsigned long long)i,
				     (unsigned long long)p->items[i].length, UINT32_MAX);
			return false;
		}
		*nbytes += p->items[i].length;
	}
	return true;
}

static void write_items(const struct packing *p, uint8_t *to, uint32_t *table)
{
	for (uint64_t i = 0; i < p->count; i++) {
		const struct source *item = &p->items[i];
		const uint8_t *data = item->data;

		if (to) { /* what is checked is the copy: the other may change */
			memcpy(to, data, item->length);
			data = to;
			to += item->length;
		}
		*table++ = (uint32_t)item->length;
		*table++ = shmring_crc32c(0, data, item->length);
	}
}

/* The buffers to be written: the items themselves, or all of them in one. */
static PyObject *parts_of(const struct packing *p, uint64_t nbytes)
{
	if (gathers(p, nbytes))
		return Py_BuildValue("[N]", PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes));
	return PySequence_List(p->objects);
}

/* pack(items): the buffers to be written one after the other, and their table. */
PyObject *pack_items(PyObject *module, PyObject *items)
{
	struct packing p = {.state = PyModule_GetState(module)};
	PyObject *parts = NULL;
	PyObject *table = NULL;
	uint64_t nbytes;

	if (from_any(&p, items) && measure(&p, &nbytes) && (parts = parts_of(&p, nbytes)) &&
	    (table = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)p.count * 8))) {
		uint8_t *to = gathers(&p, nbytes) ? (uint8_t *)PyBytes_AsString(PyList_GetItem(parts, 0)) : NULL;
		uint32_t *into = (uint32_t *)PyBytes_AsString(table);

		if (nbytes < GIL_FREE_BYTES)
			write_items(&p, to, into);
		else {
			Py_BEGIN_ALLOW_THREADS write_items(&p, to, into);
			Py_END_ALLOW_THREADS
		}
	}
	release(&p);
	if (table)
		return Py_BuildValue("NN", parts, table);
	Py_XDECREF(parts);
	return NULL;
}
