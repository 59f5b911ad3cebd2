/* Branches: who follows whom, where newcomers start, how branches go. */
#include "check.h"

static const struct shmring_branch_options earliest = {.start = SHMRING_EARLIEST};

static uint32_t subscribe(shmring *r, const char *name, uint64_t upstream)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .upstream = upstream};
	uint32_t id = 99;

	NEED(shmring_subscribe(r, name, &o, &id) == SHMRING_OK);
	return id;
}

PRODUCER_TEST(a_follower_sees_what_its_upstream_has_released)
{
	struct shmring_lease l;
	uint32_t a = subscribe(r, "a", 0);
	uint32_t b = subscribe(r, "b", UINT64_C(1) << a);
	shmring_consumer *ma = consumer_of(r, "a"), *mb = consumer_of(r, "b");
	struct shmring_branch_info info;

	push_n(p, 0, 10);
	CHECK_IS(pop_number(mb), SHMRING_UNAVAILABLE);
	CHECK_IS(shmring_take(ma, 5, 5, &l), SHMRING_OK);
	CHECK_IS(pop_number(mb), SHMRING_UNAVAILABLE); /* taken is not released */
	CHECK_IS(shmring_release(ma, 2, 5), SHMRING_OK);
	CHECK_IS(pop_number(mb), SHMRING_UNAVAILABLE); /* 0 and 1 are still held */
	CHECK_IS(shmring_release(ma, 0, 2), SHMRING_OK);
	CHECK_IS(shmring_consumer_available(mb), 5);
	for (int i = 0; i < 5; i++)
		CHECK_IS(pop_number(mb), i);
	CHECK_IS(pop_number(mb), SHMRING_UNAVAILABLE);
	CHECK_IS(shmring_branch_info(r, b, &info), SHMRING_OK);
	CHECK(info.position == 5 && info.released == 5 && info.upstream == UINT64_C(1) << a &&
	      info.consumers == 1);
}

PRODUCER_TEST(following_another_takes_effect_at_once)
{
	uint32_t a = subscribe(r, "a", 0), b = subscribe(r, "b", 0), c = subscribe(r, "c", UINT64_C(1) << a);
	shmring_consumer *ma = consumer_of(r, "a"), *mb = consumer_of(r, "b"), *mc = consumer_of(r, "c");

	push_n(p, 0, 20);
	for (int i = 0; i < 10; i++)
		CHECK_IS(pop_number(ma), i);
	CHECK_IS(pop_number(mc), 0); /* has seen that a released 10 */
	CHECK_IS(shmring_unfollow(r, c, UINT64_C(1) << a), SHMRING_OK);
	CHECK_IS(shmring_follow(r, c, UINT64_C(1) << b), SHMRING_OK);
	CHECK_IS(pop_number(mc), SHMRING_UNAVAILABLE);
	CHECK_IS(pop_number(mb), 0);
	CHECK_IS(pop_number(mb), 1);
	CHECK_IS(pop_number(mc), 1);
	CHECK_IS(pop_number(mc), SHMRING_UNAVAILABLE);
	/* The bound must not outlive a branch whose number is given away. */
	for (int i = 2; i < 20; i++)
		CHECK_IS(pop_number(mb), i);
	CHECK_IS(pop_number(mc), 2); /* has seen that b released 20 */
	shmring_consumer_close(mb);
	CHECK_IS(shmring_unsubscribe(r, "b"), SHMRING_OK);
	CHECK_IS(subscribe(r, "new b", 0), b);
	CHECK_IS(shmring_follow(r, c, UINT64_C(1) << b), SHMRING_OK);
	CHECK_IS(pop_number(mc), SHMRING_UNAVAILABLE);
	CHECK_IS(shmring_unfollow(r, c, UINT64_C(1) << b), SHMRING_OK);
	CHECK_IS(pop_number(mc), 3);
}

static uint64_t upstreams(const shmring *r, uint32_t id)
{
	struct shmring_branch_info info;

	NEED(shmring_branch_info(r, id, &info) == SHMRING_OK);
	return info.upstream;
}

PRODUCER_TEST(upstreams_are_added_and_removed_one_by_one)
{
	uint32_t a = subscribe(r, "a", 0), b = subscribe(r, "b", 0), c = subscribe(r, "c", UINT64_C(1) << a);
	uint64_t both = UINT64_C(1) << a | UINT64_C(1) << b;
	shmring_consumer *mc = consumer_of(r, "c"), *ma = consumer_of(r, "a"), *mb = consumer_of(r, "b");
	uint32_t changes;

	CHECK_IS(shmring_follow(r, c, UINT64_C(1) << b), SHMRING_OK);
	CHECK_IS(upstreams(r, c), both);
	changes = r->cursors->graph.changes;
	CHECK_IS(shmring_follow(r, c, both), SHMRING_OK);
	CHECK_IS(r->cursors->graph.changes, changes); /* it was so before */
	CHECK_IS(subscribe(r, "c", UINT64_C(1) << b), c);
	CHECK_IS(upstreams(r, c), both);
	push_n(p, 0, 1);
	CHECK_IS(pop_number(ma), 0);
	CHECK_IS(pop_number(mc), SHMRING_UNAVAILABLE);
	CHECK_IS(pop_number(mb), 0);
	CHECK_IS(pop_number(mc), 0);
	CHECK_IS(shmring_unfollow(r, c, UINT64_C(1) << a), SHMRING_OK);
	CHECK_IS(shmring_unfollow(r, c, UINT64_C(1) << a), SHMRING_OK); /* gone already */
	CHECK_IS(upstreams(r, c), UINT64_C(1) << b);
}

TEST(cycles_and_strangers_are_refused)
{
	struct shmring_branch_options o = {.upstream = UINT64_C(1) << 63};
	uint32_t id;
	shmring *r = ring_new();
	uint32_t a = subscribe(r, "a", 0), b = subscribe(r, "b", UINT64_C(1) << a);
	uint32_t c = subscribe(r, "c", UINT64_C(1) << b);
	char longest[60];

	CHECK_IS(shmring_follow(r, a, UINT64_C(1) << a), SHMRING_E_INVALID);
	CHECK_IS(shmring_follow(r, a, UINT64_C(1) << b), SHMRING_E_INVALID);
	CHECK_IS(shmring_follow(r, a, UINT64_C(1) << c), SHMRING_E_INVALID);
	CHECK_IS(shmring_follow(r, a, UINT64_C(1) << 40), SHMRING_E_NO_BRANCH);
	CHECK_IS(shmring_follow(r, 64, 0), SHMRING_E_NO_BRANCH);
	CHECK_IS(shmring_unfollow(r, 63, 0), SHMRING_E_NO_BRANCH);
	CHECK_IS(shmring_follow(r, c, UINT64_C(1) << a), SHMRING_OK);
	CHECK_IS(shmring_unfollow(r, c, UINT64_C(1) << b), SHMRING_OK);
	CHECK_IS(shmring_follow(r, b, UINT64_C(1) << c), SHMRING_OK); /* now it is none */
	CHECK_IS(shmring_subscribe(r, "x", &o, &id), SHMRING_E_NO_BRANCH);
	CHECK_IS(shmring_subscribe(r, "", NULL, &id), SHMRING_E_INVALID);
	CHECK_IS(shmring_subscribe(r, NULL, NULL, &id), SHMRING_E_INVALID);
	memset(longest, 'n', sizeof longest);
	longest[48] = 0;
	CHECK_IS(shmring_subscribe(r, longest, NULL, &id), SHMRING_E_INVALID);
	longest[47] = 0;
	CHECK_IS(shmring_subscribe(r, longest, NULL, &id), SHMRING_OK);
	CHECK_IS(shmring_find_branch(r, longest, &id), SHMRING_OK);
	o = (struct shmring_branch_options){.start = 3};
	CHECK_IS(shmring_subscribe(r, "x", &o, &id), SHMRING_E_INVALID);
	o = (struct shmring_branch_options){.ephemeral = true};
	CHECK_IS(shmring_subscribe(r, "x", &o, &id), SHMRING_E_INVALID);
	CHECK_IS(shmring_unsubscribe(r, "x"), SHMRING_E_NO_BRANCH);
	CHECK_IS(shmring_find_branch(r, "x", &id), SHMRING_E_NO_BRANCH);
}

TEST(the_65th_branch_is_refused_until_one_goes)
{
	char name[16];
	uint32_t id;
	shmring *r = ring_new();

	for (int i = 0; i < 64; i++) {
		snprintf(name, sizeof name, "b%d", i);
		CHECK_IS(shmring_subscribe(r, name, NULL, &id), SHMRING_OK);
		CHECK_IS(id, i);
	}
	CHECK_IS(shmring_subscribe(r, "b64", NULL, &id), SHMRING_E_LIMIT);
	CHECK_IS(shmring_subscribe(r, "b63", NULL, &id), SHMRING_OK);
	CHECK_IS(id, 63);
	CHECK_IS(shmring_unsubscribe(r, "b17"), SHMRING_OK);
	CHECK_IS(shmring_subscribe(r, "b64", NULL, &id), SHMRING_OK);
	CHECK_IS(id, 17);
}

PRODUCER_TEST(where_a_newcomer_starts)
{
	struct shmring_branch_options o = {.start = SHMRING_AT_SEQUENCE, .sequence = 60};
	shmring_consumer *keep = consumer_of(r, "keep"), *m;

	push_n(p, 0, 100);
	for (int i = 0; i < 50; i++)
		CHECK_IS(pop_number(keep), i);
	CHECK(floor_advance(r, 50) == 50);
	m = consumer_with(r, "latest", &(struct shmring_branch_options){.start = SHMRING_LATEST});
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE); /* sees only what comes later */
	shmring_consumer_close(m);
	m = consumer_with(r, "earliest", &earliest);
	CHECK_IS(pop_number(m), 50);
	shmring_consumer_close(m);
	m = consumer_with(r, "at 60", &o);
	CHECK_IS(pop_number(m), 60);
	shmring_consumer_close(m);
	o.sequence = 7; /* gone: the oldest that is there */
	m = consumer_with(r, "at 7", &o);
	CHECK_IS(pop_number(m), 50);
	shmring_consumer_close(m);
	o.sequence = 100;
	m = consumer_with(r, "at 100", &o);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	push_n(p, 100, 1);
	CHECK_IS(pop_number(m), 100);
	shmring_consumer_close(m);
	o.sequence = 102;
	CHECK_IS(shmring_subscribe(r, "ahead", &o, NULL), SHMRING_E_INVALID);
	CHECK_IS(load_relaxed(&r->cursors->graph.active) >> 6, 0); /* nothing of it stayed */
	/* Inside a message of several slots: the first after it. */
	CHECK(shmring_next(p, 10) == 101);
	CHECK_IS(shmring_publish(p, 8, 0, 0), SHMRING_OK);
	push_n(p, 111, 1);
	o.sequence = 105;
	m = consumer_with(r, "at 105", &o);
	CHECK_IS(pop_number(m), 111);
}

RING_TEST(dropping_a_branch_ends_its_consumers_but_not_their_leases)
{
	struct shmring_lease l, other;
	struct shmring_message message;
	uint64_t at, value;
	shmring_consumer *idle = consumer_of(r, "b");
	uint32_t id;

	push_n(p, 0, 1024);
	NEED(shmring_take(m, 4, 4, &l) == SHMRING_OK);
	CHECK_IS(push_number(p, 0), SHMRING_UNAVAILABLE);
	CHECK_IS(shmring_unsubscribe(r, "b"), SHMRING_OK);
	CHECK_IS(shmring_take(m, 1, 1, &other), SHMRING_E_DROPPED);
	CHECK_IS(shmring_take(idle, 1, 1, &other), SHMRING_E_DROPPED);
	CHECK_IS(shmring_wait_message(m, INT64_MAX, 0), SHMRING_OK); /* it is worth looking */
	CHECK_IS(push_number(p, 0), SHMRING_UNAVAILABLE); /* the lease still holds slot 0 */
	for (at = l.first; shmring_read(r, &at, l.end, &message) == SHMRING_OK;) {
		memcpy(&value, message.data, 8);
		CHECK_IS(value, message.message_id);
	}
	/* The name is free at once, and the number not before the consumers are gone. */
	CHECK_IS(shmring_subscribe(r, "b", NULL, &id), SHMRING_OK);
	CHECK_IS(id, 1);
	CHECK_IS(shmring_unsubscribe(r, "b"), SHMRING_OK);
	CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	CHECK_IS(push_number(p, 0), SHMRING_OK);
	shmring_consumer_close(m);
	shmring_consumer_close(idle);
	CHECK_IS(load_relaxed(&r->cursors->graph.active), 0);
}

PRODUCER_TEST(an_ephemeral_branch_goes_with_its_last_consumer)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .ephemeral = true};
	shmring_consumer *a = consumer_with(r, "e", &o), *b = consumer_with(r, "e", &o);
	struct shmring_lease l;
	uint32_t id;

	push_n(p, 0, 1024);
	NEED(shmring_take(b, 1, 1, &l) == SHMRING_OK);
	shmring_consumer_close(a);
	CHECK_IS(shmring_find_branch(r, "e", &id), SHMRING_OK);
	CHECK_IS(push_number(p, 0), SHMRING_UNAVAILABLE);
	shmring_consumer_close(b);
	CHECK_IS(shmring_find_branch(r, "e", &id), SHMRING_E_NO_BRANCH);
	CHECK_IS(push_number(p, 0), SHMRING_OK); /* nothing gates any more */
}
