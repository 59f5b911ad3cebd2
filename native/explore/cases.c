/* The cases: 2 x 2 at most, a few slots, a death before each step. */
#include "explore.h"

static uint32_t branch(const char *name, struct shmring_branch_options o)
{
	uint32_t id;

	o.start = SHMRING_EARLIEST;
	MUST(shmring_subscribe(&world.handle[BEFORE], name, &o, &id) == SHMRING_OK);
	return id;
}

static void open_producer(int i)
{
	MUST(shmring_producer_open(&world.handle[i], "p", &world.producer[i]) == SHMRING_OK);
}

static void join(int i, const char *name)
{
	MUST(shmring_join(&world.handle[i], name, NULL, "m", &world.member[i]) == SHMRING_OK);
}

/* What is there before is marked as known to the checks. */
static void push_before(uint64_t from, uint64_t to)
{
	shmring_producer *p;
	uint64_t id;

	MUST(shmring_producer_open(&world.handle[BEFORE], "before", &p) == SHMRING_OK);
	for (uint64_t number = from; number < to; number++) {
		MUST(shmring_push(p, &number, 8, KIND_BYTES, &id) == SHMRING_OK);
		world.ghost.committed[number] = 1;
	}
	shmring_producer_close(p);
}

/* Every actor that pushes gets a producer, every one that consumes a member. */
static void seat_actors(void)
{
	static const char *const names[] = {"a", "b", "c"};

	for (int i = 0; i < THREADS; i++) {
		const struct actor *a = &exploring->actor[i];

		if (a->body == produce || a->body == produce_batch)
			open_producer(i);
		if (a->body == consume)
			join(i, names[a->branch]);
	}
}

static void one_branch(void)
{
	(void)branch("a", (struct shmring_branch_options){0});
	seat_actors();
}

static void three_waiting(void)
{
	(void)branch("a", (struct shmring_branch_options){0});
	push_before(0, 3);
	seat_actors();
}

const struct exploration explorations[] = {
    {.name = "one producer laps one member",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{.body = produce, .from = 0, .to = 3}, {.body = consume, .stays = true}}},
    {.name = "two producers and a member, one producer may die",
     .slots = 2,
     .deaths = 1,
     .before = one_branch,
     .keeps = 1,
     .actor = {{.body = produce, .from = 0, .to = 1, .mortal = true},
	       {.body = produce, .from = 1, .to = 2},
	       {.body = consume, .stays = true}}},
    {.name = "two members share, one may die",
     .slots = 4,
     .deaths = 1,
     .before = three_waiting,
     .keeps = 1,
     .actor = {{.body = consume, .stays = true, .mortal = true}, {.body = consume, .stays = true}}},
};

const size_t exploration_count = sizeof explorations / sizeof *explorations;
