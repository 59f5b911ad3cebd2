/* Lock bytes: how they are held and tested. */
#ifndef SHMRING_LOCKS_H
#define SHMRING_LOCKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "shmring.h"

struct lock_file;

/* How long a process waits for the admin byte. Joins, leaves and recovery take microseconds: one that
 * has it for longer is stopped (SIGSTOP, a debugger), not dead. */
#define ADMIN_TIMEOUT_S 5
#define ADMIN_TIMEOUT_NS (ADMIN_TIMEOUT_S * INT64_C(1000000000))

bool lock_byte(int fd, off_t offset);
void unlock_byte(int fd, off_t offset);
int fail_admin_taken(int fd, const char *name);
int open_above_standard(const char *path, int flags);
struct lock_file *lock_file_open(shmring *ring, const char *path, int flags);
void lock_file_close(struct lock_file *file);
void lock_file_forget(struct lock_file *file);
void lock_file_name(struct lock_file *file, const char *path);
int lock_file_number(const struct lock_file *file); /* -1: lost */
bool lock_file_is(const struct lock_file *file, int fd);
bool lock_file_removed(const struct lock_file *file, bool *remade); /* it has no name; another one has that */
bool lock_file_given_up(const struct lock_file *file); /* this process has waited for the admin byte in vain */
void lock_file_give_up(const struct lock_file *file);
int lock_file_enter(struct lock_file *file);
void lock_file_leave(struct lock_file *file);
bool lock_file_locked(struct lock_file *file, off_t offset);
int lock_file_hold(const struct lock_file *file, off_t offset, void **page);
void lock_file_drop(void *page);

#endif
