/* Operations that make and drop branches, and change their upstreams. */
#include "scenes.h"

/* Enters with an open claim; messages behind it belong to the next claim. */
static void enter_with_claim(struct victim *v)
{
	enter_producer(v);
	NEED(shmring_next(v->p, 1) == 6);
}

static void act_subscribe(struct victim *v)
{
	NEED(shmring_subscribe(v->r, "n", &earliest, NULL) == SHMRING_OK);
}

/* Bit that stands for the release of the new branch's first message. */
#define OF_THE_NEW BIT(20)

static void act_subscribe_behind(struct victim *v)
{
	shmring_producer *p = producer_of(v->r);
	shmring_consumer *n = consumer_with(
	    v->r, "n", &(struct shmring_branch_options){.start = SHMRING_AT_SEQUENCE, .sequence = 7});

	NEED(push_number(p, 10) == SHMRING_OK);
	NEED(pop_number(n) == SHMRING_UNAVAILABLE);
	NEED(shmring_abort(v->p) == SHMRING_OK);
	v->shared->releasing |= OF_THE_NEW;
	crash_order();
	NEED(pop_number(n) == 10);
	crash_order();
	v->shared->released |= OF_THE_NEW;
}

static void act_unsubscribe(struct victim *v)
{
	NEED(shmring_unsubscribe(v->r, "b") == SHMRING_OK);
}

static uint32_t number_of(const shmring *r, const char *branch)
{
	uint32_t id;

	NEED(shmring_find_branch(r, branch, &id) == SHMRING_OK);
	return id;
}

static void act_follow(struct victim *v)
{
	NEED(shmring_follow(v->r, number_of(v->r, "w"), BIT(number_of(v->r, "b"))) == SHMRING_OK);
}

static void act_unfollow(struct victim *v)
{
	NEED(shmring_unfollow(v->r, number_of(v->r, "w"), BIT(number_of(v->r, "b"))) == SHMRING_OK);
}

/* Checks that the new branch, made by the child or here, sees all that "b" still holds. */
static void check_subscribed(struct survivors *s)
{
	shmring_consumer *n;
	uint32_t id;

	CHECK(!s->victim->done || shmring_find_branch(s->r, "n", &id) == SHMRING_OK);
	n = consumer_of(s->r, "n");
	for (int64_t i = 0; i < 6; i++)
		CHECK_IS(pop_number(n), i);
	CHECK_IS(pop_number(n), SHMRING_UNAVAILABLE);
	shmring_consumer_close(n);
	CHECK_IS(shmring_unsubscribe(s->r, "n"), SHMRING_OK);
}

static bool follows(const shmring *r)
{
	return load_relaxed(&r->cursors->branch[number_of(r, "w")].d.upstream) == BIT(number_of(r, "b"));
}

static void check_followed(struct survivors *s)
{
	CHECK(!s->victim->done || follows(s->r));
}

static void check_unfollowed(struct survivors *s)
{
	CHECK(!s->victim->done || !follows(s->r));
}

/* Checks that the new branch gets the message pushed after the claim, and nothing from before. */
static void check_subscribed_behind(struct survivors *s)
{
	const struct progress *v = s->victim;
	shmring_consumer *n;
	int64_t number;
	uint32_t id;

	CHECK_IS(shmring_recover(s->r, NULL), SHMRING_OK);
	if (shmring_find_branch(s->r, "n", &id) != SHMRING_OK) {
		CHECK(!(visible_in_table(s->r) & BIT(10)));
		return;
	}
	n = consumer_of(s->r, "n");
	number = pop_number(n);
	if (visible_in_table(s->r) & BIT(10))
		CHECK(v->released & OF_THE_NEW ? number == SHMRING_UNAVAILABLE
					       : number == 10 || v->releasing & OF_THE_NEW);
	else
		CHECK_IS(number, SHMRING_UNAVAILABLE);
	CHECK_IS(pop_number(n), SHMRING_UNAVAILABLE);
	shmring_consumer_close(n);
	CHECK_IS(shmring_unsubscribe(s->r, "n"), SHMRING_OK);
}

static const struct operation operations[] = {
    {.name = "subscribe", .build = build_six, .act = act_subscribe, .check = check_subscribed},
    {.name = "subscribe behind an open claim",
     .build = build_six,
     .enter = enter_with_claim,
     .act = act_subscribe_behind,
     .pushes = BIT(10),
     .check = check_subscribed_behind},
    {.name = "unsubscribe", .build = build_followed, .act = act_unsubscribe, .drops = true, .behind = SIX_WAITING},
    {.name = "follow", .build = build_six, .act = act_follow, .check = check_followed},
    {.name = "unfollow",
     .build = build_followed,
     .act = act_unfollow,
     .check = check_unfollowed,
     .behind = SIX_WAITING},
};

const struct subject changing_branches = {operations, sizeof operations / sizeof *operations};
