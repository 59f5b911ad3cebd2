/* Runs a child one instruction at a time and stops it after the n-th.
 *
 * Stepping to n by ptrace costs n stops, and every n needs its own child. So the
 * first child is stepped from end to end, and its trace is kept. Later children do
 * the same work: they run to a breakpoint shortly before n and are stepped from
 * there. A system call is one step. x86-64 only: with the exclusive loads of
 * aarch64, a stepped compare-and-swap never succeeds.
 */
#ifndef KILLPOINTS_STEP_H
#define KILLPOINTS_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct trace {
	struct trace_step *step;
	size_t steps; /* instructions between step_begin() and step_end() */
	size_t room;
};

/* The child calls these functions before and after the part that is stepped. */
void step_begin(void);
void step_end(void);

bool step_is_allowed(void);
/* Forks a child that runs job(argument) and stops it at step_begin(). */
pid_t step_spawn(void (*job)(void *), void *argument);

/* Steps the child to step_end() and records its trace. */
void trace_record(struct trace *trace, pid_t child);
void trace_free(struct trace *trace);

/* Stops the child after n instructions, or at step_end() if it comes first. Returns
 * true if the child stands where the traced child stood. */
bool step_to(const struct trace *trace, pid_t child, size_t n);

void step_kill(pid_t child);

#endif
