/* libc's syscall() with something in front of it: a test says what by intercept(). */
#ifndef SHMRING_SYSCALLS_H
#define SHMRING_SYSCALLS_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

/* May change the arguments; true if the call fails with errno as set instead of being made. */
static bool intercept(long number, long argument[6]);

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
	if (intercept(number, argument))
		return -1;
	if (!libc_syscall)
		*(void **)&libc_syscall = dlsym(RTLD_NEXT, "syscall");
	return libc_syscall(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

#endif
