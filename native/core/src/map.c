/* Making, checking and mapping a ring file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* A ring is made in well under this; whoever takes longer has died. */
#define CREATION_PATIENCE_NS (1000 * 1000 * 1000LL)

#define NAMED "/dev/shm/shmring." /* a named ring, without its name */

/* What messages call the ring: its name if it has one, else its file's. */
static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (strncmp(path, NAMED, strlen(NAMED)) == 0)
		return path + strlen(NAMED);
	return slash ? slash + 1 : path;
}

uint64_t now_ns(int clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Derives every offset from the sizes: the only place that lays regions out,
 * so a header is right exactly if it says what this function says. */
static void lay_out(struct header *h)
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

static uint32_t header_crc(const struct header *h)
{
	struct header copy = *h;

	copy.magic = 0;
	copy.crc = 0;
	return shmring_crc32c(0, &copy, sizeof copy);
}

static int check_options(const char *name, const struct shmring_options *o, uint32_t page)
{
	if (o->slots < MIN_SLOTS || o->slots > MAX_SLOTS || o->slots & (o->slots - 1))
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\": slots must be a power of two from %d to %llu, not %llu", name, MIN_SLOTS,
			    (unsigned long long)MAX_SLOTS, (unsigned long long)o->slots);
	if (o->slots * SLOT_BYTES % page)
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\": with pages of %u bytes a ring needs at least %u slots", name, page,
			    page / 4);
	if (o->participants > MAX_SEATS)
		return fail(SHMRING_E_INVALID, "ring \"%s\": participants must be at most %d, not %u", name,
			    MAX_SEATS, o->participants);
	if (o->clock > SHMRING_CLOCK_OFF)
		return fail(SHMRING_E_INVALID, "ring \"%s\": there is no clock %d", name, o->clock);
	if (o->schema && o->schema_bytes >> 30)
		return fail(SHMRING_E_TOO_LARGE, "ring \"%s\": a schema has at most 1 GiB", name);
	if (o->first_sequence >> 55)
		return fail(SHMRING_E_INVALID, "ring \"%s\": first_sequence must be below 2^55", name);
	if (o->mode & ~0777u)
		return fail(SHMRING_E_INVALID, "ring \"%s\": mode %o has more than permission bits", name,
			    o->mode);
	return SHMRING_OK;
}

/* Puts the first state of every word into the zeroed file. */
static void initialise(uint8_t *file, const struct header *h)
{
	struct cursors *c = (struct cursors *)(file + h->cursors_offset);
	struct seat *seats = (struct seat *)(file + h->seats_offset);

	store_relaxed(&c->claim.v, h->first_sequence);
	store_relaxed(&c->floor.v, h->first_sequence);
	store_relaxed(&c->floor_next.v, h->first_sequence);
	store_relaxed(&c->producers.wanted, NONE);
	for (uint32_t i = 0; i < h->seats; i++) {
		seats[i].intent.lo = NONE;
		seats[i].lease.hold = NONE;
		for (int k = 0; k < LEASES; k++)
			seats[i].range[k].lo = NONE;
	}
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define HUGE_PAGE (UINT64_C(1) << 21)

/* Wishes: the ring works without. */
static void advise(void *address, size_t bytes, uint32_t options)
{
	if (options & OPT_HUGE_PAGES)
		(void)madvise(address, bytes, MADV_HUGEPAGE);
	if (options & OPT_PREFAULT)
		(void)madvise(address, bytes, MADV_POPULATE_WRITE);
}

/* tmpfs takes huge pages only for a mapping that asks before the memory is
 * there; what this does not get, the reservation that follows will. */
static void allocate_huge(int fd, const struct header *h)
{
	uint8_t *file;

	if (ftruncate(fd, (off_t)h->file_bytes))
		return;
	file = mmap(NULL, h->file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		return;
	advise(file, h->file_bytes, OPT_HUGE_PAGES | OPT_PREFAULT);
	munmap(file, h->file_bytes);
}

static int fill_file(int fd, const char *name, const struct shmring_options *o, struct header *h)
{
	uint8_t *file;
	int error;

	if (o->huge_pages)
		allocate_huge(fd, h);
	error = posix_fallocate(fd, 0, (off_t)h->file_bytes);
	if (error) {
		errno = error;
		if (error == ENOSPC)
			return fail(SHMRING_E_NO_SPACE,
				    "ring \"%s\": the file system cannot hold its %llu bytes; use fewer slots, "
				    "enlarge the file system (mount -o remount,size=... /dev/shm) or another path",
				    name, (unsigned long long)h->file_bytes);
		return fail_errno("cannot reserve its memory", name);
	}
	file = mmap(NULL, h->file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		return fail_errno("cannot map it", name);
	if (h->schema_bytes) {
		memcpy(file + h->schema_offset, o->schema, o->schema_bytes);
		h->schema_crc = shmring_crc32c(0, o->schema, o->schema_bytes);
	}
	initialise(file, h);
	h->crc = header_crc(h);
	memcpy(file + 8, (const uint8_t *)h + 8, sizeof *h - 8);
	/* Pairs with the acquire in read_header(): who sees the magic sees all. */
	store_release((uint64_t *)file, LAYOUT_MAGIC);
	munmap(file, h->file_bytes);
	return SHMRING_OK;
}

int shmring_format(int fd, const char *name, const struct shmring_options *o)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
	struct header h = {.major = LAYOUT_MAJOR, .minor = LAYOUT_MINOR, .page_bytes = page};
	struct stat st;
	int status = check_options(name, o, page);

	if (status)
		return status;
	if (fstat(fd, &st))
		return fail_errno("cannot look at the file", name);
	if (!S_ISREG(st.st_mode))
		return fail(SHMRING_E_NOT_A_RING, "\"%s\" is not a regular file", name);
	h.mode = o->mode ? o->mode : 0600;
	if (fchmod(fd, h.mode)) /* open() applied the umask */
		return fail_errno("cannot set its mode", name);
	h.slots = o->slots;
	h.seats = o->participants ? o->participants : 128;
	h.schema_bytes = o->schema ? o->schema_bytes : 0;
	h.options = (o->single_producer ? OPT_SINGLE_PRODUCER : 0) | (o->scattered ? OPT_SCATTERED : 0) |
		    (o->checksum ? OPT_CHECKSUM : 0) |
		    (o->clock == SHMRING_CLOCK_PRECISE ? OPT_CLOCK_PRECISE : 0) |
		    (o->clock == SHMRING_CLOCK_OFF ? OPT_CLOCK_OFF : 0) |
		    (asymmetric_barriers_available() ? 0 : OPT_FENCES) | (o->prefault ? OPT_PREFAULT : 0) |
		    (o->huge_pages ? OPT_HUGE_PAGES : 0) | (o->lock_memory ? OPT_LOCK_MEMORY : 0) |
		    (o->temporary ? OPT_TEMPORARY : 0);
	h.first_sequence = o->first_sequence;
	h.created_ns = now_ns(CLOCK_REALTIME);
	h.owner_uid = st.st_uid;
	if (getrandom(h.uuid, sizeof h.uuid, 0) != sizeof h.uuid)
		return fail_errno("cannot draw its uuid", name);
	lay_out(&h);
	/* Whoever finds the file unfinished asks this lock whether we are still at it. */
	if (!lock_byte(fd, ADMIN_LOCK_OFFSET))
		return fail(SHMRING_E_EXISTS, "ring \"%s\" is being made by another process", name);
	if (fstat(fd, &st) == 0 && st.st_size)
		status = fail(SHMRING_E_EXISTS, "ring \"%s\": the file is not empty", name);
	else
		status = fill_file(fd, name, o, &h);
	if (!status && fstat(fd, &st) == 0 && st.st_nlink == 0)
		status = fail(SHMRING_E_NOT_FOUND, "ring \"%s\" was unlinked while it was being made", name);
	unlock_byte(fd, ADMIN_LOCK_OFFSET);
	return status;
}

int shmring_create(const char *path, const struct shmring_options *options)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	int status;

	if (fd < 0) {
		if (errno == EEXIST)
			return fail(SHMRING_E_EXISTS,
				    "ring \"%s\" exists already (%s); attach to it or unlink it first",
				    base_name(path), path);
		return fail_errno("cannot make the file", path);
	}
	status = shmring_format(fd, base_name(path), options);
	if (status)
		unlink(path);
	close(fd);
	return status;
}

/* --- attach --------------------------------------------------------------- */

static bool unfinished(int fd, const char *name, int *status)
{
	struct header h = {0};
	ssize_t n = pread(fd, &h, sizeof h, 0);

	if (n < 0) {
		*status = fail_errno("cannot read its header", name);
		return false;
	}
	return (size_t)n < sizeof h || h.magic == 0;
}

/* Reads and judges the header; trusts nothing in it. */
static int read_header(int fd, const char *name, uint64_t file_bytes, struct header *h)
{
	struct header expected;
	ssize_t n = pread(fd, h, sizeof *h, 0);

	if (n < 0)
		return fail_errno("cannot read its header", name);
	if ((size_t)n < sizeof *h || h->magic != LAYOUT_MAGIC)
		return fail(SHMRING_E_NOT_A_RING, "\"%s\" is not a shmring ring (no magic at its start)", name);
	if (h->major != LAYOUT_MAJOR)
		return fail(SHMRING_E_VERSION,
			    "ring \"%s\" has layout %u.%u, this library reads %u.x; use the version that made it",
			    name, h->major, h->minor, LAYOUT_MAJOR);
	if (h->crc != header_crc(h))
		return fail(SHMRING_E_DAMAGED, "ring \"%s\": its header is damaged (checksum); unlink it", name);
	if (h->slots < MIN_SLOTS || h->slots > MAX_SLOTS || h->slots & (h->slots - 1) || h->seats == 0 ||
	    h->seats > MAX_SEATS || h->page_bytes < 4096 || h->page_bytes & (h->page_bytes - 1) ||
	    h->page_bytes > (1u << 30) || h->slots * SLOT_BYTES % h->page_bytes || h->options & ~OPT_ALL ||
	    h->schema_bytes > file_bytes || h->first_sequence >> 55)
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

static int map_ring(shmring *r, int fd)
{
	int protection = r->read_only ? PROT_READ : PROT_READ | PROT_WRITE;
	uint64_t slots_bytes = r->capacity * SLOT_BYTES;
	uint64_t ring_bytes = r->header.file_bytes + slots_bytes;
	/* A huge page is mapped as one only where address and offset agree. */
	uint64_t slack = r->options & OPT_HUGE_PAGES ? HUGE_PAGE : 0;
	uint64_t total = ring_bytes + slack;
	uint8_t *reserved = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint8_t *base;

	if (reserved == MAP_FAILED)
		return fail_errno("cannot reserve addresses", r->name);
	base = slack ? (uint8_t *)round_up((uintptr_t)reserved, HUGE_PAGE) : reserved;
	if (mmap(base, r->header.file_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    mmap(base + r->header.file_bytes, slots_bytes, protection, MAP_SHARED | MAP_FIXED, fd,
		 (off_t)r->header.slots_offset) == MAP_FAILED) {
		int status = fail_errno("cannot map it", r->name);

		munmap(reserved, total);
		return status;
	}
	if (!r->read_only) {
		advise(base, ring_bytes, r->options);
		if (r->options & OPT_LOCK_MEMORY && mlock(base, ring_bytes)) {
			int status = fail_errno("cannot lock its memory (see ulimit -l)", r->name);

			munmap(reserved, total);
			return status;
		}
	}
	r->base = base;
	r->reserved = reserved;
	r->reserved_bytes = total;
	r->cursors = (struct cursors *)(base + r->header.cursors_offset);
	r->seats = (struct seat *)(base + r->header.seats_offset);
	r->control = (struct control *)(base + r->header.control_offset);
	r->slots = base + r->header.slots_offset;
	if (r->header.schema_bytes &&
	    shmring_crc32c(0, base + r->header.schema_offset, r->header.schema_bytes) != r->header.schema_crc) {
		munmap(reserved, total);
		return fail(SHMRING_E_DAMAGED, "ring \"%s\": its Arrow schema is damaged (checksum); unlink it",
			    r->name);
	}
	return SHMRING_OK;
}

static int check_owner(int fd, const char *name, uint32_t flags, uint64_t *file_bytes)
{
	struct stat st;

	if (fstat(fd, &st))
		return fail_errno("cannot look at the file", name);
	if (!S_ISREG(st.st_mode))
		return fail(SHMRING_E_NOT_A_RING, "\"%s\" is not a regular file", name);
	if (st.st_uid != geteuid() && !(flags & SHMRING_FOREIGN_OWNER))
		return fail(
		    SHMRING_E_PERMISSION,
		    "ring \"%s\" belongs to user %u, not to you (%u); attach with foreign_owner if you trust them",
		    name, st.st_uid, geteuid());
	*file_bytes = (uint64_t)st.st_size;
	return SHMRING_OK;
}

static int open_flags(bool read_only)
{
	return (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
}

static int open_checked(const char *path, uint32_t flags, int *fd_out, struct header *h)
{
	const char *name = base_name(path);
	uint64_t deadline = now_ns(CLOCK_MONOTONIC) + CREATION_PATIENCE_NS;
	uint64_t file_bytes = 0;
	int status;
	int fd = open(path, open_flags(flags & SHMRING_READ_ONLY));

	if (fd < 0) {
		if (errno == ENOENT)
			return fail(SHMRING_E_NOT_FOUND, "no ring \"%s\" on this host (looked for %s)", name,
				    path);
		if (errno == EISDIR || errno == ENXIO)
			return fail(SHMRING_E_NOT_A_RING, "\"%s\" is not a regular file", name);
		return fail_errno("cannot open it", name);
	}
	for (;;) {
		status = check_owner(fd, name, flags, &file_bytes);
		if (status || !unfinished(fd, name, &status) || now_ns(CLOCK_MONOTONIC) > deadline)
			break;
		if (file_bytes && !byte_locked(fd, ADMIN_LOCK_OFFSET))
			break; /* nobody is at it: it will not get any better */
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	/* The size again: it may have been looked at before the magic came. */
	if (!status)
		status = check_owner(fd, name, flags, &file_bytes);
	if (!status)
		status = read_header(fd, name, file_bytes, h);
	if (status)
		close(fd);
	else
		*fd_out = fd;
	return status;
}

/* Locks live on a file description of their own. A mapping keeps the one it was
 * made from open, and a forked child inherits the mapping: on that description
 * the parent's locks would outlive the parent. */
static int open_for_locks(shmring *r, const char *path, int mapped_fd)
{
	struct stat mapped, locked;

	if (!lock_file_open(&r->locks, path, open_flags(r->read_only)))
		return fail_errno("cannot open it", base_name(path));
	if (fstat(mapped_fd, &mapped) || fstat(r->locks.fd, &locked) || mapped.st_ino != locked.st_ino ||
	    mapped.st_dev != locked.st_dev) {
		lock_file_close(&r->locks);
		return fail(SHMRING_E_NOT_FOUND, "ring \"%s\" has just been replaced; attach again",
			    base_name(path));
	}
	return SHMRING_OK;
}

int shmring_attach(const char *path, uint32_t flags, shmring **out)
{
	struct stat st;
	int status;
	int fd = -1;
	shmring *r;

	if (flags & ~(uint32_t)(SHMRING_READ_ONLY | SHMRING_FOREIGN_OWNER))
		return fail(SHMRING_E_INVALID, "ring \"%s\": there are no attach flags %#x", base_name(path),
			    flags);
	r = calloc(1, sizeof *r);
	if (!r)
		return fail(SHMRING_E_NO_MEMORY, "out of memory");
	snprintf(r->name, sizeof r->name, "%s", base_name(path));
	status = open_checked(path, flags, &fd, &r->header);
	if (status) {
		free(r);
		return status;
	}
	pthread_mutex_init(&r->admin, NULL);
	r->read_only = flags & SHMRING_READ_ONLY;
	r->capacity = r->header.slots;
	r->mask = r->capacity - 1;
	r->log2_capacity = (unsigned)__builtin_ctzll(r->capacity);
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
		status = open_for_locks(r, path, fd);
	if (!status) {
		status = map_ring(r, fd);
		if (status)
			lock_file_close(&r->locks);
	}
	close(fd);
	if (status) {
		pthread_mutex_destroy(&r->admin);
		free(r);
		return status;
	}
	if (!r->read_only) {
		status = admin_enter(r);
		if (!status) {
			status = seat_take(r, ROLE_ATTACHED, "attached", 0, &r->seat);
			admin_leave(r);
		}
		/* gc unlinks under the admin lock: had it been before us, the link is gone. */
		if (!status && fstat(r->locks.fd, &st) == 0 && st.st_nlink == 0)
			status = fail(SHMRING_E_NOT_FOUND, "ring \"%s\" has just been unlinked", r->name);
		if (status) {
			shmring_close(r);
			return status;
		}
	}
	*out = r;
	return SHMRING_OK;
}

void shmring_close(shmring *r)
{
	if (!r)
		return;
	if (!r->locks.forked && r->seat != NOBODY && admin_enter(r) == SHMRING_OK) {
		seat_give_back(r, r->seat);
		admin_leave(r);
	}
	lock_file_close(&r->locks); /* closes the file, which drops every lock of this handle */
	munmap(r->reserved, r->reserved_bytes);
	pthread_mutex_destroy(&r->admin);
	free(r);
}

void shmring_get_info(const shmring *r, struct shmring_info *info)
{
	const struct header *h = &r->header;

	*info = (struct shmring_info){
	    .slots = h->slots,
	    .participants = h->seats,
	    .layout_major = h->major,
	    .layout_minor = h->minor,
	    .single_producer = h->options & OPT_SINGLE_PRODUCER,
	    .scattered = h->options & OPT_SCATTERED,
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

/* --- where things lie ------------------------------------------------------ */

/* Scattered: rotating the index by three bits is a bijection that puts eight
 * neighbours an eighth of the ring apart. */
uint64_t index_of(const shmring *r, uint64_t sequence)
{
	uint64_t i = sequence & r->mask;

	if (__builtin_expect(r->options & OPT_SCATTERED, 0))
		i = i >> 3 | (i & 7) << (r->log2_capacity - 3);
	return i;
}

struct control *control_at(const shmring *r, uint64_t sequence)
{
	return &r->control[index_of(r, sequence)];
}

uint8_t *slot_at(const shmring *r, uint64_t sequence)
{
	return r->slots + index_of(r, sequence) * SLOT_BYTES;
}

void *shmring_slot(const shmring *r, uint64_t sequence)
{
	return slot_at(r, sequence);
}

uint64_t shmring_slots_for(uint64_t length, bool aligned)
{
	/* Slots begin at multiples of 4, so at most 60 bytes are skipped. */
	uint64_t skip = aligned ? BODY_ALIGN - 4 : 0;
	uint64_t slots = length / SLOT_BYTES + (length % SLOT_BYTES + skip + SLOT_BYTES - 1) / SLOT_BYTES;

	return slots ? slots : 1;
}

uint64_t shmring_claimed(const shmring *r)
{
	return load_acquire(&r->cursors->claim.v);
}

uint64_t shmring_floor(const shmring *r)
{
	return load_acquire(&r->cursors->floor.v);
}
