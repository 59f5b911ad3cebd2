/* Lock bytes, the files that hold them, and what happens to both at fork.
 *
 * A byte stays locked as long as the open file description lives, which is as
 * long as any process has a descriptor of it: a forked child closes its copies
 * at once (below), or it would keep the parent alive.
 */
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "internal.h"

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

bool byte_locked(int fd, off_t offset)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1};

	/* Not being told is no proof of death. */
	return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
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
		f->forked = true;
		close(f->fd);
		f->fd = -1; /* its number will be somebody else's */
	}
	files = NULL;
	pthread_mutex_unlock(&files_lock);
}

static void register_fork_handlers(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* Opens and remembers the file in one step, so that no child forked meanwhile
 * keeps it open: the locks would outlive this process. */
bool lock_file_open(struct lock_file *f, const char *path, int flags)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_fork_handlers);
	pthread_mutex_lock(&files_lock);
	f->fd = open(path, flags, 0600);
	if (f->fd >= 0) {
		f->next = files;
		files = f;
	}
	pthread_mutex_unlock(&files_lock);
	return f->fd >= 0;
}

/* Forgets and closes the file in one step, so that a child forked meanwhile
 * neither keeps it open nor closes another one's number. */
void lock_file_close(struct lock_file *f)
{
	pthread_mutex_lock(&files_lock);
	if (!f->forked)
		close(f->fd);
	for (struct lock_file **p = &files; *p; p = &(*p)->next)
		if (*p == f) {
			*p = f->next;
			break;
		}
	pthread_mutex_unlock(&files_lock);
}
