/* A consumer dies anywhere: what it held comes again, and nothing else. */
#include "death.h"

static const struct shmring_branch_options earliest = {.start = SHMRING_EARLIEST};

TEST(what_a_dead_consumer_held_comes_again_and_nothing_else)
{
	struct puppet *c = puppet_new(take_and_die);

	for (c->step = 0; c->step < 2; c->step++)
		for (int early = 0; early < 2; early++) { /* the other consumer is there already, or comes later */
			shmring *r = ring_new();
			shmring_producer *p = producer_of(r);
			shmring_consumer *m = NULL;
			uint64_t got, again;

			NEED(shmring_subscribe(r, "b", &earliest, NULL) == SHMRING_OK);
			push_n(p, 0, 10);
			if (early)
				m = consumer_of(r, "b");
			c->n = 3;
			puppet_die(c);
			if (early)
				CHECK_IS(recover(r), 1);
			else
				m = consumer_of(r, "b");
			CHECK_IS(branch_released(r, m->branch, false), 0);
			if (!early)
				recover(r);
			got = drain(m, &again);
			CHECK_IS(got, c->step ? 0x3f3 : 0x3ff);
			CHECK_IS(again, c->step ? 0x33 : 0x3f);
			CHECK_IS(branch_released(r, m->branch, false), 10);
			end_working(r, p, m);
		}
}

/* The same seat may serve another branch by the time its former owner's take
 * is confirmed there. */
static int pend_in_another_branch(struct puppet *c)
{
	struct seat *s;

	__atomic_store_n(&c->ready, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&c->go, __ATOMIC_ACQUIRE))
		nap_ms(1);
	c->p = producer_of(c->r); /* has the handle's own seat */
	c->m = consumer_of(c->r, "y");
	s = c->m->seat;
	s->lease.take_lo = 0;
	s->lease.take_end = TAKE_WORD(UINT64_C(2), c->m->branch_index) | TAKE_PENDING;
	s->range[0].hi = 2;
	s->range[0].lo = 0;
	s->lease.hold = 0;
	c->n = c->m->seat_index;
	__atomic_store_n(&c->gone, true, __ATOMIC_RELEASE);
	return 0;
}

PRODUCER_TEST(a_take_is_not_confirmed_for_another_branch)
{
	struct puppet *c = puppet_new(pend_in_another_branch);
	shmring_consumer *x = consumer_of(r, "x"), *y = consumer_of(r, "y"), *former;
	struct shmring_lease l;
	uint64_t again;
	uint32_t seat;
	pid_t pid;

	push_n(p, 0, 6);
	/* The child's handle takes a seat, one of its two later that of `former`. */
	snprintf(c->path, sizeof c->path, "%s", ring_path());
	pid = puppet_start(c);
	/* `former` takes [0, 2) of x and leaves. */
	former = consumer_of(r, "x");
	seat = former->seat_index;
	NEED(shmring_take(former, 2, 2, &l) == SHMRING_OK && shmring_release(former, 0, 2) == SHMRING_OK);
	shmring_consumer_close(former);
	__atomic_store_n(&c->go, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&c->gone, __ATOMIC_ACQUIRE))
		nap_ms(1);
	CHECK_IS(c->n, seat);
	CHECK_IS(drain(x, &again), 0x3c); /* confirms the seat that took [0, 2) of x */
	puppet_kill(pid);
	CHECK_IS(recover(r), 2);
	CHECK_IS(drain(y, &again), 0x3f);
	CHECK_IS(again, 0);
}

static int join_and_die(struct puppet *c)
{
	struct shmring_branch_options o = {
	    .start = SHMRING_EARLIEST, .exclusive = c->step == 1, .ephemeral = c->step == 2};
	struct shmring_lease l;

	c->m = consumer_with(c->r, "b", &o);
	return shmring_take(c->m, 3, 3, &l);
}

TEST(branches_without_a_living_consumer_keep_or_go_by_their_policy)
{
	struct puppet *c = puppet_new(join_and_die);

	for (c->step = 0; c->step < 3; c->step++) {
		struct shmring_branch_options o = {
		    .start = SHMRING_EARLIEST, .exclusive = c->step == 1, .ephemeral = c->step == 2};
		shmring *r = ring_new();
		shmring_producer *p = producer_of(r);
		shmring_consumer *m;
		struct shmring_branch_info info;
		uint64_t again;
		uint32_t id;

		push_n(p, 0, 6);
		puppet_die(c);
		CHECK_IS(recover(r), 1);
		CHECK_IS(shmring_find_branch(r, "b", &id), c->step == 2 ? SHMRING_E_NO_BRANCH : SHMRING_OK);
		if (c->step < 2) {
			CHECK_IS(shmring_branch_info(r, id, &info), SHMRING_OK);
			CHECK(info.orphans == 1 && info.consumers == 0 && info.position == 3 &&
			      info.released == 0);
		}
		m = consumer_with(r, "b", &o);
		CHECK_IS(drain(m, &again), 0x3f);
		CHECK_IS(again, c->step == 2 ? 0 : 7);
		end_all();
	}
}

/* Everything that the consumer is told: messages as they are, what it lost as -1. */
static void drain_lossy(shmring_consumer *m, int64_t *told, uint64_t *redelivered, uint64_t end)
{
	int64_t number;
	struct shmring_lease l;
	int status;

	for (uint64_t i = 0; i < end; i++)
		told[i] = -2;
	*redelivered = 0;
	while ((status = shmring_take(m, 1, 1, &l)) == SHMRING_OK || status == SHMRING_OVERRUN) {
		if (status == SHMRING_OVERRUN)
			shmring_consumer_overrun(m, &l.first, &l.end);
		NEED(l.first < l.end && l.end <= end);
		for (uint64_t at = l.first; at < l.end; at++) {
			memcpy(&number, shmring_slot(m->ring, at), 8);
			CHECK_IS(told[at], -2); /* nothing twice */
			told[at] = status == SHMRING_OVERRUN ? -1 : number;
		}
		if (status)
			continue;
		*redelivered += l.redelivered;
		CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	}
	CHECK_IS(status, SHMRING_UNAVAILABLE);
}

TEST(on_a_branch_that_drops_oldest_the_dead_hold_nobody)
{
	static int64_t told[4000];
	struct puppet *c = puppet_new(take_and_die);
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .drop_oldest = true};

	c->n = 3;
	c->step = 1; /* dies holding [0, 2) and [4, 6) */
	/* What is pushed afterwards: the ring holds it beside the leases, or does not. */
	for (uint64_t more = 0; more <= 2000; more += 1000)
		for (int early = 0; early < 2; early++) {
			shmring *r = ring_new();
			shmring_producer *p = producer_of(r);
			shmring_consumer *m = NULL;
			uint64_t again, end = 10 + more;
			bool held = end <= 1024;

			NEED(shmring_subscribe(r, "b", &o, NULL) == SHMRING_OK);
			push_n(p, 0, 10);
			if (early)
				m = consumer_of(r, "b");
			puppet_die(c);
			CHECK_IS(recover(r), 1);
			push_n(p, 10, end - 10);
			if (!early)
				m = consumer_of(r, "b");
			drain_lossy(m, told, &again, end);
			for (uint64_t i = 0; i < end; i++)
				CHECK(told[i] == (int64_t)i || (i >= 2 && i < 4) || (!held && told[i] == -1));
			CHECK(told[2] == -2 && told[3] == -2); /* had been released */
			CHECK_IS(again, held ? 4 : 0);
			CHECK(held || (told[0] == -1 && told[5] == -1));
			end_working(r, p, m);
		}
}
