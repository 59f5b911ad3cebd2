/* Methods of leases and batches for GPUs: they export the messages' memory through DLPack 1.0, or copy the
 * messages to a GPU. */
#include <stdlib.h>

#include "device.h"

/* Constants of dlpack.h */
enum { DEVICE_CPU = 1, READ_ONLY = 1, CODE_UINT = 1, DIMENSIONS = 2 };

struct tensor {
	uint32_t version[2];
	void *context;
	void (*deleter)(struct tensor *);
	uint64_t flags;
	void *data;
	int32_t device[2]; /* type and number of the device */
	int32_t ndim;
	struct {
		uint8_t code;
		uint8_t bits;
		uint16_t lanes;
	} dtype;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
};

struct export {
	struct tensor tensor;
	int64_t sizes[2 * DIMENSIONS];
};

/* Returns the CPU also for pinned memory: torch and cupy refuse kDLCUDAHost, and find out themselves that memory
 * is pinned. */
PyObject *lease_dlpack_device(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(ignored))
{
	return Py_BuildValue("(ii)", DEVICE_CPU, 0);
}

/* Drops a tensor; any thread may call this. */
static void drop_tensor(struct tensor *tensor)
{
	let_lease_go(tensor->context);
	free(tensor);
}

/* Runs when a capsule is freed. Drops the capsule's tensor if no library has taken it: by DLPack's rules, a
 * library that takes the tensor renames the capsule. */
static void drop_capsule(PyObject *capsule)
{
	struct tensor *tensor;

	if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
		tensor = PyCapsule_GetPointer(capsule, "dltensor_versioned");
		tensor->deleter(tensor);
	}
}

static PyObject *tensor_over(PyObject *op, const Py_buffer *view, int device)
{
	struct export *export = calloc(1, sizeof *export);
	PyObject *capsule = export ? PyCapsule_New(export, "dltensor_versioned", drop_capsule) : PyErr_NoMemory();

	if (!capsule) {
		free(export);
		return NULL;
	}
	export->tensor = (struct tensor){
	    .version = {1, 0},
	    .context = Py_NewRef(op),
	    .deleter = drop_tensor,
	    .flags = READ_ONLY,
	    .data = view->buf,
	    .device = {device, 0},
	    .ndim = view->ndim,
	    .dtype = {CODE_UINT, 8, 1},
	    .shape = export->sizes,
	    .strides = export->sizes + DIMENSIONS,
	};
	for (int i = 0; i < view->ndim; i++) {
		export->tensor.shape[i] = view->shape[i];
		export->tensor.strides[i] = view->strides[i];
	}
	handle_pin((struct handle *)op);
	return capsule;
}

/* Reads an argument of __dlpack__() that is a tuple of two integers; None keeps the defaults. */
static bool parse_pair(PyObject *pair, const char *name, int *first, int *second)
{
	if (pair == Py_None)
		return true;
	if (!PyTuple_Check(pair)) {
		PyErr_Format(PyExc_TypeError, "%s must be a tuple of two integers, not %R", name, pair);
		return false;
	}
	return PyArg_ParseTuple(pair, "ii", first, second);
}

PyObject *lease_dlpack(PyObject *op, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
	PyObject *stream = NULL, *version = Py_None, *wanted = Py_None, *copy = Py_None;
	const struct ring *ring = lease_ring((struct lease *)op);
	int major = 0, minor = 0, id = 0;
	int device = DEVICE_CPU;
	PyObject *capsule;
	Py_buffer view;

	if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream, &version, &wanted,
					 &copy) ||
	    !parse_pair(version, "max_version", &major, &minor) || !parse_pair(wanted, "dl_device", &device, &id))
		return NULL;
	if (major < 1 || copy == Py_True || id ||
	    (device != DEVICE_CPU && !(ring_is_pinned(ring) && device == ring->pinned_as))) {
		PyErr_SetString(PyExc_BufferError,
				"a lease is host memory that must not be written: it is exported as DLPack 1.0 "
				"or later (max_version), where it lies and without a copy");
		return NULL;
	}
	if (PyObject_GetBuffer(op, &view, PyBUF_STRIDES))
		return NULL;
	capsule = tensor_over(op, &view, device);
	PyBuffer_Release(&view);
	return capsule;
}

/* Copies the messages to a GPU, by shmring.gpu.copy_of(): that function calls the GPU's runtime, and keeps the
 * lease open until the copy is done. */
PyObject *lease_to_device(PyObject *op, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"stream", NULL};
	PyObject *stream = Py_None;
	PyObject *result = NULL;
	PyObject *gpu;
	Py_buffer view;

	if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:to_device", names, &stream))
		return NULL;
	gpu = PyImport_ImportModule("shmring.gpu");
	if (gpu && PyObject_GetBuffer(op, &view, PyBUF_SIMPLE) == 0) {
		result = PyObject_CallMethod(gpu, "copy_of", "ONO", op, PyLong_FromVoidPtr(view.buf), stream);
		PyBuffer_Release(&view);
	}
	Py_XDECREF(gpu);
	return result;
}
