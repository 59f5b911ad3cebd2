/* Functions that copy leased messages into private memory, at the same addresses: readers of the messages go on,
 * while the ring gets the slots back.
 *
 * A copy replaces pages in a map of the slots, and these pages do not show the ring any more. So messages that are
 * taken later are read in a new map, which has no copies yet. An older map stays until none of its messages is
 * held. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cells.h"

struct older_map {
	struct older_map *next;
	uint8_t *slots;
};

static size_t map_bytes(const shmring *r)
{
	return 2 * r->capacity * SLOT_BYTES;
}

/* Maps the slots' pages once more. mremap(2) with an old size of 0 does that, and needs no descriptor of the file.
 */
static uint8_t *map_again(const shmring *r)
{
	size_t half = map_bytes(r) / 2;
	uint8_t *to = mmap(NULL, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;

	if (to == MAP_FAILED)
		return NULL;
	if (mremap(r->slots, 0, half, flags, to) == MAP_FAILED ||
	    mremap(r->slots + half, 0, half, flags, to + half) == MAP_FAILED) {
		munmap(to, 2 * half);
		return NULL;
	}
	return to;
}

static bool is_first_map(const shmring *r, const uint8_t *slots)
{
	return slots == r->base + r->header.slots_offset;
}

/* Unmaps a map of the slots. The first map of the slots is part of the map of the whole file. Its addresses stay
 * reserved, without access, because shmring_close() unmaps the whole range: no other mapping may lie there then.
 */
static void unmap(const shmring *r, uint8_t *slots)
{
	if (is_first_map(r, slots))
		(void)mmap(slots, map_bytes(r), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
			   -1, 0);
	else
		munmap(slots, map_bytes(r));
}

static bool holds_messages(const shmring *r)
{
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (r->held[i] && load_relaxed(&r->seats[i].lease.hold) != NONE)
			return true;
	return false;
}

static void unmap_older(shmring *r)
{
	while (r->older_maps) {
		struct older_map *map = r->older_maps;

		r->older_maps = map->next;
		unmap(r, map->slots);
		free(map);
	}
}

void copies_close(shmring *r)
{
	unmap_older(r);
	if (!is_first_map(r, r->slots))
		unmap(r, r->slots);
}

/* Replaces the memory at [begin, end), extended to whole pages, by a private copy at the same addresses. These
 * pages hold bytes of neighbouring messages too. If no consumer of this process holds a neighbour, a producer may
 * overwrite the neighbour during the copy: that race is harmless, because no reader uses those bytes. */
static int copy_pages(const shmring *r, uint8_t *begin, uint8_t *end)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t before = (uintptr_t)begin % page;
	size_t behind = -(uintptr_t)end % page;
	size_t bytes = before + (size_t)(end - begin) + behind;
	uint8_t *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (copy == MAP_FAILED)
		return fail(SHMRING_E_NO_MEMORY, "ring \"%s\": no memory for a copy of %zu bytes", r->name, bytes);
	copy_racy(copy, begin - before, before);
	memcpy(copy + before, begin, (size_t)(end - begin));
	copy_racy(copy + bytes - behind, end, behind);
	if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin - before) == MAP_FAILED) {
		munmap(copy, bytes);
		return fail_errno("cannot put a copy in the place of its slots", r->name);
	}
	return SHMRING_OK;
}

/* Returns the map of the slots in which an address lies. */
static uint8_t *map_of(const shmring *r, const void *at)
{
	const uint8_t *byte = at;
	uint8_t *slots = r->slots;

	for (const struct older_map *map = r->older_maps; map && !(slots <= byte && byte < slots + map_bytes(r));
	     map = map->next)
		slots = map->slots;
	return slots;
}

/* Maps the slots once more, for messages that are read from now on. The map used so far becomes an older map:
 * copies may replace its pages. */
static int begin_map(shmring *r)
{
	struct older_map *older = malloc(sizeof *older);
	uint8_t *slots = older ? map_again(r) : NULL;

	if (!slots) {
		free(older);
		return fail(SHMRING_E_NO_MEMORY, "ring \"%s\": its slots cannot be mapped once more", r->name);
	}
	*older = (struct older_map){r->older_maps, r->slots};
	r->older_maps = older;
	r->slots = slots;
	return SHMRING_OK;
}

int copy_in_place(shmring *r, uint64_t first, uint64_t end, const void *at, struct shmring_copy *copy)
{
	uint8_t *slots = map_of(r, at);
	uint8_t *begin = slots + index_of(r, first) * SLOT_BYTES;
	size_t bytes = (end - first) * SLOT_BYTES;

	if (slots == r->slots)
		RETURN_NOT_OK(begin_map(r));
	RETURN_NOT_OK(copy_pages(r, begin, begin + bytes));
	r->copies++;
	*copy = (struct shmring_copy){begin, bytes};
	return SHMRING_OK;
}

void shmring_drop_copy(shmring *r, const struct shmring_copy *copy)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t begin = ((uintptr_t)copy->at + page - 1) / page * page;
	uintptr_t end = ((uintptr_t)copy->at + copy->bytes) / page * page;

	/* Free only pages that lie in the copy as a whole. The page at each end may also hold bytes of a
	 * neighbouring message, which may still be read. */
	if (begin < end)
		(void)madvise((void *)begin, end - begin, MADV_DONTNEED);
	r->copies--;
	if (r->copies == 0 && !holds_messages(r))
		unmap_older(r);
}
