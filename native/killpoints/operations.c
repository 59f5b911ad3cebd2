#include <dirent.h>

#include "no_tmpfile.h"
#include "operations.h"

static const struct shmring_branch_options earliest = {.start = SHMRING_EARLIEST};

/* --- before -------------------------------------------------------------------- */

static void push_numbers(shmring *r, uint64_t from, uint64_t to)
{
	shmring_producer *p = producer_of(r);

	for (uint64_t i = from; i < to; i++)
		NEED(push_number(p, i) == SHMRING_OK);
	shmring_producer_close(p);
}

static void subscribe(shmring *r, const char *name, struct shmring_branch_options o)
{
	uint32_t id;

	o.start = SHMRING_EARLIEST;
	NEED(shmring_subscribe(r, name, &o, &id) == SHMRING_OK);
}

/* A branch "w" whose members all sleep, so that every wake-up has work to do. */
static void add_sleepers(shmring *r, struct shmring_branch_options o)
{
	shmring_member *m;

	subscribe(r, "w", o);
	m = member_of(r, "w");
	while (pop_number(m) >= 0)
		;
	NEED(shmring_wait_message(m, clock_ns() + 1, SHMRING_WAIT_FUTEX) == SHMRING_TIMEOUT);
	shmring_member_close(m);
}

static void build_six(shmring *r)
{
	subscribe(r, "b", earliest);
	push_numbers(r, 0, 6);
	add_sleepers(r, earliest);
}

static void build_exclusive(shmring *r)
{
	subscribe(r, "b", (struct shmring_branch_options){.exclusive = true});
	push_numbers(r, 0, 6);
	add_sleepers(r, earliest);
}

static void push_end(shmring_producer *p)
{
	NEED(shmring_push(p, NULL, 0, KIND_END, NULL) == SHMRING_OK);
}

static void build_six_and_the_end(shmring *r)
{
	shmring_producer *p;

	build_six(r);
	p = producer_of(r);
	push_end(p);
	shmring_producer_close(p);
}

static void build_followed(shmring *r)
{
	uint32_t id;

	subscribe(r, "b", earliest);
	push_numbers(r, 0, 6);
	NEED(shmring_find_branch(r, "b", &id) == SHMRING_OK);
	add_sleepers(r, (struct shmring_branch_options){.upstream = BIT(id)});
}

/* A child that dies with what it has. */
static int die_holding_four(void *path)
{
	shmring *r = ring_again(path);
	shmring_member *m = member_of(r, "b"), *e;
	struct shmring_lease l;

	e = member_with(r, "e", &(struct shmring_branch_options){.start = SHMRING_EARLIEST, .ephemeral = true});
	NEED(shmring_take(e, 1, 1, &l) == SHMRING_OK);
	NEED(shmring_take(m, 2, 2, &l) == SHMRING_OK && shmring_take(m, 2, 2, &l) == SHMRING_OK);
	raise(SIGKILL);
	return 1;
}

static int die_filling_a_batch(void *path)
{
	shmring *r = ring_again(path);
	shmring_producer *p = producer_of(r);
	int64_t lo = shmring_next(p, 5);

	for (uint64_t i = 1; i < 5; i++) /* as publish_ones() leaves it, its first row missing */
		control_at(r, (uint64_t)lo + i)->published = (uint64_t)lo + i + 1;
	raise(SIGKILL);
	return 1;
}

static void die(int (*job)(void *))
{
	NEED(reap(spawn(job, (void *)ring_path())) == -SIGKILL);
}

static void build_orphan(shmring *r)
{
	build_six(r);
	die(die_holding_four);
	NEED(shmring_recover(r, NULL) == SHMRING_OK);
}

static void build_dead(shmring *r)
{
	build_six(r);
	die(die_holding_four);
	die(die_filling_a_batch);
}

static void build_lapsing(shmring *r)
{
	subscribe(r, "b", (struct shmring_branch_options){.lapse = true});
	push_numbers(r, 0, 1024);
}

static void build_lapsed(shmring *r)
{
	subscribe(r, "b", (struct shmring_branch_options){.lapse = true});
	push_numbers(r, 0, 1030);
}

static void build_lapsed_orphan(shmring *r)
{
	subscribe(r, "b", (struct shmring_branch_options){.lapse = true});
	push_numbers(r, 0, 6);
	die(die_holding_four);
	NEED(shmring_recover(r, NULL) == SHMRING_OK);
	push_numbers(r, 6, 1030);
}

/* --- what the child does ------------------------------------------------------------ */

static void enter_producer(struct victim *v)
{
	v->p = producer_of(v->r);
}

static void enter_member(struct victim *v)
{
	v->m = member_of(v->r, "b");
}

static void enter_exclusive(struct victim *v)
{
	v->m = member_with(v->r, "b", &(struct shmring_branch_options){.exclusive = true});
}

static void enter_with_leases(struct victim *v)
{
	enter_member(v);
	for (int i = 0; i < 2; i++)
		NEED(shmring_take(v->m, 2, 2, &v->lease[i]) == SHMRING_OK);
}

static void enter_with_one_lease(struct victim *v)
{
	enter_member(v);
	NEED(shmring_take(v->m, 6, 6, &v->lease[0]) == SHMRING_OK);
}

/* What lies behind an open claim is the next one's. */
static void enter_with_claim(struct victim *v)
{
	enter_producer(v);
	NEED(shmring_next(v->p, 1) == 6);
}

static void close_handle(struct victim *v)
{
	shmring_close(v->r);
	v->r = NULL;
}

static void act_push(struct victim *v)
{
	NEED(push_number(v->p, 10) == SHMRING_OK);
}

static void act_push_slots(struct victim *v)
{
	uint64_t words[100], id;

	for (int i = 0; i < 100; i++)
		words[i] = 10;
	NEED(shmring_push(v->p, words, sizeof words, KIND_BYTES, &id) == SHMRING_OK);
}

static void act_push_many(struct victim *v)
{
	uint64_t rows[4] = {10, 11, 12, 13}, id;

	NEED(shmring_push_many(v->p, rows, 8, 4, NULL, 8, &id) == SHMRING_OK);
}

static int64_t claim_and_fill(struct victim *v, uint32_t claimed, uint32_t filled)
{
	int64_t lo = shmring_next(v->p, claimed);

	NEED(lo >= 0);
	for (uint32_t i = 0; i < filled; i++) {
		uint64_t number = 10 + i;

		memcpy(shmring_slot(v->r, (uint64_t)lo + i), &number, 8);
	}
	return lo;
}

static void act_claim_commit(struct victim *v)
{
	int64_t lo = claim_and_fill(v, 6, 4);

	NEED(shmring_publish_ones(v->p, (uint64_t)lo + 3, NULL, 8) == SHMRING_OK);
}

static void act_publish_parts(struct victim *v)
{
	struct shmring_part parts[3] = {{1, 8, 0, KIND_BYTES}, {2, 8, 0, KIND_BYTES}, {1, 8, 0, KIND_BYTES}};
	int64_t lo = shmring_next(v->p, 4);

	NEED(lo >= 0);
	for (uint64_t i = 0, at = (uint64_t)lo; i < 3; at += parts[i++].slots) {
		uint64_t number = 10 + i;

		memcpy(shmring_slot(v->r, at), &number, 8);
	}
	NEED(shmring_publish_parts(v->p, parts, 3) == SHMRING_OK);
}

static void act_claim_abort(struct victim *v)
{
	(void)claim_and_fill(v, 6, 4);
	NEED(shmring_abort(v->p) == SHMRING_OK);
}

static void act_go_on(struct victim *v)
{
	int64_t end = shmring_producer_available(v->p);
	int64_t lo = claim_and_fill(v, 1, 4);

	NEED(end > lo + 3 && shmring_publish_ones(v->p, (uint64_t)lo + 3, NULL, 8) == SHMRING_OK);
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

static void pop(struct victim *v, uint32_t messages)
{
	struct shmring_message message;
	uint64_t at;

	NEED(shmring_take(v->m, messages, 2, &v->lease[0]) == SHMRING_OK);
	for (at = v->lease[0].first; shmring_read(v->r, &at, v->lease[0].end, &message) == SHMRING_OK;)
		;
	release(v, v->lease[0].first, v->lease[0].end);
}

static void act_pop(struct victim *v)
{
	pop(v, 2);
}

static void act_pop_one(struct victim *v)
{
	pop(v, 1);
}

/* By a member that was woken, beside one that sleeps and work for both. */
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
	NEED(shmring_nack(v->m, 2, 4) == SHMRING_OK); /* from the middle: a seat becomes an orphan */
	NEED(shmring_nack(v->m, 5, 6) == SHMRING_OK); /* and takes more */
	NEED(shmring_nack(v->m, 4, 5) == SHMRING_OK); /* joins what lies there */
	release(v, 0, 1);
}

static void act_push_end(struct victim *v)
{
	push_end(v->p);
}

static void act_pop_to_the_end(struct victim *v)
{
	NEED(shmring_take(v->m, 6, 6, &v->lease[0]) == SHMRING_OK);
	release(v, v->lease[0].first, v->lease[0].end);
	NEED(shmring_take(v->m, 1, 1, &v->lease[0]) == SHMRING_ENDED);
}

static void act_take_lapsed(struct victim *v)
{
	NEED(shmring_take(v->m, 1, 1, &v->lease[0]) == SHMRING_LAPSED);
}

static void act_take_lapsed_twice(struct victim *v)
{
	act_take_lapsed(v); /* what the dead one held, then what nobody had taken */
	act_take_lapsed(v);
}

static void act_subscribe(struct victim *v)
{
	uint32_t id;

	NEED(shmring_subscribe(v->r, "n", &earliest, &id) == SHMRING_OK);
}

/* The new branch's own release of the message that it begins with. */
#define OF_THE_NEW BIT(20)

static void act_subscribe_behind(struct victim *v)
{
	shmring_producer *p = producer_of(v->r);
	shmring_member *n =
	    member_with(v->r, "n", &(struct shmring_branch_options){.start = SHMRING_AT_SEQUENCE, .sequence = 7});

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

static void act_follow(struct victim *v)
{
	uint32_t b, w;

	NEED(shmring_find_branch(v->r, "b", &b) == SHMRING_OK && shmring_find_branch(v->r, "w", &w) == SHMRING_OK);
	NEED(shmring_follow(v->r, w, BIT(b)) == SHMRING_OK);
}

static void act_unfollow(struct victim *v)
{
	uint32_t b, w;

	NEED(shmring_find_branch(v->r, "b", &b) == SHMRING_OK && shmring_find_branch(v->r, "w", &w) == SHMRING_OK);
	NEED(shmring_unfollow(v->r, w, BIT(b)) == SHMRING_OK);
}

static void act_join(struct victim *v)
{
	v->m = member_of(v->r, "b");
}

static void act_join_ephemeral(struct victim *v)
{
	v->m =
	    member_with(v->r, "e", &(struct shmring_branch_options){.start = SHMRING_EARLIEST, .ephemeral = true});
}

static void act_leave(struct victim *v)
{
	v->shared->releasing = 0xf;
	crash_order();
	shmring_member_close(v->m);
	crash_order();
	v->shared->released = 0xf;
}

static void act_abandon(struct victim *v)
{
	shmring_member_abandon(v->m);
}

/* As shmring_member_close() does where it cannot get the admin lock. */
static void act_give_up(struct victim *v)
{
	seat_abandon(v->r, v->m->seat_index);
}

static void act_attach(struct victim *v)
{
	v->r = ring_again(v->path);
}

static void act_open_close(struct victim *v)
{
	shmring_producer_close(producer_of(v->r));
}

static void act_recover(struct victim *v)
{
	NEED(shmring_recover(v->r, NULL) == SHMRING_OK);
}

/* What lies in the folder beside the ring in which another one is made. */
static const char *nursery(const char *ring, const char *file)
{
	static char path[400];

	snprintf(path, sizeof path, "%s.folder/%s", ring, file);
	return path;
}

static const struct shmring_options made = {.slots = 1024, .participants = 2};

static void enter_nursery(struct victim *v)
{
	NEED(mkdir(nursery(v->path, ""), 0700) == 0);
}

static void enter_without_tmpfile(struct victim *v)
{
	enter_nursery(v);
	refuse_tmpfile();
}

static void act_create(struct victim *v)
{
	shmring *r;

	NEED(shmring_create(nursery(v->path, "ring"), &made, &r) == SHMRING_OK);
}

/* --- what must be true afterwards, beyond the common ---------------------------------- */

/* Numbers are their sequences here: `b` gets the unbroken end of them. */
static void check_tail(struct survivors *s, int64_t last_before, bool pushes)
{
	int64_t first = (int64_t)load_acquire(&s->r->cursors->floor_next.v), last = first - 1, n;

	while ((n = pop_number(s->b)) >= 0 || n == SHMRING_LAPSED) {
		if (n == SHMRING_LAPSED) {
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

static void check_overwritten(struct survivors *s)
{
	check_tail(s, 1023, true);
}

static void check_lapsed(struct survivors *s)
{
	check_tail(s, 1029, false);
}

/* Whether the child made it or we do: it sees all that "b" still holds. */
static void check_subscribed(struct survivors *s)
{
	shmring_member *n;
	uint32_t id;

	CHECK(!s->victim->done || shmring_find_branch(s->r, "n", &id) == SHMRING_OK);
	n = member_of(s->r, "n");
	for (int64_t i = 0; i < 6; i++)
		CHECK_IS(pop_number(n), i);
	CHECK_IS(pop_number(n), SHMRING_UNAVAILABLE);
	shmring_member_close(n);
	CHECK_IS(shmring_unsubscribe(s->r, "n"), SHMRING_OK);
}

static bool follows(const shmring *r)
{
	uint32_t b, w;

	NEED(shmring_find_branch(r, "b", &b) == SHMRING_OK && shmring_find_branch(r, "w", &w) == SHMRING_OK);
	return load_relaxed(&r->cursors->branch[w].d.upstream) == BIT(b);
}

static void check_followed(struct survivors *s)
{
	CHECK(!s->victim->done || follows(s->r));
}

static void check_unfollowed(struct survivors *s)
{
	CHECK(!s->victim->done || !follows(s->r));
}

/* It gets what was pushed behind the claim, and nothing that lies before. */
static void check_subscribed_behind(struct survivors *s)
{
	const struct progress *v = s->victim;
	shmring_member *n;
	int64_t number;
	uint32_t id;

	CHECK_IS(shmring_recover(s->r, NULL), SHMRING_OK);
	if (shmring_find_branch(s->r, "n", &id) != SHMRING_OK) {
		CHECK(!(visible_in_table(s->r) & BIT(10)));
		return;
	}
	n = member_of(s->r, "n");
	number = pop_number(n);
	if (visible_in_table(s->r) & BIT(10))
		CHECK(v->released & OF_THE_NEW ? number == SHMRING_UNAVAILABLE
					       : number == 10 || v->releasing & OF_THE_NEW);
	else
		CHECK_IS(number, SHMRING_UNAVAILABLE);
	CHECK_IS(pop_number(n), SHMRING_UNAVAILABLE);
	shmring_member_close(n);
	CHECK_IS(shmring_unsubscribe(s->r, "n"), SHMRING_OK);
}

/* gc goes over the folder: 1 for each file that it removes. */
static int sweep_nursery(int *files)
{
	DIR *folder = opendir(nursery(ring_path(), ""));
	int swept = 0;

	NEED(folder);
	*files = 0;
	for (struct dirent *e; (e = readdir(folder));)
		if (e->d_type == DT_REG) {
			++*files;
			if (shmring_reap(nursery(ring_path(), e->d_name)) == 1)
				swept++;
			else
				unlink(nursery(ring_path(), e->d_name));
		}
	closedir(folder);
	return swept;
}

/* What has the ring's name is a ring, of somebody who is dead; what else lies there
 * is a draft, and gc knows it; and a ring can be made. */
static void check_created(struct survivors *s)
{
	struct shmring_seat_info seat;
	bool there = access(nursery(ring_path(), "ring"), F_OK) == 0;
	shmring *r = NULL;
	int files, swept;

	CHECK(there || !s->victim->done);
	if (there) {
		CHECK_IS(shmring_attach(nursery(ring_path(), "ring"), SHMRING_READ_ONLY, &r), SHMRING_OK);
		CHECK(r && shmring_seat_info(r, 0, &seat) == SHMRING_OK && !seat.alive);
		shmring_close(r);
	}
	swept = sweep_nursery(&files);
	CHECK_IS(swept, files);
	CHECK(files <= 1);
	CHECK_IS(shmring_create(nursery(ring_path(), "ring"), &made, NULL), SHMRING_OK);
	CHECK(unlink(nursery(ring_path(), "ring")) == 0 && rmdir(nursery(ring_path(), "")) == 0);
}

/* --- all of them ------------------------------------------------------------------------ */

#define FOUR_ROWS (BIT(10) | BIT(11) | BIT(12) | BIT(13))

/* Sequences begin close below a multiple of the slots: messages wrap. */
#define WRAPS (BIT(20) - 8)

const struct operation operations[] = {
    {.name = "push", .build = build_six, .enter = enter_producer, .act = act_push, .pushes = BIT(10)},
    {.name = "push of three slots",
     .build = build_six,
     .enter = enter_producer,
     .act = act_push_slots,
     .options = {.first_sequence = WRAPS},
     .pushes = BIT(10)},
    {.name = "push with a checksum",
     .build = build_six,
     .enter = enter_producer,
     .act = act_push,
     .options = {.checksum = true},
     .pushes = BIT(10)},
    {.name = "push by a single producer",
     .build = build_six,
     .enter = enter_producer,
     .act = act_push,
     .options = {.single_producer = true},
     .alone = true,
     .pushes = BIT(10)},
    {.name = "push that overwrites",
     .build = build_lapsing,
     .enter = enter_producer,
     .act = act_push_into_full,
     .numbered = true,
     .check = check_overwritten},
    {.name = "batched push",
     .build = build_six,
     .enter = enter_producer,
     .act = act_push_many,
     .pushes = FOUR_ROWS},
    {.name = "batched push, scattered",
     .build = build_six,
     .enter = enter_producer,
     .act = act_push_many,
     .options = {.scattered = true},
     .pushes = FOUR_ROWS},
    {.name = "claim of six, commit of four",
     .build = build_six,
     .enter = enter_producer,
     .act = act_claim_commit,
     .pushes = FOUR_ROWS},
    {.name = "claim, publication of three parts",
     .build = build_six,
     .enter = enter_producer,
     .act = act_publish_parts,
     .pushes = BIT(10) | BIT(11) | BIT(12)},
    {.name = "claim and abort", .build = build_six, .enter = enter_producer, .act = act_claim_abort},
    {.name = "claim that goes on",
     .build = build_six,
     .enter = enter_producer,
     .act = act_go_on,
     .options = {.single_producer = true},
     .alone = true,
     .pushes = FOUR_ROWS},
    {.name = "pop", .build = build_six, .enter = enter_member, .act = act_pop, .takes = 3},
    {.name = "pop one", .build = build_six, .enter = enter_member, .act = act_pop_one, .takes = 1},
    {.name = "pop that passes a wake-up on",
     .build = build_six,
     .enter = enter_member,
     .act = act_pop_woken,
     .takes = 3},
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
     .enter = enter_member,
     .act = act_pop,
     .takes = 3,
     .behind = SIX_WAITING},
    {.name = "three leases and releases",
     .build = build_six,
     .enter = enter_member,
     .act = act_lease_release,
     .takes = SIX_WAITING},
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
    {.name = "take from the dead", .build = build_orphan, .enter = enter_member, .act = act_pop, .held = 0xf},
    {.name = "take that has lapsed",
     .build = build_lapsed,
     .enter = enter_member,
     .act = act_take_lapsed,
     .numbered = true,
     .check = check_lapsed},
    {.name = "take from the dead that has lapsed",
     .build = build_lapsed_orphan,
     .enter = enter_member,
     .act = act_take_lapsed_twice,
     .numbered = true,
     .check = check_lapsed},
    {.name = "push of an end marker",
     .build = build_six,
     .enter = enter_producer,
     .act = act_push_end,
     .ends = MAY_END},
    {.name = "take up to the end",
     .build = build_six_and_the_end,
     .enter = enter_member,
     .act = act_pop_to_the_end,
     .takes = SIX_WAITING,
     .ends = ENDS},
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
    {.name = "join", .build = build_six, .act = act_join},
    {.name = "join a new ephemeral branch", .build = build_six, .act = act_join_ephemeral},
    {.name = "leave with leases", .build = build_six, .enter = enter_with_leases, .act = act_leave, .held = 0xf},
    {.name = "leave with leases for others",
     .build = build_six,
     .enter = enter_with_leases,
     .act = act_abandon,
     .held = 0xf},
    {.name = "leave with leases, without the admin lock",
     .build = build_six,
     .enter = enter_with_leases,
     .act = act_give_up,
     .held = 0xf},
    {.name = "attach", .build = build_six, .enter = close_handle, .act = act_attach},
    {.name = "close", .build = build_six, .act = close_handle},
    {.name = "open and close a producer", .build = build_six, .act = act_open_close},
    {.name = "create", .build = build_six, .enter = enter_nursery, .act = act_create, .check = check_created},
    {.name = "create without O_TMPFILE",
     .build = build_six,
     .enter = enter_without_tmpfile,
     .act = act_create,
     .check = check_created},
    {.name = "recover", .build = build_dead, .act = act_recover, .alone = true, .held = 0xf},
    {.name = "join that recovers", .build = build_dead, .act = act_join, .alone = true, .held = 0xf},
};

const size_t operation_count = sizeof operations / sizeof *operations;
