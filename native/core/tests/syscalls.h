/* libc's syscall() with something in front of it: a test says what by intercept(). */
#ifndef SHMRING_SYSCALLS_H
#define SHMRING_SYSCALLS_H

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* May change the arguments; true if the call fails with errno as set instead of being made. */
static bool intercept(long number, long argument[6]);

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

/* True on a kernel before Linux 5.16, or if SHMRING_OLD_KERNEL makes this one look like one. */
static inline bool kernel_is_old(void)
{
	return getenv("SHMRING_OLD_KERNEL") ||
	       (syscall(SYS_futex_waitv, NULL, 0, 0, NULL, CLOCK_MONOTONIC) && errno == ENOSYS);
}

/* In place of libc's. */
long syscall(long number, ...)
{
	static long (*libc_syscall)(long, ...);
	long argument[6];
	va_list args;

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		argument[i] = va_arg(args, long);
	va_end(args);
	if (number == SYS_futex_waitv && getenv("SHMRING_OLD_KERNEL")) {
		errno = ENOSYS;
		return -1;
	}
	if (intercept(number, argument))
		return -1;
	if (!libc_syscall)
		*(void **)&libc_syscall = dlsym(RTLD_NEXT, "syscall");
	return libc_syscall(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

#endif
