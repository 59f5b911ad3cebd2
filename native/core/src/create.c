/* Creation of a ring: a file without the ring's name is filled and attached to, and
 * gets the name when it is finished. See docs/layout.md, "Creation". */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core.h"

/* --- options and header of a new ring --------------------------------------- */

static_assert(SHMRING_SLOT_BYTES == SLOT_BYTES && SHMRING_SLOT_FILE_BYTES == SLOT_BYTES + CONTROL_BYTES &&
		  SHMRING_MAX_BRANCHES == BRANCHES && SHMRING_MAX_PARTICIPANTS == MAX_PARTICIPANTS,
	      "what the interface promises");

/* CHANGE: edit this for a new option of a ring */
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
	if (o->participants > MAX_PARTICIPANTS)
		return fail(SHMRING_E_INVALID, "ring \"%s\": participants must be at most %d, not %u", name,
			    MAX_PARTICIPANTS, o->participants);
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

static int make_header(const char *name, const struct shmring_options *o, struct header *h)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);

	RETURN_NOT_OK(check_options(name, o, page));
	*h = (struct header){
	    .magic = LAYOUT_MAGIC,
	    .major = LAYOUT_MAJOR,
	    .minor = LAYOUT_MINOR,
	    .page_bytes = page,
	    .slots = o->slots,
	    .seats = o->participants ? o->participants : 128,
	    .options = (o->single_producer ? OPT_SINGLE_PRODUCER : 0) | (o->checksum ? OPT_CHECKSUM : 0) |
		       (o->clock == SHMRING_CLOCK_PRECISE ? OPT_CLOCK_PRECISE : 0) |
		       (o->clock == SHMRING_CLOCK_OFF ? OPT_CLOCK_OFF : 0) |
		       (asymmetric_barriers_available() ? 0 : OPT_FENCES) | (o->prefault ? OPT_PREFAULT : 0) |
		       (o->temporary ? OPT_TEMPORARY : 0),
	    .first_sequence = o->first_sequence,
	    .created_ns = now_ns(CLOCK_REALTIME),
	    .owner_uid = geteuid(),
	    .mode = o->mode ? o->mode : 0600,
	};
	if (o->schema && o->schema_bytes) {
		h->schema_bytes = o->schema_bytes;
		h->schema_crc = shmring_crc32c(0, o->schema, o->schema_bytes);
	}
	if (getrandom(h->uuid, sizeof h->uuid, 0) != sizeof h->uuid)
		return fail_errno("cannot draw its uuid", name);
	lay_out(h);
	h->crc = header_crc(h);
	return SHMRING_OK;
}

/* --- the file ------------------------------------------------------------------ */

struct draft {
	struct lock_file *file; /* open file of the draft; a child forked meanwhile does not keep it open */
	bool named; /* the file has a draft's name, because the file system has no O_TMPFILE: gc removes it if its
		       creator is killed */
	char path[PATH_MAX]; /* path for opening and linking the file */
};

/* Returns the number of bytes in a path up to its last slash, included; 0 if the path has no slash. */
static int folder_bytes(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (int)(slash - path + 1) : 0;
}

/* Opens a file without a name, which vanishes if its creator dies. Sets d->path to a path of the file in /proc,
 * for link(2). */
static bool open_nameless(const char *path, struct draft *d)
{
	char folder[PATH_MAX];

	snprintf(folder, sizeof folder, "%.*s.", folder_bytes(path), path);
	d->named = false;
	d->file = lock_file_open(NULL, folder, O_TMPFILE | O_RDWR | O_CLOEXEC);
	if (!d->file)
		return false;
	snprintf(d->path, sizeof d->path, "/proc/self/fd/%d", lock_file_number(d->file));
	if (access(d->path, F_OK) == 0)
		return true;
	lock_file_close(d->file);
	return false;
}

static void unlink_keeping_errno(const char *path)
{
	int error = errno;

	unlink(path);
	errno = error;
}

static void draft_close(struct draft *d)
{
	int error = errno;

	if (d->named)
		unlink(d->path); /* fails harmlessly if the draft has become the ring */
	lock_file_close(d->file);
	errno = error;
}

/* Opens a file whose name marks it as the draft of a certain ring. The creator of the file holds the
 * draft lock. If the creator is killed, the header without the magic proves that the file is a draft. */
static bool open_named(const char *path, const struct header *h, struct draft *d)
{
	const size_t before = sizeof h->magic, bytes = sizeof *h - before;
	struct stat st;

	d->named = true;
	if (!draft_path(d->path, sizeof d->path, path, folder_bytes(path), h->uuid)) {
		errno = ENAMETOOLONG;
		return false;
	}
	for (;;) {
		int fd;

		d->file = lock_file_open(NULL, d->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW);
		if (!d->file) {
			if (errno != EEXIST)
				unlink_keeping_errno(
				    d->path); /* the file was made, but its page could not be mapped */
			return false;
		}
		fd = lock_file_number(d->file);
		if (!lock_byte(fd, DRAFT_LOCK_OFFSET)) {
			if (errno != EAGAIN)
				break;
		} else if (fstat(fd, &st) || st.st_nlink) {
			if (pwrite(fd, (const uint8_t *)h + before, bytes, (off_t)before) == (ssize_t)bytes)
				return true;
			break;
		}
		draft_close(d); /* `shmring gc` found the file before it was locked: make another file */
	}
	draft_close(d);
	return false;
}

static int draft_open(const char *path, const struct header *h, struct draft *d)
{
	if (!open_nameless(path, d) && !open_named(path, h, d))
		return fail_errno("cannot make the file", path);
	return SHMRING_OK;
}

/* Gives the finished file the ring's name, unless another file has the name already. */
static bool draft_publish(struct draft *d, const char *path)
{
	if (lock_file_number(d->file) < 0) { /* other code of this process has closed the descriptor */
		errno = EBADF;
		return false;
	}
	if (!d->named)
		return linkat(AT_FDCWD, d->path, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
	if (syscall(SYS_renameat2, AT_FDCWD, d->path, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
		return true;
	/* NFS refuses RENAME_NOREPLACE with EINVAL; link(2) does not replace another file either. */
	return (errno == EINVAL || errno == ENOSYS) && link(d->path, path) == 0;
}

/* --- contents of a new file ------------------------------------------------------ */

#define CHUNK_BYTES (UINT64_C(64) << 20) /* upper limit of the bytes that one call reserves; a choice */

/* Reserves the file's bytes in small calls: if a signal ends a call, tmpfs gives back all bytes that
 * the call has reserved. The calls after that are smaller, down to one page, so that frequent signals
 * do not stop the loop. */
static int reserve(int fd, uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), chunk = CHUNK_BYTES;

	for (uint64_t at = 0; at < bytes;) {
		uint64_t n = chunk < bytes - at ? chunk : bytes - at;
		int error = posix_fallocate(fd, (off_t)at, (off_t)n);

		if (error == 0) {
			at += n;
			chunk = chunk < CHUNK_BYTES ? chunk * 2 : chunk;
		} else if (error == EINTR) {
			chunk = chunk / 2 > page ? chunk / 2 : page;
		} else {
			return error;
		}
	}
	return 0;
}

/* CHANGE: edit this for a new version of the layout */
/* Writes the header, and all initial values that are not zero, into the zeroed file. */
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
	memcpy(file, h, sizeof *h);
}

static int no_space(int fd, const struct header *h, const char *name)
{
	struct statfs left = {0};
	uint64_t free_bytes;

	(void)!ftruncate(fd, 0); /* frees the bytes reserved so far */
	(void)fstatfs(fd, &left);
	free_bytes = (uint64_t)left.f_bavail * (uint64_t)left.f_bsize;
	return fail(
	    SHMRING_E_NO_SPACE,
	    "ring \"%s\" takes %llu bytes, and the file system has %llu left; use fewer slots, remove rings "
	    "(`shmring ls` lists them, `shmring gc` removes those of the dead), enlarge the file system "
	    "(/dev/shm by mount -o remount,size=... /dev/shm) or use another path",
	    name, (unsigned long long)h->file_bytes, (unsigned long long)free_bytes);
}

/* Returns the bytes that the kernel could free for a file in memory; UINT64_MAX if the kernel does not say. */
static uint64_t available_memory(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	unsigned long long kib, found = 0, sum = 0;
	char line[128];

	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1 || sscanf(line, "SwapFree: %llu", &kib) == 1) {
			sum += kib << 10;
			found++;
		}
	}
	if (file)
		fclose(file);
	return found == 2 ? sum : UINT64_MAX;
}

/* Refuses a ring that is too large, before its first page is taken. A file system in memory may
 * promise more than the machine has, and taking pages until none is left would make the kernel
 * kill another process. Other processes may take or free space meanwhile, so reserve() decides. */
static int check_space(int fd, const struct header *h, const char *name)
{
	struct statfs fs = {0};
	uint64_t left, memory;

	if (fstatfs(fd, &fs))
		return fail_errno("cannot ask for free space", name);
	left = fs.f_blocks ? (uint64_t)fs.f_bfree * (uint64_t)fs.f_bsize : UINT64_MAX;
	memory = fs.f_type == TMPFS_MAGIC ? available_memory() : UINT64_MAX;
	if (h->file_bytes > memory && memory < left)
		return fail(SHMRING_E_NO_SPACE,
			    "ring \"%s\" takes %llu bytes, and the memory of this machine has %llu left; use "
			    "fewer slots, remove rings (`shmring ls` lists them, `shmring gc` removes those of "
			    "the dead) or "
			    "use a path on a disk",
			    name, (unsigned long long)h->file_bytes, (unsigned long long)memory);
	return h->file_bytes > left ? no_space(fd, h, name) : SHMRING_OK;
}

/* Checks RLIMIT_FSIZE before the file grows: a program that does not ignore SIGXFSZ would be killed. */
static int check_limit(const struct header *h, const char *name)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) || h->file_bytes <= limit.rlim_cur)
		return SHMRING_OK;
	return fail(SHMRING_E_NO_SPACE,
		    "ring \"%s\" takes %llu bytes, and no file that this process writes may have more than %llu "
		    "(ulimit -f); use fewer slots or raise the limit",
		    name, (unsigned long long)h->file_bytes, (unsigned long long)limit.rlim_cur);
}

static int draft_fill(int fd, const char *name, const void *schema, const struct header *h)
{
	uint8_t *file;

	if (fchmod(fd, h->mode)) /* because open() removed the umask's bits from the mode */
		return fail_errno("cannot set its mode", name);
	RETURN_NOT_OK(check_space(fd, h, name));
	errno = reserve(fd, h->file_bytes);
	if (errno == ENOSPC)
		return no_space(fd, h, name);
	if (errno)
		return fail_errno("cannot reserve its memory", name);
	file = mmap(NULL, h->file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		return fail_errno("cannot map it", name);
	if (h->schema_bytes)
		memcpy(file + h->schema_offset, schema, h->schema_bytes);
	initialise(file, h);
	munmap(file, h->file_bytes);
	return SHMRING_OK;
}

/* --- creation --------------------------------------------------------------------- */

static int fail_exists(const char *path)
{
	struct stat found = {.st_mode = S_IFREG};
	char command[512];
	struct text t = {command, sizeof command};
	int reapable;

	(void)lstat(path, &found);
	reapable = S_ISREG(found.st_mode) ? shmring_reapable(path) : SHMRING_E_NOT_A_RING;
	if (reapable == SHMRING_E_NOT_A_RING)
		return fail(SHMRING_E_NOT_A_RING, "%s is %s, and no ring: use another name or path", path,
			    S_ISREG(found.st_mode)   ? "a file"
			    : S_ISDIR(found.st_mode) ? "a directory"
			    : S_ISLNK(found.st_mode) ? "a symbolic link"
						     : "a pipe, a socket or a device");
	if (reapable == 1) {
		say_command(&t, "gc", path, NULL);
		return fail(SHMRING_E_EXISTS,
			    "ring \"%s\" exists already, and all its participants are dead; attach to it, or let "
			    "`%s` remove it",
			    label_of(path), command);
	}
	return fail(SHMRING_E_EXISTS, "ring \"%s\" exists already; attach to it, or unlink it first",
		    label_of(path));
}

int shmring_create(const char *path, const struct shmring_options *options, shmring **ring)
{
	const char *name = label_of(path);
	struct stat st;
	struct header h;
	struct draft d = {0};
	shmring *r = NULL;
	int status;

	RETURN_NOT_OK(check_path(path));
	if (lstat(path, &st) == 0) /* early check, before memory is reserved; draft_publish() decides */
		return fail_exists(path);
	if (options->temporary && !ring)
		return fail(
		    SHMRING_E_INVALID,
		    "ring \"%s\": a temporary ring lasts while a process is attached: attach when you make it",
		    name);
	RETURN_NOT_OK(make_header(name, options, &h));
	RETURN_NOT_OK(check_limit(&h, name));
	RETURN_NOT_OK(draft_open(path, &h, &d));
	status = draft_fill(lock_file_number(d.file), name, options->schema, &h);
	if (!status && ring)
		status = attach_draft(d.path, name, &r);
	if (!status && !draft_publish(&d, path))
		status = errno == EEXIST ? fail_exists(path) : fail_errno("cannot give the file its name", path);
	draft_close(&d);
	if (status) {
		shmring_close(r);
		return status;
	}
	if (r) {
		lock_file_name(r->locks, path);
		attach_by_name(r, path);
		*ring = r;
	}
	return SHMRING_OK;
}

int shmring_open_or_create(const char *path, const struct shmring_options *options, shmring **ring)
{
	int status;

	do {
		status = shmring_attach(path, 0, ring);
		if (status == SHMRING_E_NOT_FOUND)
			status = shmring_create(path, options, ring);
	} while (status == SHMRING_E_EXISTS);
	if (!status && (*ring)->capacity < options->slots) {
		status =
		    fail(SHMRING_E_EXISTS,
			 "ring \"%s\" exists already with %llu slots, fewer than %llu; ask for fewer slots, or "
			 "unlink the ring first",
			 (*ring)->name, (unsigned long long)(*ring)->capacity, (unsigned long long)options->slots);
		shmring_close(*ring);
		*ring = NULL;
	}
	return status;
}
