/* Cases of dead consumers' leases, and of leases that a living consumer hands back. */
#include "cases.h"

static void no_seat_left(void)
{
	uint32_t seat, barred;

	two_waiting();
	while (seat_try(&handles[BEFORE], ROLE_ATTACHED, "before", 0, &seat, &barred) == SHMRING_OK)
		;
}

/* Makes a dead consumer that holds messages 0 and 1; message 2 can be taken. */
static void orphan_of(struct shmring_branch_options o)
{
	(void)make_branch("a", o);
	push_before(3);
	take_and_die(2);
	seat_actors();
}

static void an_orphan(void)
{
	orphan_of((struct shmring_branch_options){0});
}

static void an_overrun_orphan(void)
{
	orphan_of((struct shmring_branch_options){.drop_oldest = true});
}

static shmring_consumer *take_as(int handle, uint32_t messages)
{
	struct shmring_lease l;
	shmring_consumer *m;

	MUST(shmring_join(&handles[handle], "a", NULL, "dead", &m) == SHMRING_OK);
	MUST(shmring_take(m, messages, messages, &l) == SHMRING_OK);
	for (uint64_t at = l.first; at < l.end; at++)
		world.ghost.delivered[0][at] = 1;
	world.ghost.consumer_died[0] = 1;
	return m;
}

/* A consumer that takes three messages, releases the second one and dies: its ranges are all that a seat can
 * record, so its orphan has no free entry. */
static void become_a_full_orphan(int handle, uint64_t first)
{
	static_assert(LEASES == 2, "the orphan has no free entry");
	MUST(shmring_release(take_as(handle, 3), first + 1, first + 2) == SHMRING_OK);
	world.ghost.released[0][first + 1] = 1;
	explore_kill_handle(handle);
	recover(BEFORE);
}

/* Makes a full orphan that holds messages 0 and 2; message 3 can be taken. */
static void a_full_orphan(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	push_before(4);
	seat_actors();
	become_a_full_orphan(THREADS - 1, 0);
}

/* Makes a full orphan that holds messages 1 and 3. Then the consumer that holds message 0 dies, in a lower seat
 * than the actors'. */
static void one_who_died_below_a_full_orphan(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	push_before(4);
	(void)take_as(THREADS - 1, 1);
	seat_actors();
	become_a_full_orphan(THREADS - 2, 1);
	explore_kill_handle(THREADS - 1);
}

/* Makes two dead consumers, not recovered yet, that hold messages 0 and 1; message 2 can be taken. */
static void two_who_died(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	push_before(3);
	(void)take_as(THREADS - 1, 1);
	(void)take_as(THREADS - 2, 1);
	seat_actors();
	explore_kill_handle(THREADS - 1);
	explore_kill_handle(THREADS - 2);
}

/* Makes an orphan that holds messages 1 and 2. Then the consumer that holds message 0 dies, in a lower seat
 * than the actors'. */
static void one_who_died_below_an_orphan(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	push_before(3);
	(void)take_as(THREADS - 1, 1);
	(void)take_as(THREADS - 2, 2);
	seat_actors();
	explore_kill_handle(THREADS - 2);
	recover(BEFORE);
	explore_kill_handle(THREADS - 1);
}

/* Makes an orphan that holds messages 0 and 1, and takes all free seats; message 2 can be taken. */
static void an_orphan_and_no_seat_left(void)
{
	uint32_t seat, barred;

	an_orphan();
	while (seat_try(&handles[BEFORE], ROLE_ATTACHED, "before", 0, &seat, &barred) == SHMRING_OK)
		;
}

static void join_and_serve(int me)
{
	MUST(shmring_join(&handles[me], "a", NULL, "late", &world.consumer[me]) == SHMRING_OK);
	consume(me);
}

/* CHANGE: edit this for a new case of the explorer */
static const struct exploration cases[] = {
    {.name = "leases of the dead: two adopt, one may die",
     .weak = true,
     .slots = 4,
     .before = an_orphan,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES}}},
    {.name = "leases of the dead while a producer laps; an adopter may die",
     .slots = 4,
     .before = an_orphan,
     .keeps = 1,
     .actor = {{PUSHES(3, 3)}, {SERVES, .mortal = true}, {SERVES}}},
    {.name = "two dead of one branch are recovered by one that may die",
     .weak = true,
     .slots = 4,
     .before = two_who_died,
     .keeps = 1,
     .actor = {{.body = recover, .mortal = true}, {SERVES}}},
    {.name = "two dead of one branch are recovered by one that may die, while a producer laps",
     .slots = 4,
     .before = two_who_died,
     .keeps = 1,
     .actor = {{.body = recover, .mortal = true}, {PUSHES(3, 4), .stays = true}}},
    {.name = "leases of the dead beside one more dead: two adopt, one may die",
     .slots = 4,
     .before = one_who_died_below_an_orphan,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES}}},
    {.name = "leases of the dead in a full orphan: two adopt, one may die",
     .weak = true,
     .slots = 4,
     .before = a_full_orphan,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES}}},
    {.name = "leases of the dead in a full orphan beside one more dead: two adopt, one may die",
     .slots = 4,
     .before = one_who_died_below_a_full_orphan,
     .keeps = 1,
     .actor = {{SERVES, .mortal = true}, {SERVES}}},
    {.name = "one joins where orphans have all seats, and may die",
     .weak = true,
     .slots = 4,
     .before = an_orphan_and_no_seat_left,
     .keeps = 1,
     .actor = {{.body = join_and_serve, .stays = true, .mortal = true}, {SERVES}}},
    {.name = "a consumer hands its leases back",
     .weak = true,
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 1)}, {CONSUMER(take_and_abandon)}, {SERVES}}},
    {.name = "one hands back to the other, and may die",
     .weak = true,
     .slots = 4,
     .before = two_waiting,
     .keeps = 1,
     .actor = {{CONSUMER(hand_back_and_consume), .stays = true, .slots = 2, .mortal = true}, {SERVES}}},
    {.name = "one hands back to a full orphan, and may die",
     .weak = true,
     .slots = 4,
     .before = a_full_orphan,
     .keeps = 1,
     .actor = {{CONSUMER(hand_back_and_consume), .stays = true, .slots = 1, .mortal = true}, {SERVES}}},
    {.name = "one hands back where no seat is free, and may die",
     .weak = true,
     .slots = 4,
     .before = no_seat_left,
     .keeps = 1,
     .actor = {{CONSUMER(hand_back_without_a_seat), .stays = true, .mortal = true}, {SERVES}}},
    {.name = "one hands back while a producer laps",
     .slots = 2,
     .before = one_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 2)}, {CONSUMER(hand_back_and_consume), .stays = true, .slots = 1}}},
    {.name = "leases of the dead on a branch that lapses: a producer laps; the adopter may die",
     .slots = 4,
     .before = an_overrun_orphan,
     .actor = {{PUSHES(3, 4)}, {SERVES, .mortal = true}}},
    {.name = "asleep: a message comes while leases of the dead cannot be adopted",
     .slots = 4,
     .before = an_orphan,
     .keeps = 1,
     .actor = {{CONSUMER(consume_asleep), .stays = true}, {PUSHES(3, 3)}, {.body = hold_the_admin_lock}}},
};

const struct cases cases_of_leases = {cases, sizeof cases / sizeof *cases};
