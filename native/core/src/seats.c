/* Seats and the admin lock.
 *
 * A seat is taken under the admin lock: lock its byte, fill it in, and set its
 * state last.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "locks.h"
#include "seats.h"

/* Joins, leaves and recovery take microseconds; a process that holds the admin lock
 * for longer is stopped (SIGSTOP, a debugger), not dead. */
#define ADMIN_TIMEOUT_NS (5 * 1000 * 1000 * 1000LL)
/* For a close in a process that has waited that long in vain before: a short wait. */
#define LEAVING_TIMEOUT_NS (1000 * 1000LL)
#define NAP_NS 50000

static off_t seat_offset(const shmring *r, uint32_t index)
{
	return (off_t)(r->header.seats_offset + (uint64_t)index * sizeof(struct seat));
}

/* The byte behind a seat's. */
static off_t seatless_offset(const shmring *r, uint32_t index)
{
	return seat_offset(r, index) + 1;
}

bool seat_alive(const shmring *r, uint32_t index)
{
	return seat_is_own(r, index) || lock_file_locked(r->locks, seat_offset(r, index));
}

/* Whether the owner that was read, with its time of joining, is dead. A seat that is given back is
 * free before it is unlocked (seat_give_back): without the admin lock, only a seat that is seen
 * unlocked first and in use afterwards, by the same owner, is a dead one's. */
bool seat_died(const shmring *r, uint32_t index, uint64_t joined_ns)
{
	const struct seat *s = &r->seats[index];

	return !seat_alive(r, index) && load_acquire(&s->id.state) == SEAT_ACTIVE &&
	       load_relaxed(&s->id.joined_ns) == joined_ns;
}

/* --- the admin lock --------------------------------------------------------- */

bool admin_try(shmring *r)
{
	return lock_file_enter(r->locks) == SHMRING_OK;
}

/* A handle can leave without the lock, as if its process had died. While a stopped process has
 * the lock, a wait for it is worth it once for all handles of a process, not for each. */
bool admin_is_worth_waiting(const shmring *r, int64_t since_ns, bool leaving)
{
	bool briefly = leaving && lock_file_given_up(r->locks);

	if (monotonic() - since_ns <= (briefly ? LEAVING_TIMEOUT_NS : ADMIN_TIMEOUT_NS))
		return true;
	lock_file_give_up(r->locks);
	return false;
}

static int enter(shmring *r, bool leaving)
{
	int64_t start = monotonic();
	int status;

	while ((status = lock_file_enter(r->locks)) == SHMRING_CONTENDED) {
		if (!admin_is_worth_waiting(r, start, leaving))
			return fail_admin_taken(lock_file_number(r->locks), r->name);
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	return status;
}

int admin_enter(shmring *r)
{
	return enter(r, false);
}

int admin_enter_to_leave(shmring *r)
{
	return enter(r, true);
}

void admin_leave(shmring *r)
{
	lock_file_leave(r->locks);
}

/* --- seats ------------------------------------------------------------------- */

struct process {
	char state;
	uint64_t start_time;
};

/* A process is in many seats, and the kernel takes 6 us to say its state: a listing, from seat 0 on
 * one after the other, asks it once for each process. */
#define LISTED 64
static _Thread_local struct {
	const shmring *ring;
	uint32_t next;
	uint32_t round; /* another one for each listing, and for who asks for single seats */
	struct {
		uint32_t pid;
		uint32_t round;
		struct process process;
	} seen[LISTED];
} listing = {.round = 1};

/* Reads /proc/PID/stat; without a state if there is no such process. */
static struct process read_process(const char *pid)
{
	struct process found = {0};
	char text[1024];
	const char *p;
	ssize_t n;
	int fd;

	snprintf(text, sizeof text, "/proc/%s/stat", pid);
	fd = open(text, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return found;
	n = read(fd, text, sizeof text - 1); /* the kernel gives all of it at once */
	close(fd);
	text[n > 0 ? n : 0] = 0;
	p = strrchr(text, ')'); /* the command may hold anything */
	if (p && p[1] == ' ')
		found.state = p[2];
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	if (p)
		found.start_time = strtoull(p + 1, NULL, 10);
	return found;
}

static struct process process_of(const struct seat *s)
{
	char pid[16];

	snprintf(pid, sizeof pid, "%u", load_relaxed(&s->id.pid));
	return read_process(pid);
}

/* The number may be another process's here, which began at another time. */
static bool is_stopped(const struct seat *s, struct process found)
{
	return (found.state == 'T' || found.state == 't') && found.start_time == load_relaxed(&s->id.start_time);
}

/* Is it stopped by SIGSTOP, a terminal or a debugger? It lives then, and keeps its holds until it is
 * continued or killed. */
bool seat_stopped(const shmring *r, uint32_t seat)
{
	return is_stopped(&r->seats[seat], process_of(&r->seats[seat]));
}

void seat_listed(const shmring *r, uint32_t seat)
{
	if (listing.ring != r || listing.next != seat)
		listing.round++;
	listing.ring = r;
	listing.next = seat + 1;
}

bool seat_listed_stopped(const shmring *r, uint32_t seat)
{
	const struct seat *s = &r->seats[seat];
	uint32_t pid = load_relaxed(&s->id.pid);
	uint32_t at = pid % LISTED;

	if (listing.seen[at].pid != pid || listing.seen[at].round != listing.round) {
		listing.seen[at].pid = pid;
		listing.seen[at].round = listing.round;
		listing.seen[at].process = process_of(s);
	}
	return is_stopped(s, listing.seen[at].process);
}

static void zero(uint64_t *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store_relaxed(&words[i], 0);
}

/* Others read a seat at any time: every store is an atomic one. */
static void seat_reset(struct seat *s)
{
	store_release(&s->intent.lo, NONE);
	store_relaxed(&s->intent.n, 0);
	store_release(&s->lease.hold, NONE);
	store_relaxed(&s->lease.take_lo, NONE);
	store_release(&s->lease.take_end, 0);
	store_relaxed(&s->lease.adopt_from, 0);
	for (int k = 0; k < LEASES; k++)
		store_relaxed(&s->range[k].lo, NONE);
	zero((uint64_t *)&s->counters, sizeof s->counters / sizeof(uint64_t));
	zero((uint64_t *)&s->later, sizeof s->later / sizeof(uint64_t));
	store_relaxed(&s->waits, WAIT_NONE);
}

/* A seat without an owner: for an orphan without a dead consumer. */
void seat_prepare(struct seat *s, uint32_t branch)
{
	seat_reset(s);
	store_relaxed(&s->id.role, ROLE_CONSUMER);
	store_relaxed(&s->id.branch, branch);
	store_relaxed(&s->id.pid, 0);
	store_relaxed(&s->id.start_time, 0);
	store_relaxed(&s->id.joined_ns, now_ns(CLOCK_REALTIME));
	name_store(s->id.name, "", sizeof s->id.name);
}

void name_store(char *to, const char *name, size_t size)
{
	size_t n = strnlen(name, size - 1);

	for (size_t i = 0; i < size; i++)
		store_relaxed(&to[i], i < n ? name[i] : 0);
}

void name_load(char *to, const char *from, size_t size)
{
	for (size_t i = 0; i < size; i++)
		to[i] = i < size - 1 ? load_relaxed(&from[i]) : 0;
}

static void seat_name(struct seat *s, const char *name)
{
	store_relaxed(&s->id.joined_ns, now_ns(CLOCK_REALTIME));
	name_store(s->id.name, name ? name : "", sizeof s->id.name);
}

/* Changes the role of an own seat, which is in use before and after. The role changes
 * last: a process that dies before is settled in the old role, and a consumer always
 * has a branch on which it is settled. */
static void seat_turn(struct seat *s, uint32_t role, const char *name, uint32_t branch)
{
	seat_reset(s);
	seat_name(s, name);
	store_relaxed(&s->id.branch, branch);
	crash_order();
	store_relaxed(&s->id.role, role);
}

/* Lends the handle's own seat to one of its producers or consumers, if no other has it. */
bool seat_lend(shmring *r, uint32_t role, const char *name, uint32_t branch, uint32_t *index)
{
	uint32_t own = load_relaxed(&r->seat);

	if (own == NOBODY || r->lent)
		return false;
	seat_turn(&r->seats[own], role, name, branch);
	r->lent = true;
	*index = own;
	return true;
}

/* Takes a free seat. SHMRING_UNAVAILABLE: there is none, or only `*barred` seats on
 * which other processes hold a lock. */
int seat_try(shmring *r, uint32_t role, const char *name, uint32_t branch, uint32_t *index, uint32_t *barred)
{
	uint32_t found = NOBODY;
	void *page = NULL;
	int status = SHMRING_UNAVAILABLE;
	struct seat *s;

	*barred = 0;
	for (uint32_t i = 0; i < r->seat_count && status == SHMRING_UNAVAILABLE; i++) {
		if (load_relaxed(&r->seats[i].id.state) != SEAT_FREE || seat_is_own(r, i))
			continue;
		status = lock_file_hold(r->locks, seat_offset(r, i), &page);
		if (status == SHMRING_OK)
			found = i;
		else
			++*barred;
	}
	if (status)
		return status;
	s = &r->seats[found];
	seat_reset(s);
	store_relaxed(&s->id.role, role);
	store_relaxed(&s->id.branch, branch);
	store_relaxed(&s->id.pid, (uint32_t)getpid());
	store_relaxed(&s->id.start_time, read_process("self").start_time);
	seat_name(s, name);
	store_relaxed(&r->held[found], page);
	/* Pairs with the acquire of the seat's readers. */
	store_release(&s->id.state, SEAT_ACTIVE);
	*index = found;
	return SHMRING_OK;
}

/* A seat whose byte is locked is not taken, and a free one is not searched for the dead: so
 * the state changes first. A lent seat is the handle's again. */
void seat_give_back(shmring *r, uint32_t index)
{
	if (r->lent && index == load_relaxed(&r->seat)) {
		seat_turn(&r->seats[index], ROLE_ATTACHED, ATTACHED_NAME, 0);
		r->lent = false;
		return;
	}
	store_release(&r->seats[index].id.state, SEAT_FREE);
	seat_abandon(r, index);
}

/* Whether a handle lives without a seat: gc asks this after the seats themselves, as a
 * handle that gives its seat up takes such a byte first. */
bool handle_seatless(const shmring *r)
{
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (lock_file_locked(r->locks, seatless_offset(r, i)))
			return true;
	return false;
}

static void live_without_seat(shmring *r)
{
	store_relaxed(&r->seat, NOBODY);
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (lock_file_hold(r->locks, seatless_offset(r, i), &r->seatless) == SHMRING_OK)
			return;
	r->seatless = NULL;
}

/* Makes this the handle's own seat. */
void handle_seated(shmring *r, uint32_t index, bool lent)
{
	r->lent = lent;
	store_relaxed(&r->seat, index);
	lock_file_drop(r->seatless);
	r->seatless = NULL;
}

/* From now on the seat counts as a dead process's, for this handle too. A handle that
 * cannot get the admin lock leaves this way, without the lock. */
void seat_abandon(shmring *r, uint32_t index)
{
	void *page = load_relaxed(&r->held[index]);

	if (index == load_relaxed(&r->seat))
		live_without_seat(r);
	store_relaxed(&r->held[index], NULL);
	lock_file_drop(page);
}
