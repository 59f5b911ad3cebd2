/* Seats and the admin lock.
 *
 * A process takes a seat under the admin lock: it locks the seat's byte, fills
 * the seat in, and sets the seat's state last.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

/* Time that a close waits for the admin lock, if this process has already waited ADMIN_TIMEOUT_NS in vain. The
 * time is short, because a stopped process probably still has the lock. */
#define LEAVING_TIMEOUT_NS (1000 * 1000LL)
#define NAP_NS 50000
/* One second. If the clock was set back by less than this, time_of_joining() returns the last owner's time plus
 * one, because the clock will soon be past that time. If the clock was set back by more, time_of_joining() returns
 * the clock's time. */
#define SET_BACK_NS UINT64_C(1000000000)

static off_t seat_offset(const shmring *r, uint32_t index)
{
	return (off_t)(r->header.seats_offset + (uint64_t)index * sizeof(struct seat));
}

/* Returns the file offset of the lock byte after the lock byte of seat `index`. A handle without a seat locks any
 * one of these bytes, see handle_without_seat(). */
static off_t seatless_offset(const shmring *r, uint32_t index)
{
	return seat_offset(r, index) + 1;
}

bool seat_alive(const shmring *r, uint32_t index)
{
	return seat_is_own(r, index) || lock_file_locked(r->locks, seat_offset(r, index));
}

/* --- the admin lock --------------------------------------------------------- */

bool admin_try(shmring *r)
{
	return lock_file_enter(r->locks) == SHMRING_OK;
}

/* Returns true if a caller that has waited for the admin lock since `since_ns` should wait on. After one
 * long wait in vain, a process that closes more handles waits only briefly for each: a stopped process
 * probably has the lock, and a handle can also leave without the lock, as if its process had died. */
bool admin_is_worth_waiting(const shmring *r, int64_t since_ns, bool leaving)
{
	bool briefly = leaving && lock_file_given_up(r->locks);

	if (monotonic() - since_ns <= (briefly ? LEAVING_TIMEOUT_NS : ADMIN_TIMEOUT_NS))
		return true;
	lock_file_set_given_up(r->locks, true);
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

/* Reads /proc/PID/stat; `state` is 0 if there is no process with this id. */
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
	n = read(fd, text, sizeof text - 1); /* the kernel returns the whole file at once */
	close(fd);
	text[n > 0 ? n : 0] = 0;
	p = strrchr(text, ')'); /* the last ')' ends the command's name, which may have any characters */
	if (p && p[1] == ' ')
		found.state = p[2];
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	if (p)
		found.start_time = strtoull(p + 1, NULL, 10);
	return found;
}

/* Returns true if the owner is stopped by SIGSTOP, a terminal or a debugger. A stopped owner is alive, and keeps
 * its holds until it is continued or killed. The start times are compared because the process id may belong to
 * another process in this pid namespace. */
bool seat_stopped(const struct seat_owner *owner)
{
	struct process found;
	char pid[16];

	snprintf(pid, sizeof pid, "%u", owner->pid);
	found = read_process(pid);
	return (found.state == 'T' || found.state == 't') && found.start_time == owner->start_time;
}

/* --- a seat read by others ----------------------------------------------------- */

/* Maximum number of attempts to read a seat. An attempt fails if the seat's owner changes meanwhile. After so many
 * failures the seat counts as free: owners do not change that fast, so only stray writes can be the reason. */
#define READINGS 16

static struct seat_owner owner_of(const struct seat *s)
{
	struct seat_owner owner = {
	    /* Pairs with the release in seat_try(): all later reads see this owner's words, or a later owner's. */
	    .state = load_acquire(&s->id.state),
	    /* Pairs with the release in seat_fill() and seat_turn(), which store the time last: a reader that
	     * sees an owner's time sees everything that the owner wrote before. */
	    .joined_ns = load_acquire(&s->id.joined_ns),
	};

	owner.pid = load_relaxed(&s->id.pid);
	owner.start_time = load_relaxed(&s->id.start_time);
	return owner;
}

/* Returns true if everything that was read since owner_of() belongs to this owner. The fence pairs with
 * the fence of each new owner before its first store. So if the caller has read a word of a new owner, the
 * reads here find that the seat was free in between, or find the new owner's time of joining. */
static bool seat_is_still_of(const struct seat *s, const struct seat_owner *owner)
{
	struct seat_owner now;

	fence_acquire();
	now = owner_of(s);
	return now.state == owner->state && now.joined_ns == owner->joined_ns && now.pid == owner->pid &&
	       now.start_time == owner->start_time;
}

/* CHANGE: edit this for a new counter that each participant has */
static void read_words(const struct seat *s, struct shmring_participant_info *info)
{
	info->role = load_relaxed(&s->id.role);
	info->branch = load_relaxed(&s->id.branch);
	info->claim = load_relaxed(&s->intent.lo);
	info->hold = load_relaxed(&s->lease.hold);
	info->messages = load_relaxed(&s->counters.messages);
	info->bytes = load_relaxed(&s->counters.bytes);
	info->full_waits = load_relaxed(&s->counters.full_waits);
	info->empty_waits = load_relaxed(&s->counters.empty_waits);
	info->contended = load_relaxed(&s->counters.contended);
	info->recovered = load_relaxed(&s->counters.recovered);
	info->overrun = load_relaxed(&s->counters.overrun);
	info->dropped = load_relaxed(&s->counters.dropped);
	info->redelivered = load_relaxed(&s->counters.redelivered);
	info->synced_ns = load_relaxed(&s->counters.synced_ns);
	info->deliveries = 0;
	info->most_delivered = NONE;
	for (int k = 0; k < LEASES; k++) {
		uint64_t lo = load_relaxed(&s->range[k].lo);
		uint32_t deliveries = RANGE_BEFORE(load_relaxed(&s->range[k].hi)) + 1;

		if (lo != NONE && deliveries > info->deliveries) {
			info->deliveries = deliveries;
			info->most_delivered = lo;
		}
	}
	name_load(info->name, s->id.name, sizeof info->name);
}

/* Reads a seat from the file again, if the ring was read into private memory (copy_ring()): the private copy does
 * not show that a seat's owner has left since then. */
static void seat_copy(const shmring *r, uint32_t index)
{
	struct seat now;

	if (pread(lock_file_number(r->locks), &now, sizeof now, seat_offset(r, index)) == sizeof now)
		r->seats[index] = now;
}

/* Reads all words of one owner of a seat, without the admin lock; it does not find out whether the owner is
 * stopped. A seat whose owner changes during each of READINGS attempts counts as free. An owner that gives its
 * seat back marks the seat free before unlocking it (seat_give_back()). So if a reader finds the seat
 * unlocked and after that still not marked free, its owner is dead. */
bool read_seat(const shmring *r, uint32_t index, struct seat_owner *owner, struct shmring_participant_info *info)
{
	const struct seat *s = &r->seats[index];

	for (int i = 0; i < READINGS; i++) {
		*owner = owner_of(s);
		if (owner->state == SEAT_FREE)
			return false;
		*info = (struct shmring_participant_info){
		    .seat = index,
		    .state = owner->state,
		    .pid = owner->pid,
		    .joined_ns = owner->joined_ns,
		};
		read_words(s, info);
		info->alive = owner->state == SEAT_ACTIVE && seat_alive(r, index);
		if (r->copied && !info->alive)
			seat_copy(r, index);
		if (seat_is_still_of(s, owner))
			return true;
	}
	return false;
}

static void zero(uint64_t *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store_relaxed(&words[i], 0);
}

static void zero_counters(struct seat *s)
{
	zero((uint64_t *)&s->counters, sizeof s->counters / sizeof(uint64_t));
}

/* CHANGE: edit this for a new version of the layout */
/* Resets the words of a seat. Every store is atomic, because other processes read seats at any time. */
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
	zero_counters(s);
	store_relaxed(&s->waits, WAIT_NONE);
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

/* Returns a time of joining that no earlier owner of this seat had, because readers tell the owners of a seat
 * apart by this time. Many owners may come and go in one tick of a coarse clock, or while the clock is set back a
 * little. If the clock is set back further, two owners get the same time only if the clock shows the same
 * nanosecond to both. */
static uint64_t time_of_joining(const struct seat *s)
{
	uint64_t now = now_ns(CLOCK_REALTIME), last = load_relaxed(&s->id.joined_ns);

	return last - now < SET_BACK_NS ? last + 1 : now;
}

static void name_process(struct seat *s, uint32_t pid, uint64_t start_time, const char *name)
{
	store_relaxed(&s->id.pid, pid);
	store_relaxed(&s->id.start_time, start_time);
	name_store(s->id.name, name ? name : "", sizeof s->id.name);
}

/* Writes all words of a free seat except its state. */
static void seat_fill(struct seat *s, uint32_t role, const char *name, uint32_t branch, uint32_t pid,
		      uint64_t start_time)
{
	/* Pairs with the fence in seat_is_still_of(): a reader that sees a word of the new owner sees
	 * that the seat was free. */
	fence_release();
	seat_reset(s);
	store_relaxed(&s->id.role, role);
	store_relaxed(&s->id.branch, branch);
	name_process(s, pid, start_time, name);
	/* Pairs with the acquire in owner_of(). */
	store_release(&s->id.joined_ns, time_of_joining(s));
}

/* Fills a free seat for a new orphan, which has no owner. The orphan gets messages that a living consumer hands
 * back. */
void seat_prepare(struct seat *s, uint32_t branch)
{
	seat_fill(s, ROLE_CONSUMER, "", branch, 0, 0);
}

/* Changes the role of this handle's seat, which is in use before and after. The role changes last: a process that
 * dies before is settled in the old role, and a consumer always has a branch on which it is settled. The time of
 * joining changes twice: before the other words and after them. So seat_is_still_of() returns false to a reader if
 * one of these two changes came between its first read and its last. */
static void seat_turn(struct seat *s, uint32_t role, const char *name, uint32_t branch)
{
	store_relaxed(&s->id.joined_ns, time_of_joining(s));
	/* Pairs with the fence in seat_is_still_of(): a reader that sees a new word sees the new time of
	 * joining. */
	fence_release();
	seat_reset(s);
	name_store(s->id.name, name ? name : "", sizeof s->id.name);
	store_relaxed(&s->id.branch, branch);
	crash_order();
	store_relaxed(&s->id.role, role);
	/* Pairs with the acquire in owner_of(). */
	store_release(&s->id.joined_ns, time_of_joining(s));
}

/* Lends the handle's own seat to one of its producers or consumers, if it is not lent already. */
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

/* Takes a free seat. Returns SHMRING_UNAVAILABLE if there is none, or none that can be locked. Sets *barred to the
 * number of seats that are free, but whose bytes other processes have locked, so that they cannot be taken. */
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
	seat_fill(s, role, name, branch, (uint32_t)getpid(), read_process("self").start_time);
	store_relaxed(&r->held[found], page);
	/* Pairs with the acquire in owner_of() and in the seat's other readers. */
	store_release(&s->id.state, SEAT_ACTIVE);
	*index = found;
	return SHMRING_OK;
}

/* CHANGE: edit this for a new version of the layout */
/* CHANGE: edit this for a new counter that each participant has */
/* Makes this process the owner of an orphan's seat, and of its leases. The time of joining changes before the
 * other words and after them, as in seat_turn(). The state changes last: if the process dies before that, the seat
 * is still an orphan's. */
bool seat_inherit(shmring *r, uint32_t index, const char *name)
{
	struct seat *s = &r->seats[index];
	void *page;

	if (seat_is_own(r, index) || lock_file_hold(r->locks, seat_offset(r, index), &page) != SHMRING_OK)
		return false;
	store_relaxed(&s->id.joined_ns, time_of_joining(s));
	/* Pairs with the fence in seat_is_still_of(): a reader that sees a new word sees the new time of
	 * joining. */
	fence_release();
	store_relaxed(&s->lease.take_lo, NONE);
	store_release(&s->lease.take_end, 0);
	store_relaxed(&s->lease.adopt_from, 0);
	zero_counters(s);
	store_relaxed(&s->waits, WAIT_NONE);
	name_process(s, (uint32_t)getpid(), read_process("self").start_time, name);
	/* Pairs with the acquire in owner_of(). */
	store_release(&s->id.joined_ns, time_of_joining(s));
	store_relaxed(&r->held[index], page);
	/* Pairs with the acquire in owner_of(), and in branch_released(): from here on the hold gates. */
	store_release(&s->id.state, SEAT_ACTIVE);
	return true;
}

/* Gives a seat back; a lent seat becomes the handle's own again. The state changes before the byte is unlocked: a
 * seat with a locked byte is not taken, and a free seat is not searched for a dead owner. */
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

/* Returns true if a living handle has no seat. gc asks this after it has looked at the seats, and
 * misses no handle: before a handle gives up its seat, the handle locks the byte for handles without a seat. */
bool handle_seatless(const shmring *r)
{
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (lock_file_locked(r->locks, seatless_offset(r, i)))
			return true;
	return false;
}

/* Locks one of the bytes for handles without a seat, so that gc sees that this handle is alive. Returns false if
 * other processes have locked all these bytes: then gc does not see this handle. */
bool handle_without_seat(shmring *r)
{
	store_relaxed(&r->seat, NOBODY);
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (lock_file_hold(r->locks, seatless_offset(r, i), &r->seatless) == SHMRING_OK)
			return true;
	r->seatless = NULL;
	return false;
}

/* Makes seat `index` the handle's own. */
void handle_seated(shmring *r, uint32_t index, bool lent)
{
	r->lent = lent;
	store_relaxed(&r->seat, index);
	lock_file_drop(r->seatless);
	r->seatless = NULL;
}

/* Unlocks a seat without freeing it: from now on the seat counts as a dead process's, for this handle, too.
 * A handle that cannot get the admin lock leaves this way, without the lock. */
void seat_abandon(shmring *r, uint32_t index)
{
	void *page = load_relaxed(&r->held[index]);

	if (index == load_relaxed(&r->seat))
		(void)handle_without_seat(r);
	store_relaxed(&r->held[index], NULL);
	lock_file_drop(page);
}
