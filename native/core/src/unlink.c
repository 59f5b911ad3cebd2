/* Removal of rings: at a user's request, and when all participants are dead.
 *
 * A name is removed only from the file that was checked. The remover holds the admin
 * lock of that file: else another process could remove it meanwhile, and a new ring
 * could get the name. A program that removes files without this lock (rm) can still
 * interfere: see SECURITY.md.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define DRAFT ".shmring-new-"
enum { UUID_TEXT = 36 };

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

/* Returns true if the open file has this name now. */
static bool is_named(int fd, const char *path)
{
	struct stat opened, named;

	return fstat(fd, &opened) == 0 && lstat(path, &named) == 0 && same_file(&opened, &named);
}

/* Opens a file that may be a ring, in order to lock it. Does not open a FIFO or a device (ENXIO). */
static struct lock_file *open_file(const char *path)
{
	struct stat st;

	if (lstat(path, &st))
		return NULL;
	if (!S_ISREG(st.st_mode)) {
		errno = S_ISLNK(st.st_mode) ? ELOOP : ENXIO;
		return NULL;
	}
	return lock_file_open(NULL, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

static void close_file(struct lock_file *file, off_t locked)
{
	int fd = lock_file_number(file);

	/* Unlocks the byte first: closing alone leaves the byte locked as long as a child that was forked
	 * meanwhile has its copy of the file open. */
	if (fd >= 0)
		unlock_byte(fd, locked);
	lock_file_close(file);
}

/* --- at a user's request ----------------------------------------------------------- */

static int fail_left_alone(const char *path)
{
	return fail(SHMRING_E_NOT_A_RING, "%s is not a ring; it is left alone", path);
}

static int fail_not_found(const char *path)
{
	return fail(SHMRING_E_NOT_FOUND, "no ring \"%s\" on this host (looked for %s)", label_of(path), path);
}

static int await_admin_lock(int fd, const char *path)
{
	int64_t deadline = monotonic() + ADMIN_TIMEOUT_NS;

	while (!lock_byte(fd, ADMIN_LOCK_OFFSET)) {
		if (monotonic() > deadline)
			return fail_admin_taken(fd, label_of(path));
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	}
	return SHMRING_OK;
}

/* Marks a ring as unlinked on purpose, for processes that go on using it: the lost name is no error then. */
static void mark(int fd, const struct header *h, uint32_t unlinked)
{
	struct stat st;

	if (h->major == LAYOUT_MAJOR && h->crc == header_crc(h) && fstat(fd, &st) == 0 &&
	    (uint64_t)st.st_size == h->file_bytes)
		(void)pwrite(fd, &unlinked, sizeof unlinked,
			     (off_t)(h->cursors_offset + offsetof(struct cursors, unlinked)));
}

/* Unlinks a ring under its admin lock. A damaged ring, or a ring of another version, is unlinked, too, unless a
 * uuid is given. */
static int unlink_file(int fd, const char *path, const uint8_t *uuid, int (*remove)(const char *, void *),
		       void *context)
{
	struct header h;
	int status = SHMRING_OK;

	(void)header_load(fd, &h);
	if (h.magic != LAYOUT_MAGIC)
		return fail_left_alone(path);
	if (uuid && memcmp(h.uuid, uuid, sizeof h.uuid))
		return fail_not_found(path);
	RETURN_NOT_OK(await_admin_lock(fd, path));
	if (!is_named(fd, path))
		return fail_not_found(path);
	mark(fd, &h, 1);
	if (remove)
		status = remove(path, context);
	else if (unlink(path))
		status = fail_errno("cannot unlink it", label_of(path));
	if (is_named(fd, path)) /* `remove` failed, or left the name on purpose: the mark is taken back */
		mark(fd, &h, 0);
	return status;
}

int shmring_unlink(const char *path, const uint8_t uuid[16], int (*remove)(const char *path, void *context),
		   void *context)
{
	struct lock_file *file;
	int status;

	RETURN_NOT_OK(check_path(path));
	file = open_file(path);
	if (!file) {
		if (errno == ENOENT)
			return fail_not_found(path);
		return errno == ENXIO ? fail_left_alone(path) : fail_errno("cannot open it", label_of(path));
	}
	status = unlink_file(lock_file_number(file), path, uuid, remove, context);
	close_file(file, ADMIN_LOCK_OFFSET);
	return status;
}

/* --- rings without living participants ---------------------------------------------- */

/* Returns 1 if no participant lives and a dead one has left a seat behind; for a temporary ring, also if all
 * participants have left in order. Otherwise returns 0, or an error if no participant lives but a seat is damaged.
 */
static int is_abandoned(const shmring *r)
{
	bool dead = r->options & OPT_TEMPORARY, damaged = false;

	for (uint32_t i = 0; i < r->seat_count; i++) {
		uint32_t state = load_acquire(&r->seats[i].id.state);

		if (state == SEAT_ACTIVE && seat_alive(r, i))
			return 0;
		/* Messages that a living consumer has handed back are no sign of death. */
		dead |= state == SEAT_ACTIVE || (state == SEAT_ORPHAN && load_relaxed(&r->seats[i].id.pid));
		damaged |= state > SEAT_ORPHAN;
	}
	if (handle_seatless(r))
		return 0;
	if (damaged)
		return fail(SHMRING_E_DAMAGED,
			    "ring \"%s\": its participants' entries are damaged, and nobody alive is among them; "
			    "unlink it",
			    r->name);
	return dead;
}

/* Removes the ring unless `only_look` is set. Returns 1 if the ring is, or would be, removed. */
static int remove_unless(bool only_look, const char *path)
{
	return !only_look && unlink(path) ? fail_errno("cannot unlink it", path) : 1;
}

/* Removes the ring at `path` if it is abandoned. The caller holds the admin lock of the file behind fd, so no
 * process can join meanwhile. */
static int reap_locked(int fd, const char *path, bool only_look)
{
	shmring *r;
	int status = shmring_attach(path, SHMRING_READ_ONLY | SHMRING_FOREIGN_COPY, &r);

	if (status == SHMRING_E_NOT_FOUND)
		return 0;
	if (status)
		return status;
	status = lock_file_is(r->locks, fd) ? is_abandoned(r) : 0;
	shmring_close(r);
	if (status != 1)
		return status;
	return is_named(fd, path) ? remove_unless(only_look, path) : 0;
}

static int reap_ring(int fd, const char *path, bool only_look)
{
	struct header h;

	/* Do not lock a file that is not a ring: another program may use locks on it. */
	(void)header_load(fd, &h);
	if (h.magic != LAYOUT_MAGIC)
		return fail_left_alone(path);
	return lock_byte(fd, ADMIN_LOCK_OFFSET) ? reap_locked(fd, path, only_look) : 0;
}

/* --- drafts of killed creators -------------------------------------------- */

static void write_uuid(char *text, const uint8_t *uuid)
{
	static const char digit[] = "0123456789abcdef";

	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*text++ = '-';
		*text++ = digit[uuid[i] >> 4];
		*text++ = digit[uuid[i] & 15];
	}
	*text = 0;
}

/* Writes the path of a draft, a ring that is being made, in the folder of the finished ring. */
bool draft_path(char *path, size_t size, const char *beside, int folder_bytes, const uint8_t *uuid)
{
	char text[UUID_TEXT + 1];

	write_uuid(text, uuid);
	return (size_t)snprintf(path, size, "%.*s" DRAFT "%s", folder_bytes, beside, text) < size;
}

static const char *draft_uuid(const char *path)
{
	const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
	const char *text = file + strlen(DRAFT);

	if (strncmp(file, DRAFT, strlen(DRAFT)) || strlen(text) != UUID_TEXT ||
	    strspn(text, "0123456789abcdef-") != UUID_TEXT)
		return NULL;
	return text;
}

/* Removes a draft whose creator has died. The creator holds the draft's lock from before the first byte until the
 * file has the ring's name. The first bytes are the header, with the uuid that is in the draft's name. */
static int reap_draft(int fd, const char *path, const char *uuid, bool only_look)
{
	char text[UUID_TEXT + 1];
	struct header h;
	struct stat st;

	if (!lock_byte(fd, DRAFT_LOCK_OFFSET) || fstat(fd, &st) || !is_named(fd, path))
		return 0;
	if (st.st_size) {
		if (header_load(fd, &h) < 0 || h.crc != header_crc(&h))
			return 0;
		write_uuid(text, h.uuid);
		if (strcmp(text, uuid))
			return 0;
	}
	return remove_unless(only_look, path);
}

static int reap(const char *path, bool only_look)
{
	const char *draft = draft_uuid(path);
	struct lock_file *file;
	int status;

	RETURN_NOT_OK(check_path(path));
	file = open_file(path);
	if (!file) {
		if (errno == ENOENT)
			return 0;
		return errno == ENXIO ? fail_left_alone(path) : fail_errno("cannot open it", path);
	}
	status = draft ? reap_draft(lock_file_number(file), path, draft, only_look)
		       : reap_ring(lock_file_number(file), path, only_look);
	close_file(file, draft ? DRAFT_LOCK_OFFSET : ADMIN_LOCK_OFFSET);
	return status;
}

int shmring_reap(const char *path)
{
	return reap(path, false);
}

int shmring_reapable(const char *path)
{
	return reap(path, true);
}
