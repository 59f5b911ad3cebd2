/* Tests of recovery: stopped participants are not dead; seats and branches of the dead come back. */
#include "death.h"

/* --- not dead -------------------------------------------------------------------------- */

TEST(a_stopped_process_is_not_dead)
{
	struct puppet *c = puppet_new(produce_and_die);
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "b");
	pid_t pid;

	c->step = DIES_CLAIMED;
	c->n = 2;
	pid = puppet_start(c);
	kill(pid, SIGSTOP);
	for (int i = 0; i < 20; i++) {
		int64_t deadline = clock_ns() + 10000000;
		int status;

		CHECK_IS(recover(r), 0);
		do
			status = shmring_wait_message(m, deadline, SHMRING_WAIT_FUTEX);
		while (status == SHMRING_AGAIN);
		CHECK_IS(status, SHMRING_TIMEOUT);
	}
	CHECK(!is_published(r, 0));
	kill(pid, SIGCONT);
	puppet_kill(pid);
	CHECK_IS(recover(r), 1);
	CHECK(is_published(r, 0));
	check_works(r, m);
}

/* --- seats and branches run out ------------------------------------------------------------ */

static int take_all_seats(struct puppet *c)
{
	shmring_producer *p;

	for (uint32_t i = 0; i < 4; i++)
		c->p = producer_of(c->r);
	return shmring_producer_open(c->r, "one too many", &p) == SHMRING_E_LIMIT ? 0 : 1;
}

TEST(seats_run_out_and_come_back)
{
	struct puppet *c = puppet_new(take_all_seats);
	shmring *r = NULL, *r2;
	pid_t pid;

	NEED(shmring_create(ring_path(), &(struct shmring_options){.slots = 1024, .participants = 4}, NULL) ==
	     SHMRING_OK);
	for (int round = 0; round < 3; round++) {
		pid = puppet_start(c);
		CHECK_IS(shmring_attach(ring_path(), 0, &r), SHMRING_E_LIMIT);
		CHECK_IS(shmring_attach(ring_path(), SHMRING_READ_ONLY, &r2), SHMRING_OK);
		shmring_close(r2);
		puppet_kill(pid);
		r = ring_again(ring_path()); /* finds no free seat and clears the dead away */
		shmring_close(r);
	}
	unlink(ring_path());
}

PRODUCER_TEST(a_handle_lends_its_seat_to_one_at_a_time)
{
	struct shmring_participant_info seat;
	struct shmring_lease l;
	uint32_t own = r->seat;
	shmring_producer *other = producer_of(r);
	shmring_consumer *m;

	CHECK_IS(p->seat_index, own);
	CHECK(other->seat_index != own);
	CHECK_IS(push_number(p, 1), SHMRING_OK);
	CHECK_IS(push_number(other, 2), SHMRING_OK);
	shmring_producer_close(p);
	CHECK_IS(shmring_participant_info(r, own, &seat), SHMRING_OK);
	CHECK(seat.role == ROLE_ATTACHED && seat.alive && seat.messages == 0);
	CHECK(strcmp(seat.name, "attached") == 0);
	m = consumer_of(r, "b");
	CHECK_IS(m->seat_index, own);
	CHECK_IS(shmring_participant_info(r, own, &seat), SHMRING_OK);
	CHECK(seat.role == ROLE_CONSUMER && seat.branch == m->branch_index && strcmp(seat.name, "consumer") == 0);
	CHECK_IS(push_number(other, 3), SHMRING_OK);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_OK);
	/* The old seat keeps the abandoned lease, so the handle gets another seat. */
	shmring_consumer_abandon(m);
	CHECK(r->seat != own && r->seat != NOBODY && !r->lent);
	CHECK_IS(seats_in_use(r), 3);
	m = consumer_of(r, "b");
	for (int64_t number = 1; number <= 3; number++)
		CHECK_IS(pop_number(m), number);
	CHECK_IS(recover(r), 0);
	shmring_consumer_close(m);
	shmring_producer_close(other);
	CHECK_IS(seats_in_use(r), 1);
}

static int close_the_handle_first(struct puppet *c)
{
	struct shmring_lease l;

	c->m = consumer_of(c->r, "b");
	if (shmring_take(c->m, 2, 2, &l))
		return 1;
	shmring_close(c->r);
	return 0;
}

RING_TEST(what_a_handle_leaves_open_is_like_the_dead_ones)
{
	struct puppet *c = puppet_new(close_the_handle_first);
	uint64_t again;
	pid_t pid;

	push_n(p, 0, 4);
	pid = puppet_start(c);
	CHECK_IS(recover(r), 1);
	CHECK_IS(drain(m, &again), 0xf);
	CHECK_IS(again, 0x3);
	puppet_kill(pid);
	CHECK_IS(recover(r), 0);
	shmring_producer_close(p);
	check_works(r, m);
	shmring_consumer_close(m);
	CHECK_IS(seats_in_use(r), 1);
}

static int make_all_branches(struct puppet *c)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .ephemeral = true};
	char name[16];

	for (int i = 0; i < 64; i++) {
		snprintf(name, sizeof name, "e%d", i);
		c->m = consumer_with(c->r, name, &o);
	}
	return 0;
}

TEST(branches_run_out_and_come_back)
{
	struct puppet *c = puppet_new(make_all_branches);
	shmring *r = ring_new();
	pid_t pid;

	for (int round = 0; round < 2; round++) {
		pid = puppet_start(c);
		CHECK_IS(shmring_subscribe(r, "mine", NULL, NULL), SHMRING_E_LIMIT);
		puppet_kill(pid);
		CHECK_IS(shmring_subscribe(r, "mine", NULL, NULL), SHMRING_OK);
		CHECK_IS(shmring_unsubscribe(r, "mine"), SHMRING_OK);
		recover(r);
		CHECK_IS(load_relaxed(&r->cursors->graph.active), 0);
		CHECK_IS(seats_in_use(r), 1);
	}
}
