/* The dead, in real processes: what they held comes again, and their holes are found soon. That
 * they may die at any instruction native/killpoints shows, and native/explore in any order. */
#include "death.h"

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

TEST(a_single_producer_that_died_makes_way_for_the_next_at_once)
{
	struct puppet *c = puppet_new(produce_and_die);
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .single_producer = true});
	shmring_consumer *m = consumer_of(r, "b");
	shmring_producer *p;

	c->step = DIES_FILLED;
	c->n = 10;
	puppet_die(c);
	p = producer_of(r); /* nobody has called recover */
	CHECK_IS(push_number(p, 5), SHMRING_OK);
	CHECK_IS(pop_number(m), 5);
}

/* --- how soon --------------------------------------------------------------------------------- */

/* After how many waits. */
static int wait_behind_a_hole(uint8_t strategy, int64_t slice_ns, bool traffic)
{
	struct puppet *c = puppet_new(produce_and_die);
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "b");
	shmring_producer *p = producer_of(r);
	int64_t next = 0;
	int waits = 0;

	(void)shmring_wait_message(m, clock_ns() + 1000000, strategy);
	c->step = DIES_CLAIMED;
	c->n = 1;
	puppet_die(c);
	CHECK_IS(push_number(p, 7), SHMRING_OK);
	for (; pop_number(m) != 7; waits++) {
		if (traffic && clock_ns() > next) { /* keeps waking the sleeper in vain */
			(void)push_number(p, 8);
			next = clock_ns() + 3000000;
		}
		(void)shmring_wait_message(m, slice_ns ? clock_ns() + slice_ns : INT64_MAX, strategy);
	}
	end_all();
	return waits;
}

TEST(a_hole_is_found_soon_by_whoever_waits)
{
	int spinning = wait_behind_a_hole(SHMRING_WAIT_SPIN, 0, false);
	int sleeping = wait_behind_a_hole(SHMRING_WAIT_FUTEX, 0, false);
	int by_default = wait_behind_a_hole(SHMRING_WAIT_DEFAULT, 0, true);
	int in_slices = wait_behind_a_hole(SHMRING_WAIT_FUTEX, 3000000, true);

	printf("  spinning %d waits, sleeping %d, with traffic behind it %d, with time-outs of 3 ms %d\n",
	       spinning, sleeping, by_default, in_slices);
	CHECK(spinning < 6 && sleeping < 6 && by_default < 150 && in_slices < 150);
}
