#include <stdarg.h>

#include "explore.h"

#undef calloc
#undef free
#undef clock_gettime

#ifndef __x86_64__
#error "the explorer switches stacks on x86-64 only"
#endif

struct memory memory;
struct world world;
shmring handles[HANDLES];
const struct exploration *exploring;

_Alignas(64) uint8_t stacks[THREADS][STACK];
static void *explorer_stack;
static int running = -1;

/* What is known of each word, over the whole exploration: who has read it, who
 * has written it. It is shared if two threads use it and one of them writes. */
static uint8_t readers[MEMORY_WORDS], writers[MEMORY_WORDS];
static bool shared[MEMORY_WORDS];
static bool more_is_shared;

/* --- threads ------------------------------------------------------------------------ */

/* Saves the callee-saved registers on this stack, goes over to the other. */
void switch_stack(void **save, void *to);
__asm__(".text\n"
	"switch_stack:\n"
	"	pushq %rbp\n	pushq %rbx\n	pushq %r12\n	pushq %r13\n	pushq %r14\n	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n	popq %r14\n	popq %r13\n	popq %r12\n	popq %rbx\n	popq %rbp\n"
	"	ret\n");

/* What a deeper call has left behind would make equal states look different. */
static void clear_below(uint8_t *stack_pointer)
{
	memset(stack_pointer - 1024, 0, 1024);
}

static void give_way(void)
{
	switch_stack(&world.thread[running].stack_pointer, explorer_stack);
}

static void thread_main(void)
{
	exploring->actor[running].body(running);
	world.thread[running] = (struct thread){.status = FINISHED};
	give_way();
	abort();
}

static void thread_make(int i)
{
	void **top = (void **)(stacks[i] + STACK - 64);

	memset(stacks[i], 0, STACK);
	*--top = NULL; /* thread_main() is entered as if it had been called */
	*--top = (void *)(uintptr_t)thread_main;
	world.thread[i].stack_pointer = top - 6;
	world.thread[i].status = exploring->actor[i].body ? READY : FINISHED;
}

static void run(int i)
{
	running = i;
	clear_below(world.thread[i].stack_pointer);
	switch_stack(&explorer_stack, world.thread[i].stack_pointer);
	running = -1;
}

bool thread_has_stack(int i)
{
	return world.thread[i].status < FINISHED;
}

bool explore_is_on(void)
{
	return running >= 0;
}

int explore_thread(void)
{
	return running;
}

/* --- accesses -------------------------------------------------------------------------- */

static size_t word_of(const volatile void *address)
{
	uintptr_t offset = (uintptr_t)address - (uintptr_t)&memory;

	return offset < sizeof memory ? offset / 8 : MEMORY_WORDS;
}

/* The words of a control entry but `published`, where the case says so. */
static bool is_left_whole(size_t word)
{
	size_t first = offsetof(struct memory, control) / 8, last = offsetof(struct memory, slots) / 8;

	return exploring->whole_entries && word >= first && word < last &&
	       (word - first) % (sizeof(struct control) / 8) != 0;
}

static void note_access(int thread, size_t word, uint8_t *users)
{
	uint32_t all;

	if (users[word] >> thread & 1)
		return;
	users[word] |= (uint8_t)(1 << thread);
	all = readers[word] | writers[word];
	if (!shared[word] && !is_left_whole(word) && writers[word] && all & (all - 1)) {
		shared[word] = true;
		more_is_shared = true;
	}
}

void explore_point(const volatile void *address, const char *function, int line)
{
	size_t word = word_of(address);
	struct thread *t;

	if (running < 0 || word == MEMORY_WORDS)
		return;
	note_access(running, word, readers);
	t = &world.thread[running];
	if (shared[word]) {
		t->function = function;
		t->line = line;
		give_way();
	}
	if (t->looking && shared[word])
		t->looked_at[word / 64] |= UINT64_C(1) << (word % 64);
}

static void changed_by(int thread, size_t word)
{
	for (int i = 0; i < THREADS; i++) {
		struct thread *t = &world.thread[i];

		if (i == thread || !(t->looked_at[word / 64] >> (word % 64) & 1))
			continue;
		t->stale = true;
		if (t->status == PARKED)
			t->status = READY;
	}
}

/* Nobody acts on a seat's counters: if they counted, no state would come twice. */
static bool is_counter(size_t word)
{
	size_t first = offsetof(struct memory, seats) / 8, n = sizeof(struct seat) / 8;
	size_t in_seat = (word - first) % n, counters = offsetof(struct seat, counters) / 8;

	return word >= first && word < first + SMALL_SEATS * n && in_seat >= counters &&
	       in_seat < counters + CELL / 8;
}

bool explore_changes(const volatile void *address)
{
	size_t word = word_of(address);

	if (word == MEMORY_WORDS || running < 0)
		return true;
	if (is_counter(word))
		return false;
	if (!state_includes((const void *)(uintptr_t)address))
		explore_violation("a word changes that is no part of the state");
	note_access(running, word, writers);
	changed_by(running, word);
	return true;
}

static void look(struct thread *t, bool on)
{
	memset(t->looked_at, 0, sizeof t->looked_at);
	t->stale = false;
	t->looking = on;
}

void explore_look(void)
{
	if (running >= 0)
		look(&world.thread[running], true);
}

void explore_found(void)
{
	if (running >= 0)
		look(&world.thread[running], false);
}

void explore_wait(void)
{
	struct thread *t;

	if (running < 0)
		explore_violation("a wait where nobody else runs");
	t = &world.thread[running];
	if (!t->stale) {
		t->status = PARKED;
		t->function = __func__;
		t->line = 0;
		give_way();
	}
	look(t, false);
}

void explore_wait_for(const void *address)
{
	struct thread *t = &world.thread[running];
	size_t word = word_of(address);

	look(t, true);
	t->looked_at[word / 64] = UINT64_C(1) << (word % 64);
	explore_wait();
}

void explore_sleep_on(const uint32_t *word)
{
	struct thread *t = &world.thread[running];

	t->status = SLEEPING;
	t->sleeps_on = word;
	t->function = __func__;
	t->line = 0;
	give_way();
}

/* Those who sleep on one word do the same: which of them is woken makes no difference. */
void explore_wake(const uint32_t *word, uint32_t threads)
{
	for (int i = 0; i < THREADS && threads; i++)
		if (world.thread[i].status == SLEEPING && world.thread[i].sleeps_on == word) {
			world.thread[i].status = READY;
			threads--;
		}
}

void explore_kill_handle(int handle)
{
	for (size_t i = 0; i < SMALL_SEATS + 1; i++)
		if (memory.lock[i] == (uint64_t)handle + 1) {
			memory.lock[i] = 0;
			changed_by(handle, word_of(&memory.lock[i]));
		}
}

static void die(int i)
{
	const struct actor *a = &exploring->actor[i];

	world.thread[i] = (struct thread){.status = DEAD};
	world.deaths++;
	if (world.member[i])
		world.ghost.member_died[a->branch] = 1;
	explore_kill_handle(i);
	/* Whoever waits looks for the dead from time to time. */
	for (int k = 0; k < THREADS; k++) {
		world.thread[k].stale |= world.thread[k].looking;
		if (world.thread[k].status == PARKED)
			world.thread[k].status = READY;
	}
}

/* --- the exploration --------------------------------------------------------------------------- */

/* Choice c: thread c goes on, or thread c - THREADS dies. */
enum { CHOICES = 2 * THREADS };

struct node {
	uint8_t *state;
	uint32_t choices;
	int chosen;
	const char *function;
	int line;
};

static struct node *path;
static size_t depth, path_room, deepest;

#define RUNNING ((1u << THREADS) - 1)

static void take_choice(struct node *n, int c)
{
	const struct thread *t = &world.thread[c % THREADS];

	n->chosen = c;
	n->function = t->function;
	n->line = t->line;
	if (c < THREADS)
		run(c);
	else
		die(c - THREADS);
}

static uint32_t choices(void)
{
	uint32_t set = 0;

	for (int i = 0; i < THREADS; i++) {
		const struct thread *t = &world.thread[i];

		if (t->status == READY)
			set |= 1u << i;
		if (thread_has_stack(i) && exploring->actor[i].mortal && world.deaths < exploring->deaths)
			set |= 1u << (i + THREADS);
	}
	return set;
}

static void print_path(void)
{
	for (size_t i = 0; i < depth; i++) {
		const struct node *n = &path[i];

		if (n->chosen < 0)
			continue;
		if (n->chosen >= THREADS)
			printf("  thread %d dies before %s:%d\n", n->chosen - THREADS, n->function, n->line);
		else
			printf("  thread %d %s:%d\n", n->chosen, n->function ? n->function : "begins", n->line);
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
	_exit(1);
}

static struct node *add_node(void)
{
	if (depth == path_room) {
		path_room = path_room ? path_room * 2 : 1024;
		path = realloc(path, path_room * sizeof *path);
		if (!path)
			abort();
	}
	path[depth] = (struct node){.chosen = -1};
	return &path[depth++];
}

static void push_node(uint32_t set)
{
	struct node *n = add_node();

	n->choices = set;
	n->state = state_save();
	if (depth > deepest)
		deepest = depth;
}

/* Nobody can go on. */
static void at_the_end(void)
{
	for (int i = 0; i < THREADS; i++)
		if (thread_has_stack(i) && !exploring->actor[i].stays)
			explore_violation("thread %d waits for ever", i);
	check_end();
}

static void choose(struct node *n)
{
	int c = __builtin_ctz(n->choices);

	state_restore(n->state);
	n->choices &= n->choices - 1;
	take_choice(n, c);
}

static void arrive(uint64_t *ends)
{
	uint32_t set = choices();

	/* Who waits for a word that was not known to be shared was not woken. */
	if (more_is_shared || !state_is_new())
		return;
	if (set & RUNNING) {
		push_node(set);
		return;
	}
	++*ends;
	push_node(set); /* a death may still come; the checks below use up the state */
	at_the_end();
}

/* A thread may release a lock by dying: that is a write. */
static void note_deaths(void)
{
	for (int i = 0; i < THREADS; i++)
		for (size_t k = 0; exploring->actor[i].mortal && k < SMALL_SEATS + 1; k++)
			if (memory.lock[k] == (uint64_t)i + 1)
				note_access(i, word_of(&memory.lock[k]), writers);
}

static void begin(const struct exploration *e)
{
	world_make(e);
	note_deaths();
	for (int i = 0; i < THREADS; i++)
		thread_make(i);
}

/* A few thousand random ways first: they find most of the shared words, so that
 * the exploration need not begin anew so often. */
enum { WALKS = 3000 };

static void walk_at_random(const struct exploration *e)
{
	uint64_t seed = 88172645463325252;

	for (int walk = 0; walk < WALKS; walk++) {
		uint32_t set;

		begin(e);
		while ((set = choices()) & RUNNING) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			if (seed % 16) /* deaths are rare */
				set &= RUNNING;
			for (uint64_t skip = (seed >> 8) % (uint64_t)__builtin_popcount(set); skip; skip--)
				set &= set - 1;
			take_choice(add_node(), __builtin_ctz(set));
		}
		depth = 0;
	}
}

static void explore(const struct exploration *e, uint64_t *all_states)
{
	uint64_t steps, ends;
	struct timespec start, now;

	clock_gettime(CLOCK_MONOTONIC, &start);
	exploring = e;
	deepest = 0;
	memset(readers, 0, sizeof readers);
	memset(writers, 0, sizeof writers);
	memset(shared, 0, sizeof shared);
	begin(e);
	state_describe();
	walk_at_random(e);
	do {
		more_is_shared = false;
		steps = ends = 0;
		while (depth)
			free(path[--depth].state);
		state_forget_all();
		begin(e);
		arrive(&ends);
		while (depth && !more_is_shared) {
			if (path[depth - 1].choices == 0) {
				free(path[--depth].state);
				continue;
			}
			choose(&path[depth - 1]);
			steps++;
			arrive(&ends);
		}
	} while (more_is_shared);
	clock_gettime(CLOCK_MONOTONIC, &now);
	printf("%-62s %9zu states %10" PRIu64 " steps %6" PRIu64 " ends %4zu deep %4ld s%s\n", e->name,
	       state_count(), steps, ends, deepest, (long)(now.tv_sec - start.tv_sec),
	       e->whole_entries ? " (entries whole)" : "");
	*all_states += state_count();
}

static bool is_wanted(const char *name, int names, char **wanted)
{
	for (int i = 0; i < names; i++)
		if (strcmp(wanted[i], name) == 0)
			return true;
	return names == 0;
}

int main(int argc, char **argv)
{
	static const struct cases *const subjects[] = {&cases_of_messages, &cases_of_branches, &cases_of_ends};
	uint64_t states = 0, n = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
		for (size_t k = 0; k < subjects[i]->count; k++)
			if (is_wanted(subjects[i]->cases[k].name, argc - 1, argv + 1)) {
				explore(&subjects[i]->cases[k], &states);
				n++;
			}
	printf("explore: %" PRIu64 " cases, %" PRIu64
	       " states, every sequentially consistent interleaving, 0 violations\n",
	       n, states);
	return n == 0;
}
