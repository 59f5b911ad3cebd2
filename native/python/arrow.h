/* The Arrow C data interface, as its specification prints it, and arrays that come through it. */
#ifndef SHMRING_BINDING_ARROW_H
#define SHMRING_BINDING_ARROW_H

#include "state.h"

struct ArrowSchema {
	const char *format;
	const char *name;
	const char *metadata;
	int64_t flags;
	int64_t n_children;
	struct ArrowSchema **children;
	struct ArrowSchema *dictionary;
	void (*release)(struct ArrowSchema *);
	void *private_data;
};

struct ArrowArray {
	int64_t length;
	int64_t null_count;
	int64_t offset;
	int64_t n_buffers;
	int64_t n_children;
	const void **buffers;
	struct ArrowArray **children;
	struct ArrowArray *dictionary;
	void (*release)(struct ArrowArray *);
	void *private_data;
};

/* arrow.c */
PyObject *arrow_import(PyObject *object, const struct ArrowSchema **schema, const struct ArrowArray **array);
bool arrow_export(PyObject *batch, PyObject *method, struct ArrowArray *array);
bool arrow_refuse_nulls(const struct ArrowArray *array, const char *what);
const uint8_t *arrow_fixed_rows(const struct ArrowSchema *schema, const struct ArrowArray *array, uint64_t *width);

#endif
