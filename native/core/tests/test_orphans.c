/* Tests of orphans: messages of the dead take few seats, and come again even if no seat is free. */
#include "death.h"

/* Takes up to n messages, keeps those with an odd number if `step` is set, else all, and dies. */
static int takes_and_dies(struct puppet *c)
{
	struct shmring_lease l;
	int status;

	RETURN_NOT_OK(shmring_join(c->r, "b", NULL, "dies", &c->m));
	if (!c->step)
		return shmring_take(c->m, (uint32_t)c->n, UINT64_MAX, &l);
	for (uint64_t i = 0; i < c->n; i++) {
		status = shmring_take(c->m, 1, 1, &l);
		if (!status && l.first % 2 == 0)
			status = shmring_release(c->m, l.first, l.end);
		if (status)
			return status;
	}
	return SHMRING_OK;
}

static struct shmring_branch_info branch_of(const shmring *r, const char *name)
{
	struct shmring_branch_info info;
	uint32_t id;

	NEED(shmring_find_branch(r, name, &id) == SHMRING_OK);
	NEED(shmring_branch_info(r, id, &info) == SHMRING_OK);
	return info;
}

TEST(a_worker_that_dies_again_and_again_takes_one_seat)
{
	struct puppet *c = puppet_new(takes_and_dies);
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .participants = 8});
	shmring_producer *p = producer_of(r);
	shmring_consumer *m;
	struct shmring_lease l;

	NEED(shmring_subscribe(r, "b", &(struct shmring_branch_options){0}, NULL) == SHMRING_OK);
	push_n(p, 0, 60);
	c->n = 50;
	puppet_die(c);
	c->n = 3; /* some of that, again and again */
	for (int crash = 0; crash < 40; crash++)
		puppet_die(c);
	CHECK_IS(recover(r), 1);
	CHECK_IS(branch_of(r, "b").orphans, 1);
	CHECK_IS(seats_in_use(r), 2);
	m = consumer_of(r, "b");
	l = lease_of(m, 60);
	CHECK(l.first == 0 && l.messages == 3 && l.redelivered == 41);
	l = lease_of(m, 60);
	CHECK(l.first == 3 && l.messages == 47 && l.redelivered == 1); /* each its own count */
	l = lease_of(m, 60);
	CHECK(l.first == 50 && l.messages == 10 && !l.redelivered);
}

/* Without a look for the dead in between, they merge in any order. */
TEST(ranges_of_many_dead_become_one_again)
{
	struct puppet *c[5];
	pid_t pid[5];
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .participants = 8});
	shmring_producer *p = producer_of(r);
	struct shmring_lease l;

	NEED(shmring_subscribe(r, "b", &(struct shmring_branch_options){0}, NULL) == SHMRING_OK);
	push_n(p, 0, 50);
	for (int i = 0; i < 5; i++) {
		c[i] = puppet_new(takes_and_dies);
		c[i]->n = 10;
		pid[i] = puppet_start(c[i]);
	}
	for (int i = 0; i < 5; i++) {
		puppet_kill(pid[(const int[]){3, 0, 4, 2, 1}[i]]);
		CHECK_IS(recover(r), 1);
	}
	CHECK_IS(branch_of(r, "b").orphans, 1);
	CHECK_IS(seats_in_use(r), 2);
	l = lease_of(consumer_of(r, "b"), 60);
	CHECK(l.first == 0 && l.messages == 50 && l.redelivered == 1);
}

enum { PIECES = 2 * LEASES, TAKEN = 3 * PIECES, PUSHED = TAKEN + 4 };

/* Each of three dead consumers leaves as many ranges as a seat has: every second of the numbers below TAKEN. The
 * handle's own seat is its producer's. */
static shmring *ring_full_of_orphans(struct shmring_branch_options o)
{
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .participants = 4});
	pid_t pid[3];

	NEED(shmring_subscribe(r, "b", &o, NULL) == SHMRING_OK);
	push_n(producer_of(r), 0, PUSHED);
	for (int i = 0; i < 3; i++) {
		struct puppet *c = puppet_new(takes_and_dies);

		c->step = 1;
		c->n = PIECES;
		pid[i] = puppet_start(c);
	}
	for (int i = 0; i < 3; i++)
		puppet_kill(pid[i]);
	CHECK_IS(recover(r), 3);
	CHECK_IS(branch_of(r, "b").orphans, 3);
	return ring_again(ring_path()); /* a handle without a seat */
}

static const struct shmring_branch_options earliest = {.start = SHMRING_EARLIEST};

static void check_drains(shmring_consumer *m, uint64_t seen)
{
	int64_t n;

	for (; (n = pop_number(m)) >= 0; seen++)
		CHECK(n % 2 || n >= TAKEN);
	CHECK_IS(n, SHMRING_UNAVAILABLE);
	CHECK_IS(seen, TAKEN / 2 + PUSHED - TAKEN);
	CHECK_IS(branch_of(m->ring, "b").orphans, 0);
	CHECK_IS(branch_of(m->ring, "b").released, PUSHED);
}

TEST(where_orphans_have_all_seats_a_consumer_takes_over_one)
{
	shmring *r = ring_full_of_orphans(earliest);
	shmring_consumer *m, *other;
	shmring_producer *p;

	CHECK_IS(recover(r), 0);
	CHECK_IS(seats_in_use(r), 4);
	CHECK_IS(shmring_producer_open(r, "p", &p), SHMRING_E_LIMIT);
	CHECK_IS(shmring_join(r, "other", NULL, "m", &other), SHMRING_E_LIMIT);
	CHECK(strstr(shmring_error_message(), "seats are taken"));
	m = consumer_of(r, "b");
	CHECK(branch_of(r, "b").consumers == 1 && branch_of(r, "b").orphans == 2);
	check_drains(m, 0);
	CHECK_IS(seats_in_use(r), 2); /* the other handle's, and that of this one, which its consumer has */
	shmring_consumer_close(m);
	CHECK_IS(seats_in_use(r), 2);
	CHECK_IS(push_number(producer_of(r), 1), SHMRING_OK);
}

TEST(what_a_consumer_took_over_and_did_not_release_is_an_orphans_again)
{
	shmring *r = ring_full_of_orphans(earliest);
	shmring_consumer *m = consumer_of(r, "b");
	struct shmring_lease l;

	CHECK(pop_number(m) >= 0);
	l = lease_of(m, 5);
	CHECK(l.messages == 1 && l.redelivered == 1);
	shmring_consumer_close(m); /* with what it has still to give again it leaves all that it holds */
	CHECK(branch_of(r, "b").orphans == 3 && branch_of(r, "b").consumers == 0);
	check_drains(consumer_of(r, "b"), 1);
}

TEST(whoever_dies_with_what_it_took_over_leaves_no_more_seats)
{
	struct puppet *c = puppet_new(takes_and_dies);
	shmring *r = ring_full_of_orphans(earliest);
	shmring_consumer *m;

	for (c->n = 1; c->n < 20; c->n++)
		puppet_die(c);
	CHECK_IS(recover(r), 1);
	CHECK_IS(branch_of(r, "b").orphans, 3);
	m = consumer_of(r, "b");
	CHECK_IS(lease_of(m, 1).redelivered, 20);
	shmring_consumer_close(m);
	check_drains(consumer_of(r, "b"), 0);
}

TEST(a_branch_with_drop_oldest_says_what_was_lost_before_its_orphan_was_taken_over)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .drop_oldest = true};
	shmring *r = ring_full_of_orphans(o);
	shmring_producer *p = check_opened[OPEN_PRODUCERS][0];
	uint64_t seen = 0, first, end;
	shmring_consumer *m;
	int64_t n;

	push_n(p, PUSHED, 1024);
	m = consumer_with(r, "b", &o);
	while ((n = pop_number(m)) >= 0 || n == SHMRING_OVERRUN) {
		first = end = 0;
		if (n == SHMRING_OVERRUN)
			shmring_consumer_overrun(m, &first, &end);
		seen += n == SHMRING_OVERRUN ? end - first : 1;
	}
	CHECK_IS(n, SHMRING_UNAVAILABLE);
	CHECK_IS(seen, TAKEN / 2 + PUSHED - TAKEN + 1024);
	CHECK_IS(branch_of(r, "b").orphans, 0);
	push_n(p, 0, 1500); /* nothing holds the floor */
}

TEST(a_branch_is_dropped_where_orphans_have_all_seats)
{
	shmring *r = ring_full_of_orphans(earliest);

	CHECK_IS(shmring_unsubscribe(r, "b"), SHMRING_OK);
	CHECK_IS(seats_in_use(r), 1);
	CHECK_IS(push_number(producer_of(r), 1), SHMRING_OK);
}

/* By a process without a seat, killed half-way: nobody's seat tells of it. */
TEST(a_drop_that_a_death_interrupted_is_finished_by_the_next_who_recovers)
{
	shmring *r = ring_full_of_orphans(earliest);
	uint32_t id = branch_of(r, "b").id;

	store_release(&branch_at(r, id)->d.state, BRANCH_DROPPING);
	CHECK_IS(recover(r), 0);
	CHECK_IS(load_relaxed(&branch_at(r, id)->d.state), BRANCH_FREE);
	CHECK_IS(seats_in_use(r), 1);
}
