/* Where a branch begins. */
#include "check.h"

static shmring_consumer *consumer_at(shmring *r, const char *branch, uint64_t sequence, bool drop_oldest)
{
	struct shmring_branch_options o = {
	    .start = SHMRING_AT_SEQUENCE, .sequence = sequence, .drop_oldest = drop_oldest};

	return consumer_with(r, branch, &o);
}

TEST(a_start_behind_an_open_claim_delivers_nothing_before_it)
{
	static const char bytes[900];
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r), *slow = producer_of(r);
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
	shmring_consumer_close(dropping);
	shmring_consumer_close(inside);
	shmring_consumer_close(m);
	shmring_producer_close(slow);
	shmring_producer_close(p);
	ring_end(r);
}

/* The ring laps the newcomer before its first take. What was lost is told from its start on. */
TEST(a_branch_that_drops_oldest_begins_at_a_boundary)
{
	static const char bytes[900];
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
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
	END(r, p, late, m);
}
