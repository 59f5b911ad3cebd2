/* Cases of branches that are made, dropped, or given other upstreams while messages pass. */
#include "cases.h"

static void three_side_by_side(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	(void)make_branch("b", (struct shmring_branch_options){0});
	(void)make_branch("c", (struct shmring_branch_options){0});
	seat_actors();
}

/* Makes an open claim of the first thread and a message after it; no branch holds producers back. Both
 * numbers count as delivered, because a branch that begins after them gets neither. */
static void an_open_claim(void)
{
	open_producer(0);
	MUST(shmring_next(world.producer[0], 1) == 0);
	push_before(1);
	memset(world.ghost.committed, 0, sizeof world.ghost.committed);
	world.ghost.delivered[0][0] = world.ghost.delivered[0][NUMBERS - 1] = 1;
}

static const struct shmring_branch_options behind = {.start = SHMRING_AT_SEQUENCE, .sequence = 2};

static void a_branch_behind_an_open_claim(void)
{
	an_open_claim();
	MUST(shmring_subscribe(&handles[BEFORE], "a", &behind, NULL) == SHMRING_OK);
	seat_actors();
}

static void only_an_open_claim(void)
{
	an_open_claim();
	seat_actors();
}

/* Adds a longer claim to the open one: it lost the race for its place, and its producer does not know yet. */
static void an_open_claim_and_a_lost_one(void)
{
	struct seat *s;

	only_an_open_claim();
	s = world.producer[1]->seat;
	s->intent.n = 2;
	s->intent.lo = 0;
}

/* Keeps the actors' producer out of the first seat, because an unfilled control entry names that seat. */
static void not_the_first_seat(void)
{
	open_producer(0);
	seat_actors();
}

/* Subscribes at the floor while it moves, reads what it can, and leaves. */
static void visit(int me)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .ephemeral = true};

	MUST(shmring_join(&handles[me], "v", &o, "visitor", &world.consumer[me]) == SHMRING_OK);
	take_what_is_there(me);
	shmring_consumer_close(world.consumer[me]);
	world.consumer[me] = NULL;
}

static void visit_twice(int me)
{
	visit(me);
	memset(world.ghost.delivered[0], 0, sizeof world.ghost.delivered[0]);
	memset(world.ghost.released[0], 0, sizeof world.ghost.released[0]);
	world.ghost.last_seen[me] = 0; /* the second visit makes a new branch with the same number */
	visit(me);
}

static void subscribe_at_the_end(int me)
{
	struct shmring_branch_options o = {.start = SHMRING_LATEST};

	MUST(shmring_subscribe(&handles[me], "a", &o, NULL) == SHMRING_OK);
}

/* Every message published after the subscription must lie behind the subscription's first sequence. */
static void subscribe_beside_a_batch(int me)
{
	subscribe_at_the_end(me);
	MUST(memory.control[0].published == 1 || memory.cursors.branch[0].d.first == 0);
}

/* Subscribes with the given options, reads what it can, and leaves. */
static void visit_with(int me, struct shmring_branch_options o)
{
	o.ephemeral = true;
	MUST(shmring_join(&handles[me], "v", &o, "visitor", &world.consumer[me]) == SHMRING_OK);
	take_what_is_there(me);
	shmring_consumer_close(world.consumer[me]);
	world.consumer[me] = NULL;
}

static void visit_behind_the_claim(int me)
{
	visit_with(me, behind);
}

static void visit_behind_the_claim_drop_oldest(int me)
{
	struct shmring_branch_options o = behind;

	o.drop_oldest = true;
	visit_with(me, o);
}

static void visit_from_now_on(int me)
{
	visit_with(me, (struct shmring_branch_options){.start = SHMRING_LATEST});
}

static void visit_from_now_on_drop_oldest(int me)
{
	visit_with(me, (struct shmring_branch_options){.start = SHMRING_LATEST, .drop_oldest = true});
}

static void publish_the_claim(int me)
{
	uint64_t number = NUMBERS - 1;

	memcpy(slot_at(&handles[me], 0), &number, sizeof number);
	MUST(shmring_publish(world.producer[me], 8, KIND_BYTES, 0) == SHMRING_OK);
}

static void unsubscribe(int me)
{
	MUST(shmring_unsubscribe(&handles[me], "a") == SHMRING_OK);
	world.ghost.lost[0] = 1;
}

/* Makes "c" follow "a" or "b"; another thread may add the other upstream at the same time. */
static void follow(int me)
{
	uint32_t upstream = exploring->actor[me].branch;

	MUST(shmring_follow(&handles[me], 2, UINT64_C(1) << upstream) == SHMRING_OK);
	world.ghost.followed |= UINT64_C(1) << upstream;
}

static void unfollow(int me)
{
	uint32_t upstream = exploring->actor[me].branch;

	MUST(shmring_unfollow(&handles[me], 2, UINT64_C(1) << upstream) == SHMRING_OK);
	world.ghost.followed &= ~(UINT64_C(1) << upstream);
}

static void follow_and_unfollow(int me)
{
	follow(me);
	unfollow(me);
}

static void lose_upstream(int me)
{
	MUST(shmring_unfollow(&handles[me], 1, 1) == SHMRING_OK);
}

static void check_upstreams(void)
{
	uint64_t left = memory.cursors.branch[2].d.upstream;

	for (int i = 0; i < THREADS; i++)
		if (world.thread[i].status == DEAD) /* the dead thread's change may have been made or not */
			left &= ~(UINT64_C(1) << exploring->actor[i].branch);
	MUST(left == world.ghost.followed);
}

/* CHANGE: edit this for a new case of the explorer */
static const struct exploration cases[] = {
    {.name = "a visitor subscribes where a producer overwrites",
     .slots = 2,
     .before = a_full_ring,
     .actor = {{PUSHES(2, 4)}, {.body = visit}}},
    {.name = "a visitor comes twice where a producer overwrites",
     .slots = 2,
     .before = a_full_ring,
     .actor = {{PUSHES(2, 3)}, {.body = visit_twice}}},
    {.name = "a visitor subscribes where a consumer holds producers; it may die",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1)}, {SERVES}, {.body = visit, .mortal = true}}},
    {.name = "a branch that begins behind an open claim, whose producer may die",
     .weak = true,
     .slots = 2,
     .before = a_branch_behind_an_open_claim,
     .keeps = 1,
     .actor = {{.body = publish_the_claim, .mortal = true}, {PUSHES(1, 2)}, {SERVES}}},
    {.name = "a branch that begins behind an open claim: two consumers, one may die",
     .weak = true,
     .slots = 4,
     .before = a_branch_behind_an_open_claim,
     .keeps = 1,
     .actor = {{.body = publish_the_claim}, {PUSHES(1, 1)}, {SERVES, .mortal = true}, {SERVES}}},
    {.name = "a visitor begins behind an open claim where a producer overwrites",
     .slots = 2,
     .before = only_an_open_claim,
     .actor = {{.body = publish_the_claim}, {PUSHES(1, 3)}, {.body = visit_behind_the_claim}}},
    {.name = "a visitor that is overrun begins behind an open claim where a producer overwrites",
     .slots = 2,
     .before = only_an_open_claim,
     .actor = {{.body = publish_the_claim}, {PUSHES(1, 3)}, {.body = visit_behind_the_claim_drop_oldest}}},
    {.name = "a visitor begins at the end, beside an open claim with a message behind it",
     .slots = 4,
     .before = only_an_open_claim,
     .actor = {{.body = publish_the_claim}, {PUSHES(1, 3)}, {.body = visit_from_now_on}}},
    {.name = "a visitor begins at the end, beside an open claim and a longer one that was lost",
     .slots = 4,
     .before = an_open_claim_and_a_lost_one,
     .actor = {{.body = publish_the_claim}, {PUSHES(1, 2)}, {.body = visit_from_now_on}}},
    {.name = "a visitor that is overrun begins at the end, beside an open claim with a message behind it",
     .slots = 4,
     .before = only_an_open_claim,
     .actor = {{.body = publish_the_claim}, {PUSHES(1, 3)}, {.body = visit_from_now_on_drop_oldest}}},
    {.name = "a branch begins at the end while two producers claim",
     .slots = 2,
     .before = seat_actors,
     .actor = {{PUSHES(0, 0), .stays = true}, {PUSHES(1, 2), .stays = true}, {.body = subscribe_at_the_end}}},
    {.name = "a branch begins at the end while a batch is published",
     .weak = true,
     .slots = 2,
     .before = not_the_first_seat,
     .actor = {{.body = subscribe_beside_a_batch}, {PUSHES_RUN(0, 1), .stays = true}}},
    {.name = "a branch is dropped while it is read and gates",
     .slots = 2,
     .before = one_branch,
     .actor = {{PUSHES(0, 2)}, {SERVES_BRANCH(0)}, {.body = unsubscribe}}},
    {.name = "a drop that may die half-way",
     .weak = true,
     .slots = 2,
     .before = a_chain,
     .actor = {{PUSHES(0, 1)}, {SERVES_BRANCH(1)}, {.body = unsubscribe, .mortal = true}}},
    {.name = "two give a branch an upstream each; one may die",
     .weak = true,
     .slots = 2,
     .before = three_side_by_side,
     .after = check_upstreams,
     .actor = {{.body = follow, .branch = 0, .mortal = true}, {.body = follow, .branch = 1}}},
    {.name = "an upstream comes while another one comes and goes",
     .weak = true,
     .slots = 2,
     .before = three_side_by_side,
     .after = check_upstreams,
     .actor = {{.body = follow, .branch = 0}, {.body = follow_and_unfollow, .branch = 1}}},
    {.name = "asleep: a branch loses the upstream that held it",
     .weak = true,
     .slots = 2,
     .before = a_chain,
     .keeps = 1,
     .actor = {{PUSHES(0, 0)}, {CONSUMER(consume_asleep), .branch = 1, .stays = true}, {.body = lose_upstream}}},
};

const struct cases cases_of_branches = {cases, sizeof cases / sizeof *cases};
