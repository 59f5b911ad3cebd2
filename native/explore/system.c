/* Makes the ring of an exploration, and stands in for the system beneath the core. */
#include <linux/futex.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "core.h"
#include "path.h"

enum { SEATS_OFFSET = 4096 };

/* --- memory ------------------------------------------------------------------------- */

/* Before the case, the BEFORE handle allocates the consumers of all actors. */
static_assert(HEAP >= THREADS * ((sizeof(struct shmring_consumer) + CELL - 1) / CELL * CELL), "heap");

static void *take_memory(size_t size)
{
	int owner = explore_is_on() ? explore_thread() : world.outsider;
	void *p = memory.heap[owner] + world.heap_used[owner];

	world.heap_used[owner] += (uint32_t)((size + CELL - 1) / CELL * CELL);
	MUST(world.heap_used[owner] <= HEAP);
	return p;
}

void *explore_malloc(size_t size)
{
	return take_memory(size);
}

void *explore_calloc(size_t n, size_t size)
{
	void *p = take_memory(n * size);

	memset(p, 0, n * size);
	return p;
}

void *explore_aligned_alloc(size_t alignment, size_t size)
{
	(void)alignment;
	return take_memory(size);
}

/* Frees nothing: no case allocates so much that it would matter. */
void explore_free(void *p)
{
	(void)p;
}

/* --- locks, in place of locks.c ------------------------------------------------------- */

struct lock_file {
	uint64_t me; /* value of a lock while this handle holds it */
};

static struct lock_file lock_files[HANDLES];

bool lock_file_given_up(const struct lock_file *f)
{
	(void)f;
	return false;
}

void lock_file_set_given_up(const struct lock_file *f, bool given_up)
{
	(void)f;
	(void)given_up;
}

int lock_file_enter(struct lock_file *f)
{
	uint64_t nobody = 0;

	return cas_of_kernel(&memory.lock[SMALL_SEATS], &nobody, f->me) ? SHMRING_OK : SHMRING_CONTENDED;
}

void lock_file_leave(struct lock_file *f)
{
	MUST(load_relaxed(&memory.lock[SMALL_SEATS]) == f->me);
	store_release(&memory.lock[SMALL_SEATS], 0);
}

static uint64_t *lock_at(off_t offset)
{
	return &memory.lock[(size_t)(offset - SEATS_OFFSET) / sizeof(struct seat)];
}

bool lock_file_locked(struct lock_file *f, off_t offset)
{
	(void)f;
	EXPLORE_ACCESS("kernel", "lock", ACQUIRE);

	return explore_kernel_load(lock_at(offset), 8, &explore_here) != 0;
}

int lock_file_hold(const struct lock_file *f, off_t offset, void **page)
{
	uint64_t nobody = 0;

	*page = NULL;
	if ((offset - SEATS_OFFSET) % (off_t)sizeof(struct seat)) /* a lock that only gc tests */
		return SHMRING_UNAVAILABLE;
	*page = lock_at(offset);
	return cas_of_kernel(lock_at(offset), &nobody, f->me) ? SHMRING_OK : SHMRING_UNAVAILABLE;
}

void lock_file_drop(void *page)
{
	if (page)
		store_release((uint64_t *)page, 0);
}

/* Functions that need the ring's file: an explored ring has none. */

int open_above_standard(const char *path, int flags)
{
	(void)path;
	(void)flags;
	return -1;
}

struct lock_file *lock_file_open(shmring *ring, const char *path, int flags)
{
	(void)ring;
	(void)path;
	(void)flags;
	return NULL;
}

void lock_file_close(struct lock_file *f)
{
	(void)f;
}

/* Does nothing: time stands still, and what contention.c remembers would make equal states differ. */
void keep_out(struct contention *contention, uint64_t messages)
{
	(void)contention;
	(void)messages;
}

void lock_file_forget(struct lock_file *f)
{
	(void)f;
}

void lock_file_name(struct lock_file *f, const char *path)
{
	(void)f;
	(void)path;
}

int lock_file_number(const struct lock_file *f)
{
	(void)f;
	return -1;
}

bool lock_file_is(const struct lock_file *f, int fd)
{
	(void)f;
	(void)fd;
	return false;
}

bool lock_file_removed(const struct lock_file *f, bool *remade)
{
	(void)f;
	(void)remade;
	return false;
}

bool lock_byte(int fd, off_t offset)
{
	(void)fd;
	(void)offset;
	return false;
}

void unlock_byte(int fd, off_t offset)
{
	(void)fd;
	(void)offset;
}

int fail_admin_taken(int fd, const char *name)
{
	(void)fd;
	(void)name;
	return SHMRING_CONTENDED;
}

/* --- sleep and time ------------------------------------------------------------------------ */

/* Sleeps on n words. Like the kernel, queues the thread on one word after the other; from then on, a wake-up of
 * that word reaches it. A sleep without a deadline has no end, so a lost wake-up leaves its thread waiting. */
static long sleep_on(uint32_t **word, const uint32_t *value, uint32_t n)
{
	EXPLORE_ACCESS("kernel", "futex", ACQUIRE);

	for (uint32_t i = 0; i < n; i++) {
		bool woken;

		if (explore_kernel_load(word[i], sizeof *word[i], &explore_here) == value[i]) {
			explore_queue_on(word[i]);
			continue;
		}
		woken = explore_is_woken(i);
		explore_leave_queues();
		errno = EAGAIN;
		return woken ? 0 : -1;
	}
	if (explore_sleep_queued(n))
		return 0;
	errno = ETIMEDOUT;
	return -1;
}

/* struct futex_waitv, like the copy in wait_any.c */
struct word {
	uint64_t value, address;
	uint32_t flags, reserved;
};

long explore_syscall(long number, ...)
{
	uint32_t *word[SLEEPS], value[SLEEPS], n = 1;
	va_list args;
	int operation;

	va_start(args, number);
	if (number == SYS_futex_waitv) {
		const struct word *words = va_arg(args, const struct word *);

		n = va_arg(args, uint32_t);
		va_end(args);
		MUST(n <= SLEEPS);
		for (uint32_t i = 0; i < n; i++) {
			word[i] = (uint32_t *)(uintptr_t)words[i].address;
			value[i] = (uint32_t)words[i].value;
		}
		errno = EINVAL;
		if (n == 0)
			return -1;
		fence_seq_cst();
		return sleep_on(word, value, n);
	}
	MUST(number == SYS_futex);
	fence_seq_cst(); /* for sleepers and wakers: before the kernel looks at the word or at its queue */
	word[0] = va_arg(args, uint32_t *);
	operation = va_arg(args, int);
	value[0] = va_arg(args, uint32_t);
	va_end(args);
	if (operation != FUTEX_WAKE)
		return sleep_on(word, value, 1);
	explore_wake(word[0], value[0]);
	return 0;
}

bool asymmetric_barriers_available(void)
{
	return true;
}

/* Waits for the admin lock, because the core naps only after it has found that lock taken. */
int explore_sleep(const struct timespec *time, struct timespec *left)
{
	(void)time;
	(void)left;
	explore_wait_for(&memory.lock[SMALL_SEATS]);
	return 0;
}

int explore_clock(int clock, struct timespec *time)
{
	(void)clock;
	*time = (struct timespec){.tv_nsec = explore_is_late() ? EXPLORE_DEADLINE_NS : 0};
	return 0;
}

FILE *explore_fopen(const char *path, const char *mode)
{
	(void)path;
	(void)mode;
	return NULL;
}

/* --- the ring ----------------------------------------------------------------------------------- */

static void handle_make(int i, const struct exploration *e)
{
	shmring *r = &handles[i];

	*r = (shmring){
	    .owned = 1,
	    .header = {.seats_offset = SEATS_OFFSET},
	    .cursors = &memory.cursors,
	    .seats = memory.seats,
	    .control = memory.control,
	    .slots = memory.slots,
	    .capacity = e->slots,
	    .mask = e->slots - 1,
	    .seat_count = SMALL_SEATS,
	    .options = e->options | (explore_fences ? OPT_FENCES : 0) | OPT_CLOCK_OFF,
	    .asymmetric = !explore_fences,
	    .locks = &lock_files[i],
	    .seat = NOBODY,
	    .name = "explored",
	};
	lock_files[i].me = (uint64_t)i + 1;
}

/* CHANGE: edit this for a new version of the layout */
void world_make(const struct exploration *e)
{
	memset(&memory, 0, sizeof memory);
	memset(&world, 0, sizeof world);
	store_relaxed(&memory.cursors.producers.wanted, NONE);
	for (int i = 0; i < SMALL_SEATS; i++) {
		memory.seats[i].intent.lo = NONE;
		memory.seats[i].lease.hold = NONE;
		for (int k = 0; k < LEASES; k++)
			memory.seats[i].range[k].lo = NONE;
	}
	world.outsider = BEFORE;
	for (int i = 0; i < HANDLES; i++)
		handle_make(i, e);
	e->before();
}
