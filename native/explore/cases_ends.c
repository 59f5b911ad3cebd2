/* Cases of the end of a stream. */
#include "cases.h"

static void push_end(shmring_producer *p)
{
	MUST(shmring_push(p, NULL, 0, KIND_END, NULL) == SHMRING_OK);
}

/* Publishes a number, the end marker, and the first number of the next run. */
static void produce_two_runs(int me)
{
	shmring_producer *p = world.producer[me];

	for (uint64_t number = 0; number < 2; number++) {
		MUST(shmring_push(p, &number, 8, KIND_BYTES, NULL) == SHMRING_OK);
		world.ghost.committed[number] = 1;
		if (number == 0)
			push_end(p);
	}
}

static void produce_the_end(int me)
{
	push_end(world.producer[me]);
}

/* Publishes an end marker after a run that has nothing but an aborted claim. */
static void abort_and_produce_the_end(int me)
{
	(void)claim_slots(me, 1);
	MUST(shmring_abort(world.producer[me]) == SHMRING_OK);
	push_end(world.producer[me]);
}

static void produce_the_end_when_there_is_room(int me)
{
	(void)claim_slots(me, 1);
	MUST(shmring_publish(world.producer[me], 0, KIND_END, 0) == SHMRING_OK);
}

/* Publishes the messages of produce_two_runs() before the case begins. */
static void two_runs(void)
{
	shmring_producer *p;

	(void)make_branch("a", (struct shmring_branch_options){0});
	seat_actors();
	MUST(shmring_producer_open(&handles[BEFORE], "before", &p) == SHMRING_OK);
	world.producer[BEFORE] = p;
	produce_two_runs(BEFORE);
	shmring_producer_close(p);
	world.producer[BEFORE] = NULL;
}

/* Makes a run whose end a consumer has taken; the actors' producers begin the next run. */
static void a_run_before(void)
{
	struct shmring_lease l;
	shmring_producer *p;
	shmring_consumer *m;

	(void)make_branch("a", (struct shmring_branch_options){0});
	MUST(shmring_join(&handles[BEFORE], "a", NULL, "before", &m) == SHMRING_OK);
	MUST(shmring_producer_open(&handles[BEFORE], "before", &p) == SHMRING_OK);
	push_end(p);
	MUST(shmring_take(m, 1, 1, &l) == SHMRING_ENDED);
	shmring_producer_close(p);
	shmring_consumer_close(m);
	seat_actors();
}

/* Joins before or after the next run is published, and serves. */
static void join_and_consume_runs(int me)
{
	MUST(shmring_join(&handles[me], "a", NULL, "late", &world.consumer[me]) == SHMRING_OK);
	consume_runs(me);
}

/* Makes a dead consumer that holds the first number, and an end marker after that number. */
static void an_end_behind_an_orphan(void)
{
	shmring_producer *p;

	(void)make_branch("a", (struct shmring_branch_options){0});
	push_before(1);
	take_and_die(1);
	MUST(shmring_producer_open(&handles[BEFORE], "before", &p) == SHMRING_OK);
	push_end(p);
	shmring_producer_close(p);
	seat_actors();
}

/* Checks that every living consumer was told of the end exactly once. */
static void check_ends(void)
{
	for (int i = 0; i < THREADS; i++)
		if (exploring->actor[i].from && world.thread[i].status != DEAD)
			MUST(world.ghost.ends[i] == 1);
}

#define ENDS CONSUMER(consume_runs), .from = 1, .stays = true
#define ENDS_ASLEEP CONSUMER(consume_runs_asleep), .from = 1, .stays = true

/* CHANGE: edit this for a new case of the explorer */
static const struct exploration cases[] = {
    {.name = "the end of a stream: two consumers",
     .weak = true,
     .slots = 4,
     .before = two_runs,
     .keeps = 1,
     .after = check_ends,
     .actor = {{ENDS}, {ENDS}}},
    {.name = "the end of a stream: two consumers; one may die",
     .weak = true,
     .slots = 4,
     .before = two_runs,
     .keeps = 1,
     .after = check_ends,
     .actor = {{ENDS, .mortal = true}, {ENDS}}},
    {.name = "the end of a stream: it comes while two wait",
     .slots = 4,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .after = check_ends,
     .actor = {{PRODUCER(produce_two_runs)}, {ENDS}, {ENDS}}},
    {.name = "the end of a stream: of a run without messages, for which one joins",
     .slots = 4,
     .before = a_run_before,
     .keeps = 1,
     .after = check_ends,
     .actor = {{PRODUCER(produce_the_end)}, {.body = join_and_consume_runs, .from = 1, .stays = true}}},
    {.name = "the end of a stream: of a run that was given up: one is there, one joins",
     .slots = 4,
     .whole_entries = true,
     .before = a_run_before,
     .keeps = 1,
     .after = check_ends,
     .actor = {{PRODUCER(abort_and_produce_the_end)},
	       {.body = join_and_consume_runs, .stays = true}, /* may join after the end */
	       {ENDS}}},
    {.name = "the end of a stream: it overwrites what two look at",
     .slots = 2,
     .before = two_waiting, /* the end marker will take the slot of the first number */
     .keeps = 1,
     .after = check_ends,
     .actor = {{PRODUCER(produce_the_end_when_there_is_room)},
	       {CONSUMER(consume_runs), .from = 2, .stays = true},
	       {CONSUMER(consume_runs), .from = 2, .stays = true}}},
    {.name = "asleep: the end of a stream wakes all",
     .slots = 4,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .after = check_ends,
     .actor = {{PRODUCER(produce_the_end)}, {ENDS_ASLEEP}, {ENDS_ASLEEP}}},
    {.name = "asleep: the end waits for what the dead held",
     .weak = true,
     .slots = 4,
     .before = an_end_behind_an_orphan,
     .keeps = 1,
     .actor = {{ENDS_ASLEEP}, {.body = hold_the_admin_lock}}},
    {.name = "asleep: the end waits for what the dead held: two consumers",
     .slots = 4,
     .whole_entries = true,
     .before = an_end_behind_an_orphan,
     .keeps = 1,
     .actor = {{ENDS_ASLEEP}, {ENDS_ASLEEP}, {.body = hold_the_admin_lock}}},
};

const struct cases cases_of_ends = {cases, sizeof cases / sizeof *cases};
