/* Tests of nack: a message that a living consumer hands back is delivered again. */
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

RING_TEST_WITH(without_a_seat_the_same_consumer_gets_it_again_and_others_once_it_has_left, .slots = 1024,
	       .participants = 3)
{
	shmring_consumer *other = consumer_of(r, "b");
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

PRODUCER_TEST(on_exclusive_drop_oldest_and_dropped_branches)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .exclusive = true};
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
}

RING_TEST(while_the_admin_lock_is_not_to_be_had_the_lease_stays)
{
	shmring *stopped = ring_again(ring_path());

	push_n(p, 0, 1);
	lease_of(m, 1);
	NEED(admin_try(stopped));
	CHECK_IS(shmring_nack(m, 0, 1), SHMRING_CONTENDED);
	CHECK_IS(shmring_consumer_hold(m), 0);
	admin_leave(stopped);
	CHECK_IS(shmring_nack(m, 0, 1), SHMRING_OK);
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
	CHECK_IS(l.messages, 1); /* only messages with equal delivery counts come together */
	fresh = lease_of(m, 2);
	CHECK(fresh.first == 1 && !fresh.redelivered);
	CHECK_IS(shmring_nack(m, l.first, fresh.end), SHMRING_OK); /* both count as the one that came more often */
	l = lease_of(m, 2);
	CHECK(l.messages == 2 && l.redelivered == 255);
	CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	CHECK_IS(m->seat->lease.hold, NONE);
}

/* --- set aside after too many deliveries ---------------------------------------------- */

/* A ring beside the usual one, for the dead letters. */
static shmring *ring_for_letters(struct shmring_options options)
{
	char path[96];
	shmring *r;

	snprintf(path, sizeof path, "%s.dead", ring_path());
	NEED(shmring_create(path, &options, &r) == SHMRING_OK);
	NEED(shmring_unlink(path, NULL, NULL, NULL) == SHMRING_OK);
	opened(OPEN_RINGS, r);
	return r;
}

static int holds_three_and_dies(struct puppet *c)
{
	struct shmring_lease l;

	NEED(shmring_join(c->r, "b", NULL, "dies", &c->m) == SHMRING_OK);
	return shmring_take(c->m, 3, UINT64_MAX, &l);
}

RING_TEST(what_was_delivered_too_often_goes_into_the_other_ring_alone)
{
	struct puppet *c = puppet_new(holds_three_and_dies);
	shmring *to = ring_for_letters((struct shmring_options){.slots = 1024});
	shmring_consumer *letters;
	struct shmring_lease l;

	CHECK_IS(shmring_consumer_dead_letters(m, 3, producer_of(to)), SHMRING_OK);
	push_n(p, 0, 4);
	puppet_die(c); /* the first time, three together */
	CHECK_IS(recover(r), 1);
	for (int delivered = 1; delivered < 3; delivered++) {
		l = lease_of(m, 9);
		CHECK(l.first == 0 && l.messages == 1 && l.redelivered == delivered);
		CHECK_IS(shmring_nack(m, 0, 1), SHMRING_OK);
	}
	CHECK_IS(pop_number(m), 1);
	CHECK_IS(pop_number(m), 2);
	CHECK_IS(pop_number(m), 3);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	CHECK_IS(branch_released(r, m->branch, false), 4);
	letters = consumer_of(to, "default"); /* it had no branch */
	CHECK_IS(pop_number(letters), 0);
	CHECK_IS(pop_number(letters), SHMRING_UNAVAILABLE);
	shmring_consumer_close(letters);
	check_works(r, m);
}

RING_TEST(end_markers_and_damaged_messages_are_not_set_aside)
{
	shmring *to = ring_for_letters((struct shmring_options){.slots = 1024});
	struct shmring_lease l;

	CHECK_IS(shmring_consumer_dead_letters(m, 1, producer_of(to)), SHMRING_OK);
	shmring_consumer_take_ends(m, true);
	CHECK_IS(shmring_push(p, NULL, 0, SHMRING_KIND_END, NULL), SHMRING_OK);
	for (int before = 0; before < 4; before++) {
		l = lease_of(m, 1);
		CHECK_IS(l.redelivered, before);
		CHECK_IS(shmring_nack(m, l.first, l.end), SHMRING_OK);
	}
	CHECK_IS(shmring_claimed(to), 0);
	l = lease_of(m, 1);
	CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
}

TEST(rings_that_cannot_have_them_are_refused)
{
	static const char schema[] = "a schema, for all that the core knows";
	struct shmring_options with = {.slots = 1024, .schema = schema, .schema_bytes = sizeof schema};
	shmring *r = ring_with(&with), *to = ring_for_letters((struct shmring_options){.slots = 1024});
	shmring *same = ring_for_letters(with);
	shmring_producer *p = producer_of(r), *out = producer_of(to), *fits = producer_of(same);
	shmring_consumer *m = consumer_of(r, "b");

	CHECK_IS(shmring_consumer_dead_letters(m, 3, p), SHMRING_E_INVALID);
	CHECK_IS(shmring_consumer_dead_letters(m, 3, out), SHMRING_E_INVALID);
	CHECK_IS(shmring_consumer_dead_letters(m, 0, fits), SHMRING_E_INVALID);
	CHECK_IS(shmring_consumer_dead_letters(m, 256, fits), SHMRING_E_INVALID);
	CHECK_IS(shmring_consumer_dead_letters(m, 255, fits), SHMRING_OK);
}
