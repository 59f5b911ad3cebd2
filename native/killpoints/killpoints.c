/* Kills a process after each instruction of an operation on a ring, and checks
 * from another process that the ring works, that every committed message
 * arrives once and that at most the one in flight is missing.
 *
 *   killpoints [--stride N] [OPERATION...]
 */
#include "scenes.h"
#include "step.h"

extern const struct subject pushing, taking, changing_branches, coming_and_going;

struct result {
	uint64_t instructions, points, elsewhere, broken;
};

struct image {
	void *bytes;
	size_t size;
};

static const struct subject *const subjects[] = {&pushing, &taking, &changing_branches, &coming_and_going};

static uint64_t stride = 1;

/* --- the ring before the operation -------------------------------------------------- */

static struct image build_image(const struct operation *o)
{
	struct shmring_options options = o->options;
	struct image image = {0};
	struct stat st;
	shmring *r;
	int fd;

	options.slots = 1024;
	options.participants = 12;
	r = ring_with(&options);
	o->build(r);
	shmring_close(r);
	fd = open(ring_path(), O_RDONLY);
	NEED(fd >= 0 && fstat(fd, &st) == 0);
	image.size = (size_t)st.st_size;
	image.bytes = malloc(image.size);
	NEED(image.bytes && read(fd, image.bytes, image.size) == (ssize_t)image.size);
	close(fd);
	return image;
}

/* Makes the ring's file anew: nothing holds a lock on a new file, so its old participants count as dead. */
static void restore(const struct image *image)
{
	int fd;

	unlink(ring_path());
	fd = open(ring_path(), O_RDWR | O_CREAT | O_EXCL, 0600);
	NEED(fd >= 0 && write(fd, image->bytes, image->size) == (ssize_t)image->size);
	close(fd);
}

/* --- the child ------------------------------------------------------------------------ */

struct job {
	const struct operation *operation;
	struct victim victim;
};

static void play(void *argument)
{
	struct job *j = argument;
	struct victim *v = &j->victim;

	v->r = ring_again(v->path);
	if (j->operation->enter)
		j->operation->enter(v);
	step_begin();
	j->operation->act(v);
	crash_order();
	v->shared->done = true;
	step_end();
}

/* --- survivors -------------------------------------------------------------------------- */

static void arrive(struct survivors *s, const struct operation *o)
{
	struct shmring_branch_options b = {.start = SHMRING_EARLIEST};
	uint32_t w;

	b.exclusive = o->alone && o->enter && shmring_find_branch(s->r, "b", &w) == SHMRING_OK &&
		      load_relaxed(&s->r->cursors->branch[w].d.options) & BRANCH_EXCLUSIVE;
	s->b = consumer_with(s->r, "b", &b);
	s->w = shmring_find_branch(s->r, "w", &w) == SHMRING_OK ? consumer_of(s->r, "w") : NULL;
	s->p = producer_of(s->r);
}

static void leave(struct survivors *s)
{
	shmring_producer_close(s->p);
	shmring_consumer_close(s->b);
	shmring_consumer_close(s->w);
	shmring_close(s->r);
}

/* Takes all messages, one by one. Adds their numbers to the mask *got, the numbers of
 * redelivered ones to *again, and the end markers to the count *ends. A message of
 * several words has its number in each word. */
static int drain(shmring_consumer *m, uint64_t *got, uint64_t *again, unsigned *ends)
{
	struct shmring_lease l;
	struct shmring_message message;
	uint64_t at, number, word;
	int status;

	while ((status = shmring_take(m, 1, 1, &l)) == SHMRING_OK || status == SHMRING_CONTENDED ||
	       status == SHMRING_ENDED) {
		*ends += status == SHMRING_ENDED;
		if (status)
			continue;
		at = l.first;
		NEED(shmring_read(m->ring, &at, l.end, &message) == SHMRING_OK && message.length >= 8);
		memcpy(&number, message.data, 8);
		NEED(number < 64);
		for (uint32_t i = 0; i < message.length; i += 8) {
			memcpy(&word, (const uint8_t *)message.data + i, 8);
			CHECK_IS(word, number);
		}
		CHECK(!(*got & BIT(number)));
		*got |= BIT(number);
		*again |= l.redelivered ? BIT(number) : 0;
		NEED(shmring_release(m, l.first, l.end) == SHMRING_OK);
	}
	return status;
}

static void check_works(struct survivors *s)
{
	for (uint64_t i = 0; i < 2100; i++) {
		CHECK_IS(push_number(s->p, i), SHMRING_OK);
		CHECK_IS(pop_number(s->b), i);
		if (s->w)
			CHECK_IS(pop_number(s->w), i);
		if (check_broken)
			return;
	}
}

/* Checks that followers and roots agree with the branches' upstreams, also after a death within a change. */
static void check_graph(const shmring *r)
{
	uint64_t roots = 0, followers[BRANCHES] = {0};
	uint64_t active = load_relaxed(&r->cursors->graph.active);

	for (uint64_t m = active; m; m &= m - 1) {
		int id = __builtin_ctzll(m);
		uint64_t upstream = load_relaxed(&r->cursors->branch[id].d.upstream);

		roots |= upstream ? 0 : BIT(id);
		for (uint64_t up = upstream; up; up &= up - 1)
			followers[__builtin_ctzll(up)] |= BIT(id);
	}
	CHECK_IS(load_relaxed(&r->cursors->graph.roots), roots);
	for (uint64_t m = active; m; m &= m - 1)
		CHECK_IS(load_relaxed(&r->cursors->branch[__builtin_ctzll(m)].d.followers),
			 followers[__builtin_ctzll(m)]);
}

static void check(struct survivors *s, const struct operation *o, bool recover_first, bool arrive_late)
{
	const struct progress *v = s->victim;
	uint64_t waiting = o->numbered ? 0 : SIX_WAITING;
	uint64_t shown = visible_in_table(s->r), got = 0, again = 0, w_got = 0, none = 0, missing;
	unsigned ends = 0, w_ends = 0;
	int status;

	if (recover_first)
		CHECK_IS(shmring_recover(s->r, NULL), SHMRING_OK);
	if (arrive_late)
		arrive(s, o);
	if (o->check)
		o->check(s);
	status = drain(s->b, &got, &again, &ends);
	CHECK_IS(shmring_recover(s->r, NULL), SHMRING_OK);
	if (status == SHMRING_UNAVAILABLE)
		status = drain(s->b, &got, &again, &ends);
	CHECK(status == SHMRING_UNAVAILABLE || (status == SHMRING_E_DROPPED && o->drops));
	CHECK(!o->drops || !v->done || arrive_late || status == SHMRING_E_DROPPED);
	if (s->w) /* before a new "b" may take the place of one that was dropped */
		CHECK_IS(drain(s->w, &w_got, &none, &w_ends), SHMRING_UNAVAILABLE);
	if (status == SHMRING_E_DROPPED) { /* "b" was dropped with its messages; a new one begins at the floor */
		shmring_consumer_close(s->b);
		s->b = consumer_of(s->r, "b");
		got = 0;
		(void)drain(s->b, &got, &none, &ends);
		got = waiting;
	}

	/* Each consumer that joined before the end was passed is told of the end once. */
	CHECK(ends <= (o->ends != NO_END) && w_ends <= (o->ends != NO_END));
	CHECK(arrive_late || ends == w_ends);
	CHECK(arrive_late || o->ends == NO_END || ends == 1 || (o->ends == MAY_END && !v->done));

	/* Messages in flight: all or none arrive, for all consumers; after they arrived once, they always do. */
	CHECK((got & o->pushes) == 0 || (got & o->pushes) == o->pushes);
	CHECK(!s->w || w_got == ((got & o->pushes) | o->behind));
	CHECK_IS(shown & o->pushes, got & o->pushes);
	CHECK(!(v->done || s->arrived) || (got & o->pushes) == o->pushes);
	if (o->pushes)
		s->arrived |= got & o->pushes;

	/* Messages from before: one is missing only if the child has begun to release it. */
	missing = waiting & ~got;
	CHECK_IS(missing & ~v->releasing, 0);
	CHECK_IS(got & (v->released | s->gone), 0);
	CHECK_IS(got & ~waiting & ~o->pushes, 0);
	s->gone |= missing;
	/* Redelivered messages: those that the child or a dead consumer held, and no others. */
	CHECK_IS(again & ~(o->takes | o->held), 0);
	CHECK(o->drops || (again & o->held) == (o->held & ~missing));
	CHECK_IS(none, 0);

	check_works(s);
	CHECK_IS(seats_in_use(s->r), s->w ? 3 : 2);
	CHECK_IS(load_relaxed(&s->r->cursors->graph.active),
		 BIT(s->b->branch_index) | (s->w ? BIT(s->w->branch_index) : 0));
	check_graph(s->r);
}

/* --- one point after the other ------------------------------------------------------------- */

struct run {
	const struct operation *operation;
	struct result *result;
	struct image image;
	struct progress *shared;
	/* [0]: the survivors join before the child; [1]: after its death */
	struct survivors survivors[2];
	struct trace trace[2];
};

/* Makes a fresh ring, lets the survivors join unless they come late, and starts the child. */
static pid_t set_the_stage(struct run *run, bool arrive_late)
{
	struct job job = {run->operation, {.path = ring_path(), .shared = run->shared}};
	struct survivors *s = &run->survivors[arrive_late];

	*run->shared = (struct progress){0};
	restore(&run->image);
	s->r = ring_again(ring_path());
	if (!arrive_late)
		arrive(s, run->operation);
	return step_spawn(play, &job);
}

static void check_after(struct run *run, uint64_t n, bool recover_first, bool arrive_late)
{
	const char *name = run->operation->name;
	struct survivors *s = &run->survivors[arrive_late];

	check_broken = 0;
	check(s, run->operation, recover_first, arrive_late);
	if (check_broken)
		printf("  %s: killed after %" PRIu64 " of %zu instructions%s%s\n", name, n,
		       run->trace[arrive_late].steps, recover_first ? ", recovered first" : "",
		       arrive_late ? ", survivors late" : "");
	run->result->broken += (uint64_t)check_broken;
	leave(s);
}

/* Steps a child through the whole operation, keeps its trace, and kills it at the end. */
static void trace_whole(struct run *run, bool arrive_late)
{
	struct trace *trace = &run->trace[arrive_late];
	pid_t child = set_the_stage(run, arrive_late);

	trace_record(trace, child);
	step_kill(child);
	check_after(run, trace->steps, false, arrive_late);
	run->survivors[arrive_late].arrived = run->survivors[arrive_late].gone = 0;
}

/* Maximum number of children for one kill point. Now and then a child takes another path than
 * the traced one (the clock's loop in the vDSO, another number of digits in /proc):
 * its result is checked, and then another child is started. */
#define ATTEMPTS 5

static void kill_at(struct run *run, uint64_t n, bool recover_first, bool arrive_late)
{
	struct survivors *s = &run->survivors[arrive_late];
	bool on_trace = false;

	for (int attempt = 0; attempt < ATTEMPTS && !on_trace; attempt++) {
		uint64_t arrived = s->arrived, gone = s->gone;
		pid_t child = set_the_stage(run, arrive_late);

		on_trace = step_to(&run->trace[arrive_late], child, n);
		step_kill(child);
		check_after(run, n, recover_first, arrive_late);
		if (!on_trace) { /* the child may have come further than n */
			s->arrived = arrived;
			s->gone = gone;
		}
	}
	run->result->elsewhere += !on_trace;
	run->result->points++;
}

static void run_operation(const struct operation *o, struct result *result)
{
	struct run run = {.operation = o, .result = result, .image = build_image(o)};

	run.shared = shared_memory(sizeof *run.shared);
	for (int late = o->alone; late < 2; late++) {
		run.survivors[late].victim = run.shared;
		trace_whole(&run, late);
		if (run.trace[late].steps > result->instructions)
			result->instructions = run.trace[late].steps;
	}
	for (uint64_t n = 1; n <= result->instructions && result->broken < 5; n += stride) {
		uint64_t turn = n / stride;
		bool late = o->alone || turn & 2;

		alarm(60); /* a kill point that hangs counts as broken */
		if (n <= run.trace[late].steps)
			kill_at(&run, n, turn & 1, late);
	}
	unlink(ring_path());
	trace_free(&run.trace[0]);
	trace_free(&run.trace[1]);
	free(run.image.bytes);
	munmap(run.shared, sizeof *run.shared);
}

enum { MOST_OPERATIONS = 64 };

struct task {
	const struct operation *operation;
	struct result *result;
	pid_t pid;
};

static int run_task(void *argument)
{
	struct task *t = argument;

	run_operation(t->operation, t->result);
	return t->result->broken != 0;
}

/* Prints the ending of a child that was killed or could not go on. */
static void say_ending(int status)
{
	if (WIFSIGNALED(status))
		printf(" (signal %d, %s%s)", WTERMSIG(status), strsignal(WTERMSIG(status)),
		       WTERMSIG(status) == SIGALRM ? ": a point took more than a minute" : "");
	else if (WEXITSTATUS(status) > 1)
		printf(" (exit status %d)", WEXITSTATUS(status));
}

/* Waits for one of the tasks and reports it; true if it went well. */
static bool await_one(struct task *tasks, size_t n)
{
	int status;
	pid_t pid = wait(&status);

	for (size_t i = 0; i < n; i++) {
		const struct task *t = &tasks[i];

		if (t->pid != pid)
			continue;
		printf("%-30s %6" PRIu64 " instructions %6" PRIu64 " kill points %s", t->operation->name,
		       t->result->instructions, t->result->points, status ? "BROKEN" : "ok");
		say_ending(status);
		putchar('\n');
		t->result->broken += status && !t->result->broken; /* the task ended before it could count */
		return status == 0;
	}
	printf("BROKEN: wait(2) told of no operation: %s\n", pid < 0 ? strerror(errno) : "an unknown process");
	return false;
}

static bool is_wanted(const char *name, int n, char **names)
{
	for (int i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return n == 0;
}

/* Makes a task for each wanted operation; returns their number. */
static size_t choose(struct task *tasks, int names, char **name)
{
	struct result *results = shared_memory(MOST_OPERATIONS * sizeof *results);
	size_t n = 0;

	for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
		for (size_t k = 0; k < subjects[i]->count; k++)
			if (is_wanted(subjects[i]->operations[k].name, names, name)) {
				NEED(n < MOST_OPERATIONS);
				tasks[n].operation = &subjects[i]->operations[k];
				tasks[n].result = &results[n];
				n++;
			}
	return n;
}

int main(int argc, char **argv)
{
	struct task tasks[MOST_OPERATIONS] = {0};
	struct result all = {0};
	size_t n, reported = 0;
	long parallel = sysconf(_SC_NPROCESSORS_ONLN);
	int64_t start = clock_ns();
	bool good = true;

	if (argc > 2 && strcmp(argv[1], "--stride") == 0) {
		stride = strtoull(argv[2], NULL, 10);
		argc -= 2;
		argv += 2;
	}
	if (stride == 0)
		return fprintf(stderr, "killpoints [--stride N] [OPERATION...]\n"), 2;
	if (!step_is_allowed())
		return fprintf(stderr, "killpoints: this system lets no process be traced\n"), 77;
	setvbuf(stdout, NULL, _IOLBF, 0);
	n = choose(tasks, argc - 1, argv + 1);
	if (n == 0)
		return fprintf(stderr, "killpoints: there is no such operation\n"), 2;
	for (size_t i = 0; i < n; i++) {
		if ((long)(i - reported) == parallel)
			good &= await_one(tasks, n), reported++;
		tasks[i].pid = spawn(run_task, &tasks[i]);
		NEED(tasks[i].pid > 0);
	}
	for (; reported < n; reported++)
		good &= await_one(tasks, n);
	for (size_t i = 0; i < n; i++) {
		all.points += tasks[i].result->points;
		all.elsewhere += tasks[i].result->elsewhere;
		all.broken += tasks[i].result->broken;
	}
	printf("kill-points: %zu operations, %" PRIu64 " kill points (%" PRIu64 " off the trace), %" PRIu64
	       " broken, %.0f s\n",
	       n, all.points, all.elsewhere, all.broken, (double)(clock_ns() - start) / 1e9);
	return !good;
}
