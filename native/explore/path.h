/* The path: the choices that lead to the explorer's present state. */
#ifndef EXPLORE_PATH_H
#define EXPLORE_PATH_H

#include "world.h"

/* Exit statuses of the explorer. */
enum { ALL_IS_WELL, VIOLATED, UNFINISHED };

/* Choice c: thread c / WEAK_OPTIONS goes on with option c % WEAK_OPTIONS of its access, or thread c - DEATH dies.
 * Option 1 of a thread that sleeps or looks at the clock: its deadline passes. */
enum { DEATH = THREADS * WEAK_OPTIONS };
static_assert(DEATH + THREADS <= 64, "a set of choices is a word");

struct node {
	uint8_t *state;
	uint64_t choices;
	int chosen;
	bool in_time; /* the option says whether a deadline passes, not which store is seen */
	const char *function;
	int line;
};

extern struct node *path;
extern size_t depth;

void explore_violation(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void explore_no_room(const char *what) __attribute__((noreturn)); /* exits; the core is not to blame */

#define MUST(condition)                                                                                           \
	do {                                                                                                      \
		if (!(condition))                                                                                 \
			explore_violation("%s:%d: not true: %s", __FILE__, __LINE__, #condition);                 \
	} while (0)

static inline int thread_of(int choice)
{
	return choice < DEATH ? choice / WEAK_OPTIONS : choice - DEATH;
}

#endif
