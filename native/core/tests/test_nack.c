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

RING_TEST_WITH(without_a_seat_each_message_keeps_its_own_count, .slots = 1024, .participants = 2)
{
	struct shmring_lease l;

	push_n(p, 0, 3);
	lease_of(m, 1);
	for (int before = 1; before < 4; before++) {
		CHECK_IS(shmring_nack(m, 0, 1), SHMRING_OK);
		CHECK_IS(lease_of(m, 1).redelivered, before);
	}
	lease_of(m, 2);
	CHECK_IS(shmring_nack(m, 0, 3), SHMRING_OK);
	l = lease_of(m, 3);
	CHECK(l.first == 0 && l.messages == 1 && l.redelivered == 4);
	l = lease_of(m, 3);
	CHECK(l.first == 1 && l.messages == 2 && l.redelivered == 1);
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
	CHECK_IS(shmring_nack(m, l.first, fresh.end), SHMRING_OK); /* each keeps its own count */
	l = lease_of(m, 2);
	CHECK(l.messages == 1 && l.redelivered == 255);
	CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	l = lease_of(m, 2);
	CHECK(l.first == 1 && l.messages == 1 && l.redelivered == 1);
	CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	CHECK_IS(m->seat->lease.hold, NONE);
}

/* --- set aside after too many deliveries ---------------------------------------------- */

static const char *letters_path(void)
{
	static char path[96];

	snprintf(path, sizeof path, "%s.dead", ring_path());
	return path;
}

/* A new ring beside the usual one, for the dead letters. */
static shmring *ring_for_letters(struct shmring_options options)
{
	shmring *r;

	unlink(letters_path());
	NEED(shmring_create(letters_path(), &options, &r) == SHMRING_OK);
	opened(OPEN_RINGS, r);
	return r;
}

/* Has taken each of n messages once, and hands them back. */
static void hand_all_back(shmring_consumer *m, uint64_t n)
{
	lease_of(m, (uint32_t)n);
	CHECK_IS(shmring_nack(m, 0, n), SHMRING_OK);
}

RING_TEST(letters_go_into_a_branch_that_keeps_them_whoever_comes_and_goes)
{
	shmring *to = ring_for_letters((struct shmring_options){.slots = 1024});
	shmring_consumer *viewer = consumer_with(to, "view", &(struct shmring_branch_options){.ephemeral = true});
	shmring_consumer *letters;

	CHECK_IS(shmring_consumer_dead_letters(m, 1, producer_of(to)), SHMRING_OK);
	push_n(p, 0, 3);
	hand_all_back(m, 2);
	CHECK_IS(pop_number(m), 2); /* two letters */
	shmring_consumer_close(viewer);
	letters = consumer_of(to, "default");
	CHECK_IS(pop_number(letters), 0);
	shmring_consumer_close(letters);
	CHECK_IS(shmring_unsubscribe(to, "default"), SHMRING_OK);
	push_n(p, 3, 1);
	lease_of(m, 1);
	CHECK_IS(shmring_nack(m, 3, 4), SHMRING_OK);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE); /* a letter, which is kept, too */
	letters = consumer_of(to, "default");
	while (pop_number(letters) != 3)
		CHECK(!check_broken);
	shmring_consumer_close(letters);
	CHECK_IS(shmring_unsubscribe(to, "default"), SHMRING_OK);
	letters = consumer_with(to, "default", &(struct shmring_branch_options){.drop_oldest = true});
	push_n(p, 4, 1);
	lease_of(m, 1);
	CHECK_IS(shmring_nack(m, 4, 5), SHMRING_OK);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	letters = consumer_of(to, "dead-letters");
	while (pop_number(letters) != 4)
		CHECK(!check_broken);
}

RING_TEST(letters_for_a_ring_that_was_removed_stay_in_words)
{
	shmring *to = ring_for_letters((struct shmring_options){.slots = 1024});
	struct shmring_lease l;

	CHECK_IS(shmring_consumer_dead_letters(m, 1, producer_of(to)), SHMRING_OK);
	push_n(p, 0, 2);
	hand_all_back(m, 1);
	NEED(shmring_unlink(letters_path(), NULL, NULL, NULL) == SHMRING_OK);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_E_NOT_FOUND);
	CHECK(strstr(shmring_error_message(), "message 0") && strstr(shmring_error_message(), ".dead"));
	CHECK(strstr(shmring_error_message(), "make the ring again"));
	(void)ring_for_letters((struct shmring_options){.slots = 1024});
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_E_NOT_FOUND);
	CHECK(strstr(shmring_error_message(), "made anew"));
	CHECK_IS(branch_released(r, m->branch, false), 0); /* it is here still */
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

/* A message may fill its ring. */
TEST(a_ring_with_too_few_slots_for_the_largest_letter_is_refused)
{
	shmring *r = ring_with(&(struct shmring_options){.slots = 2048});
	shmring *few = ring_for_letters((struct shmring_options){.slots = 1024}), *to;
	shmring_producer *p = producer_of(r);
	shmring_consumer *m = consumer_of(r, "b"), *letters;
	static uint8_t large[2048 * SLOT_BYTES];
	struct shmring_message message;
	struct shmring_lease l;
	uint64_t at;

	CHECK_IS(shmring_consumer_dead_letters(m, 1, producer_of(few)), SHMRING_E_INVALID);
	CHECK(strstr(shmring_error_message(), "1024 slots") && strstr(shmring_error_message(), "2048"));
	to = ring_for_letters((struct shmring_options){.slots = 2048});
	CHECK_IS(shmring_consumer_dead_letters(m, 1, producer_of(to)), SHMRING_OK);
	large[sizeof large - 1] = 1;
	CHECK_IS(shmring_push(p, large, sizeof large, SHMRING_KIND_BYTES, NULL), SHMRING_OK);
	NEED(shmring_take(m, 1, UINT64_MAX, &l) == SHMRING_OK);
	CHECK_IS(shmring_nack(m, l.first, l.end), SHMRING_OK);
	CHECK_IS(shmring_take(m, 1, UINT64_MAX, &l), SHMRING_UNAVAILABLE);
	letters = consumer_of(to, "default");
	NEED(shmring_take(letters, 1, UINT64_MAX, &l) == SHMRING_OK);
	at = l.first;
	CHECK_IS(shmring_read(to, &at, l.end, &message), SHMRING_OK);
	CHECK(message.length == sizeof large && memcmp(message.data, large, sizeof large) == 0);
}
