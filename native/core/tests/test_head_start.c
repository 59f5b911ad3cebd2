/* A head start for the producers: how long a member waits for it, and what ends that. */
#include <pthread.h>

#include "check.h"

#define LONG (60 * INT64_C(1000000000))
#define HALF 512 /* of the ring's slots */

struct scene {
	shmring *r;
	shmring_producer *p;
	shmring_member *m;
};

static struct scene scene_of(const struct shmring_branch_options *options, uint32_t messages)
{
	struct scene s = {.r = ring_new()};

	s.p = producer_of(s.r);
	s.m = member_with(s.r, "b", options);
	NEED(shmring_member_head_start(s.m, messages, LONG) == SHMRING_OK);
	return s;
}

static struct scene scene_new(uint32_t messages)
{
	return scene_of(&(struct shmring_branch_options){.start = SHMRING_EARLIEST}, messages);
}

static void scene_end(struct scene *s)
{
	shmring_member_close(s->m);
	shmring_producer_close(s->p);
	ring_end(s->r);
}

/* A slice of a wait: OK, or AGAIN where it would go on. */
static int waited(shmring_member *m, uint8_t strategy)
{
	return shmring_wait_message(m, INT64_MAX, strategy);
}

/* As if `m` had begun to wait so long ago. */
static void let_time_pass(shmring_member *m, int64_t ns)
{
	m->head_start.since_ns -= ns;
}

/* A wait that something ends before its time. */
static void wait_out(shmring_member *m)
{
	while (waited(m, SHMRING_WAIT_FUTEX) == SHMRING_AGAIN)
		;
	CHECK(clock_ns() < m->head_start.since_ns + LONG);
}

TEST(what_can_never_be_is_refused)
{
	struct scene s = scene_new(0);

	CHECK_IS(shmring_member_head_start(s.m, HALF, LONG), SHMRING_OK);
	CHECK_IS(shmring_member_head_start(s.m, HALF + 1, LONG), SHMRING_E_INVALID);
	CHECK_IS(shmring_member_head_start(s.m, UINT32_MAX, LONG), SHMRING_E_INVALID);
	CHECK_IS(shmring_member_head_start(s.m, 1, LONG + 1), SHMRING_E_INVALID);
	CHECK_IS(shmring_member_head_start(s.m, 1, INT64_MAX), SHMRING_E_INVALID);
	CHECK_IS(shmring_member_head_start(s.m, 1, 0), SHMRING_E_INVALID);
	CHECK_IS(shmring_member_head_start(s.m, 1, -1), SHMRING_E_INVALID);
	CHECK_IS(s.m->head_start.messages, HALF); /* a call that was refused changes nothing */
	CHECK_IS(shmring_member_head_start(s.m, 0, 0), SHMRING_OK);
	NEED(push_number(s.p, 1) == SHMRING_OK);
	CHECK_IS(waited(s.m, SHMRING_WAIT_DEFAULT), SHMRING_OK);
	scene_end(&s);
}

TEST(a_wait_lasts_until_so_many_lie_ahead)
{
	for (uint8_t strategy = 0; strategy < SHMRING_WAIT_STRATEGIES; strategy++) {
		struct scene s = scene_new(10);

		CHECK_IS(waited(s.m, strategy), SHMRING_AGAIN);
		push_n(s.p, 0, 9);
		CHECK_IS(waited(s.m, strategy), SHMRING_AGAIN);
		CHECK_IS(load_relaxed(&s.r->cursors->asleep.v), 0); /* a push wakes nobody */
		push_n(s.p, 9, 1);
		CHECK_IS(waited(s.m, strategy), SHMRING_OK);
		for (int64_t i = 0; i < 10; i++) /* all of them without another wait */
			CHECK_IS(pop_number(s.m), i);
		CHECK_IS(pop_number(s.m), SHMRING_UNAVAILABLE);
		push_n(s.p, 10, 9); /* and anew */
		CHECK_IS(waited(s.m, strategy), SHMRING_AGAIN);
		push_n(s.p, 19, 1);
		CHECK_IS(waited(s.m, strategy), SHMRING_OK);
		scene_end(&s);
	}
}

TEST(what_is_there_can_be_taken_at_once)
{
	struct scene s = scene_new(10);

	CHECK_IS(shmring_wait_message(s.m, 0, SHMRING_WAIT_DEFAULT), SHMRING_TIMEOUT);
	push_n(s.p, 0, 2);
	CHECK_IS(shmring_wait_message(s.m, 0, SHMRING_WAIT_DEFAULT), SHMRING_OK);
	CHECK_IS(shmring_wait_message(s.m, INT64_MIN, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(s.m), 0);
	CHECK_IS(pop_number(s.m), 1);
	scene_end(&s);
}

/* Before the deadline, if that is earlier, and not as a time-out. */
TEST(a_deadline_hands_out_what_is_there)
{
	struct scene s = scene_new(10);
	int64_t soon = clock_ns() + 20000000;

	CHECK_IS(shmring_wait_message(s.m, soon, SHMRING_WAIT_FUTEX), SHMRING_TIMEOUT);
	CHECK(clock_ns() >= soon);
	push_n(s.p, 0, 2);
	CHECK_IS(shmring_wait_message(s.m, clock_ns() + 20000000, SHMRING_WAIT_FUTEX), SHMRING_OK);
	scene_end(&s);
}

TEST(the_time_counts_from_the_first_wait)
{
	struct scene s = scene_new(10);

	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	push_n(s.p, 0, 1);
	let_time_pass(s.m, LONG / 2);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	let_time_pass(s.m, LONG / 2);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(s.m), 0);
	push_n(s.p, 1, 1); /* after a take it begins anew */
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	NEED(shmring_member_head_start(s.m, 10, 1000000) == SHMRING_OK); /* and when it is asked for */
	while (waited(s.m, SHMRING_WAIT_FUTEX) == SHMRING_AGAIN)
		;
	CHECK_IS(pop_number(s.m), 1);
	scene_end(&s);
}

/* It sleeps like any other then, and is woken. */
static int push_one_there(void *path)
{
	shmring *r = ring_again(path);
	shmring_producer *p = producer_of(r);

	while (!load_relaxed(&r->cursors->asleep.v))
		nap_ms(1);
	push_n(p, 7, 1);
	shmring_producer_close(p);
	shmring_close(r);
	return 0;
}

TEST(a_member_that_has_waited_for_so_long_is_woken_by_one_message)
{
	struct scene s = scene_new(10);
	pid_t child;

	NEED(shmring_member_head_start(s.m, 10, 1) == SHMRING_OK);
	child = spawn(push_one_there, (void *)(uintptr_t)ring_path());
	while (waited(s.m, SHMRING_WAIT_FUTEX) == SHMRING_AGAIN)
		;
	CHECK_IS(pop_number(s.m), 7);
	CHECK_IS(reap(child), 0);
	scene_end(&s);
}

TEST(an_end_is_not_waited_for)
{
	struct scene s = scene_new(10);

	push_n(s.p, 0, 2);
	push_end(s.p);
	push_n(s.p, 2, 2);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(s.m), 0);
	CHECK_IS(pop_number(s.m), 1);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(s.m), SHMRING_ENDED);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN); /* what follows is another stream */
	scene_end(&s);
}

TEST(nobody_waits_for_producers_that_have_left)
{
	struct scene s = scene_new(10);

	push_n(s.p, 0, 2);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	shmring_producer_close(s.p);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	s.p = producer_of(s.r);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	scene_end(&s);
}

static int push_and_die(void *path)
{
	push_n(producer_of(ring_again(path)), 0, 2);
	return raise(SIGKILL);
}

TEST(nobody_waits_for_producers_that_have_died)
{
	struct scene s = scene_new(10);

	shmring_producer_close(s.p);
	CHECK_IS(reap(spawn(push_and_die, (void *)(uintptr_t)ring_path())), -SIGKILL);
	wait_out(s.m); /* until it has looked for the dead */
	CHECK_IS(pop_number(s.m), 0);
	s.p = producer_of(s.r);
	scene_end(&s);
}

struct waiting {
	const char *path;
	uint8_t strategy;
};

/* Without a claim that is refused: in one wait after the other. */
static int wait_for_room(void *argument)
{
	const struct waiting *w = argument;
	shmring_producer *p = producer_of(ring_again(w->path));

	while (shmring_wait_space(p, 1, INT64_MAX, w->strategy) == SHMRING_AGAIN)
		;
	return 1;
}

TEST(a_producer_that_waits_for_room_gets_no_further_ahead)
{
	for (uint8_t strategy = 0; strategy < SHMRING_WAIT_STRATEGIES; strategy++) {
		struct scene s = scene_new(HALF);
		shmring_member *slow = member_of(s.r, "slow");
		pid_t child;

		push_n(s.p, 0, 1024);
		for (int64_t i = 0; i < 1000; i++)
			CHECK_IS(pop_number(s.m), i);
		CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
		child = spawn(wait_for_room, &(struct waiting){ring_path(), strategy});
		wait_out(s.m);
		kill(child, SIGKILL);
		CHECK_IS(reap(child), -SIGKILL);
		shmring_member_close(slow);
		scene_end(&s);
	}
}

TEST(a_producer_that_is_refused_gets_no_further_ahead)
{
	struct scene s = scene_new(HALF);
	shmring_member *slow = member_of(s.r, "slow");

	push_n(s.p, 0, 1024);
	CHECK_IS(push_number(s.p, 0), SHMRING_UNAVAILABLE); /* before the wait: is over */
	for (int64_t i = 0; i < 1000; i++)
		CHECK_IS(pop_number(s.m), i);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	CHECK_IS(push_number(s.p, 0), SHMRING_UNAVAILABLE);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(s.m), 1000);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN); /* and anew */
	shmring_member_close(slow);
	scene_end(&s);
}

TEST(a_large_claim_that_is_refused_counts)
{
	static const char large[511 * 300];
	struct scene s = scene_new(2);

	NEED(shmring_push(s.p, large, sizeof large, KIND_BYTES, NULL) == SHMRING_OK);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	CHECK_IS(shmring_next(s.p, 514), SHMRING_UNAVAILABLE);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	scene_end(&s);
}

TEST(a_follower_whose_upstream_lags_ends_it_where_a_push_is_refused)
{
	struct scene s = scene_new(0);
	shmring_member *follower = member_with(
	    s.r, "after", &(struct shmring_branch_options){.upstream = UINT64_C(1) << shmring_member_branch(s.m)});

	NEED(shmring_member_head_start(follower, HALF, LONG) == SHMRING_OK);
	push_n(s.p, 0, 1024);
	for (int64_t i = 0; i < 424; i++)
		CHECK_IS(pop_number(s.m), i);
	CHECK_IS(waited(follower, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	CHECK_IS(push_number(s.p, 0), SHMRING_UNAVAILABLE);
	CHECK_IS(waited(follower, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(follower), 0);
	CHECK_IS(push_number(s.p, 0), SHMRING_OK);
	shmring_member_close(follower);
	scene_end(&s);
}

static int die_waiting(void *argument)
{
	struct waiting *w = argument;
	shmring_producer *p = producer_of(ring_again(w->path));

	p->seat->waits = w->strategy;
	return raise(SIGKILL);
}

TEST(a_seat_of_one_that_died_waiting_does_not_wait_for_its_next_owner)
{
	for (uint8_t how = WAIT_ASLEEP; how <= WAIT_POLLING; how++) {
		struct scene s = scene_new(10);
		shmring_producer *next;

		CHECK_IS(reap(spawn(die_waiting, &(struct waiting){ring_path(), how})), -SIGKILL);
		NEED(shmring_recover(s.r, NULL) >= 0);
		next = producer_of(s.r);
		push_n(next, 0, 1);
		CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
		shmring_producer_close(next);
		scene_end(&s);
	}
}

TEST(half_of_the_ring_is_far_enough)
{
	static const char large[300 * 300];
	struct scene s = scene_new(HALF);

	for (int i = 0; i < 2; i++) {
		CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
		NEED(shmring_push(s.p, large, sizeof large, KIND_BYTES, NULL) == SHMRING_OK);
	}
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	scene_end(&s);
}

TEST(aborted_claims_do_not_count)
{
	struct scene s = scene_new(3);

	push_n(s.p, 0, 2);
	for (int i = 0; i < 4; i++) {
		NEED(shmring_next(s.p, 1) >= 0 && shmring_abort(s.p) == SHMRING_OK);
		CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	}
	push_n(s.p, 2, 1);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	scene_end(&s);
}

TEST(a_follower_counts_what_has_been_released_for_it)
{
	struct scene s = scene_new(0);
	shmring_member *follower = member_with(
	    s.r, "after", &(struct shmring_branch_options){.upstream = UINT64_C(1) << shmring_member_branch(s.m)});

	NEED(shmring_member_head_start(follower, 3, LONG) == SHMRING_OK);
	push_n(s.p, 0, 5);
	CHECK_IS(pop_number(s.m), 0);
	CHECK_IS(pop_number(s.m), 1);
	CHECK_IS(waited(follower, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	CHECK_IS(pop_number(s.m), 2);
	CHECK_IS(waited(follower, SHMRING_WAIT_FUTEX), SHMRING_OK);
	for (int64_t i = 0; i < 3; i++)
		CHECK_IS(pop_number(follower), i);
	/* Without a producer it still waits for what lies before it, and then no longer. */
	shmring_producer_close(s.p);
	CHECK_IS(pop_number(s.m), 3);
	CHECK_IS(waited(follower, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	CHECK_IS(pop_number(s.m), 4);
	CHECK_IS(waited(follower, SHMRING_WAIT_FUTEX), SHMRING_OK);
	shmring_member_close(follower);
	s.p = producer_of(s.r);
	scene_end(&s);
}

TEST(what_other_members_take_does_not_count)
{
	struct scene s = scene_new(10);
	shmring_member *other = member_of(s.r, "b");

	push_n(s.p, 0, 9);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	CHECK_IS(waited(other, SHMRING_WAIT_FUTEX), SHMRING_OK); /* a head start is a member's own */
	for (int64_t i = 0; i < 5; i++)
		CHECK_IS(pop_number(other), i);
	push_n(s.p, 9, 5);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	let_time_pass(s.m, LONG); /* its time goes on while others take */
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(s.m), 5);
	shmring_member_close(other);
	scene_end(&s);
}

struct taker {
	shmring_member *m;
	bool done;
};

static void *wait_in_a_thread(void *argument)
{
	struct taker *t = argument;

	while (waited(t->m, SHMRING_WAIT_SPIN) == SHMRING_AGAIN)
		;
	store_release(&t->done, true);
	return NULL;
}

TEST(what_others_take_during_a_wait_does_not_count)
{
	static const char two_slots[400];
	struct scene s = scene_new(10);
	struct taker taker = {.m = s.m};
	shmring_member *other = member_of(s.r, "b");
	struct shmring_lease lease;
	pthread_t thread;

	for (int i = 0; i < 9; i++)
		NEED(shmring_push(s.p, two_slots, sizeof two_slots, KIND_BYTES, NULL) == SHMRING_OK);
	NEED(pthread_create(&thread, NULL, wait_in_a_thread, &taker) == 0);
	nap_ms(5); /* most likely it has seen them now */
	lease = lease_of(other, 4);
	NEED(shmring_push(s.p, two_slots, sizeof two_slots, KIND_BYTES, NULL) == SHMRING_OK);
	nap_ms(5);
	CHECK(!load_acquire(&taker.done)); /* six lie ahead */
	for (int i = 0; i < 4; i++)
		NEED(shmring_push(s.p, two_slots, sizeof two_slots, KIND_BYTES, NULL) == SHMRING_OK);
	pthread_join(thread, NULL);
	CHECK_IS(shmring_release(other, lease.first, lease.end), SHMRING_OK);
	shmring_member_close(other);
	scene_end(&s);
}

TEST(a_wait_in_vain_is_forgotten_when_something_came)
{
	struct scene s = scene_new(10);

	s.m->wait.took_ns = INT64_MAX;
	s.m->wait.since_ns = 1;
	push_n(s.p, 0, 10);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK(s.m->wait.took_ns != INT64_MAX);
	for (int64_t i = 0; i < 10; i++)
		CHECK_IS(pop_number(s.m), i);
	CHECK_IS(shmring_wait_message(s.m, clock_ns() + 1000000, SHMRING_WAIT_FUTEX), SHMRING_TIMEOUT);
	CHECK(s.m->wait.since_ns > 1); /* of this wait */
	scene_end(&s);
}

/* Others may sleep unannounced then, and what they could take must not lie there. */
TEST(who_was_woken_does_not_keep_away)
{
	struct scene s = scene_new(10);

	push_n(s.p, 0, 1);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	s.m->woken = true;
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(s.m), 0);
	CHECK(!s.m->woken);
	scene_end(&s);
}

TEST(leases_of_the_dead_are_not_waited_for)
{
	struct scene s = scene_new(10);
	shmring_member *other = member_of(s.r, "b");
	struct shmring_lease lease;

	push_n(s.p, 0, 1);
	(void)lease_of(other, 1);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	shmring_member_abandon(other);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	lease = lease_of(s.m, 1);
	CHECK(lease.redelivered);
	scene_end(&s);
}

TEST(a_lapse_is_told_at_once)
{
	struct scene s =
	    scene_of(&(struct shmring_branch_options){.start = SHMRING_EARLIEST, .lapse = true}, HALF);

	push_n(s.p, 0, 100);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_AGAIN);
	push_n(s.p, 100, 1024);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(s.m), SHMRING_LAPSED);
	scene_end(&s);
}

TEST(a_dropped_branch_is_told_at_once)
{
	struct scene s = scene_new(10);

	CHECK_IS(shmring_unsubscribe(s.r, "b"), SHMRING_OK);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	CHECK_IS(pop_number(s.m), SHMRING_E_DROPPED);
	scene_end(&s);
}

TEST(who_is_interrupted_does_not_keep_away)
{
	struct scene s = scene_new(10);

	shmring_member_interrupt(s.m, true);
	for (uint8_t strategy = 0; strategy < SHMRING_WAIT_STRATEGIES; strategy++)
		CHECK_IS(waited(s.m, strategy), SHMRING_AGAIN);
	push_n(s.p, 0, 1);
	CHECK_IS(waited(s.m, SHMRING_WAIT_FUTEX), SHMRING_OK);
	scene_end(&s);
}

int main(void)
{
	return run_tests();
}
