/* Cases of a thread that waits for several things: consumers of two branches, a producer, a bell. */
#include "cases.h"

/* Joins "b" with a second consumer; the thread's first one, world.consumer, is in "a". */
static void join_b(int me)
{
	MUST(shmring_join(&handles[me], "b", NULL, "m", &world.beside[me]) == SHMRING_OK);
}

static void one_waits_for_two(void)
{
	two_branches();
	join_b(0);
}

static void wait_for(struct shmring_wait *waits, uint32_t n)
{
	int status;

	do {
		explore_look();
		status = shmring_wait_any(waits, n, NULL, 0, INT64_MAX, SHMRING_WAIT_FUTEX);
		MUST(status == SHMRING_OK || !explore_spins());
	} while (status != SHMRING_OK);
	explore_found();
}

static bool take(shmring_consumer *m, uint64_t *last_seen)
{
	int status;

	do
		status = take_one(m, 1, last_seen);
	while (status == SHMRING_CONTENDED);
	return status == SHMRING_OK;
}

/* Takes one message: from "b" if both branches have one, else from "a". */
static void take_one_of_two(int me)
{
	uint64_t last_seen[2] = {0};
	bool taken = false;

	while (!taken) {
		struct shmring_wait waits[] = {{.consumer = world.beside[me]}, {.consumer = world.consumer[me]}};

		wait_for(waits, 2);
		MUST(waits[0].ready || waits[1].ready);
		taken = (waits[0].ready && take(world.beside[me], &last_seen[0])) ||
			(waits[1].ready && take(world.consumer[me], &last_seen[1]));
	}
	shmring_consumer_close(world.beside[me]);
	shmring_consumer_close(world.consumer[me]);
	world.consumer[me] = NULL;
}

/* Declines a message that is there, like a cancelled task: the consumer stays, but waits no more. */
static void wait_and_decline(int me)
{
	struct shmring_wait wait = {.consumer = world.consumer[me]};

	wait_for(&wait, 1);
	shmring_consumer_decline(world.consumer[me]);
}

/* Waits with a deadline while another consumer may take the only message first. */
static void wait_until_late(int me)
{
	struct shmring_wait wait = {.consumer = world.consumer[me]};
	int status;

	do {
		explore_look();
		status = shmring_wait_any(&wait, 1, NULL, 0, EXPLORE_DEADLINE_NS, SHMRING_WAIT_FUTEX);
		MUST(status != SHMRING_AGAIN || !explore_spins());
	} while (status == SHMRING_AGAIN);
	explore_found();
	if (status == SHMRING_OK && !take(world.consumer[me], &world.ghost.last_seen[me]))
		shmring_consumer_decline(world.consumer[me]);
}

static void push_where_one_waits(int me)
{
	uint64_t number = exploring->actor[me].from;
	struct shmring_wait wait = {.producer = world.producer[me], .slots = 1};
	int status;

	do {
		wait_for(&wait, 1);
		status = shmring_push(world.producer[me], &number, sizeof number, KIND_BYTES, NULL);
	} while (status != SHMRING_OK);
	world.ghost.committed[number] = 1;
}

static uint32_t *bell(void)
{
	return (uint32_t *)&memory.litmus[0];
}

/* Takes messages until another thread sends word and rings the bell. */
static void wait_for_word(int me)
{
	for (;;) {
		struct shmring_wait wait = {.consumer = world.consumer[me]};
		uint32_t rung = load_acquire(bell());

		explore_look();
		if (load_relaxed(&memory.litmus[1]))
			break;
		if (shmring_wait_any(&wait, 1, bell(), rung, INT64_MAX, SHMRING_WAIT_FUTEX) == SHMRING_OK)
			MUST(take(world.consumer[me], &world.ghost.last_seen[me]));
		else
			MUST(!explore_spins());
	}
	explore_found();
}

static void send_word(int me)
{
	(void)me;
	store_relaxed(&memory.litmus[1], 1);
	shmring_ring_bell(bell());
}

/* CHANGE: edit this for a new case of the explorer */
static const struct exploration cases[] = {
    {.name = "asleep: one waits for two branches and takes of one; another consumer of the other",
     .slots = 2,
     .whole_entries = true,
     .before = one_waits_for_two,
     .keeps = 2,
     .actor = {{CONSUMER(take_one_of_two)}, {CONSUMER(consume_asleep), .stays = true}, {PUSHES(0, 0)}}},
    {.name = "asleep: two wait for any, one of them for two branches",
     .slots = 2,
     .whole_entries = true,
     .before = one_waits_for_two,
     .keeps = 2,
     .actor = {{CONSUMER(take_one_of_two)},
	       {PUSHES(0, 0)},
	       {CONSUMER(consume_asleep), .branch = 1, .stays = true}}},
    {.name = "asleep: who waits for any declines what there is",
     .slots = 2,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{CONSUMER(wait_and_decline), .stays = true},
	       {CONSUMER(consume_asleep), .stays = true},
	       {PUSHES(0, 0)}}},
    {.name = "asleep: of two consumers one waits for any until its deadline",
     .slots = 2,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{CONSUMER(wait_until_late), .in_time = true},
	       {CONSUMER(consume_asleep), .stays = true},
	       {PUSHES(0, 1)}}},
    {.name = "asleep: a producer waits for any until there is room",
     .weak = true,
     .slots = 2,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{PRODUCER(push_where_one_waits), .from = 2, .to = 3}, {SERVES}}},
    {.name = "asleep: who waits for any hears its bell",
     .weak = true,
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{CONSUMER(wait_for_word)}, {.body = send_word}, {PUSHES(0, 0)}}},
};

const struct cases cases_of_waiting = {cases, sizeof cases / sizeof *cases};
