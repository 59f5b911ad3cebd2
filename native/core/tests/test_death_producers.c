/* A producer dies anywhere: its hole is stepped over, nothing committed is lost. */
#include "death.h"

TEST(a_producer_dies_at_each_step_and_its_hole_is_stepped_over)
{
	struct puppet *c = puppet_new(produce_and_die);

	for (int single = 0; single < 2; single++)
		for (c->step = 0; c->step < PRODUCER_STEPS; c->step++)
			for (c->n = 1; c->n <= 1024; c->n = c->n * 4 + 1) {
				shmring *r =
				    ring_with(&(struct shmring_options){.slots = 1024, .single_producer = single});
				shmring_consumer *m = consumer_of(r, "b");
				shmring_producer *p;
				bool committed = c->step >= DIES_PUBLISHED;
				bool room;

				if (!single) {
					p = producer_of(r);
					CHECK_IS(push_number(p, 0), SHMRING_OK);
					shmring_producer_close(p);
					CHECK_IS(pop_number(m), 0);
				}
				puppet_die(c);
				room = c->step < DIES_CLAIMED || c->n < 1024;
				p = single ? NULL : producer_of(r);
				if (p && room)
					CHECK_IS(push_number(p, 2), SHMRING_OK);
				if (committed)
					CHECK_IS(pop_number(m), 1);
				CHECK_IS(recover(r), 1); /* its producer, in its handle's seat */
				CHECK_IS(recover(r), 0);
				if (p && room)
					CHECK_IS(pop_number(m), 2);
				CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
				end_working(r, p, m);
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

/* Several dead producers with an intent at the same place; one of them owns
 * the hole. What came after it, and whether its owner had begun to fill it,
 * must not mislead. */
static int die_with_an_intent(struct puppet *c)
{
	c->p = producer_of(c->r);
	c->p->seat->intent.n = c->n;
	c->p->seat->intent.lo = c->lo;
	return 0;
}

TEST(among_several_dead_with_an_intent_at_one_place_the_owner_is_found)
{
	enum { DEAD = 4, AFTERS = 5 };
	static const uint64_t sizes[DEAD] = {1, 2, 3, 7};
	struct puppet *c = puppet_new(die_with_an_intent);
	uint64_t seed = 99;

	for (int owner = 0; owner < DEAD; owner++)
		for (int after = 0; after < AFTERS; after++)
			for (int filled = 0; filled < 3; filled++) {
				shmring *r = ring_new();
				shmring_consumer *m = consumer_of(r, "b");
				shmring_producer *p = producer_of(r);
				uint64_t h = random_next(&seed) % 900, end, expected = 0;
				int order[DEAD] = {0, 1, 2, 3};
				pid_t pids[DEAD];
				uint8_t owner_seat = NOBODY;
				uint64_t behind;

				for (uint64_t i = 0; i < h; i++)
					CHECK(push_number(p, i) == 0 && pop_number(m) == (int64_t)i);
				for (int i = DEAD - 1; i > 0; i--) {
					int k = (int)(random_next(&seed) % (unsigned)(i + 1)), t = order[i];

					order[i] = order[k];
					order[k] = t;
				}
				for (int i = 0; i < DEAD; i++) {
					c->lo = h;
					c->n = sizes[order[i]];
					pids[i] = puppet_start(c);
					if (order[i] == owner)
						for (uint32_t k = 0; k < r->seat_count; k++)
							if (r->seats[k].id.pid == (uint32_t)pids[i] &&
							    r->seats[k].id.role == ROLE_PRODUCER)
								owner_seat = (uint8_t)k;
				}
				/* The owner wins. */
				end = h + sizes[owner];
				store_release(&r->cursors->claim.v, end);
				if (filled)
					fill_rows(r, h, sizes[owner], filled == 1 ? 0 : 1, owner_seat);
				for (int i = 0; i < DEAD; i++)
					puppet_kill(pids[i]);
				/* What follows: nothing; single messages, which make every
				 * number a boundary; a batch; a living claim; a dead one. */
				if (after == 1)
					for (behind = 0; behind < 10; behind++)
						CHECK_IS(push_number(p, 5000 + behind), SHMRING_OK);
				if (after == 2) {
					uint64_t rows[10], id;

					for (behind = 0; behind < 10; behind++)
						rows[behind] = 5000 + behind;
					CHECK_IS(shmring_push_many(p, rows, 8, 10, NULL, 8, &id), SHMRING_OK);
				}
				if (after == 3)
					CHECK_IS(shmring_next(p, 3), end);
				if (after == 4) {
					struct puppet *d = puppet_new(produce_and_die);

					d->step = DIES_CLAIMED;
					d->n = 4;
					puppet_die(d);
					CHECK_IS(d->lo, end);
					CHECK_IS(push_number(p, 5000), SHMRING_OK);
				}
				CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
				recover(r);
				CHECK(is_published(r, h));
				CHECK_IS(control_at(r, h)->run, sizes[owner]);
				CHECK_IS(control_at(r, h)->kind, KIND_ABORTED);
				if (after == 3) {
					uint64_t number = 5000;

					memcpy(shmring_slot(r, end), &number, 8);
					CHECK_IS(shmring_publish(p, 8, KIND_BYTES, 0), SHMRING_OK);
				}
				expected = after == 0 ? 0 : after < 3 ? 10 : 1;
				for (uint64_t i = 0; i < expected; i++)
					CHECK_IS(pop_number(m), 5000 + i);
				CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
				CHECK_IS(seats_in_use(r), 2);
				end_working(r, p, m);
			}
}

TEST(a_living_producer_at_the_same_place_is_waited_for)
{
	struct puppet *c = puppet_new(produce_and_die);
	shmring *r = ring_new();
	shmring_consumer *m = consumer_of(r, "b");
	shmring_producer *slow = producer_of(r), *p = producer_of(r);

	/* It has written its intent and not yet tried its CAS. */
	slow->seat->intent.n = 3;
	store_release(&slow->seat->intent.lo, 0);
	c->step = DIES_CLAIMED;
	c->n = 2;
	puppet_die(c);
	CHECK_IS(push_number(p, 8), SHMRING_OK);
	CHECK_IS(recover(r), 0);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	store_release(&slow->seat->intent.lo, NONE); /* it lost */
	CHECK_IS(recover(r), 1);
	CHECK_IS(pop_number(m), 8);
	shmring_producer_close(slow);
	shmring_producer_close(p);
	check_works(r, m);
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
