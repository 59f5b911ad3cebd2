#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "step.h"

#ifndef __x86_64__
#error "the kill points are stepped on x86-64 only"
#endif

#define BREAKPOINT 0xccul
/* Stops for each visit of a breakpoint: one at the breakpoint, and one after the step that passes it. */
#define VISIT_COST 2

struct trace_step {
	uintptr_t address; /* address of the next instruction, after this many steps */
	uint32_t visit; /* number of visits of this address so far, including this one */
	uint32_t start; /* step where the breakpoint costs the fewest stops */
	uint32_t cost; /* stops from the beginning to this step */
};

__attribute__((noinline)) void step_begin(void)
{
	__asm__ volatile("int3");
}

__attribute__((noinline)) void step_end(void)
{
	__asm__ volatile("int3");
}

static void die(const char *what)
{
	fprintf(stderr, "killpoints: %s: errno %d\n", what, errno);
	_exit(99);
}

/* Waits for the child's next stop, which must be a trap. */
static void await_trap(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child)
		die("waitpid");
	if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP) {
		fprintf(stderr, "killpoints: the child ended on its own, status %x\n", status);
		_exit(99);
	}
}

static void resume(pid_t child, int how)
{
	if (ptrace(how, child, NULL, NULL))
		die("ptrace");
	await_trap(child);
}

static uintptr_t position(pid_t child)
{
	errno = 0;
	long at = ptrace(PTRACE_PEEKUSER, child, offsetof(struct user_regs_struct, rip), NULL);

	if (at == -1 && errno)
		die("PTRACE_PEEKUSER");
	return (uintptr_t)at;
}

static void set_position(pid_t child, uintptr_t at)
{
	if (ptrace(PTRACE_POKEUSER, child, offsetof(struct user_regs_struct, rip), at))
		die("PTRACE_POKEUSER");
}

static unsigned long text(pid_t child, uintptr_t at)
{
	errno = 0;
	long word = ptrace(PTRACE_PEEKTEXT, child, at, NULL);

	if (word == -1 && errno)
		die("PTRACE_PEEKTEXT");
	return (unsigned long)word;
}

static void set_text(pid_t child, uintptr_t at, unsigned long word)
{
	if (ptrace(PTRACE_POKETEXT, child, at, word))
		die("PTRACE_POKETEXT");
}

/* Returns whether a process may trace its child; some containers refuse it. */
bool step_is_allowed(void)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		die("fork");
	if (child == 0)
		_exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) ? 1 : 0);
	if (waitpid(child, &status, 0) != child)
		die("waitpid");
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

pid_t step_spawn(void (*job)(void *), void *argument)
{
	pid_t child = fork();

	if (child < 0)
		die("fork");
	if (child == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			die("PTRACE_TRACEME");
		job(argument);
		_exit(98);
	}
	await_trap(child);
	if (ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_EXITKILL))
		die("PTRACE_SETOPTIONS");
	return child;
}

void step_kill(pid_t child)
{
	int status;

	kill(child, SIGKILL);
	if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
		die("kill");
}

/* --- the first child -------------------------------------------------------- */

static struct trace_step *add_step(struct trace *t)
{
	if (t->steps == t->room) {
		t->room = t->room ? t->room * 2 : 1024;
		t->step = realloc(t->step, t->room * sizeof *t->step);
		if (!t->step)
			die("realloc");
	}
	return &t->step[t->steps++];
}

static int by_address_then_time(const void *a, const void *b)
{
	const struct trace_step *x = *(struct trace_step *const *)a, *y = *(struct trace_step *const *)b;

	if (x->address != y->address)
		return x->address < y->address ? -1 : 1;
	return x < y ? -1 : x > y;
}

static void count_visits(struct trace *t)
{
	struct trace_step **order = calloc(t->steps, sizeof(struct trace_step *));

	if (!order)
		die("calloc");
	for (size_t i = 0; i < t->steps; i++)
		order[i] = &t->step[i];
	qsort(order, t->steps, sizeof *order, by_address_then_time);
	for (size_t i = 0; i < t->steps; i++)
		order[i]->visit = i && order[i - 1]->address == order[i]->address ? order[i - 1]->visit + 1 : 1;
	free(order);
}

void trace_record(struct trace *t, pid_t child)
{
	uintptr_t end = (uintptr_t)step_end;

	do {
		add_step(t)->address = position(child);
		resume(child, PTRACE_SINGLESTEP);
	} while (position(child) != end);
	add_step(t)->address = end;
	count_visits(t);
	for (size_t i = 0; i < t->steps; i++) {
		struct trace_step *s = &t->step[i];
		uint32_t direct = s->visit * VISIT_COST;

		s->start = (uint32_t)i;
		s->cost = i ? direct : 0;
		if (i && s[-1].cost + 1 <= direct) {
			s->start = s[-1].start;
			s->cost = s[-1].cost + 1;
		}
	}
	t->steps--; /* the end is not an instruction of the operation */
}

void trace_free(struct trace *t)
{
	free(t->step);
	*t = (struct trace){0};
}

/* --- the others --------------------------------------------------------------- */

/* Runs the child to the given visit of an address; returns false if the child came to the end first. */
static bool run_to_visit(pid_t child, uintptr_t at, uint32_t visit)
{
	unsigned long word = text(child, at);

	for (;;) {
		set_text(child, at, (word & ~0xfful) | BREAKPOINT);
		resume(child, PTRACE_CONT);
		set_text(child, at, word);
		if (position(child) != at + 1)
			return false;
		set_position(child, at);
		if (--visit == 0)
			return true;
		resume(child, PTRACE_SINGLESTEP);
	}
}

bool step_to(const struct trace *t, pid_t child, size_t n)
{
	size_t at = t->step[n].start;

	if (at && !run_to_visit(child, t->step[at].address, t->step[at].visit))
		return false;
	for (; at < n && position(child) != (uintptr_t)step_end; at++)
		resume(child, PTRACE_SINGLESTEP);
	return position(child) == t->step[n].address;
}
