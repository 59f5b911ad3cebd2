/* What the files of the core offer each other. */
#ifndef SHMRING_INTERNAL_H
#define SHMRING_INTERNAL_H

#include <sys/types.h>

#include "cells.h"
#include "clock.h"

/* map.c */
const char *base_name(const char *path);
void lay_out(struct header *header);
uint32_t header_crc(const struct header *header);
void advise(void *address, size_t bytes, uint32_t options);
int attach_draft(const char *path, const char *name, shmring **ring);
void attach_by_name(shmring *ring, const char *path);

/* locks.c */
bool lock_byte(int fd, off_t offset);
void unlock_byte(int fd, off_t offset);
int fail_admin_taken(int fd, const char *name);
struct lock_file *lock_file_open(shmring *ring, const char *path, int flags);
void lock_file_close(struct lock_file *file);
void lock_file_name(struct lock_file *file, const char *path);
int lock_file_number(const struct lock_file *file); /* -1: lost */
bool lock_file_is(const struct lock_file *file, int fd);
int lock_file_enter(struct lock_file *file);
void lock_file_leave(struct lock_file *file);
bool lock_file_locked(struct lock_file *file, off_t offset);
int lock_file_hold(const struct lock_file *file, off_t offset, void **page);
void lock_file_drop(void *page);

/* participants.c: all but seat_alive() want the admin lock held */
int admin_enter(shmring *ring);
bool admin_try(shmring *ring);
void admin_leave(shmring *ring);
int seat_take(shmring *ring, uint32_t role, const char *name, uint32_t branch, uint32_t *index);
void seat_prepare(struct seat *seat, uint32_t role, uint32_t branch);
void seat_abandon(shmring *ring, uint32_t index);
void seat_give_back(shmring *ring, uint32_t index);
bool seat_alive(const shmring *ring, uint32_t index);
void name_store(char *to, const char *name, size_t size);
void name_load(char *to, const char *from, size_t size);

static inline bool seat_is_own(const shmring *ring, uint32_t index)
{
	return load_relaxed(&ring->held[index]) != NULL;
}

/* floor.c */
uint64_t walk_runs(const shmring *ring, uint64_t from, uint64_t target);
uint64_t branch_released(const shmring *ring, const struct branch *branch, bool holds_only);
uint64_t upstream_released(const shmring *ring, uint64_t upstream);
uint64_t floor_advance(shmring *ring, uint64_t need);
bool nobody_gates(const shmring *ring);
bool everybody_released(const shmring *ring, uint64_t sequence);

/* Its position holds nobody back, only what its members hold does. */
static inline bool gates_by_holds_only(const struct branch *branch)
{
	return load_relaxed(&branch->d.options) & BRANCH_LAPSE || load_acquire(&branch->d.state) == BRANCH_DROPPED;
}

/* kind.c */
int kind_check_reserved(const shmring *ring, uint8_t kind, const uint8_t *data, uint64_t length);

/* Numbers that are the users' own, and bytes, need no look at the message. */
static inline bool kind_is_reserved(uint8_t kind)
{
	return (uint8_t)(kind - 1) < SHMRING_KIND_USER - 1;
}

static inline int kind_check(const shmring *ring, uint8_t kind, const uint8_t *data, uint64_t length)
{
	if (__builtin_expect(kind_is_reserved(kind), 0))
		return kind_check_reserved(ring, kind, data, length);
	return SHMRING_OK;
}

/* claim.c */
void publish_aborted(shmring *ring, uint64_t lo, uint64_t n, uint8_t seat);

/* read.c */
bool ranges_remove(struct seat *seat, uint32_t *used, uint64_t lo, uint64_t hi);
uint64_t ranges_lowest(const struct seat *seat, uint32_t used);
int scan_messages(const shmring *ring, uint64_t at, uint64_t limit, uint32_t max_messages, uint64_t max_slots,
		  uint64_t *end, uint32_t *messages, bool *marker);
int member_check_held(const shmring_member *member, uint64_t first, uint64_t end);
int member_record(shmring_member *member, uint64_t lo, uint64_t hi);
bool member_move_taken(shmring_member *member, uint64_t seen, uint64_t end);
void member_raise_hold(shmring_member *member);
uint64_t member_limit(shmring_member *member, uint64_t t);
uint64_t member_stake(shmring_member *member, uint64_t at);
int member_lapsed(shmring_member *member, uint64_t first, uint64_t end);

/* deferred.c. Joining takes out all runs that touch [*lo, *hi), which becomes their union. */
void deferred_join(struct deferred *deferred, uint64_t *lo, uint64_t *hi);
bool deferred_reserve(struct deferred *deferred); /* room for one run; false: no memory */
void deferred_put(struct deferred *deferred, uint64_t lo, uint64_t hi);
bool deferred_take_any(struct deferred *deferred, uint64_t *lo, uint64_t *hi);
bool deferred_overlaps(const struct deferred *deferred, uint64_t lo, uint64_t hi);
void deferred_free(struct deferred *deferred);
/* end.c */
bool member_is_ended(const shmring_member *member, uint64_t t);
bool member_at_end(shmring_member *member, uint64_t seen, uint64_t end, uint64_t limit, bool *as_message);
bool member_pass_over(shmring_member *member, uint64_t seen, uint64_t end, bool marker);
void member_has_end(shmring_member *member);
void member_begins(shmring_member *member);

/* adopt.c */
bool may_adopt(const shmring_member *member);
bool leases_move(shmring_member *member);
void leases_moved(shmring_member *member);
bool member_adopt(shmring_member *member, uint32_t max_messages, uint64_t max_slots, struct shmring_lease *lease,
		  int *status);

/* graph.c: want the admin lock held */
void graph_repair(shmring *ring);
void branch_drop(shmring *ring, uint32_t id);
void branch_member_left(shmring *ring, uint32_t id);
int subscribe_locked(shmring *ring, const char *name, const struct shmring_branch_options *options, bool joining,
		     uint32_t *id);
void count_orphans(shmring *ring, uint32_t id);

/* recover.c: want the admin lock held */
unsigned recover_dead_seats(shmring *ring);
bool recover_seat(shmring *ring, uint32_t index);

/* unlink.c */
bool draft_path(char *path, size_t size, const char *beside, int folder_bytes, const uint8_t *uuid);

/* holder.c */
void explain_seats(const shmring *ring, char *text, size_t size);

/* wait.c */
void wake_one(shmring *ring, uint64_t mask);
void wake_branches(shmring *ring, uint64_t mask);
void wake_producers(shmring *ring);
void wake_producers_for(shmring *ring, const struct branch *branch, uint64_t low);
void pass_wake_up_on(shmring_member *member);

/* After a publication. The sleeper announces itself, passes a heavy barrier
 * and looks once more (wait.c): one of the two sees the other. */
static inline void wake_readers(shmring *ring)
{
	uint64_t asleep;

	light_barrier(ring->asymmetric);
	asleep = load_relaxed(&ring->cursors->asleep.v);
	if (__builtin_expect(asleep != 0, 0)) {
		/* Again with acquire: who fell asleep after a change of the graph shows it. */
		asleep = load_acquire(&ring->cursors->asleep.v);
		asleep &= load_relaxed(&ring->cursors->graph.roots);
		if (asleep) /* followers sleep for others' releases */
			wake_one(ring, asleep);
	}
}

/* The same after a reader has raised its hold to `low`, for those who wait for
 * that: producers and the branch's followers. `taken` is read behind the barrier:
 * what moved it on meanwhile may have left the wake-up to this release. */
static inline void wake_after_release(shmring *ring, const struct branch *branch, uint64_t low)
{
	uint64_t followers;

	light_barrier(ring->asymmetric);
	followers = load_relaxed(&branch->d.followers);
	if (__builtin_expect(load_relaxed(&ring->cursors->producers.futex) & 1, 0))
		wake_producers_for(ring, branch, low);
	if (followers) {
		uint64_t asleep = load_relaxed(&ring->cursors->asleep.v) & followers;

		if (asleep)
			wake_one(ring, asleep);
	}
}

#endif
