/* The Arrow C data interface, as its specification prints it. */
#ifndef SHMRING_ARROW_ABI_H
#define SHMRING_ARROW_ABI_H

#include <stdint.h>

enum {
	ARROW_FLAG_NULLABLE = 2,
	ARROW_FLAG_MAP_KEYS_SORTED = 4,
};

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

#endif
