/* The cases: 2 x 2 at most, a few slots, a death before each step. */
#include "explore.h"

static uint32_t branch(const char *name, struct shmring_branch_options o)
{
	uint32_t id;

	o.start = SHMRING_EARLIEST;
	MUST(shmring_subscribe(&handles[BEFORE], name, &o, &id) == SHMRING_OK);
	return id;
}

static void open_producer(int i)
{
	MUST(shmring_producer_open(&handles[i], "p", &world.producer[i]) == SHMRING_OK);
}

static void join(int i, const char *name)
{
	MUST(shmring_join(&handles[i], name, NULL, "m", &world.member[i]) == SHMRING_OK);
}

/* What is there before is marked as known to the checks. */
static void push_before(uint64_t from, uint64_t to)
{
	shmring_producer *p;
	uint64_t id;

	MUST(shmring_producer_open(&handles[BEFORE], "before", &p) == SHMRING_OK);
	for (uint64_t number = from; number < to; number++) {
		MUST(shmring_push(p, &number, 8, KIND_BYTES, &id) == SHMRING_OK);
		world.ghost.committed[number] = 1;
	}
	shmring_producer_close(p);
}

static void produce_two_runs(int me);
static void produce_the_end(int me);

static void produce_and_leave(int me)
{
	produce(me);
	shmring_producer_close(world.producer[me]);
	world.producer[me] = NULL;
}

/* As shmring_producer_close() does where it cannot get the admin lock. */
static void produce_and_give_up(int me)
{
	produce(me);
	seat_abandon(&handles[me], world.producer[me]->seat_index);
	world.producer[me] = NULL;
}

static void the_first_holds_nothing(void)
{
	for (int i = 0; i < SMALL_SEATS; i++)
		MUST(memory.lock[i] != 1);
}

/* Every actor that pushes gets a producer, every one that consumes a member. */
static void seat_actors(void)
{
	static const char *const names[] = {"a", "b", "c"};

	for (int i = 0; i < THREADS; i++) {
		const struct actor *a = &exploring->actor[i];

		if (a->body == produce || a->body == produce_batch || a->body == produce_parts ||
		    a->body == produce_asleep || a->body == produce_and_leave || a->body == produce_and_give_up ||
		    a->body == produce_two_runs || a->body == produce_the_end)
			open_producer(i);
		if (a->body == consume || a->body == consume_asleep || a->body == consume_one_asleep ||
		    a->body == consume_runs || a->body == consume_runs_asleep || a->body == take_and_abandon ||
		    a->body == hand_back_and_consume)
			join(i, names[a->branch]);
	}
}

/* --- what is there before ---------------------------------------------------------- */

static void one_branch(void)
{
	(void)branch("a", (struct shmring_branch_options){0});
	seat_actors();
}

static void two_branches(void)
{
	(void)branch("a", (struct shmring_branch_options){0});
	(void)branch("b", (struct shmring_branch_options){0});
	seat_actors();
}

static void a_chain(void)
{
	uint32_t a = branch("a", (struct shmring_branch_options){0});

	(void)branch("b", (struct shmring_branch_options){.upstream = UINT64_C(1) << a});
	seat_actors();
}

static void an_exclusive_branch(void)
{
	(void)branch("a", (struct shmring_branch_options){.exclusive = true});
	seat_actors();
}

static void three_side_by_side(void)
{
	(void)branch("a", (struct shmring_branch_options){0});
	(void)branch("b", (struct shmring_branch_options){0});
	(void)branch("c", (struct shmring_branch_options){0});
	seat_actors();
}

static void three_waiting(void)
{
	(void)branch("a", (struct shmring_branch_options){0});
	push_before(0, 3);
	seat_actors();
}

static void two_waiting(void)
{
	(void)branch("a", (struct shmring_branch_options){0});
	push_before(0, 2);
	seat_actors();
}

/* One who died before holds [0, 2); 2 waits. */
static void orphan_of(struct shmring_branch_options o)
{
	shmring *dead = &handles[THREADS - 1];
	struct shmring_lease l;
	shmring_member *m;
	int status;

	(void)branch("a", o);
	push_before(0, 3);
	status = shmring_join(dead, "a", NULL, "dead", &m);
	MUST(status == SHMRING_OK && shmring_take(m, 2, 2, &l) == SHMRING_OK);
	world.ghost.delivered[0][0] = world.ghost.delivered[0][1] = 1;
	world.ghost.member_died[0] = 1;
	explore_kill_handle(THREADS - 1);
	world.deaths = exploring->dead_before;
	seat_actors();
}

static void an_orphan(void)
{
	orphan_of((struct shmring_branch_options){0});
}

static void a_lapsing_orphan(void)
{
	orphan_of((struct shmring_branch_options){.lapse = true});
}

/* Dead before: a producer whose claim of two slots is half filled, behind it a
 * living one's message. */
static void a_hole(void)
{
	shmring *dead = &handles[THREADS - 1];
	shmring_producer *p;

	(void)branch("a", (struct shmring_branch_options){0});
	MUST(shmring_producer_open(dead, "dead", &p) == SHMRING_OK);
	MUST(shmring_next(p, 2) == 0);
	memory.control[1].published = 2;
	memory.control[1].seat = (uint8_t)p->seat_index;
	push_before(0, 1);
	seat_actors();
	explore_kill_handle(THREADS - 1);
	world.deaths = exploring->dead_before;
}

/* Nothing gates: the ring is full of what nobody reads. */
static void a_full_ring(void)
{
	push_before(0, exploring->slots);
	memset(world.ghost.committed, 0, sizeof world.ghost.committed);
	seat_actors();
}

static void a_lapsing_branch(void)
{
	(void)branch("a", (struct shmring_branch_options){.lapse = true});
	seat_actors();
}

/* A claim of the first thread's, a message behind it, and nobody who gates: two
 * numbers that no branch gets which begins behind them. */
static void an_open_claim(void)
{
	open_producer(0);
	MUST(shmring_next(world.producer[0], 1) == 0);
	push_before(0, 1);
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

/* --- what else the threads do --------------------------------------------------------- */

/* Subscribes at the floor while it moves, reads what it can, and leaves. */
static void visit(int me)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .ephemeral = true};

	MUST(shmring_join(&handles[me], "v", &o, "visitor", &world.member[me]) == SHMRING_OK);
	take_what_is_there(me);
	shmring_member_close(world.member[me]);
	world.member[me] = NULL;
}

/* The same, at a sequence behind an open claim. */
static void visit_behind(int me, bool lapse)
{
	struct shmring_branch_options o = behind;

	o.ephemeral = true;
	o.lapse = lapse;
	MUST(shmring_join(&handles[me], "v", &o, "visitor", &world.member[me]) == SHMRING_OK);
	take_what_is_there(me);
	shmring_member_close(world.member[me]);
	world.member[me] = NULL;
}

static void visit_behind_the_claim(int me)
{
	visit_behind(me, false);
}

static void visit_behind_the_claim_lapsing(int me)
{
	visit_behind(me, true);
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

/* "c" follows "a", or "b", from now on; the other one may come at the same time. */
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

static void push_end(shmring_producer *p)
{
	MUST(shmring_push(p, NULL, 0, KIND_END, NULL) == SHMRING_OK);
}

/* A number, the end, and the first of the next run. */
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

/* The same as two runs, there before. */
static void two_runs(void)
{
	shmring_producer *p;

	(void)branch("a", (struct shmring_branch_options){0});
	seat_actors();
	MUST(shmring_producer_open(&handles[BEFORE], "before", &p) == SHMRING_OK);
	world.producer[BEFORE] = p;
	produce_two_runs(BEFORE);
	shmring_producer_close(p);
	world.producer[BEFORE] = NULL;
}

/* Everybody who lives has been told, once. */
static void check_ends(void)
{
	for (int i = 0; i < THREADS; i++)
		if (exploring->actor[i].from && world.thread[i].status != DEAD)
			MUST(world.ghost.ends[i] == 1);
}

static void lose_upstream(int me)
{
	MUST(shmring_unfollow(&handles[me], 1, 1) == SHMRING_OK);
}

static void check_upstreams(void)
{
	uint64_t left = memory.cursors.branch[2].d.upstream;

	for (int i = 0; i < THREADS; i++)
		if (world.thread[i].status == DEAD) /* its own may have come to be or not */
			left &= ~(UINT64_C(1) << exploring->actor[i].branch);
	MUST(left == world.ghost.followed);
}

static void recover(int me)
{
	int status = shmring_recover(&handles[me], NULL);

	MUST(status == SHMRING_OK || status == SHMRING_CONTENDED);
}

/* --- the cases ---------------------------------------------------------------------------- */

#define PUSHES(first, last) .body = produce, .from = first, .to = (last) + 1
#define PUSHES_RUN(first, last) .body = produce_batch, .from = first, .to = (last) + 1
#define SERVES .body = consume, .stays = true
#define ENDS .body = consume_runs, .from = 1, .stays = true
#define ENDS_ASLEEP .body = consume_runs_asleep, .from = 1, .stays = true
#define SERVES_BRANCH(b) .body = consume, .stays = true, .branch = b

const struct exploration explorations[] = {
    {.name = "a producer laps a member",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 3)}, {SERVES}}},
    {.name = "a producer laps a member that takes several",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 3)}, {SERVES, .slots = 2}}},
    {.name = "a single producer laps an exclusive member",
     .slots = 2,
     .options = OPT_SINGLE_PRODUCER,
     .before = an_exclusive_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 3)}, {SERVES}}},
    {.name = "two producers and a member; a producer may die",
     .slots = 2,
     .deaths = 1,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 0), .mortal = true}, {PUSHES(1, 1)}, {SERVES}}},
    {.name = "two producers lap a member; a producer may die",
     .slots = 2,
     .deaths = 1,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1), .mortal = true}, {PUSHES(2, 2)}, {SERVES}}},
    {.name = "producers of two sizes and a member; both may die",
     .slots = 4,
     .deaths = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 0), .slots = 2, .mortal = true}, {PUSHES(1, 1), .mortal = true}, {SERVES}}},
    {.name = "a run of two, a message of two slots; both may die",
     .slots = 4,
     .deaths = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES_RUN(0, 1), .mortal = true}, {PUSHES(2, 2), .slots = 2, .mortal = true}, {SERVES}}},
    {.name = "a run shorter than its claim; its producer may die",
     .slots = 4,
     .deaths = 1,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES_RUN(0, 1), .slots = 3, .mortal = true}, {PUSHES(2, 2)}, {SERVES}}},
    {.name = "messages of two and of one slot by one store; both producers may die",
     .slots = 4,
     .deaths = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{.body = produce_parts, .from = 0, .to = 2, .slots = 2, .mortal = true},
	       {PUSHES(2, 2), .mortal = true},
	       {SERVES}}},
    {.name = "two members share; one may die",
     .slots = 4,
     .deaths = 1,
     .before = three_waiting,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES}}},
    {.name = "two members share; both may die",
     .slots = 4,
     .deaths = 2,
     .before = three_waiting,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES, .mortal = true}}},
    {.name = "three members share; one may die",
     .slots = 4,
     .deaths = 1,
     .whole_entries = true,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES}, {SERVES}}},
    {.name = "two producers and two members",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 0)}, {PUSHES(1, 1)}, {SERVES}, {SERVES}}},
    {.name = "a producer and two members; a member may die",
     .slots = 2,
     .deaths = 1,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1)}, {SERVES, .mortal = true}, {SERVES}}},
    {.name = "a producer laps two branches",
     .slots = 2,
     .before = two_branches,
     .keeps = 2,
     .actor = {{PUSHES(0, 2)}, {SERVES_BRANCH(0)}, {SERVES_BRANCH(1)}}},
    {.name = "a producer laps a chain of two branches",
     .slots = 2,
     .before = a_chain,
     .keeps = 2,
     .actor = {{PUSHES(0, 2)}, {SERVES_BRANCH(0)}, {SERVES_BRANCH(1)}}},
    {.name = "a chain whose first member may die",
     .slots = 2,
     .deaths = 1,
     .before = a_chain,
     .keeps = 2,
     .actor = {{PUSHES(0, 1)}, {SERVES_BRANCH(0), .mortal = true}, {SERVES_BRANCH(1)}}},
    {.name = "leases of the dead: two adopt, one may die",
     .slots = 4,
     .deaths = 2,
     .dead_before = 1,
     .before = an_orphan,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES}}},
    {.name = "leases of the dead while a producer laps; an adopter may die",
     .slots = 4,
     .deaths = 2,
     .dead_before = 1,
     .before = an_orphan,
     .keeps = 1,
     .actor = {{PUSHES(3, 3)}, {SERVES, .mortal = true}, {SERVES}}},
    {.name = "a hole: two recover, one may die; a producer goes on",
     .slots = 4,
     .deaths = 2,
     .dead_before = 1,
     .before = a_hole,
     .keeps = 1,
     .actor = {{.body = recover, .mortal = true}, {PUSHES(1, 1)}, {SERVES}}},
    {.name = "a member hands its leases back",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1)}, {.body = take_and_abandon}, {SERVES}}},
    {.name = "one hands back to the other, and may die",
     .slots = 4,
     .deaths = 1,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{.body = hand_back_and_consume, .stays = true, .slots = 2, .mortal = true}, {SERVES}}},
    {.name = "one hands back while a producer laps",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 2)}, {.body = hand_back_and_consume, .stays = true, .slots = 1}}},
    {.name = "a visitor subscribes where a producer overwrites",
     .slots = 2,
     .before = a_full_ring,
     .actor = {{PUSHES(2, 4)}, {.body = visit}}},
    {.name = "a visitor subscribes where a member holds producers; it may die",
     .slots = 2,
     .deaths = 1,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1)}, {SERVES}, {.body = visit, .mortal = true}}},
    {.name = "a branch that begins behind an open claim, whose producer may die",
     .slots = 2,
     .deaths = 1,
     .before = a_branch_behind_an_open_claim,
     .keeps = 1,
     .actor = {{.body = publish_the_claim, .mortal = true}, {PUSHES(1, 2)}, {SERVES}}},
    {.name = "a branch that begins behind an open claim: two members, one may die",
     .slots = 4,
     .deaths = 1,
     .before = a_branch_behind_an_open_claim,
     .keeps = 1,
     .actor = {{.body = publish_the_claim}, {PUSHES(1, 1)}, {SERVES, .mortal = true}, {SERVES}}},
    {.name = "a visitor begins behind an open claim where a producer overwrites",
     .slots = 2,
     .before = only_an_open_claim,
     .actor = {{.body = publish_the_claim}, {PUSHES(1, 3)}, {.body = visit_behind_the_claim}}},
    {.name = "a visitor that lapses begins behind an open claim where a producer overwrites",
     .slots = 2,
     .before = only_an_open_claim,
     .actor = {{.body = publish_the_claim}, {PUSHES(1, 3)}, {.body = visit_behind_the_claim_lapsing}}},
    {.name = "a branch that lapses", .slots = 2, .before = a_lapsing_branch, .actor = {{PUSHES(0, 3)}, {SERVES}}},
    {.name = "a branch that lapses, two producers",
     .slots = 2,
     .before = a_lapsing_branch,
     .actor = {{PUSHES(0, 1)}, {PUSHES(2, 2)}, {SERVES}}},
    {.name = "a branch that lapses, whose only member may die",
     .slots = 2,
     .deaths = 1,
     .before = a_lapsing_branch,
     .actor = {{PUSHES(0, 3)}, {SERVES, .mortal = true}}},
    {.name = "leases of the dead on a branch that lapses: a producer laps; the adopter may die",
     .slots = 4,
     .deaths = 2,
     .dead_before = 1,
     .before = a_lapsing_orphan,
     .actor = {{PUSHES(3, 4)}, {SERVES, .mortal = true}}},
    {.name = "a branch is dropped while it is read and gates",
     .slots = 2,
     .before = one_branch,
     .actor = {{PUSHES(0, 2)}, {SERVES_BRANCH(0)}, {.body = unsubscribe}}},
    {.name = "a drop that may die half-way",
     .slots = 2,
     .deaths = 1,
     .before = a_chain,
     .actor = {{PUSHES(0, 1)}, {SERVES_BRANCH(1)}, {.body = unsubscribe, .mortal = true}}},
    {.name = "the end of a stream: two members",
     .slots = 4,
     .before = two_runs,
     .keeps = 1,
     .after = check_ends,
     .actor = {{ENDS}, {ENDS}}},
    {.name = "the end of a stream: two members; one may die",
     .slots = 4,
     .deaths = 1,
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
     .actor = {{.body = produce_two_runs}, {ENDS}, {ENDS}}},
    {.name = "asleep: the end of a stream wakes all",
     .slots = 4,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .after = check_ends,
     .actor = {{.body = produce_the_end}, {ENDS_ASLEEP}, {ENDS_ASLEEP}}},
    {.name = "two give a branch an upstream each; one may die",
     .slots = 2,
     .deaths = 1,
     .before = three_side_by_side,
     .after = check_upstreams,
     .actor = {{.body = follow, .branch = 0, .mortal = true}, {.body = follow, .branch = 1}}},
    {.name = "an upstream comes while another one comes and goes",
     .slots = 2,
     .before = three_side_by_side,
     .after = check_upstreams,
     .actor = {{.body = follow, .branch = 0}, {.body = follow_and_unfollow, .branch = 1}}},
    {.name = "asleep: a branch loses the upstream that held it",
     .slots = 2,
     .before = a_chain,
     .keeps = 1,
     .actor = {{PUSHES(0, 0)}, {.body = consume_asleep, .branch = 1, .stays = true}, {.body = lose_upstream}}},
    {.name = "a producer leaves while another one recovers",
     .slots = 2,
     .deaths = 1,
     .before = one_branch,
     .keeps = 1,
     .actor = {{.body = produce_and_leave, .from = 0, .to = 1}, {PUSHES(1, 1), .mortal = true}, {SERVES}}},
    {.name = "a producer leaves without the admin lock while another one recovers",
     .slots = 2,
     .deaths = 1,
     .before = one_branch,
     .keeps = 1,
     .after = the_first_holds_nothing,
     .actor = {{.body = produce_and_give_up, .from = 0, .to = 1}, {PUSHES(1, 1), .mortal = true}, {SERVES}}},
    {.name = "asleep: two members share what a producer pushes",
     .slots = 2,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1)}, {.body = consume_one_asleep}, {.body = consume_one_asleep}}},
    {.name = "asleep: a producer and a member wake each other",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{.body = produce_asleep, .from = 0, .to = 3}, {.body = consume_asleep, .stays = true}}},
    {.name = "asleep: two producers and a member",
     .slots = 2,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{.body = produce_asleep, .from = 0, .to = 2},
	       {.body = produce_asleep, .from = 2, .to = 3},
	       {.body = consume_asleep, .stays = true}}},
    {.name = "asleep: a producer and two members",
     .slots = 2,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{.body = produce_asleep, .from = 0, .to = 2},
	       {.body = consume_asleep, .stays = true},
	       {.body = consume_asleep, .stays = true}}},
    {.name = "asleep: a chain of two branches",
     .slots = 2,
     .whole_entries = true,
     .before = a_chain,
     .keeps = 2,
     .actor = {{.body = produce_asleep, .from = 0, .to = 2},
	       {.body = consume_asleep, .stays = true},
	       {.body = consume_asleep, .branch = 1, .stays = true}}},
};

const size_t exploration_count = sizeof explorations / sizeof *explorations;
