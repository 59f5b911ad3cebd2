/* Rings, branches and messages that exist before a case begins. */
#include "cases.h"

uint32_t make_branch(const char *name, struct shmring_branch_options o)
{
	uint32_t id;

	o.start = SHMRING_EARLIEST;
	MUST(shmring_subscribe(&handles[BEFORE], name, &o, &id) == SHMRING_OK);
	return id;
}

void open_producer(int i)
{
	MUST(shmring_producer_open(&handles[i], "p", &world.producer[i]) == SHMRING_OK);
}

static void join(int i, const char *name)
{
	MUST(shmring_join(&handles[i], name, NULL, "m", &world.consumer[i]) == SHMRING_OK);
}

/* Publishes the first `count` numbers before the case, and records them as committed. */
void push_before(uint64_t count)
{
	shmring_producer *p;

	MUST(shmring_producer_open(&handles[BEFORE], "before", &p) == SHMRING_OK);
	for (uint64_t number = 0; number < count; number++) {
		MUST(shmring_push(p, &number, 8, KIND_BYTES, NULL) == SHMRING_OK);
		world.ghost.committed[number] = 1;
	}
	shmring_producer_close(p);
}

void take_and_die(uint32_t messages)
{
	struct shmring_lease l;
	shmring_consumer *m;

	MUST(shmring_join(&handles[THREADS - 1], "a", NULL, "dead", &m) == SHMRING_OK);
	MUST(shmring_take(m, messages, messages, &l) == SHMRING_OK);
	for (uint64_t at = l.first; at < l.end; at++)
		world.ghost.delivered[0][at] = 1;
	world.ghost.consumer_died[0] = 1;
	explore_kill_handle(THREADS - 1);
}

void hold_the_admin_lock(int me)
{
	if (admin_try(&handles[me]))
		admin_leave(&handles[me]);
}

void seat_actors(void)
{
	static const char *const names[] = {"a", "b", "c"};

	for (int i = 0; i < THREADS; i++) {
		const struct actor *a = &exploring->actor[i];

		if (a->seat == A_PRODUCER)
			open_producer(i);
		if (a->seat == A_CONSUMER)
			join(i, names[a->branch]);
	}
}

void one_branch(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	seat_actors();
}

void two_waiting(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	push_before(2);
	seat_actors();
}

/* Fills the ring with messages that hold no producer back, because there is no branch. */
void a_full_ring(void)
{
	push_before(exploring->slots);
	memset(world.ghost.committed, 0, sizeof world.ghost.committed);
	seat_actors();
}

void an_exclusive_branch(void)
{
	(void)make_branch("a", (struct shmring_branch_options){.exclusive = true});
	seat_actors();
}

void two_branches(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	(void)make_branch("b", (struct shmring_branch_options){0});
	seat_actors();
}

void a_chain(void)
{
	uint32_t a = make_branch("a", (struct shmring_branch_options){0});

	(void)make_branch("b", (struct shmring_branch_options){.upstream = UINT64_C(1) << a});
	seat_actors();
}
