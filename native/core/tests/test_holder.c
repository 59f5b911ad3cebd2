/* Who holds up whom, found and said, on live rings and on those of the dead. */
#include "check.h"

static void fill(shmring *r)
{
	shmring_producer *p = producer_of(r);

	for (uint64_t i = 0; i < r->capacity; i++)
		NEED(shmring_push(p, "x", 1, KIND_BYTES, &(uint64_t){0}) == SHMRING_OK);
	shmring_producer_close(p);
}

TEST(nobody_holds_a_ring_without_branches_and_claims)
{
	shmring *r = ring_new();
	struct shmring_holder h;

	CHECK_IS(shmring_find_holder(r, &h), SHMRING_UNAVAILABLE);
	fill(r);
	CHECK_IS(shmring_find_holder(r, &h), SHMRING_UNAVAILABLE);
	ring_end(r);
}

TEST(a_lease_holds_before_the_position_does)
{
	shmring *r = ring_new();
	shmring_consumer *a = consumer_of(r, "a"), *b = consumer_of(r, "b");
	struct shmring_holder h;
	struct shmring_lease l;

	fill(r);
	NEED(shmring_take(a, 10, 10, &l) == SHMRING_OK);
	NEED(shmring_release(a, 0, 4) == SHMRING_OK);
	NEED(shmring_take(b, 10, 10, &l) == SHMRING_OK);
	NEED(shmring_release(b, l.first, l.end) == SHMRING_OK);
	CHECK_IS(shmring_find_holder(r, &h), SHMRING_OK);
	CHECK(h.kind == SHMRING_HELD_BY_LEASE && h.sequence == 4 && h.slots == r->capacity - 4);
	CHECK(h.alive && h.pid == (uint32_t)getpid() && strcmp(h.branch_name, "a") == 0 && h.age_ns >= 0);
	NEED(shmring_release(a, 4, 10) == SHMRING_OK);
	CHECK_IS(shmring_find_holder(r, &h), SHMRING_OK);
	CHECK(h.kind == SHMRING_HELD_BY_CONSUMERS && h.sequence == 10 && h.consumers == 1);
	shmring_consumer_close(a);
	CHECK_IS(shmring_find_holder(r, &h), SHMRING_OK);
	CHECK(h.kind == SHMRING_HELD_BY_NO_CONSUMER && h.seat < 0 && strcmp(h.branch_name, "a") == 0);
	shmring_consumer_close(b);
	ring_end(r);
}

TEST(an_open_claim_holds_with_a_branch_and_without)
{
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
	shmring_consumer *a;
	struct shmring_holder h;

	NEED(shmring_next(p, 3) == 0);
	CHECK_IS(shmring_find_holder(r, &h), SHMRING_OK);
	CHECK(h.kind == SHMRING_HELD_BY_CLAIM && h.sequence == 0 && h.branch < 0);
	a = consumer_of(r, "a");
	CHECK_IS(shmring_find_holder(r, &h), SHMRING_OK);
	CHECK(h.kind == SHMRING_HELD_BY_CLAIM && h.sequence == 0 && h.age_ns < 0);
	END(r, p, a);
}

TEST(words_are_cut_to_their_room_and_end_in_it)
{
	shmring *r = ring_new();
	char text[64];

	shmring_consumer_close(consumer_of(r, "a"));
	for (size_t size = 1; size <= sizeof text; size++) {
		memset(text, '#', sizeof text);
		shmring_explain_full(r, text, size);
		CHECK_IS(strnlen(text, sizeof text), size - 1);
		shmring_explain_branch(r, SHMRING_MAX_BRANCHES, text, size);
		CHECK(strnlen(text, sizeof text) < size);
	}
	ring_end(r);
}
