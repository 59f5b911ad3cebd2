/* The ring of an exploration, and the system beneath the core. */
#include <linux/futex.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "explore.h"

enum { FIRST_FD = 1000, SEATS_OFFSET = 4096 };

/* --- memory ------------------------------------------------------------------------- */

static void *take_memory(size_t size)
{
	int owner = explore_is_on() ? explore_thread() : world.outsider;
	void *p = world.heap[owner] + world.heap_used[owner];

	world.heap_used[owner] += (uint32_t)((size + CELL - 1) / CELL * CELL);
	MUST(world.heap_used[owner] <= HEAP);
	return p;
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

/* Nobody allocates so often that it would matter. */
void explore_free(void *p)
{
	(void)p;
}

/* --- locks ---------------------------------------------------------------------------- */

int explore_fcntl(int fd, int command, struct flock *lock)
{
	size_t i = lock->l_start == ADMIN_LOCK_OFFSET
		       ? SMALL_SEATS
		       : (size_t)(lock->l_start - SEATS_OFFSET) / sizeof(struct seat);
	uint64_t *holder = &memory.lock[i];
	uint64_t me = (uint64_t)(fd - FIRST_FD) + 1;
	uint64_t free_lock = 0;

	if (command == F_OFD_GETLK) {
		uint64_t who = load_relaxed(holder);

		lock->l_type = who && who != me ? F_WRLCK : F_UNLCK;
		return 0;
	}
	if (lock->l_type == F_UNLCK) {
		if (load_relaxed(holder) == me)
			store_relaxed(holder, 0);
		return 0;
	}
	if (cas_seq_cst(holder, &free_lock, me) || free_lock == me)
		return 0;
	errno = EAGAIN;
	return -1;
}

/* --- sleep and time ------------------------------------------------------------------------ */

/* Sleeps have no end: a wake-up that is lost leaves its thread waiting. */
long explore_syscall(long number, ...)
{
	va_list args;
	uint32_t *word;
	int operation;
	uint32_t value;

	MUST(number == SYS_futex);
	va_start(args, number);
	word = va_arg(args, uint32_t *);
	operation = va_arg(args, int);
	value = va_arg(args, uint32_t);
	va_end(args);
	if (operation == FUTEX_WAKE) {
		explore_wake(word);
		return 0;
	}
	if (load_relaxed(word) == value)
		explore_sleep_on(word);
	return 0;
}

/* Only who has found the admin lock taken naps. */
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
	*time = (struct timespec){0};
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
	    .header = {.seats_offset = SEATS_OFFSET},
	    .cursors = &memory.cursors,
	    .seats = memory.seats,
	    .control = memory.control,
	    .slots = memory.slots,
	    .capacity = e->slots,
	    .mask = e->slots - 1,
	    .log2_capacity = (unsigned)__builtin_ctz(e->slots),
	    .seat_count = SMALL_SEATS,
	    .options = e->options | OPT_FENCES | OPT_CLOCK_OFF,
	    .locks.fd = FIRST_FD + i,
	    .seat = NOBODY,
	    .name = "explored",
	};
	pthread_mutex_init(&r->admin, NULL);
}

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
