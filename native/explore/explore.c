#include "path.h"

/* The cases, in one list and one file for each subject. */
extern const struct cases litmus_tests, cases_of_messages, cases_of_leases, cases_of_reading, cases_of_branches,
    cases_of_ends, cases_of_waiting;

#undef malloc
#undef calloc
#undef free
#undef clock_gettime

struct memory memory;
struct world world;
shmring handles[HANDLES];
const struct exploration *exploring;
bool explore_weak, explore_fences, explore_unfinished;
static size_t most_states = SIZE_MAX;
static long walks = 3000;
static bool prints_accesses;

static size_t path_room, deepest;

#define RUNNING ((UINT64_C(1) << DEATH) - 1)

static void take_choice(struct node *n, int c)
{
	struct thread *t = &world.thread[thread_of(c)];

	n->chosen = c;
	n->in_time = t->status == SLEEPING || t->access == CLOCK;
	n->function = t->function;
	n->line = t->line;
	option = (uint32_t)(c % WEAK_OPTIONS);
	if (c < DEATH && t->status == SLEEPING) {
		t->status = READY;
		t->late = true;
	}
	if (c < DEATH)
		thread_run(thread_of(c));
	else
		thread_die(thread_of(c));
}

static uint64_t options(int i)
{
	const struct thread *t = &world.thread[i];

	if (t->access == CLOCK)
		return 3;
	if (!t->address || !weak_has(t->address) || t->access == OTHER)
		return 1;
	return t->access == STORE ? weak_store_options(i, t->address) : weak_load_options(i, t->address);
}

static uint64_t choices(void)
{
	uint64_t set = 0;

	for (int i = 0; i < THREADS; i++) {
		const struct thread *t = &world.thread[i];

		if (t->status == READY)
			set |= options(i) << i * WEAK_OPTIONS;
		if (t->status == SLEEPING && exploring->actor[i].in_time && !t->late)
			set |= UINT64_C(2) << i * WEAK_OPTIONS;
		if (thread_has_stack(i) && exploring->actor[i].mortal)
			set |= UINT64_C(1) << (i + DEATH);
	}
	return set;
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

static void push_node(uint64_t set)
{
	struct node *n = add_node();

	n->choices = set;
	n->state = state_save();
	if (depth > deepest)
		deepest = depth;
}

/* Checks a run in which no thread can go on. */
static void at_the_end(void)
{
	for (int i = 0; i < THREADS; i++)
		if (thread_has_stack(i) && !exploring->actor[i].stays)
			explore_violation("thread %d waits for ever", i);
	check_end();
}

static uint32_t outcomes; /* bit set of the litmus test's outcomes seen so far */

static void choose(struct node *n)
{
	int c = __builtin_ctzll(n->choices);

	state_restore(n->state);
	n->choices &= n->choices - 1;
	take_choice(n, c);
}

static void arrive(uint64_t *ends)
{
	uint64_t set;

	weak_normalise();
	set = choices();
	/* Stop: a thread that waits for a word not known to be shared was not woken, so the run is void. */
	if (more_is_shared || !state_is_new())
		return;
	if (set & RUNNING) {
		push_node(set);
		return;
	}
	++*ends;
	push_node(set); /* save first: a death may still follow, and the checks below change the state */
	if (exploring->outcome)
		outcomes |= 1u << exploring->outcome();
	else
		at_the_end();
}

static void begin(const struct exploration *e)
{
	world_make(e);
	note_deaths();
	for (int i = 0; i < THREADS; i++)
		thread_make(i);
}

static uint64_t random_number(void)
{
	static uint64_t seed = 88172645463325252;

	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static int random_choice(uint64_t set)
{
	uint64_t number = random_number();

	if (number % 16) /* deaths are rare */
		set &= RUNNING;
	for (uint64_t skip = (number >> 8) % (uint64_t)__builtin_popcountll(set); skip; skip--)
		set &= set - 1;
	return __builtin_ctzll(set);
}

/* Runs the case at random first. Random runs find most violations, if there are any, and most of
 * the shared words; the exploration then begins anew less often. */
static void walk_at_random(const struct exploration *e, long walks)
{
	for (long walk = 0; walk < walks; walk++) {
		uint64_t set;

		begin(e);
		accesses_begin_anew();
		while (!more_is_shared && (set = choices()) & RUNNING) {
			take_choice(add_node(), random_choice(set));
			weak_normalise();
		}
		if (!more_is_shared && !e->outcome)
			at_the_end();
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
	accesses_begin();
	begin(e);
	state_describe();
	walk_at_random(e, walks);
	do {
		outcomes = 0;
		steps = ends = 0;
		while (depth)
			free(path[--depth].state);
		state_forget_all();
		begin(e);
		accesses_begin_anew();
		arrive(&ends);
		while (depth && !more_is_shared && state_count() < most_states) {
			if (path[depth - 1].choices == 0) {
				free(path[--depth].state);
				continue;
			}
			choose(&path[depth - 1]);
			steps++;
			arrive(&ends);
		}
	} while (more_is_shared && most_states);
	if (state_count() >= most_states)
		explore_unfinished = true;
	else if (e->outcome && outcomes != (explore_weak ? e->allowed : e->interleaved))
		explore_violation("the outcomes are %#x", outcomes);
	clock_gettime(CLOCK_MONOTONIC, &now);
	printf("%-62s %9zu states %10" PRIu64 " steps %6" PRIu64 " ends %4zu deep %4ld s%s%s\n", e->name,
	       state_count(), steps, ends, deepest, (long)(now.tv_sec - start.tv_sec),
	       e->whole_entries ? " (entries whole)" : "", state_count() < most_states ? "" : " (unfinished)");
	if (prints_accesses)
		accesses_print();
	*all_states += state_count();
}

static bool is_flag(const char *name, int *argc, char ***argv)
{
	if (*argc < 2 || strcmp((*argv)[1], name) != 0)
		return false;
	--*argc;
	++*argv;
	return true;
}

static const char *value_of(const char *name, int *argc, char ***argv)
{
	return is_flag(name, argc, argv) && is_flag((*argv)[1], argc, argv) ? **argv : NULL;
}

static bool is_wanted(const struct exploration *e, int names, char **wanted)
{
	for (int i = 0; i < names; i++)
		if (strcmp(wanted[i], e->name) == 0)
			return true;
	return names == 0 && (!explore_weak || e->weak);
}

/* explore [--weak [--fences]] [--list] [--accesses] [--weaken ACCESS] [--walks N] [--states N] [CASE ...] */

int main(int argc, char **argv)
{
	static const struct cases *const subjects[] = {
	    &litmus_tests,      &cases_of_messages, &cases_of_leases,  &cases_of_reading,
	    &cases_of_branches, &cases_of_ends,     &cases_of_waiting,
	};
	uint64_t states = 0, n = 0;
	const char *value;
	bool list;

	setvbuf(stdout, NULL, _IOLBF, 0);
	explore_weak = is_flag("--weak", &argc, &argv);
	explore_fences = is_flag("--fences", &argc, &argv);
	list = is_flag("--list", &argc, &argv);
	prints_accesses = is_flag("--accesses", &argc, &argv);
	explore_weakened = value_of("--weaken", &argc, &argv);
	if ((value = value_of("--walks", &argc, &argv)))
		walks = atol(value);
	if ((value = value_of("--states", &argc, &argv)))
		most_states = (size_t)atol(value);
	for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
		for (size_t k = 0; k < subjects[i]->count; k++)
			if (is_wanted(&subjects[i]->cases[k], argc - 1, argv + 1)) {
				if (list)
					puts(subjects[i]->cases[k].name);
				else
					explore(&subjects[i]->cases[k], &states);
				n++;
			}
	if (list)
		return 0;
	printf("explore: %" PRIu64 " cases, %" PRIu64 " states, every %s, 0 violations%s\n", n, states,
	       explore_weak ? "run that C11 allows" : "sequentially consistent interleaving",
	       explore_unfinished ? ", unfinished" : "");
	return n == 0 ? VIOLATED : explore_unfinished ? UNFINISHED : ALL_IS_WELL;
}
