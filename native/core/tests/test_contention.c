/* Who has lost keeps out, longer each time, until it gets its share again. */
#include "check.h"

TEST(pause_doubles_up_to_a_bound_while_little_is_got)
{
	struct contention c = {0};
	uint64_t before = 0;

	keep_out(&c, 0);
	CHECK(c.ns > 0);
	do {
		before = c.ns;
		keep_out(&c, 1);
		CHECK(c.ns == 2 * before || c.ns == before);
	} while (c.ns != before);
	CHECK(before < 100 * 1000);
}

TEST(pause_is_short_again_after_many_messages)
{
	struct contention c = {0};
	uint64_t shortest;

	keep_out(&c, 0);
	shortest = c.ns;
	keep_out(&c, 1);
	CHECK(c.ns > shortest);
	keep_out(&c, 1000 * 1000);
	CHECK(c.ns == shortest);
}

PRODUCER_TEST(consumers_that_take_in_turn_do_not_keep_out)
{
	shmring_consumer *a = consumer_of(r, "b"), *b = consumer_of(r, "b");
	struct shmring_lease lease;

	NEED(shmring_push(p, "one", 3, 0, NULL) == SHMRING_OK);
	NEED(shmring_push(p, "two", 3, 0, NULL) == SHMRING_OK);
	NEED(shmring_take(a, 1, 1, &lease) == SHMRING_OK);
	NEED(shmring_take(b, 1, 1, &lease) == SHMRING_OK);
	CHECK(a->contention.ns == 0 && b->contention.ns == 0);
}
