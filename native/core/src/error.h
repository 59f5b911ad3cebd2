/* The text of the last error, one a thread. */
#ifndef SHMRING_ERROR_H
#define SHMRING_ERROR_H

#include <stdint.h>

int fail(int status, const char *format, ...) __attribute__((cold, format(printf, 2, 3)));
int fail_errno(const char *what, const char *name) __attribute__((cold));
int fail_forked(const char *name) __attribute__((cold));
int fail_entry(const char *name, uint64_t sequence, uint32_t run, uint32_t length) __attribute__((cold));
int not_now(int status);

#endif
