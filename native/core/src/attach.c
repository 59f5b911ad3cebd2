/* Attaching to a ring, and leaving it. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cells.h"

/* Opens the file once more, because locks need an open file description that no child shares. A forked child
 * inherits the ring's mapping, and with it the description that was mapped: locks on that description would
 * outlive the parent. */
static int open_for_locks(shmring *r, const char *path, int how, int mapped_fd)
{
	r->locks = lock_file_open(r, path, how);
	if (!r->locks)
		return fail_errno("cannot open it", r->name);
	if (!lock_file_is(r->locks, mapped_fd)) {
		lock_file_close(r->locks);
		return fail(SHMRING_E_NOT_FOUND, "ring \"%s\" has just been replaced; attach again", r->name);
	}
	return SHMRING_OK;
}

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* since Linux 4.14 */
#endif

/* Allocates a handle. Its first word, `owned`, is the last word of a page that the kernel fills with zeros in
 * every child, even in a child that no fork handler has seen (clone, _Fork): so `owned` is 1 only in this process.
 * The rest of the handle lies behind that page. */
static shmring *ring_new(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *start =
	    mmap(NULL, page + sizeof(shmring), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	shmring *r;

	static_assert(offsetof(shmring, owned) == 0 && _Alignof(shmring) == sizeof r->owned, "handle");
	if (start == MAP_FAILED)
		return NULL;
	r = (shmring *)(start + page - sizeof r->owned);
	if (madvise(start, page, MADV_WIPEONFORK) == 0)
		r->owned = 1;
	else
		r->owner = getpid(); /* without MADV_WIPEONFORK, is_owned() compares process ids instead */
	return r;
}

static void ring_free(shmring *r)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	munmap((uint8_t *)r + sizeof r->owned - page, page + sizeof *r);
}

/* Copies the control entries of the messages that a branch still needs, because stat and the table read them; in a
 * ring without a branch, the entries of all messages. If they take more memory than copy_range() allows, leaves
 * zeros in their place. */
static int copy_entries(shmring *r, int fd)
{
	uint64_t active = load_relaxed(&r->cursors->graph.active);
	uint64_t from = active ? upstream_released(r, active) : load_relaxed(&r->cursors->floor.v);
	uint64_t held = load_relaxed(&r->cursors->claim.v) - from, first, begin;
	int status;

	if (held > r->capacity)
		held = r->capacity;
	begin = held == r->capacity ? 0 : from & r->mask;
	first = held < r->capacity - begin ? held : r->capacity - begin;
	status = copy_range(r, fd, r->header.control_offset + begin * CONTROL_BYTES, first * CONTROL_BYTES);
	if (!status)
		status = copy_range(r, fd, r->header.control_offset, (held - first) * CONTROL_BYTES);
	return status == SHMRING_E_NO_MEMORY ? SHMRING_OK : status;
}

static int attach_file(const char *path, const char *name, uint32_t flags, int how, shmring **out)
{
	int status;
	int fd = -1;
	shmring *r;

	if (flags & ~(uint32_t)(SHMRING_READ_ONLY | SHMRING_FOREIGN_OWNER | SHMRING_FOREIGN_COPY) ||
	    (flags & SHMRING_FOREIGN_COPY && !(flags & SHMRING_READ_ONLY)))
		return fail(SHMRING_E_INVALID, "ring \"%s\": there are no attach flags %#x", label_of(path),
			    flags);
	r = ring_new();
	if (!r)
		return fail(SHMRING_E_NO_MEMORY, "out of memory");
	snprintf(r->name, sizeof r->name, "%s", name);
	status = open_checked(path, name, flags, how, &fd, &r->header);
	if (status) {
		ring_free(r);
		return status;
	}
	r->read_only = flags & SHMRING_READ_ONLY;
	r->copied = flags & SHMRING_FOREIGN_COPY && is_others(fd);
	r->capacity = r->header.slots;
	r->mask = r->capacity - 1;
	r->seat_count = r->header.seats;
	r->options = r->header.options;
	r->seat = NOBODY;
	r->asymmetric = !(r->options & OPT_FENCES);
	if (r->asymmetric && !r->read_only && !asymmetric_barriers_available())
		status =
		    fail(SHMRING_E_SYSTEM,
			 "ring \"%s\" relies on membarrier(2), which is not available in this process (a seccomp "
			 "filter?); create the ring from here instead",
			 r->name);
	else
		status = r->copied ? copy_ring(r, fd) : map_ring(r, fd);
	if (!status && r->copied) {
		status = copy_entries(r, fd);
		if (status)
			munmap(r->base, r->mapped_bytes);
	}
	if (!status) {
		/* The file is opened for locks after the mapping. Other code of this process may have closed `fd`
		 * before the mapping, and opened another file that got the same number. open_for_locks() notices
		 * that: the two files differ. */
		status = open_for_locks(r, path, how, fd);
		if (status)
			munmap(r->base, r->mapped_bytes);
	}
	if (status || lock_file_is(r->locks, fd))
		close(fd);
	if (status) {
		ring_free(r);
		return status;
	}
	if (!r->read_only) {
		status = admin_enter(r);
		if (!status) {
			status = handle_seat(r);
			/* If no seat is free, but orphans have some, the handle attaches without a seat. It can
			 * free the orphans' seats: by recovery, or by consuming from or dropping their branch. */
			if (status == SHMRING_E_LIMIT && orphans_have_seats(r) && handle_without_seat(r))
				status = SHMRING_OK;
			admin_leave(r);
		}
		if (status) {
			shmring_close(r);
			return status;
		}
	}
	*out = r;
	return SHMRING_OK;
}

int shmring_attach(const char *path, uint32_t flags, shmring **out)
{
	struct stat st;
	shmring *r = NULL;
	int status;

	RETURN_NOT_OK(check_path(path));
	status = attach_file(path, label_of(path), flags, open_flags(flags & SHMRING_READ_ONLY), &r);
	/* `shmring gc` unlinks a ring under the admin lock. If it did so before this handle got the lock, the file
	 * has no link any more. */
	if (!status && !r->read_only && fstat(lock_file_number(r->locks), &st) == 0 && st.st_nlink == 0)
		status = fail(SHMRING_E_NOT_FOUND, "ring \"%s\" has just been unlinked", r->name);
	if (status)
		shmring_close(r);
	else
		*out = r;
	return status;
}

/* Attaches to a ring that has no name yet; its path may be a link of /proc. */
int attach_draft(const char *path, const char *name, shmring **out)
{
	return attach_file(path, name, 0, O_RDWR | O_CLOEXEC, out);
}

/* Maps the ring once more, by its name. Otherwise /proc/PID/maps, where people look for the users of a ring, shows
 * a file that had no name when it was mapped as "(deleted)" for good. If the second mapping fails, the handle
 * still works. */
void attach_by_name(shmring *r, const char *path)
{
	uint8_t *base = r->base;
	size_t mapped_bytes = r->mapped_bytes;
	int fd = open_above_standard(path, open_flags(false));

	if (fd < 0)
		return;
	if (lock_file_is(r->locks, fd)) {
		if (map_ring(r, fd) == SHMRING_OK)
			munmap(base, mapped_bytes);
		close(fd);
	}
}

void shmring_close(shmring *r)
{
	if (!r)
		return;
	if (is_owned(r)) {
		/* Gives the handle's own seat back, unless the seat is lent: then a producer or a consumer that
		 * was not closed still uses the seat, and the loop below abandons it. */
		if (load_relaxed(&r->seat) != NOBODY && !r->lent && admin_enter_to_leave(r) == SHMRING_OK) {
			seat_give_back(r, load_relaxed(&r->seat));
			admin_leave(r);
		}
		store_relaxed(&r->seat, NOBODY);
		/* Abandons the seats of producers and consumers that are still open. */
		for (uint32_t i = 0; i < r->seat_count; i++)
			seat_abandon(r, i);
		lock_file_drop(r->seatless);
		lock_file_close(r->locks);
	} else {
		lock_file_forget(r->locks);
	}
	copies_close(r);
	munmap(r->base, r->mapped_bytes);
	ring_free(r);
}

/* CHANGE: edit this for a new option of a ring */
void shmring_get_info(const shmring *r, struct shmring_info *info)
{
	const struct header *h = &r->header;

	*info = (struct shmring_info){
	    .slots = h->slots,
	    .participants = h->seats,
	    .layout_major = h->major,
	    .layout_minor = h->minor,
	    .single_producer = h->options & OPT_SINGLE_PRODUCER,
	    .checksum = h->options & OPT_CHECKSUM,
	    .clock = h->options & OPT_CLOCK_OFF       ? SHMRING_CLOCK_OFF
		     : h->options & OPT_CLOCK_PRECISE ? SHMRING_CLOCK_PRECISE
						      : SHMRING_CLOCK_COARSE,
	    .file_bytes = h->file_bytes,
	    .first_sequence = h->first_sequence,
	    .created_ns = h->created_ns,
	    .owner_uid = h->owner_uid,
	    .mode = h->mode,
	    .schema = h->schema_bytes ? r->base + h->schema_offset : NULL,
	    .schema_bytes = h->schema_bytes,
	};
	memcpy(info->uuid, h->uuid, sizeof info->uuid);
}

void *shmring_memory(const shmring *r, size_t *bytes)
{
	*bytes = 2 * r->capacity * SLOT_BYTES;
	return r->slots;
}
