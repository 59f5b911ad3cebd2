/* Methods of leases and batches for GPUs. */
#ifndef SHMRING_BINDING_DEVICE_H
#define SHMRING_BINDING_DEVICE_H

#include "handle.h"

PyObject *lease_dlpack_device(PyObject *self, PyObject *ignored);
PyObject *lease_dlpack(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *lease_to_device(PyObject *self, PyObject *args, PyObject *keywords);

/* Entries in the method tables of Lease and of Batch. */
#define DEVICE_METHODS                                                                                            \
	{"to_device", FASTCALL(lease_to_device), METH_VARARGS | METH_KEYWORDS,                                    \
	 "to_device($self, stream=None)\n--\n\n"                                                                  \
	 "Copy it to a GPU, without waiting for the copy: a uint8 tensor of torch on the device of `stream`, "    \
	 "one\n"                                                                                                  \
	 "of torch's (None: the current one). It may be released at once: its slots stay leased until the copy\n" \
	 "is done. Ring.pin() makes such copies fast.\n\n"                                                        \
	 "Raises\n------\n"                                                                                       \
	 "GpuError : torch is not there, or the GPU's runtime refuses the copy\n"                                 \
	 "BufferError : the messages of a batch do not lie side by side"},                                        \
	    {"__dlpack__", FASTCALL(lease_dlpack), METH_VARARGS | METH_KEYWORDS,                                  \
	     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"             \
	     "Its bytes, read in place, for numpy and others that take DLPack 1.0. They stay leased while the\n"  \
	     "array over them lives. Those of a ring that Ring.pin() has pinned are memory of kDLCUDAHost."},     \
	    {"__dlpack_device__", lease_dlpack_device, METH_NOARGS, "__dlpack_device__($self)\n--\n\n"}

#endif
