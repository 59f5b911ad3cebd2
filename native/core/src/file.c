/* Functions for ring files: they derive the path and the layout, check the header, and map or copy the file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"

#define NAMED "/dev/shm/shmring." /* path of a named ring, without its name */

enum { NAME_MAX_BYTES = 200 };

static_assert(sizeof NAMED + NAME_MAX_BYTES <= SHMRING_PATH_BYTES, "room for every name");

/* Returns the text that names a ring in error messages: the name of a named ring, else the path of its file, or
 * only the file's name if the path does not fit into LABEL_BYTES. */
const char *label_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (strncmp(path, NAMED, strlen(NAMED)) == 0)
		return path + strlen(NAMED);
	return slash && strlen(path) >= LABEL_BYTES ? slash + 1 : path;
}

/* Refuses a path that can only lead to a directory. */
int check_path(const char *path)
{
	const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;

	if (strcmp(file, "") && strcmp(file, ".") && strcmp(file, ".."))
		return SHMRING_OK;
	return fail(SHMRING_E_INVALID,
		    "\"%s\" cannot be a ring's path: it has to end in the name of the ring's file", path);
}

int shmring_path_of(const char *name, char *path, size_t size)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
	size_t n = strnlen(name, NAME_MAX_BYTES + 1);

	if (n == 0 || n > NAME_MAX_BYTES || strspn(name, allowed) != n || *name == '.' || *name == '-')
		return fail(
		    SHMRING_E_INVALID,
		    "\"%.40s\" cannot name a ring: a name has 1 to %d of the characters A-Z a-z 0-9 . _ - and "
		    "begins with none of . and -",
		    name, NAME_MAX_BYTES);
	if (size < sizeof NAMED + n)
		return fail(SHMRING_E_INVALID, "the path of ring \"%s\" has %zu bytes, there is room for %zu",
			    name, sizeof NAMED + n, size);
	memcpy(path, NAMED, sizeof NAMED - 1);
	memcpy(path + sizeof NAMED - 1, name, n + 1);
	return SHMRING_OK;
}

static uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Derives every offset from the sizes. No other code lays regions out, so a header
 * is right exactly if it agrees with this function. */
void lay_out(struct header *h)
{
	uint64_t page = h->page_bytes;

	h->slot_bytes = SLOT_BYTES;
	h->control_bytes = CONTROL_BYTES;
	h->seat_bytes = sizeof(struct seat);
	h->branches = BRANCHES;
	h->schema_offset = round_up(HEADER_BYTES, page);
	h->cursors_offset = h->schema_offset + round_up(h->schema_bytes, page);
	h->seats_offset = h->cursors_offset + round_up(sizeof(struct cursors), page);
	h->control_offset = h->seats_offset + round_up((uint64_t)h->seats * sizeof(struct seat), page);
	h->slots_offset = h->control_offset + round_up(h->slots * CONTROL_BYTES, page);
	h->file_bytes = h->slots_offset + h->slots * SLOT_BYTES;
}

/* Returns the checksum of a header. It covers the reserved bytes too, so that this library can check the header of
 * a later minor version without knowing the fields that the version has added. */
uint32_t header_crc(const struct header *h)
{
	struct header copy = *h;

	copy.magic = 0;
	copy.crc = 0;
	return shmring_crc32c(0, &copy, sizeof copy);
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif

/* Reads the header. Bytes behind the file's end read as zeros, so a file that is too short has no magic, or sizes
 * that differ from the file's size. Returns a negative number if the read fails. */
ssize_t header_load(int fd, struct header *h)
{
	*h = (struct header){0};
	return pread(fd, h, sizeof *h, 0);
}

/* Reads and checks the header; trusts nothing in it. */
static int read_header(int fd, const char *name, uint64_t file_bytes, struct header *h)
{
	struct header expected;

	if (header_load(fd, h) < 0)
		return fail_errno("cannot read its header", name);
	if (h->magic != LAYOUT_MAGIC)
		return fail(SHMRING_E_NOT_A_RING, "\"%s\" is not a shmring ring (no magic at its start)", name);
	/* CHANGE: edit this for a new version of the layout */
	/* Compare the major version first: another major version may compute the checksum in another way. */
	if (h->major != LAYOUT_MAJOR)
		return fail(SHMRING_E_VERSION,
			    "ring \"%s\" has layout %u.%u, this library reads %u.x; use the version that made it",
			    name, h->major, h->minor, LAYOUT_MAJOR);
	if (h->crc != header_crc(h))
		return fail(SHMRING_E_DAMAGED, "ring \"%s\": its header is damaged (checksum); unlink it", name);
	if (h->options & ~OPT_ALL) /* a later minor version may add options */
		return fail(SHMRING_E_VERSION,
			    "ring \"%s\" has layout %u.%u with options 0x%x, this library knows 0x%x; use the "
			    "version that made it",
			    name, h->major, h->minor, h->options, OPT_ALL);
	/* CHANGE: edit this for a new option of a ring */
	if (h->slots < MIN_SLOTS || h->slots > MAX_SLOTS || h->slots & (h->slots - 1) || h->seats == 0 ||
	    h->seats > MAX_PARTICIPANTS || h->page_bytes < 4096 || h->page_bytes & (h->page_bytes - 1) ||
	    h->page_bytes > (1u << 30) || h->slots * SLOT_BYTES % h->page_bytes || h->schema_bytes > file_bytes ||
	    h->first_sequence >> 55)
		return fail(SHMRING_E_DAMAGED, "ring \"%s\": its header holds impossible sizes; unlink it", name);
	if (h->page_bytes % (uint32_t)sysconf(_SC_PAGESIZE))
		return fail(SHMRING_E_INVALID, "ring \"%s\" was made for pages of %u bytes, this host has %ld",
			    name, h->page_bytes, sysconf(_SC_PAGESIZE));
	expected = *h;
	lay_out(&expected);
	if (memcmp(&expected, h, sizeof *h))
		return fail(SHMRING_E_DAMAGED, "ring \"%s\": its header contradicts itself; unlink it", name);
	if (h->file_bytes != file_bytes)
		return fail(SHMRING_E_DAMAGED,
			    "ring \"%s\": the file has %llu bytes, its header says %llu; unlink it", name,
			    (unsigned long long)file_bytes, (unsigned long long)h->file_bytes);
	return SHMRING_OK;
}

static int set_regions(shmring *r, uint8_t *base, size_t mapped_bytes)
{
	if (r->header.schema_bytes &&
	    shmring_crc32c(0, base + r->header.schema_offset, r->header.schema_bytes) != r->header.schema_crc) {
		munmap(base, mapped_bytes);
		return fail(SHMRING_E_DAMAGED, "ring \"%s\": its Arrow schema is damaged (checksum); unlink it",
			    r->name);
	}
	r->base = base;
	r->mapped_bytes = mapped_bytes;
	r->cursors = (struct cursors *)(base + r->header.cursors_offset);
	r->seats = (struct seat *)(base + r->header.seats_offset);
	r->control = (struct control *)(base + r->header.control_offset);
	r->slots = base + r->header.slots_offset;
	return SHMRING_OK;
}

/* Returns true if another user may shorten the file. */
bool is_others(int fd)
{
	struct stat st;

	return fstat(fd, &st) || st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH);
}

#define COPY_MOST                                                                                                 \
	(UINT64_C(64) << 20) /* limit (a choice) of a copy, because another user's sparse file may be large */

/* Copies bytes of the file into a copied ring's memory. Bytes that are not copied read as zeros, and cost no
 * memory. */
int copy_range(shmring *r, int fd, uint64_t offset, uint64_t bytes)
{
	uint64_t begin = offset & ~((uint64_t)sysconf(_SC_PAGESIZE) - 1), end = offset + bytes;

	if (bytes > COPY_MOST || mprotect(r->base + begin, end - begin, PROT_READ | PROT_WRITE))
		return fail(SHMRING_E_NO_MEMORY, "ring \"%s\": no memory for a copy of %llu bytes", r->name,
			    (unsigned long long)bytes);
	while (offset < end) {
		ssize_t n = pread(fd, r->base + offset, end - offset, (off_t)offset);

		if (n <= 0)
			return fail(SHMRING_E_DAMAGED, "ring \"%s\": its file has just been shortened; unlink it",
				    r->name);
		offset += (uint64_t)n;
	}
	return SHMRING_OK;
}

/* Copies a ring into private memory instead of mapping the file: all regions except the control entries and the
 * slots. */
int copy_ring(shmring *r, int fd)
{
	uint64_t total = r->header.file_bytes + r->capacity * SLOT_BYTES;
	int status;

	r->base = mmap(NULL, total, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->base == MAP_FAILED)
		return fail_errno("cannot reserve addresses", r->name);
	status = copy_range(r, fd, 0, r->header.control_offset);
	if (status) {
		munmap(r->base, total);
		return status;
	}
	return set_regions(r, r->base, total);
}

int map_ring(shmring *r, int fd)
{
	int protection = r->read_only ? PROT_READ : PROT_READ | PROT_WRITE;
	uint64_t slots_bytes = r->capacity * SLOT_BYTES;
	uint64_t total = r->header.file_bytes + slots_bytes;
	uint8_t *base = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED)
		return fail_errno("cannot reserve addresses", r->name);
	if (mmap(base, r->header.file_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    mmap(base + r->header.file_bytes, slots_bytes, protection, MAP_SHARED | MAP_FIXED, fd,
		 (off_t)r->header.slots_offset) == MAP_FAILED) {
		int status = fail_errno("cannot map it", r->name);

		munmap(base, total);
		return status;
	}
	if (!r->read_only && r->options & OPT_PREFAULT)
		(void)madvise(base, total, MADV_POPULATE_WRITE);
	return set_regions(r, base, total);
}

/* CHANGE: edit this for a new option of a ring */
static int check_owner(int fd, const char *name, uint32_t flags, uint64_t *file_bytes)
{
	struct stat st;

	if (fstat(fd, &st))
		return fail_errno("cannot look at the file", name);
	if (!S_ISREG(st.st_mode))
		return fail(SHMRING_E_NOT_A_RING, "\"%s\" is not a regular file", name);
	if (st.st_uid != geteuid() && !(flags & (SHMRING_FOREIGN_OWNER | SHMRING_FOREIGN_COPY)))
		return fail(SHMRING_E_PERMISSION,
			    "ring \"%s\" belongs to user %u, not to you (%u); use another name or path, or attach "
			    "with foreign_owner if you trust them",
			    name, st.st_uid, geteuid());
	*file_bytes = (uint64_t)st.st_size;
	return SHMRING_OK;
}

int open_flags(bool read_only)
{
	return (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
}

int open_checked(const char *path, const char *name, uint32_t flags, int how, int *fd_out, struct header *h)
{
	uint64_t file_bytes = 0;
	int status;
	int fd = open_above_standard(path, how);

	if (fd < 0) {
		if (errno == ENOENT)
			return fail(SHMRING_E_NOT_FOUND,
				    "no ring \"%s\" on this host (looked for %s); create it with `shmring create`",
				    name, path);
		if (errno == EISDIR || errno == ENXIO)
			return fail(SHMRING_E_NOT_A_RING, "\"%s\" is not a regular file", name);
		return fail_errno("cannot open it", name);
	}
	status = check_owner(fd, name, flags, &file_bytes);
	if (!status)
		status = read_header(fd, name, file_bytes, h);
	if (status)
		close(fd);
	else
		*fd_out = fd;
	return status;
}
