/* Messages that were delivered too often go into another ring. */
#include "death.h"

/* A ring beside the usual one, for the dead letters. */
static shmring *ring_for_letters(struct shmring_options options)
{
	char path[96];
	shmring *r;

	snprintf(path, sizeof path, "%s.dead", ring_path());
	NEED(shmring_create(path, &options, &r) == SHMRING_OK);
	NEED(shmring_unlink(path, NULL, NULL, NULL) == SHMRING_OK);
	return r;
}

static int holds_three_and_dies(struct puppet *c)
{
	struct shmring_lease l;

	NEED(shmring_join(c->r, "b", NULL, "dies", &c->m) == SHMRING_OK);
	return shmring_take(c->m, 3, UINT64_MAX, &l);
}

TEST(what_was_delivered_too_often_goes_into_the_other_ring_alone)
{
	struct puppet *c = puppet_new(holds_three_and_dies);
	shmring *r = ring_new(), *to = ring_for_letters((struct shmring_options){.slots = 1024});
	shmring_producer *p = producer_of(r), *out = producer_of(to);
	shmring_consumer *m = consumer_of(r, "b"), *letters;
	struct shmring_lease l;

	CHECK_IS(shmring_consumer_dead_letters(m, 3, out), SHMRING_OK);
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
	END(r, p, m);
	shmring_producer_close(out);
	shmring_close(to);
}

TEST(without_room_for_it_it_stays_and_the_next_take_tries_again)
{
	shmring *r = ring_new(), *to = ring_for_letters((struct shmring_options){.slots = 1024});
	shmring_producer *p = producer_of(r), *out = producer_of(to), *other = producer_of(to);
	shmring_consumer *m = consumer_of(r, "b"), *letters = consumer_of(to, "people"), *next;
	struct shmring_lease l;

	CHECK_IS(shmring_consumer_dead_letters(m, 1, out), SHMRING_OK);
	push_n(other, 100, 1024);
	push_n(p, 7, 2);
	l = lease_of(m, 1);
	CHECK_IS(shmring_nack(m, l.first, l.end), SHMRING_OK);
	for (int i = 0; i < 3; i++) {
		CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_E_NO_SPACE);
		CHECK(strstr(shmring_error_message(), "message 0 was delivered 1 times"));
	}
	CHECK_IS(branch_released(r, m->branch, false), 0);
	shmring_consumer_close(m); /* another one finds it */
	next = consumer_of(r, "b");
	CHECK_IS(shmring_consumer_dead_letters(next, 1, out), SHMRING_OK);
	CHECK_IS(shmring_take(next, 1, 1, &l), SHMRING_E_NO_SPACE);
	for (uint64_t i = 0; i < 1024; i++)
		CHECK_IS(pop_number(letters), 100 + i);
	CHECK_IS(pop_number(next), 8);
	CHECK_IS(pop_number(letters), 7);
	CHECK_IS(branch_released(r, next->branch, false), 2);
	END(r, p, next);
	shmring_consumer_close(letters);
	shmring_producer_close(other);
	shmring_producer_close(out);
	shmring_close(to);
}

TEST(end_markers_and_damaged_messages_are_not_set_aside)
{
	shmring *r = ring_new(), *to = ring_for_letters((struct shmring_options){.slots = 1024});
	shmring_producer *p = producer_of(r), *out = producer_of(to);
	shmring_consumer *m = consumer_of(r, "b");
	struct shmring_lease l;

	CHECK_IS(shmring_consumer_dead_letters(m, 1, out), SHMRING_OK);
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
	END(r, p, m);
	shmring_producer_close(out);
	shmring_close(to);
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
	END(r, p, m);
	shmring_producer_close(out);
	shmring_producer_close(fits);
	shmring_close(to);
	shmring_close(same);
}
