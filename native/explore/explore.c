#include <stdarg.h>

#include "explore.h"

#undef calloc
#undef free
#undef clock_gettime

#ifndef __x86_64__
#error "the explorer switches stacks on x86-64 only"
#endif

enum { STACK = 65536 };

struct memory memory;
struct world world;
const struct exploration *exploring;

static _Alignas(64) uint8_t stacks[THREADS][STACK];
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
	world.thread[running].status = FINISHED;
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

static void note_access(int thread, size_t word, enum explore_access access)
{
	uint8_t *users = access == EXPLORE_WRITE ? writers : readers;

	if (users[word] >> thread & 1)
		return;
	users[word] |= (uint8_t)(1 << thread);
	if (!shared[word] && writers[word] &&
	    (readers[word] | writers[word]) & ((readers[word] | writers[word]) - 1)) {
		shared[word] = true;
		more_is_shared = true;
	}
}

void explore_point(const volatile void *address, enum explore_access access, const char *function, int line)
{
	size_t word = word_of(address);
	struct thread *t;

	if (running < 0 || word == MEMORY_WORDS)
		return;
	note_access(running, word, access);
	t = &world.thread[running];
	if (shared[word]) {
		t->function = function;
		t->line = line;
		give_way();
	}
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

void explore_changed(const volatile void *address)
{
	size_t word = word_of(address);

	if (word < MEMORY_WORDS)
		changed_by(running, word);
}

void explore_look(void)
{
	if (running < 0)
		return;
	memset(world.thread[running].looked_at, 0, sizeof world.thread[running].looked_at);
	world.thread[running].stale = false;
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

void explore_wake(const uint32_t *word)
{
	for (int i = 0; i < THREADS; i++)
		if (world.thread[i].status == SLEEPING && world.thread[i].sleeps_on == word)
			world.thread[i].status = READY;
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

	world.thread[i].status = DEAD;
	world.deaths++;
	if (world.member[i])
		world.ghost.member_died[a->branch] = 1;
	explore_kill_handle(i);
}

/* --- states ------------------------------------------------------------------------------ */

struct region {
	void *start;
	size_t bytes;
};

static struct region regions[128];
static size_t region_count;

static void add_region(void *start, size_t bytes)
{
	regions[region_count++] = (struct region){start, bytes};
}

/* All that makes a state, the stacks apart. The seats' counters are left out:
 * nobody acts on them, and with them no state would come twice. */
static void make_regions(void)
{
	region_count = 0;
	add_region(&memory.cursors, offsetof(struct cursors, branch) + SMALL_BRANCHES * sizeof(struct branch));
	for (int i = 0; i < SMALL_SEATS; i++) {
		add_region(&memory.seats[i], offsetof(struct seat, counters));
		add_region(&memory.seats[i].range, sizeof memory.seats[i].range);
	}
	add_region(memory.control, exploring->slots * sizeof *memory.control);
	for (uint32_t i = 0; i < exploring->slots; i++)
		add_region(memory.slots + (size_t)i * SLOT_BYTES, 8);
	add_region(memory.lock, sizeof memory.lock);
	add_region(&world, sizeof world);
}

static size_t stack_used(int i)
{
	return (size_t)(stacks[i] + STACK - (uint8_t *)world.thread[i].stack_pointer);
}

static bool has_stack(int i)
{
	return world.thread[i].status < FINISHED;
}

static uint8_t *save_state(size_t *size)
{
	uint8_t *state, *p;

	*size = 0;
	for (size_t i = 0; i < region_count; i++)
		*size += regions[i].bytes;
	for (int i = 0; i < THREADS; i++)
		*size += has_stack(i) ? stack_used(i) : 0;
	p = state = malloc(*size);
	if (!state)
		abort();
	for (size_t i = 0; i < region_count; p += regions[i++].bytes)
		memcpy(p, regions[i].start, regions[i].bytes);
	for (int i = 0; i < THREADS; i++)
		if (has_stack(i)) {
			memcpy(p, world.thread[i].stack_pointer, stack_used(i));
			p += stack_used(i);
		}
	return state;
}

static void restore_state(const uint8_t *p)
{
	for (size_t i = 0; i < region_count; p += regions[i++].bytes)
		memcpy(regions[i].start, p, regions[i].bytes);
	for (int i = 0; i < THREADS; i++)
		if (has_stack(i)) {
			memcpy(world.thread[i].stack_pointer, p, stack_used(i));
			p += stack_used(i);
		}
}

static uint64_t hash_bytes(uint64_t h, const uint8_t *p, size_t n)
{
	for (; n >= 8; n -= 8, p += 8) {
		uint64_t word;

		memcpy(&word, p, 8);
		h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		h ^= h >> 29;
	}
	for (; n; n--, p++)
		h = (h ^ *p) * UINT64_C(0x9e3779b97f4a7c15);
	return h;
}

/* --- states seen before ---------------------------------------------------------------------- */

static uint64_t *seen;
static size_t seen_room, seen_count;

static void seen_clear(void)
{
	free(seen);
	seen_room = 1 << 16;
	seen_count = 0;
	seen = calloc(seen_room, sizeof *seen);
	if (!seen)
		abort();
}

static bool seen_add(uint64_t hash)
{
	size_t i;

	hash += hash == 0;
	for (i = hash & (seen_room - 1); seen[i]; i = (i + 1) & (seen_room - 1))
		if (seen[i] == hash)
			return false;
	seen[i] = hash;
	if (++seen_count * 2 > seen_room) {
		uint64_t *old = seen;
		size_t n = seen_room;

		seen_room *= 2;
		seen_count = 0;
		seen = calloc(seen_room, sizeof *seen);
		if (!seen)
			abort();
		for (i = 0; i < n; i++)
			if (old[i])
				(void)seen_add(old[i]);
		free(old);
	}
	return true;
}

/* --- the exploration --------------------------------------------------------------------------- */

/* Choice c: thread c goes on, or thread c - THREADS dies. */
enum { CHOICES = 2 * THREADS };

struct node {
	uint8_t *state;
	size_t size;
	uint32_t choices;
	int chosen;
	const char *function;
	int line;
};

static struct node *path;
static size_t depth, path_room, deepest;

static uint32_t choices(void)
{
	uint32_t set = 0;

	for (int i = 0; i < THREADS; i++) {
		const struct thread *t = &world.thread[i];

		if (t->status == READY)
			set |= 1u << i;
		if (has_stack(i) && exploring->actor[i].mortal && world.deaths < exploring->deaths)
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

static void push_node(uint32_t set)
{
	if (depth == path_room) {
		path_room = path_room ? path_room * 2 : 1024;
		path = realloc(path, path_room * sizeof *path);
		if (!path)
			abort();
	}
	path[depth] = (struct node){.choices = set, .chosen = -1};
	path[depth].state = save_state(&path[depth].size);
	if (++depth > deepest)
		deepest = depth;
}

/* Nobody can go on. */
static void at_the_end(void)
{
	for (int i = 0; i < THREADS; i++)
		if (has_stack(i) && !exploring->actor[i].stays)
			explore_violation("thread %d waits for ever", i);
	check_end();
}

static void choose(struct node *n)
{
	int c = __builtin_ctz(n->choices);
	int i = c % THREADS;

	restore_state(n->state);
	n->choices &= n->choices - 1;
	n->chosen = c;
	n->function = world.thread[i].function;
	n->line = world.thread[i].line;
	if (c < THREADS)
		run(i);
	else
		die(i);
}

static void arrive(uint64_t *ends)
{
	uint32_t set = choices();
	size_t size;
	uint8_t *state = save_state(&size);
	bool new_state = seen_add(hash_bytes(0, state, size));

	free(state);
	if (!new_state)
		return;
	if (set & ((1u << THREADS) - 1)) {
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
				note_access(i, word_of(&memory.lock[k]), EXPLORE_WRITE);
}

static void explore(const struct exploration *e, uint64_t *all_states)
{
	uint64_t steps = 0, ends = 0, passes = 0;
	struct timespec start, now;

	clock_gettime(CLOCK_MONOTONIC, &start);
	exploring = e;
	deepest = 0;
	memset(readers, 0, sizeof readers);
	memset(writers, 0, sizeof writers);
	memset(shared, 0, sizeof shared);
	do {
		more_is_shared = false;
		passes++;
		steps = ends = 0;
		while (depth)
			free(path[--depth].state);
		seen_clear();
		world_make(e);
		make_regions();
		note_deaths();
		for (int i = 0; i < THREADS; i++)
			thread_make(i);
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
	printf("%-60s %9zu states %10" PRIu64 " steps %7" PRIu64 " ends, depth %zu, %ld s\n", e->name, seen_count,
	       steps, ends, deepest, (long)(now.tv_sec - start.tv_sec));
	*all_states += seen_count;
}

int main(int argc, char **argv)
{
	uint64_t states = 0, n = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < exploration_count; i++) {
		bool wanted = argc < 2;

		for (int k = 1; k < argc; k++)
			wanted |= strcmp(argv[k], explorations[i].name) == 0;
		if (!wanted)
			continue;
		explore(&explorations[i], &states);
		n++;
	}
	printf("explore: %" PRIu64 " cases, %" PRIu64
	       " states, every sequentially consistent interleaving, 0 violations\n",
	       n, states);
	return n == 0;
}
