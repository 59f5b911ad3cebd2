/* What a living consumer hands back is delivered again. */
#include "death.h"

RING_TEST(the_middle_of_a_lease_is_delivered_again_to_whoever_takes_next)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST};
	shmring_consumer *other = consumer_of(r, "b"), *follower;
	struct shmring_participant_info seat;
	struct shmring_branch_info info;
	struct shmring_lease l;
	uint64_t again;

	o.upstream = UINT64_C(1) << shmring_consumer_branch(m);
	follower = consumer_with(r, "f", &o);
	push_n(p, 0, 10);
	l = lease_of(m, 8);
	CHECK_IS(shmring_nack(m, 3, 5), SHMRING_OK);
	CHECK_IS(shmring_nack(m, 3, 5), SHMRING_E_INVALID); /* it is held no more */
	CHECK_IS(shmring_release(m, 2, 5), SHMRING_E_INVALID);
	CHECK_IS(shmring_release(m, 0, 3), SHMRING_OK);
	CHECK_IS(shmring_nack(m, 0, 1), SHMRING_E_INVALID); /* released */
	CHECK_IS(branch_released(r, m->branch, false), 3);
	CHECK_IS(shmring_branch_info(r, m->branch_index, &info), SHMRING_OK);
	CHECK(info.orphans == 1 && info.consumers == 2);
	CHECK_IS(shmring_wait_message(other, INT64_MAX, SHMRING_WAIT_DEFAULT), SHMRING_OK);
	CHECK_IS(drain(follower, &again), 0x7); /* not what was handed back */
	CHECK_IS(shmring_release(m, 5, 8), SHMRING_OK);
	l = lease_of(other, 1);
	CHECK(l.first == 3 && l.end == 4 && l.redelivered);
	CHECK_IS(shmring_release(other, 3, 4), SHMRING_OK);
	l = lease_of(m, 1); /* the one who handed it back, too */
	CHECK(l.first == 4 && l.redelivered);
	CHECK_IS(shmring_nack(m, 4, 5), SHMRING_OK);
	CHECK_IS(drain(other, &again), 0x310);
	CHECK_IS(again, 0x10);
	CHECK_IS(drain(follower, &again), 0x3f8);
	CHECK_IS(again, 0);
	CHECK_IS(branch_released(r, m->branch, false), 10);
	CHECK_IS(shmring_participant_info(r, m->seat_index, &seat), SHMRING_OK);
	CHECK(seat.messages == 9 && seat.redelivered == 1);
	CHECK_IS(shmring_participant_info(r, other->seat_index, &seat), SHMRING_OK);
	CHECK(seat.messages == 4 && seat.redelivered == 2);
	CHECK_IS(seats_in_use(r), 4);
	shmring_consumer_close(follower);
	NEED(shmring_unsubscribe(r, "f") == SHMRING_OK);
	check_works(r, m);
	shmring_consumer_close(other);
}

RING_TEST(many_hand_back_into_few_seats)
{
	uint64_t again;

	push_n(p, 0, 60);
	for (int i = 0; i < 60; i++)
		lease_of(m, 1);
	for (uint64_t i = 0; i < 60; i += 3)
		CHECK_IS(shmring_nack(m, i, i + 1), SHMRING_OK);
	for (uint64_t i = 1; i < 60; i += 3)
		CHECK_IS(shmring_nack(m, i, i + 2), SHMRING_OK);
	CHECK_IS(seats_in_use(r), 3); /* the producer's, the consumer's, and one */
	CHECK_IS(shmring_consumer_hold(m), UINT64_MAX);
	CHECK_IS(branch_released(r, m->branch, false), 0);
	CHECK_IS(drain(m, &again), (UINT64_C(1) << 60) - 1);
	CHECK_IS(again, (UINT64_C(1) << 60) - 1);
	CHECK_IS(seats_in_use(r), 2);
}

TEST(without_a_seat_the_same_consumer_gets_it_again_and_others_once_it_has_left)
{
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .participants = 3});
	shmring_producer *p = producer_of(r);
	shmring_consumer *m = consumer_of(r, "b"), *other = consumer_of(r, "b");
	struct shmring_lease l;
	uint64_t again;

	push_n(p, 0, 6);
	lease_of(m, 5);
	CHECK_IS(shmring_nack(m, 1, 3), SHMRING_OK);
	CHECK_IS(shmring_nack(m, 2, 3), SHMRING_E_INVALID);
	CHECK_IS(shmring_release(m, 2, 4), SHMRING_E_INVALID);
	CHECK_IS(shmring_nack(m, 4, 5), SHMRING_OK);
	CHECK_IS(shmring_release(m, 0, 1), SHMRING_OK);
	CHECK_IS(shmring_consumer_hold(m), 1);
	CHECK_IS(drain(other, &again), 0x20);
	CHECK_IS(shmring_wait_message(m, 0, SHMRING_WAIT_DEFAULT), SHMRING_OK);
	l = lease_of(m, 1);
	CHECK(l.first == 1 && l.end == 2 && l.redelivered);
	CHECK_IS(shmring_release(m, 1, 2), SHMRING_OK);
	l = lease_of(m, 8);
	CHECK(l.first == 2 && l.end == 3 && l.messages == 1 && l.redelivered);
	CHECK_IS(shmring_nack(m, 2, 3), SHMRING_OK); /* again */
	CHECK_IS(shmring_release(m, 3, 4), SHMRING_OK);
	shmring_consumer_close(m);
	CHECK_IS(drain(other, &again), 0x14);
	CHECK_IS(again, 0x14);
	CHECK_IS(branch_released(r, other->branch, false), 6);
	END(r, p, other);
}

RING_TEST(no_room_for_a_piece_on_each_side_and_what_awaits_its_release_are_refused)
{
	push_n(p, 0, 200);
	for (uint64_t i = 0; i < 94; i++)
		lease_of(m, 1);
	for (uint64_t i = 1; i < 94; i += 2)
		CHECK_IS(shmring_release(m, i, i + 1), SHMRING_OK);
	lease_of(m, 100); /* [94, 194): the 48th */
	CHECK_IS(shmring_nack(m, 100, 110), SHMRING_E_LEASES);
	CHECK_IS(shmring_release(m, 100, 110), SHMRING_OK); /* deferred */
	CHECK_IS(shmring_nack(m, 109, 194), SHMRING_E_INVALID);
	CHECK_IS(shmring_nack(m, 110, 194), SHMRING_OK);
	CHECK_IS(shmring_nack(m, 0, 1), SHMRING_OK);
}

TEST(on_exclusive_drop_oldest_and_dropped_branches)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .exclusive = true};
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
	shmring_consumer *m = consumer_with(r, "exclusive", &o), *dropping;
	struct shmring_lease l;
	uint64_t again, first, end;

	push_n(p, 0, 3);
	l = lease_of(m, 2);
	CHECK_IS(shmring_nack(m, l.first, l.end), SHMRING_OK);
	shmring_consumer_close(m);
	m = consumer_with(r, "exclusive", &o);
	CHECK_IS(drain(m, &again), 7);
	CHECK_IS(again, 3);
	push_n(p, 3, 1);
	l = lease_of(m, 1);
	NEED(shmring_unsubscribe(r, "exclusive") == SHMRING_OK);
	CHECK_IS(shmring_nack(m, l.first, l.end), SHMRING_OK); /* there is nobody to deliver it to */
	CHECK_IS(shmring_consumer_hold(m), UINT64_MAX);
	shmring_consumer_close(m);

	o = (struct shmring_branch_options){.start = SHMRING_LATEST, .drop_oldest = true};
	dropping = consumer_with(r, "dropping", &o);
	push_n(p, 4, 3);
	l = lease_of(dropping, 2);
	CHECK_IS(shmring_nack(dropping, l.first, l.end), SHMRING_OK);
	l = lease_of(dropping, 1);
	CHECK(l.first == 4 && l.redelivered);
	CHECK_IS(shmring_release(dropping, 4, 5), SHMRING_OK);
	push_n(p, 7, 1100); /* and what nobody took again is lost like the rest */
	CHECK_IS(shmring_take(dropping, 1, 1, &l), SHMRING_OVERRUN);
	shmring_consumer_overrun(dropping, &first, &end);
	CHECK(first == 5 && end == 6);
	CHECK_IS(shmring_take(dropping, 1, 1, &l), SHMRING_OVERRUN);
	shmring_consumer_overrun(dropping, &first, &end);
	CHECK(first == 6);
	END(r, p, dropping);
}

TEST(while_the_admin_lock_is_not_to_be_had_the_lease_stays)
{
	shmring *r = ring_new(), *stopped = ring_again(ring_path());
	shmring_producer *p = producer_of(r);
	shmring_consumer *m = consumer_of(r, "b");

	push_n(p, 0, 1);
	lease_of(m, 1);
	NEED(admin_try(stopped));
	CHECK_IS(shmring_nack(m, 0, 1), SHMRING_CONTENDED);
	CHECK_IS(shmring_consumer_hold(m), 0);
	admin_leave(stopped);
	CHECK_IS(shmring_nack(m, 0, 1), SHMRING_OK);
	shmring_consumer_close(m);
	shmring_producer_close(p);
	shmring_close(stopped);
	ring_end(r);
}

/* The steps of hand_over(), and dead behind each. */
enum { BACK_MARKED, BACK_RECORDED, BACK_ORPHAN, BACK_CONSUMER, BACK_STRUCK, BACK_STEPS };

static int hand_back_by_halves(struct puppet *c)
{
	struct shmring_lease l;
	struct seat *s, *orphan;
	uint32_t to = 0;

	c->m = consumer_of(c->r, "b");
	if (shmring_take(c->m, 8, 8, &l))
		return 1;
	s = c->m->seat;
	while (c->r->seats[to].id.state != SEAT_FREE)
		to++;
	orphan = &c->r->seats[to];
	s->lease.adopt_lo = 2;
	s->lease.adopt_hi = 4;
	s->lease.adopt_from = (to + 1) | ADOPT_AWAY;
	if (c->step >= BACK_RECORDED) {
		seat_prepare(orphan, c->m->branch_index);
		orphan->lease.hold = 2;
		orphan->range[0] = (struct range){2, 4};
	}
	if (c->step >= BACK_ORPHAN)
		orphan->id.state = SEAT_ORPHAN;
	if (c->step >= BACK_CONSUMER)
		c->m->branch->d.consumers[to / 64] |= UINT64_C(1) << (to % 64);
	if (c->step >= BACK_STRUCK) { /* by halves: the tail is recorded twice */
		s->range[1].hi = 8;
		s->range[1].lo = 4;
	}
	return 0;
}

TEST(a_consumer_dies_at_each_step_of_handing_back)
{
	struct puppet *c = puppet_new(hand_back_by_halves);

	for (c->step = 0; c->step < BACK_STEPS; c->step++)
		for (int recovered = 0; recovered < 2; recovered++) {
			shmring *r = ring_new();
			shmring_producer *p = producer_of(r);
			shmring_consumer *m = consumer_of(r, "b");
			uint64_t got, again, later;

			push_n(p, 0, 8);
			puppet_die(c);
			if (recovered)
				CHECK_IS(recover(r), 1);
			got = drain(m, &again);
			(void)recover(r);
			CHECK_IS(got & drain(m, &later), 0); /* nothing twice */
			CHECK_IS(again | later, 0xff);
			CHECK_IS(branch_released(r, m->branch, false), 8);
			end_working(r, p, m);
		}
}

RING_TEST(deliveries_are_counted_up_to_255_before_the_last)
{
	struct shmring_lease l, fresh;

	push_n(p, 0, 2);
	for (unsigned before = 0; before < 300; before++) {
		l = lease_of(m, 1);
		CHECK_IS(l.first, 0);
		CHECK_IS(l.redelivered, before < 255 ? before : 255);
		CHECK_IS(shmring_nack(m, l.first, l.end), SHMRING_OK);
	}
	l = lease_of(m, 2);
	CHECK_IS(l.messages, 1); /* those that were delivered as often */
	fresh = lease_of(m, 2);
	CHECK(fresh.first == 1 && !fresh.redelivered);
	CHECK_IS(shmring_nack(m, l.first, fresh.end), SHMRING_OK); /* both count as the one that came more often */
	l = lease_of(m, 2);
	CHECK(l.messages == 2 && l.redelivered == 255);
	CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	CHECK_IS(m->seat->lease.hold, NONE);
}
