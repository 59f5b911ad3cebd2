/* The violation found, and the steps that lead to it. */
#include <stdarg.h>

#include "path.h"

struct node *path;
size_t depth;

static void print_path(void)
{
	for (size_t i = 0; i < depth; i++) {
		const struct node *n = &path[i];

		if (n->chosen < 0)
			continue;
		if (n->chosen >= DEATH)
			printf("  thread %d dies before %s:%d\n", thread_of(n->chosen), n->function, n->line);
		else
			printf("  thread %d %s:%d", thread_of(n->chosen), n->function ? n->function : "begins",
			       n->line);
		if (n->chosen < DEATH && n->chosen % WEAK_OPTIONS && n->in_time)
			printf(" (its deadline has passed)");
		else if (n->chosen < DEATH && n->chosen % WEAK_OPTIONS)
			printf(" (%d back)", n->chosen % WEAK_OPTIONS);
		if (n->chosen < DEATH)
			printf("\n");
	}
}

void explore_violation(const char *format, ...)
{
	va_list args;

	printf("%s: ", exploring->name);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\nafter\n");
	print_path();
	fflush(stdout);
	_exit(VIOLATED);
}

void explore_no_room(const char *what)
{
	printf("%s: the explorer has no room for so many %s\n", exploring->name, what);
	fflush(stdout);
	_exit(UNFINISHED);
}
