/* Where a branch begins, and how far it may be read slot by slot. */
#include "check.h"

static shmring_consumer *consumer_at(shmring *r, const char *branch, uint64_t sequence, bool drop_oldest)
{
	struct shmring_branch_options o = {
	    .start = SHMRING_AT_SEQUENCE, .sequence = sequence, .drop_oldest = drop_oldest};

	return consumer_with(r, branch, &o);
}

PRODUCER_TEST(what_is_available_is_one_message_a_slot)
{
	static const struct shmring_branch_options alone = {.start = SHMRING_EARLIEST, .exclusive = true};
	static const char bytes[900];
	struct shmring_lease lease;
	shmring_consumer *m = consumer_with(r, "b", &alone);

	CHECK_IS(shmring_consumer_available(m), 0);
	push_n(p, 0, 3);
	CHECK_IS(shmring_consumer_available(m), 3);
	NEED(shmring_next(p, 4) == 3); /* an open claim, published behind others */
	CHECK_IS(shmring_consumer_available(m), 3);
	NEED(shmring_publish_ones(p, 4, NULL, 8) == SHMRING_OK); /* two rows; two slots are given up */
	push_n(p, 7, 1);
	NEED(shmring_push(p, bytes, 900, 0, NULL) == SHMRING_OK); /* [8, 11) */
	push_n(p, 11, 1);
	push_end(p); /* 12 */
	push_n(p, 13, 2);
	for (uint64_t t = 0; t < 15; t = lease.end) {
		uint64_t expected = t <= 4    ? 5
				    : t <= 7  ? t + (t == 7)
				    : t <= 11 ? t + (t == 11)
				    : t == 12 ? 12
					      : 15;

		CHECK_IS(shmring_consumer_available(m), expected);
		CHECK_IS(shmring_consumer_reach(m), 15);
		if (t == 12) {
			CHECK_IS(shmring_take(m, 1, 1, &lease), SHMRING_ENDED);
			lease.end = 13;
		} else {
			NEED(shmring_take(m, 1, 1, &lease) == SHMRING_OK);
		}
	}
}

TEST(a_claim_of_the_dead_is_not_available)
{
	static const struct shmring_branch_options alone = {.start = SHMRING_EARLIEST, .exclusive = true};
	shmring *r = ring_new(), *other = ring_again(ring_path());
	shmring_producer *p = producer_of(r), *victim = producer_of(other);
	shmring_consumer *m = consumer_with(r, "b", &alone);

	/* A lap of messages first, so that the slots hold old ones. */
	for (uint64_t i = 0; i < 1024; i++) {
		NEED(push_number(p, i) == SHMRING_OK);
		CHECK_IS(pop_number(m), i);
	}
	push_n(p, 1024, 2);
	NEED(shmring_next(victim, 8) == 1026);
	push_n(p, 1034, 2);
	CHECK_IS(shmring_consumer_available(m), 1026);
	seat_abandon(other, victim->seat_index); /* killed between claim and commit */
	CHECK_IS(shmring_recover(r, NULL), SHMRING_OK);
	CHECK_IS(shmring_consumer_available(m), 1026);
	CHECK_IS(pop_number(m), 1024);
	CHECK_IS(pop_number(m), 1025);
	CHECK_IS(shmring_consumer_available(m), 1026);
	CHECK_IS(pop_number(m), 1034); /* steps over the aborted claim */
	CHECK_IS(shmring_consumer_available(m), 1036);
	exchange_opened(OPEN_PRODUCERS, victim, NULL);
	free(victim);
}

PRODUCER_TEST(what_upstreams_hold_and_what_drops_oldest_is_not_available)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .exclusive = true};
	shmring_consumer *up = consumer_of(r, "up"), *m, *dropping;

	o.upstream = UINT64_C(1) << shmring_consumer_branch(up);
	m = consumer_with(r, "follower", &o);
	o.upstream = 0;
	o.drop_oldest = true;
	dropping = consumer_with(r, "dropping", &o);
	NEED(shmring_push_many(p, "12345678", 0, 6, NULL, 8, NULL) == SHMRING_OK);
	CHECK_IS(shmring_consumer_available(m), 0);
	NEED(pop_number(up) > 0 && pop_number(up) > 0);
	CHECK_IS(shmring_consumer_available(m), 2); /* in the middle of a run of rows */
	CHECK_IS(shmring_consumer_available(dropping), 0);
}

PRODUCER_TEST(a_start_behind_an_open_claim_delivers_nothing_before_it)
{
	static const char bytes[900];
	shmring_producer *slow = producer_of(r);
	shmring_consumer *m, *inside, *dropping;

	push_n(p, 0, 4);
	NEED(shmring_next(slow, 1) == 4);
	push_n(p, 5, 5);
	NEED(shmring_push(p, bytes, 900, 0, NULL) == SHMRING_OK); /* [10, 13) */
	push_n(p, 13, 1);
	m = consumer_at(r, "at 7", 7, false);
	inside = consumer_at(r, "at 11", 11, false);
	dropping = consumer_at(r, "dropping", 7, true);
	CHECK_IS(branch_released(r, m->branch, false), 4); /* it keeps the floor from passing the claim */
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	CHECK_IS(pop_number(dropping), SHMRING_UNAVAILABLE);
	*(uint64_t *)shmring_slot(r, 4) = 4;
	NEED(shmring_publish(slow, 8, 0, 0) == SHMRING_OK);
	for (int i = 7; i < 10; i++) {
		CHECK_IS(pop_number(m), i);
		CHECK_IS(pop_number(dropping), i);
	}
	CHECK_IS(pop_number(inside), 13);
	CHECK_IS(pop_number(inside), SHMRING_UNAVAILABLE);
}

/* The ring laps the newcomer before its first take. What was lost is told from its start on. */
PRODUCER_TEST(a_branch_that_drops_oldest_begins_at_a_boundary)
{
	static const char bytes[900];
	shmring_consumer *m, *late;
	struct shmring_lease lease;
	uint64_t first, end;

	for (int i = 0; i < 300; i++) /* three slots each: few sequences are boundaries */
		NEED(shmring_push(p, bytes, 900, 0, NULL) == SHMRING_OK);
	m = consumer_at(r, "m", 500, true);
	late = consumer_at(r, "late", 899, true);
	CHECK_IS(shmring_take(m, 1, 1024, &lease), SHMRING_OK);
	CHECK(lease.first == 501 && lease.end == 504);
	CHECK_IS(shmring_release(m, 501, 504), SHMRING_OK);
	for (int i = 0; i < 400; i++)
		NEED(shmring_push(p, bytes, 900, 0, NULL) == SHMRING_OK);
	CHECK_IS(shmring_take(late, 1, 1024, &lease), SHMRING_OVERRUN);
	shmring_consumer_overrun(late, &first, &end);
	CHECK(first == 899 && end % 3 == 0 && end <= shmring_floor(r));
	CHECK_IS(shmring_take(late, 1, 1024, &lease), SHMRING_OK);
	CHECK(lease.first == end && lease.end == end + 3);
}
