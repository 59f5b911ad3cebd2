/* Cases of producers and consumers: laps, shared branches, dead producers' claims (holes), and sleep. */
#include "cases.h"
#include "wake.h"

static void produce_and_leave(int me)
{
	produce(me);
	shmring_producer_close(world.producer[me]);
	world.producer[me] = NULL;
}

/* Abandons the seat, like shmring_producer_close() if the admin lock cannot be had. */
static void produce_and_give_up(int me)
{
	produce(me);
	seat_abandon(&handles[me], world.producer[me]->seat_index);
	world.producer[me] = NULL;
}

/* The handle's own seat is first the consumer's, then free, then a producer's. Another
 * producer opens and closes while the consumer has the seat. */
static void take_turns_in_a_seat(int me)
{
	shmring *r = &handles[me];
	uint32_t seat = world.consumer[me]->seat_index;

	MUST(shmring_producer_open(r, "beside", &world.producer[me]) == SHMRING_OK);
	shmring_producer_close(world.producer[me]);
	world.producer[me] = NULL;
	take_what_is_there(me);
	shmring_consumer_close(world.consumer[me]);
	world.consumer[me] = NULL;
	MUST(shmring_producer_open(r, "p", &world.producer[me]) == SHMRING_OK);
	MUST(world.producer[me]->seat_index == seat);
	produce(me);
}

static void the_first_holds_nothing(void)
{
	for (int i = 0; i < SMALL_SEATS; i++)
		MUST(memory.lock[i] != 1);
}

static void one_who_pushes_and_takes(void)
{
	one_branch();
	open_producer(0);
}

/* Takes the first message before the consumer that was woken for it, and leaves the second one. */
static void push_take_and_push(int me)
{
	shmring_producer *p = world.producer[me];

	for (uint64_t number = 0; number < 2; number++) {
		MUST(shmring_push(p, &number, 8, KIND_BYTES, NULL) == SHMRING_OK);
		world.ghost.committed[number] = 1;
		if (number == 0)
			take_what_is_there(me);
	}
}

static void one_that_was_woken(void)
{
	one_branch();
	world.consumer[0]->woken = true;
}

static void pass_on(int me)
{
	shmring_consumer_decline(world.consumer[me]);
}

/* Returns 1 if the ring still records sleepers, which have to be woken for the message that is there. */
static unsigned has_forgotten(void)
{
	return memory.cursors.asleep.v != 0;
}

static void interrupt_the_first_producer(int me)
{
	(void)me;
	shmring_producer_interrupt(world.producer[0], true);
}

static void interrupt_both_producers(int me)
{
	(void)me;
	shmring_producer_interrupt(world.producer[1], true);
	shmring_producer_interrupt(world.producer[0], true);
}

static void interrupt_the_first_consumer(int me)
{
	(void)me;
	shmring_consumer_interrupt(world.consumer[0], true);
}

static void interrupt_the_second_consumer(int me)
{
	(void)me;
	shmring_consumer_interrupt(world.consumer[1], true);
}

/* Leaves the sleeper's bit, and the wanted slots, of a producer that died in its sleep. */
static void a_bit_that_stands(void)
{
	two_waiting();
	handles[BEFORE].cursors->producers.futex |= 1;
	handles[BEFORE].cursors->producers.wanted = 2;
}

static void wake_who_waits(int me)
{
	wake_producers(&handles[me]);
}

static void wake_and_take(int me)
{
	wake_who_waits(me);
	while (take_one(world.consumer[me], 1, &world.ghost.last_seen[me]) == SHMRING_CONTENDED)
		;
}

static void three_waiting(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	push_before(3);
	seat_actors();
}

/* Makes a half-filled claim of two slots, whose producer is dead, and after it a message of
 * another producer. */
void a_hole(void)
{
	shmring *dead = &handles[THREADS - 1];
	shmring_producer *p;

	(void)make_branch("a", (struct shmring_branch_options){0});
	MUST(shmring_producer_open(dead, "dead", &p) == SHMRING_OK);
	MUST(shmring_next(p, 2) == 0);
	memory.control[1].published = 2;
	memory.control[1].seat = (uint8_t)p->seat_index;
	push_before(1);
	seat_actors();
	explore_kill_handle(THREADS - 1);
}

/* Makes two dead producers: one has a claim of two slots, the other wanted three slots there
 * and came too late. Only a claim after them tells the two apart. */
static void a_hole_of_two_or_three(void)
{
	shmring_producer *p;

	(void)make_branch("a", (struct shmring_branch_options){0});
	MUST(shmring_producer_open(&handles[THREADS - 1], "dead", &p) == SHMRING_OK);
	MUST(shmring_next(p, 2) == 0);
	MUST(shmring_producer_open(&handles[THREADS - 2], "dead, too", &p) == SHMRING_OK);
	p->seat->intent.n = 3;
	p->seat->intent.lo = 0;
	seat_actors();
	explore_kill_handle(THREADS - 1);
	explore_kill_handle(THREADS - 2);
}

static void a_branch_with_drop_oldest(void)
{
	(void)make_branch("a", (struct shmring_branch_options){.drop_oldest = true});
	seat_actors();
}

static void an_overrun_branch_of_two(void)
{
	(void)make_branch("a", (struct shmring_branch_options){.drop_oldest = true});
	push_before(2);
	seat_actors();
}

void recover(int me)
{
	int status = shmring_recover(&handles[me], NULL);

	MUST(status == SHMRING_OK || status == SHMRING_CONTENDED);
}

/* CHANGE: edit this for a new case of the explorer */
static const struct exploration cases[] = {
    {.name = "a producer laps a consumer",
     .weak = true,
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 3)}, {SERVES}}},
    {.name = "a producer laps a consumer that takes several",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 3)}, {SERVES, .slots = 2}}},
    {.name = "a single producer laps an exclusive consumer",
     .slots = 2,
     .options = OPT_SINGLE_PRODUCER,
     .before = an_exclusive_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 3)}, {SERVES}}},
    {.name = "two producers and a consumer; a producer may die",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 0), .mortal = true}, {PUSHES(1, 1)}, {SERVES}}},
    {.name = "two producers overwrite what a consumer has released",
     .slots = 2,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{PUSHES(2, 2)}, {PUSHES(3, 3)}, {CONSUMER(take_what_is_there)}}},
    {.name = "two producers lap a consumer; a producer may die",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1), .mortal = true}, {PUSHES(2, 2)}, {SERVES}}},
    {.name = "producers of two sizes and a consumer; both may die",
     .slots = 4,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 0), .slots = 2, .mortal = true}, {PUSHES(1, 1), .mortal = true}, {SERVES}}},
    {.name = "three producers, one of two slots; all may die",
     .slots = 4,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 0), .slots = 2, .mortal = true},
	       {PUSHES(1, 1), .mortal = true},
	       {PUSHES(2, 2), .mortal = true}}},
    {.name = "a run of two, a message of two slots; both may die",
     .slots = 4,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES_RUN(0, 1), .mortal = true}, {PUSHES(2, 2), .slots = 2, .mortal = true}, {SERVES}}},
    {.name = "a run of two, a message of one slot; both may die",
     .slots = 4,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES_RUN(0, 1), .mortal = true}, {PUSHES(2, 2), .mortal = true}, {SERVES}}},
    {.name = "a run shorter than its claim; its producer may die",
     .slots = 4,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES_RUN(0, 1), .slots = 3, .mortal = true}, {PUSHES(2, 2)}, {SERVES}}},
    {.name = "messages of two and of one slot by one store; both producers may die",
     .slots = 4,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PRODUCER(produce_parts), .from = 0, .to = 2, .slots = 2, .mortal = true},
	       {PUSHES(2, 2), .mortal = true},
	       {SERVES}}},
    {.name = "two consumers share; one may die",
     .weak = true,
     .slots = 4,
     .before = three_waiting,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES}}},
    {.name = "a stray write falls into what a consumer's seat records",
     .slots = 4,
     .before = three_waiting,
     .keeps = 1,
     .actor = {{CONSUMER(consume_out_of_order)}, {scribble_over_ranges}}},
    {.name = "two consumers share; both may die",
     .weak = true,
     .slots = 4,
     .before = three_waiting,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES, .mortal = true}}},
    {.name = "three consumers share; one may die",
     .slots = 4,
     .whole_entries = true,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES}, {SERVES}}},
    {.name = "two producers and two consumers",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 0)}, {PUSHES(1, 1)}, {SERVES}, {SERVES}}},
    {.name = "a producer and two consumers; a consumer may die",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1)}, {SERVES, .mortal = true}, {SERVES}}},
    {.name = "a producer laps two consumers, one of which may die",
     .slots = 2,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{PUSHES(2, 2)}, {SERVES, .mortal = true}, {SERVES}}},
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
    {.name = "a chain whose first consumer may die",
     .weak = true,
     .slots = 2,
     .before = a_chain,
     .keeps = 2,
     .actor = {{PUSHES(0, 1)}, {SERVES_BRANCH(0), .mortal = true}, {SERVES_BRANCH(1)}}},
    {.name = "a hole: two recover, one may die; a producer goes on",
     .weak = true,
     .slots = 4,
     .before = a_hole,
     .keeps = 1,
     .actor = {{.body = recover, .mortal = true}, {PUSHES(1, 1)}, {SERVES}}},
    {.name = "a hole whose length is told by who claims behind it",
     .weak = true,
     .slots = 4,
     .before = a_hole_of_two_or_three,
     .keeps = 1,
     .actor = {{.body = recover}, {PUSHES(0, 1)}}},
    {.name = "a branch that is overrun",
     .slots = 2,
     .before = a_branch_with_drop_oldest,
     .actor = {{PUSHES(0, 3)}, {SERVES}}},
    {.name = "a branch that is overrun, two producers",
     .slots = 2,
     .before = a_branch_with_drop_oldest,
     .actor = {{PUSHES(0, 1)}, {PUSHES(2, 2)}, {SERVES}}},
    {.name = "a branch that is overrun, whose only consumer may die",
     .slots = 2,
     .before = a_branch_with_drop_oldest,
     .actor = {{PUSHES(0, 3)}, {SERVES, .mortal = true}}},
    {.name = "a producer leaves while another one recovers",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PRODUCER(produce_and_leave), .from = 0, .to = 1}, {PUSHES(1, 1), .mortal = true}, {SERVES}}},
    {.name = "a consumer's seat is a producer's next; its owner may die",
     .weak = true,
     .slots = 2,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{CONSUMER(take_turns_in_a_seat), .from = 2, .to = 3, .mortal = true}, {SERVES}}},
    {.name = "a producer leaves without the admin lock while another one recovers",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .after = the_first_holds_nothing,
     .actor = {{PRODUCER(produce_and_give_up), .from = 0, .to = 1}, {PUSHES(1, 1), .mortal = true}, {SERVES}}},
    {.name = "asleep: two consumers share what a producer pushes",
     .slots = 2,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1)}, {CONSUMER(consume_one_asleep)}, {CONSUMER(consume_one_asleep)}}},
    {.name = "asleep: a message comes while one that was woken passes that on",
     .weak = true,
     .slots = 2,
     .before = one_that_was_woken,
     .outcome = has_forgotten,
     .interleaved = 1,
     .allowed = 1,
     .actor = {{CONSUMER(pass_on)}, {PUSHES(0, 0)}}},
    {.name = "asleep: a producer and a consumer wake each other",
     .weak = true,
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PRODUCER(produce_asleep), .from = 0, .to = 3}, {CONSUMER(consume_asleep), .stays = true}}},
    {.name = "asleep: two producers and a consumer",
     .slots = 2,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PRODUCER(produce_asleep), .from = 0, .to = 2},
	       {PRODUCER(produce_asleep), .from = 2, .to = 3},
	       {CONSUMER(consume_asleep), .stays = true}}},
    {.name = "asleep: a producer and two consumers",
     .slots = 2,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PRODUCER(produce_asleep), .from = 0, .to = 2},
	       {CONSUMER(consume_asleep), .stays = true},
	       {CONSUMER(consume_asleep), .stays = true}}},
    {.name = "asleep: a chain of two branches",
     .slots = 2,
     .whole_entries = true,
     .before = a_chain,
     .keeps = 2,
     .actor = {{PRODUCER(produce_asleep), .from = 0, .to = 2},
	       {CONSUMER(consume_asleep), .stays = true},
	       {CONSUMER(consume_asleep), .branch = 1, .stays = true}}},
    {.name = "asleep: a consumer that waits is interrupted while a message comes",
     .weak = true,
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{CONSUMER(consume_until_interrupted)}, {.body = interrupt_the_first_consumer}, {PUSHES(0, 0)}}},
    {.name = "asleep: of two consumers one is interrupted while a message comes",
     .slots = 2,
     .whole_entries = true,
     .before = one_branch,
     .keeps = 1,
     .actor = {{CONSUMER(consume_until_interrupted)},
	       {CONSUMER(consume_asleep), .stays = true},
	       {.body = interrupt_the_first_consumer},
	       {PUSHES(0, 0)}}},
    {.name = "asleep: of two consumers the second one is interrupted",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{CONSUMER(consume_asleep), .stays = true},
	       {CONSUMER(consume_until_interrupted)},
	       {.body = interrupt_the_second_consumer}}},
    {.name = "asleep: of two consumers one stops waiting at its deadline",
     .slots = 2,
     .whole_entries = true,
     .before = one_who_pushes_and_takes,
     .keeps = 1,
     .actor = {{CONSUMER(push_take_and_push)},
	       {CONSUMER(consume_until_late), .in_time = true},
	       {CONSUMER(consume_one_asleep), .stays = true}}},
    {.name = "asleep: a producer that waits is interrupted",
     .weak = true,
     .slots = 2,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{PRODUCER(produce_until_interrupted), .from = 2, .to = 3}, {.body = interrupt_the_first_producer}}},
    {.name = "asleep: of two producers one is interrupted after the other",
     .weak = true,
     .slots = 2,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{PRODUCER(produce_until_interrupted), .from = 2, .to = 3},
	       {PRODUCER(produce_until_interrupted), .from = 3, .to = 4},
	       {.body = interrupt_both_producers}}},
    {.name = "asleep: a producer waits for who reads where it may be overrun",
     .weak = true,
     .slots = 2,
     .before = an_overrun_branch_of_two,
     .actor = {{PRODUCER(produce_asleep), .from = 2, .to = 3, .slots = 2}, {CONSUMER(consume_one_asleep)}}},
    {.name = "asleep: two wake producers, and one of these falls asleep in between",
     .weak = true,
     .slots = 2,
     .whole_entries = true,
     .before = a_bit_that_stands,
     .keeps = 1,
     .actor = {{PRODUCER(produce_asleep), .from = 2, .to = 3},
	       {.body = wake_who_waits},
	       {CONSUMER(wake_and_take)}}},
};

const struct cases cases_of_messages = {cases, sizeof cases / sizeof *cases};
