/* Operations that take, release and hand back messages, and operations on an overrun branch. */
#include "scenes.h"

static void build_exclusive(shmring *r)
{
	subscribe(r, "b", (struct shmring_branch_options){.exclusive = true});
	push_numbers(r, 0, 6);
	add_sleepers(r, earliest);
}

static void build_six_and_the_end(shmring *r)
{
	shmring_producer *p;

	build_six(r);
	p = producer_of(r);
	push_end(p);
	shmring_producer_close(p);
}

static void build_drop_oldest(shmring *r)
{
	subscribe(r, "b", (struct shmring_branch_options){.drop_oldest = true});
	push_numbers(r, 0, 1024);
}

static void build_overrun(shmring *r)
{
	subscribe(r, "b", (struct shmring_branch_options){.drop_oldest = true});
	push_numbers(r, 0, 1030);
}

static void build_overrun_orphan(shmring *r)
{
	subscribe(r, "b", (struct shmring_branch_options){.drop_oldest = true});
	push_numbers(r, 0, 6);
	die(die_holding_four);
	NEED(shmring_recover(r, NULL) == SHMRING_OK);
	push_numbers(r, 6, 1030);
}

/* The victim takes WHOLE messages as one lease, then SINGLES one by one; another consumer takes FULL one by one.
 */
enum { WHOLE = 10, SINGLES = 2 * (LEASES - 2), FULL = 2 * (LEASES - 1), MANY = WHOLE + SINGLES + FULL + 2 };

static void build_many(shmring *r)
{
	subscribe(r, "b", earliest);
	push_numbers(r, 0, MANY);
}

static void enter_exclusive(struct victim *v)
{
	v->m = consumer_with(v->r, "b", &(struct shmring_branch_options){.exclusive = true});
}

static void enter_with_one_lease(struct victim *v)
{
	enter_consumer(v);
	NEED(shmring_take(v->m, 6, 6, &v->lease[0]) == SHMRING_OK);
}

/* Takes `count` messages from sequence `first` on, one by one, and keeps every other one. */
static void keep_every_other(shmring_consumer *m, uint64_t first, uint64_t count)
{
	struct shmring_lease lease;

	for (uint64_t n = first; n < first + count; n++) {
		NEED(shmring_take(m, 1, 1, &lease) == SHMRING_OK);
		if (n % 2 == 0)
			NEED(shmring_release(m, n, n + 1) == SHMRING_OK);
	}
}

/* Leaves one of the victim's 48 ranges free, and one of the orphan that another consumer leaves: once the victim
 * has handed a lease back, recovery finds no room in the orphan for the victim's other ranges. */
static void enter_with_many_leases(struct victim *v)
{
	shmring_consumer *other;

	enter_consumer(v);
	NEED(shmring_take(v->m, WHOLE, WHOLE, &v->lease[0]) == SHMRING_OK);
	keep_every_other(v->m, WHOLE, SINGLES);
	other = consumer_with(v->r, "b", &earliest);
	keep_every_other(other, WHOLE + SINGLES, FULL);
	shmring_consumer_abandon(other);
}

static void act_push_into_full(struct victim *v)
{
	NEED(push_number(v->p, 1024) == SHMRING_OK);
}

static void release(struct victim *v, uint64_t first, uint64_t end)
{
	uint64_t numbers = BIT(end) - BIT(first);

	v->shared->releasing |= numbers;
	crash_order();
	NEED(shmring_release(v->m, first, end) == SHMRING_OK);
	crash_order();
	v->shared->released |= numbers;
}

static void act_pop(struct victim *v)
{
	struct shmring_message message;
	uint64_t at;

	NEED(shmring_take(v->m, 2, 2, &v->lease[0]) == SHMRING_OK);
	for (at = v->lease[0].first; shmring_read(v->r, &at, v->lease[0].end, &message) == SHMRING_OK;)
		;
	release(v, v->lease[0].first, v->lease[0].end);
}

static void act_pop_one(struct victim *v)
{
	struct shmring_message message;

	NEED(shmring_take_one(v->m, &v->lease[0], &message) == SHMRING_OK);
	release(v, v->lease[0].first, v->lease[0].end);
}

/* Takes with a consumer that was woken, while another one sleeps and there is work for both. */
static void act_pop_woken(struct victim *v)
{
	v->m->woken = true;
	act_pop(v);
}

static void act_lease_release(struct victim *v)
{
	for (int i = 0; i < 3; i++)
		NEED(shmring_take(v->m, 2, 2, &v->lease[i]) == SHMRING_OK);
	release(v, 2, 4);
	release(v, 0, 2);
	release(v, 4, 6);
}

static void act_split(struct victim *v)
{
	release(v, 2, 4);
	release(v, 5, 6);
	release(v, 0, 1);
}

static void act_hand_back(struct victim *v)
{
	NEED(shmring_nack(v->m, 2, 4) == SHMRING_OK); /* from the middle: a free seat becomes an orphan */
	NEED(shmring_nack(v->m, 5, 6) == SHMRING_OK); /* the orphan takes a second range */
	NEED(shmring_nack(v->m, 4, 5) == SHMRING_OK); /* joins the orphan's two ranges */
	release(v, 0, 1);
}

/* Hands back from the middle, which needs the seat's last range: an interrupted split has used it. */
static void act_hand_back_by_the_last_range(struct victim *v)
{
	NEED(shmring_nack(v->m, 4, 6) == SHMRING_OK);
}

static void act_pop_to_the_end(struct victim *v)
{
	NEED(shmring_take(v->m, 6, 6, &v->lease[0]) == SHMRING_OK);
	release(v, v->lease[0].first, v->lease[0].end);
	NEED(shmring_take(v->m, 1, 1, &v->lease[0]) == SHMRING_ENDED);
}

static void act_take_overrun(struct victim *v)
{
	NEED(shmring_take(v->m, 1, 1, &v->lease[0]) == SHMRING_OVERRUN);
}

static void act_take_overrun_twice(struct victim *v)
{
	act_take_overrun(v); /* first the dead consumer's messages, then messages that no consumer had taken */
	act_take_overrun(v);
}

/* Checks that "b" gets the last messages without a gap. Each number equals its sequence here. */
static void check_tail(struct survivors *s, int64_t last_before, bool pushes)
{
	int64_t first = (int64_t)load_acquire(&s->r->cursors->floor_next.v), last = first - 1, n;

	while ((n = pop_number(s->b)) >= 0 || n == SHMRING_OVERRUN) {
		if (n == SHMRING_OVERRUN) {
			CHECK(last == first - 1);
			continue;
		}
		CHECK_IS(n, last + 1);
		last = n;
	}
	CHECK_IS(n, SHMRING_UNAVAILABLE);
	CHECK(last == last_before || (pushes && last == last_before + 1));
	CHECK(!pushes || !(s->arrived || s->victim->done) || last == last_before + 1);
	s->arrived = last != last_before;
}

/* Checks that "b" gets each message once, except the released ones. */
static void check_many(struct survivors *s)
{
	int times[MANY] = {0};
	int64_t n;

	for (int turn = 0; turn < 2; turn++) {
		while ((n = pop_number(s->b)) >= 0)
			times[n]++;
		CHECK_IS(n, SHMRING_UNAVAILABLE);
		CHECK_IS(shmring_recover(s->r, NULL), SHMRING_OK);
	}
	for (n = 0; n < MANY; n++)
		CHECK_IS(times[n], n < WHOLE || n % 2 || n >= MANY - 2);
}

static void check_overwritten(struct survivors *s)
{
	check_tail(s, 1023, true);
}

static void check_overrun(struct survivors *s)
{
	check_tail(s, 1029, false);
}

static const struct operation operations[] = {
    {.name = "push that overwrites",
     .build = build_drop_oldest,
     .enter = enter_producer,
     .act = act_push_into_full,
     .numbered = true,
     .check = check_overwritten},
    {.name = "pop", CONSUMER(act_pop), .takes = 3},
    {.name = "pop one", CONSUMER(act_pop_one), .takes = 1},
    {.name = "pop that passes a wake-up on", CONSUMER(act_pop_woken), .takes = 3},
    {.name = "pop, exclusive",
     .build = build_exclusive,
     .enter = enter_exclusive,
     .act = act_pop,
     .alone = true,
     .takes = 3},
    {.name = "pop one, exclusive",
     .build = build_exclusive,
     .enter = enter_exclusive,
     .act = act_pop_one,
     .alone = true,
     .takes = 1},
    {.name = "pop before a follower",
     .build = build_followed,
     .enter = enter_consumer,
     .act = act_pop,
     .takes = 3,
     .behind = SIX_WAITING},
    {.name = "three leases and releases", CONSUMER(act_lease_release), .takes = SIX_WAITING},
    {.name = "releases that split a lease",
     .build = build_six,
     .enter = enter_with_one_lease,
     .act = act_split,
     .held = SIX_WAITING},
    {.name = "hand back",
     .build = build_six,
     .enter = enter_with_one_lease,
     .act = act_hand_back,
     .held = SIX_WAITING},
    {.name = "hand back by the last range",
     .build = build_many,
     .enter = enter_with_many_leases,
     .act = act_hand_back_by_the_last_range,
     .numbered = true,
     .check = check_many},
    {.name = "take from the dead", .build = build_orphan, .enter = enter_consumer, .act = act_pop, .held = 0xf},
    {.name = "take that is overrun",
     .build = build_overrun,
     .enter = enter_consumer,
     .act = act_take_overrun,
     .numbered = true,
     .check = check_overrun},
    {.name = "take from the dead that is overrun",
     .build = build_overrun_orphan,
     .enter = enter_consumer,
     .act = act_take_overrun_twice,
     .numbered = true,
     .check = check_overrun},
    {.name = "take up to the end",
     .build = build_six_and_the_end,
     .enter = enter_consumer,
     .act = act_pop_to_the_end,
     .takes = SIX_WAITING,
     .ends = ENDS},
};

const struct subject taking = {operations, sizeof operations / sizeof *operations};
