/* Lock bytes: functions that hold and test them, and their fate at fork.
 *
 * The kernel drops a lock with the last reference to the open file description
 * that has it. A descriptor is a bad reference: other code of this process may
 * close every descriptor that it finds (daemons, test runners), its number may then
 * become another file's, and children inherit it. A mapped page refers to the
 * description as well; no code unmaps pages of other code, and MADV_DONTFORK
 * keeps the page from children. Hence:
 *
 * - A seat's byte is locked on a description of its own. The description has a mapped page and, as
 *   soon as the page is mapped, no descriptor. The lock ends with the page.
 * - A handle has one descriptor, to test locks and for the admin lock. The descriptor may be
 *   lost at any instant. Bytes that were locked through it stay locked by its page.
 * - A descriptor is ours if its file is the ring's and its position is the random number
 *   that was drawn when it was opened (nothing reads or writes at that position). A lost number
 *   never becomes ours again: a descriptor that is ours after a test was ours during the test.
 *
 * One race is left: another thread may close the descriptor and open another file with its number,
 * between our check and the system call that follows. If the call tests a lock, a second check then
 * rejects the answer. But a call that locks a byte, sets the position or closes the descriptor may
 * affect the other file once.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"

#define LOST UINT64_MAX

struct lock_file {
	uint64_t descriptor; /* position of the open file description << 32 | number of the descriptor */
	void *page; /* page of the file, mapped through the open file description of `descriptor` */
	pthread_mutex_t section; /* guards the fields above and, among this handle's threads, the admin byte */
	dev_t device;
	ino_t inode;
	int flags;
	char *path; /* absolute path of the file */
	shmring *ring; /* handle to which the file belongs; NULL: none, the file is open for a short time */
	bool given_up; /* this process has waited for the admin byte in vain, and has not got it since */
	struct lock_file *next;
};

/* --- bytes --------------------------------------------------------------------- */

static bool set_lock(int fd, off_t offset, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1};

	return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool lock_byte(int fd, off_t offset)
{
	return set_lock(fd, offset, F_WRLCK);
}

void unlock_byte(int fd, off_t offset)
{
	(void)set_lock(fd, offset, F_UNLCK);
}

enum answer { NOT_TOLD, UNLOCKED, LOCKED };

/* Asks whether a lock of this type would conflict with a lock held through another open file description. */
static enum answer ask(int fd, off_t offset, struct flock *lock, short type)
{
	*lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1};
	if (fcntl(fd, F_OFD_GETLK, lock))
		return NOT_TOLD;
	return lock->l_type == F_UNLCK ? UNLOCKED : LOCKED;
}

/* Returns the error for an admin byte that cannot be locked. The text says why: the process that has the lock is
 * stopped, or a process has set a read lock on the byte. */
int fail_admin_taken(int fd, const char *name)
{
	struct flock lock;
	char who[32] = "";

	if (ask(fd, ADMIN_LOCK_OFFSET, &lock, F_WRLCK) != LOCKED || lock.l_type != F_RDLCK)
		return fail(SHMRING_CONTENDED,
			    "ring \"%s\": another process has been joining or recovering for %d s; it is stopped "
			    "(kill -CONT it, or kill it)",
			    name, ADMIN_TIMEOUT_S);
	if (lock.l_pid > 0) /* a lock of a process; a lock of an open file description has no process id */
		snprintf(who, sizeof who, " of process %d", (int)lock.l_pid);
	return fail(
	    SHMRING_CONTENDED,
	    "ring \"%s\": a read lock%s on its file lets nobody join, leave or recover; any user who may read the "
	    "file can set one: end the holder, or give no other user the right to read (mode 0600 or 0660)",
	    name, who);
}

/* --- descriptions ------------------------------------------------------------------ */

/* Opens a file with a descriptor above the standard streams' numbers. If a standard stream is closed, as in
 * daemons, the file would get its number, and a library's log output would go into the ring. */
int open_above_standard(const char *path, int flags)
{
	int fd = open(path, flags, 0600);
	int moved, error;

	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	error = errno;
	close(fd);
	errno = error;
	return moved;
}

static int number_of(uint64_t descriptor)
{
	return (int)(uint32_t)descriptor;
}

bool lock_file_is(const struct lock_file *f, int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_dev == f->device && st.st_ino == f->inode;
}

static bool is_ours(const struct lock_file *f, uint64_t descriptor)
{
	int fd = number_of(descriptor);

	return lseek(fd, 0, SEEK_CUR) == (off_t)(descriptor >> 32) && lock_file_is(f, fd);
}

/* Unmaps a page, and so ends the locks of its open file description. */
void lock_file_drop(void *page)
{
	int error = errno;

	if (page)
		munmap(page, (size_t)sysconf(_SC_PAGESIZE));
	errno = error;
}

static void close_if_ours(const struct lock_file *f, uint64_t descriptor)
{
	int error = errno;

	if (is_ours(f, descriptor))
		close(number_of(descriptor));
	errno = error;
}

/* Marks a new description, so that it is recognised later, and maps its page. */
static bool mark_and_map(const struct lock_file *f, int fd, uint64_t *descriptor, void **page)
{
	uint32_t position;

	if (getrandom(&position, sizeof position, 0) != sizeof position)
		return false;
	position >>= 1; /* 31 bits are left, because every file system allows offsets up to 2 GiB */
	*descriptor = (uint64_t)position << 32 | (uint32_t)fd;
	if (lseek(fd, position, SEEK_SET) != position)
		return false;
	*page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE, MAP_SHARED, fd, 0);
	if (*page == MAP_FAILED)
		*page = NULL;
	if (*page && madvise(*page, (size_t)sysconf(_SC_PAGESIZE), MADV_DONTFORK) == 0 && is_ours(f, *descriptor))
		return true;
	lock_file_drop(*page);
	return false;
}

/* Opens one more description of the file: through /proc while the descriptor is still ours, because the file may
 * have no name; otherwise by name. */
static bool open_again(const struct lock_file *f, uint64_t *descriptor, void **page)
{
	uint64_t old = load_acquire(&f->descriptor);
	char link[32];
	int fd = -1;

	if (is_ours(f, old)) {
		snprintf(link, sizeof link, "/proc/self/fd/%d", number_of(old));
		fd = open_above_standard(link, f->flags & ~O_NOFOLLOW);
	}
	if (fd < 0)
		fd = open_above_standard(f->path, f->flags);
	if (fd < 0)
		return false;
	if (!lock_file_is(f, fd)) {
		close(fd);
		errno = ENOENT;
		return false;
	}
	if (mark_and_map(f, fd, descriptor, page))
		return true;
	if (lock_file_is(f, fd))
		close(fd);
	return false;
}

static int fail_lost(const struct lock_file *f)
{
	return fail(
	    SHMRING_E_SYSTEM,
	    "ring \"%s\": joining, leaving and looking for the dead need its file opened again: %s (%s); if it "
	    "was unlinked, and this process has closed descriptors that others opened, end and attach anew",
	    f->ring ? f->ring->name : f->path, strerror(errno), f->path);
}

/* --- fork --------------------------------------------------------------------- */

static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lock_file *files;

static void before_fork(void)
{
	pthread_mutex_lock(&files_lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&files_lock);
}

static void after_fork_child(void)
{
	for (struct lock_file *f = files; f; f = f->next) {
		close_if_ours(f, f->descriptor);
		f->descriptor = LOST;
		if (f->ring)
			f->ring->owned = f->ring->owner = 0;
	}
	files = NULL;
	pthread_mutex_unlock(&files_lock);
}

static void register_fork_handlers(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* --- a handle's file ------------------------------------------------------------ */

static char *absolute(const char *path)
{
	char *resolved = realpath(path, NULL);

	return resolved ? resolved : strdup(path);
}

/* Opens and records the file in one step, so that no child forked meanwhile keeps
 * it open: locks that were set through it would outlive this process. */
struct lock_file *lock_file_open(shmring *ring, const char *path, int flags)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct lock_file *f = calloc(1, sizeof *f);
	struct stat st;
	int fd, error;

	if (!f)
		return NULL;
	f->path = absolute(path);
	f->flags = flags;
	f->ring = ring;
	f->descriptor = LOST;
	pthread_once(&once, register_fork_handlers);
	pthread_mutex_lock(&files_lock);
	fd = f->path ? open_above_standard(path, flags) : -1;
	if (fd >= 0 && fstat(fd, &st) == 0) {
		f->device = st.st_dev;
		f->inode = st.st_ino;
		if (mark_and_map(f, fd, &f->descriptor, &f->page)) {
			pthread_mutex_init(&f->section, NULL);
			f->next = files;
			files = f;
			pthread_mutex_unlock(&files_lock);
			return f;
		}
	}
	error = errno;
	if (fd >= 0 && lock_file_is(f, fd))
		close(fd);
	pthread_mutex_unlock(&files_lock);
	free(f->path);
	free(f);
	errno = error;
	return NULL;
}

/* Removes the file from `files` and closes it in one step. So a child that is forked meanwhile
 * neither keeps the file open nor closes another file that has got its number. */
void lock_file_close(struct lock_file *f)
{
	pthread_mutex_lock(&files_lock);
	close_if_ours(f, f->descriptor);
	lock_file_drop(f->page);
	for (struct lock_file **p = &files; *p; p = &(*p)->next)
		if (*p == f) {
			*p = f->next;
			break;
		}
	pthread_mutex_unlock(&files_lock);
	pthread_mutex_destroy(&f->section);
	free(f->path);
	free(f);
}

/* Closes the file in a forked child. It does not unmap the page: the child does not have the page, and
 * other memory may lie at its address. It neither locks nor frees: if the child was made without fork
 * handlers (clone, _Fork), another thread of the parent may have held malloc's or this file's mutex. */
void lock_file_forget(struct lock_file *f)
{
	close_if_ours(f, f->descriptor);
	f->descriptor = LOST;
	f->ring = NULL;
}

int lock_file_number(const struct lock_file *f)
{
	uint64_t descriptor = load_acquire(&f->descriptor);

	return is_ours(f, descriptor) ? number_of(descriptor) : -1;
}

bool lock_file_removed(const struct lock_file *f, bool *remade)
{
	int fd = lock_file_number(f);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) || st.st_nlink)
		return false;
	*remade = lstat(f->path, &st) == 0;
	return true;
}

/* Sets the name by which the file can be opened again. */
void lock_file_name(struct lock_file *f, const char *path)
{
	char *name = absolute(path);

	pthread_mutex_lock(&files_lock);
	free(f->path);
	f->path = name;
	pthread_mutex_unlock(&files_lock);
}

/* Opens the file again after its descriptor was lost. Unmaps the old page, which ends all locks that were set
 * through the lost descriptor. Therefore a caller must not be at work under the admin lock. The caller has locked
 * the mutex `section`. */
static bool find_again(struct lock_file *f)
{
	uint64_t descriptor;
	void *page;
	bool found;

	pthread_mutex_lock(&files_lock);
	found = open_again(f, &descriptor, &page);
	lock_file_drop(f->page);
	f->page = found ? page : NULL;
	/* Pairs with load_acquire() in functions that read the descriptor without locking the mutex `section`. */
	store_release(&f->descriptor, found ? descriptor : LOST);
	pthread_mutex_unlock(&files_lock);
	return found;
}

/* --- the admin byte -------------------------------------------------------------- */

static int lock_in_section(struct lock_file *f)
{
	for (int attempt = 0; attempt < 2; attempt++) {
		if (is_ours(f, f->descriptor)) {
			bool locked = lock_byte(number_of(f->descriptor), ADMIN_LOCK_OFFSET);

			if (is_ours(f, f->descriptor))
				return locked ? SHMRING_OK : SHMRING_CONTENDED;
		}
		/* The descriptor is lost. find_again() opens another, and drops a lock that was set through the
		 * lost one. The loop makes a second attempt, because the new descriptor may be lost, too. */
		if (!find_again(f) && errno != EBADF)
			return fail_lost(f);
	}
	return SHMRING_CONTENDED;
}

/* Sets `given_up` in all handles of this process that have the same file open. */
void lock_file_set_given_up(const struct lock_file *of, bool given_up)
{
	pthread_mutex_lock(&files_lock);
	for (struct lock_file *f = files; f; f = f->next)
		if (f->device == of->device && f->inode == of->inode)
			store_relaxed(&f->given_up, given_up);
	pthread_mutex_unlock(&files_lock);
}

bool lock_file_given_up(const struct lock_file *f)
{
	return load_relaxed(&f->given_up);
}

int lock_file_enter(struct lock_file *f)
{
	int status;

	if (pthread_mutex_trylock(&f->section))
		return SHMRING_CONTENDED;
	status = lock_in_section(f);
	if (status)
		pthread_mutex_unlock(&f->section);
	else if (load_relaxed(&f->given_up))
		lock_file_set_given_up(f, false);
	return status;
}

void lock_file_leave(struct lock_file *f)
{
	if (is_ours(f, f->descriptor))
		unlock_byte(number_of(f->descriptor), ADMIN_LOCK_OFFSET);
	if (!is_ours(f, f->descriptor)) { /* the descriptor was lost meanwhile: the lock ends with the page */
		lock_file_drop(f->page);
		f->page = NULL;
	}
	pthread_mutex_unlock(&f->section);
}

/* --- seats' bytes ------------------------------------------------------------------- */

/* Returns true if the byte is locked for writing, or this process cannot find out. */
bool lock_file_locked(struct lock_file *f, off_t offset)
{
	for (int attempt = 0; attempt < 2; attempt++) {
		uint64_t descriptor = load_acquire(&f->descriptor);
		struct flock lock;
		/* F_RDLCK conflicts with write locks only. Read locks do not count, because a user who may only
		 * read the file can set them. */
		enum answer answer = ask(number_of(descriptor), offset, &lock, F_RDLCK);

		if (answer == LOCKED)
			return true;
		/* Ask only now whether the descriptor is ours: the program may have closed it before ask() used
		 * it. */
		if (answer == UNLOCKED && is_ours(f, descriptor))
			return false;
		/* Do not wait for the mutex `section`, because this thread itself may have locked it already. */
		if (pthread_mutex_trylock(&f->section))
			break;
		if (!is_ours(f, f->descriptor))
			(void)find_again(f);
		pthread_mutex_unlock(&f->section);
	}
	return true; /* an unknown answer is no proof of death */
}

/* Locks a byte for as long as *page is mapped. Returns SHMRING_UNAVAILABLE if another handle has the lock. */
int lock_file_hold(const struct lock_file *f, off_t offset, void **page)
{
	uint64_t descriptor = load_acquire(&f->descriptor);
	struct flock lock;
	int status = SHMRING_OK;

	/* Ask first, because asking is cheaper than opening the file again and trying to lock the byte. */
	if (ask(number_of(descriptor), offset, &lock, F_WRLCK) == LOCKED)
		return SHMRING_UNAVAILABLE;
	pthread_mutex_lock(&files_lock);
	if (!open_again(f, &descriptor, page)) {
		status = fail_lost(f);
	} else {
		if (!lock_byte(number_of(descriptor), offset) || !is_ours(f, descriptor)) {
			lock_file_drop(*page);
			status = SHMRING_UNAVAILABLE;
		}
		close_if_ours(f, descriptor);
	}
	pthread_mutex_unlock(&files_lock);
	return status;
}
