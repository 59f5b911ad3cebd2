/* One end marker ends every consumer of every branch, once. */
#include "check.h"

PRODUCER_TEST(a_consumer_ends_before_it_gets_what_lies_behind_the_marker)
{
	struct shmring_lease l;
	shmring_consumer *quick = consumer_of(r, "b"), *busy = consumer_of(r, "b"), *late;

	push_n(p, 0, 2);
	push_end(p);
	push_n(p, 2, 2);
	push_end(p);
	CHECK_IS(shmring_take(busy, 1, 1, &l), SHMRING_OK);
	CHECK_IS(pop_number(quick), 1);
	CHECK_IS(pop_number(quick), SHMRING_ENDED);
	late = consumer_of(r, "b");
	CHECK_IS(pop_number(late), 2); /* an end before it joined is not told to it */
	CHECK_IS(shmring_take(busy, 9, 9, &l), SHMRING_ENDED);
	CHECK_IS(shmring_release(busy, 0, 1), SHMRING_OK);
	CHECK_IS(shmring_take(busy, 9, 9, &l), SHMRING_OK);
	CHECK(l.first == 4 && l.end == 5);
	CHECK_IS(shmring_release(busy, 4, 5), SHMRING_OK);
	CHECK_IS(pop_number(late), SHMRING_ENDED);
	CHECK_IS(pop_number(quick), SHMRING_ENDED);
	CHECK_IS(pop_number(busy), SHMRING_ENDED);
}

PRODUCER_TEST(a_follower_ends_when_its_upstream_has_released_all)
{
	struct shmring_lease l;
	uint32_t a;
	shmring_consumer *ma = consumer_of(r, "a"), *mb, *mc;

	NEED(shmring_find_branch(r, "a", &a) == SHMRING_OK);
	mb = consumer_with(r, "b", &(struct shmring_branch_options){.upstream = UINT64_C(1) << a});
	mc = consumer_of(r, "b");
	push_n(p, 0, 1);
	push_end(p);
	CHECK_IS(shmring_take(ma, 1, 1, &l), SHMRING_OK);
	CHECK_IS(shmring_take(ma, 1, 1, &l), SHMRING_ENDED);
	CHECK_IS(pop_number(mb), SHMRING_UNAVAILABLE);
	CHECK_IS(shmring_release(ma, 0, 1), SHMRING_OK);
	CHECK_IS(pop_number(mb), 0);
	CHECK_IS(pop_number(mb), SHMRING_ENDED);
	CHECK_IS(pop_number(mc), SHMRING_ENDED);
}

RING_TEST(markers_of_runs_that_overlap_are_one_end)
{
	shmring_producer *q = producer_of(r), *s = producer_of(r);
	shmring_consumer *other = consumer_of(r, "b"), *late;

	push_n(p, 0, 1);
	push_end(p);
	push_end(q);
	NEED(shmring_next(p, 3) >= 0 && shmring_abort(p) == SHMRING_OK);
	push_end(s);
	CHECK_IS(pop_number(m), 0);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	late = consumer_of(r, "b");
	push_n(p, 1, 1);
	CHECK_IS(pop_number(late), 1);
	CHECK_IS(pop_number(other), SHMRING_ENDED);
	CHECK_IS(pop_number(other), SHMRING_UNAVAILABLE);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	push_end(p);
	CHECK_IS(pop_number(late), SHMRING_ENDED);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	CHECK_IS(pop_number(other), SHMRING_ENDED);
	push_end(p); /* a run without messages ends too */
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	CHECK_IS(pop_number(late), SHMRING_ENDED);
	CHECK_IS(pop_number(other), SHMRING_ENDED);
	CHECK_IS(pop_number(other), SHMRING_UNAVAILABLE);
}

/* A program that finds nothing to send ends the stream, before its reader comes or after. */
TEST(a_run_without_messages_ends_once_for_each_reader_that_comes_for_it)
{
	shmring *r = ring_new();

	for (int run = 0; run < 5; run++) {
		bool reader_first = run & 1;
		shmring_consumer *m = reader_first ? consumer_of(r, "b") : NULL;
		shmring_producer *p = producer_of(r);

		if (run == 0)
			push_n(p, 0, 1);
		push_end(p);
		shmring_producer_close(p);
		if (!m)
			m = consumer_of(r, "b");
		if (run == 0)
			CHECK_IS(pop_number(m), 0);
		CHECK_IS(pop_number(m), SHMRING_ENDED);
		CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
		shmring_consumer_close(m);
	}
}

PRODUCER_TEST(runs_without_messages_that_nobody_has_read_yet_are_an_end_each)
{
	shmring_producer *next;
	shmring_consumer *m;

	push_n(p, 0, 1);
	push_end(p);
	push_end(p);
	shmring_producer_close(p);
	next = producer_of(r);
	NEED(shmring_next(next, 3) >= 0 && shmring_abort(next) == SHMRING_OK);
	push_end(next);
	m = consumer_of(r, "b");
	CHECK_IS(pop_number(m), 0);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	shmring_consumer_close(m);
	m = consumer_of(r, "b"); /* the third one is still to be read */
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
}

RING_TEST(ends_among_the_parts_of_one_publication_know_their_runs)
{
	const struct shmring_part parts[] = {
	    {.slots = 1, .kind = SHMRING_KIND_END},
	    {.slots = 2, .length = 8, .kind = SHMRING_KIND_BYTES},
	    {.slots = 1, .kind = SHMRING_KIND_END},
	    {.slots = 1, .kind = SHMRING_KIND_END},
	};
	uint64_t number = 7;

	NEED(shmring_next(p, 5) == 0);
	memcpy(shmring_slot(r, 1), &number, sizeof number);
	NEED(shmring_publish_parts(p, parts, 4) == SHMRING_OK);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	CHECK_IS(pop_number(m), 7);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	push_end(p);
	CHECK_IS(control_at(r, 5)->crc, 0);
	CHECK_IS(control_at(r, 3)->crc, 3 - 1);
}

RING_TEST(a_consumer_that_was_busy_for_some_runs_is_told_of_each)
{
	shmring_consumer *busy = consumer_of(r, "b");

	for (uint64_t run = 0; run < 700; run++) {
		push_n(p, run, 1);
		push_end(p);
		CHECK_IS(pop_number(m), run);
		CHECK_IS(pop_number(m), SHMRING_ENDED);
	}
	for (uint64_t run = 0; run < 700; run++)
		CHECK_IS(pop_number(busy), SHMRING_ENDED);
	CHECK_IS(pop_number(busy), SHMRING_UNAVAILABLE);
}

RING_TEST(a_newcomer_steps_over_what_is_left_of_the_end_before)
{
	shmring_producer *q = producer_of(r), *s = producer_of(r);

	push_n(p, 0, 1);
	push_end(p);
	CHECK_IS(pop_number(m), 0);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	shmring_consumer_close(m);
	push_end(q); /* too late for that one */
	push_end(s);
	push_n(p, 1, 1);
	m = consumer_of(r, "b");
	CHECK_IS(pop_number(m), 1);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	push_end(p);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
}

RING_TEST(an_aborted_claim_behind_an_end_is_no_further_end)
{
	shmring_consumer *late;

	push_n(p, 0, 1);
	push_end(p);
	CHECK_IS(pop_number(m), 0);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	CHECK(shmring_next(p, 1) >= 0);
	CHECK_IS(shmring_abort(p), SHMRING_OK);
	late = consumer_of(r, "b");
	push_n(p, 1, 1);
	CHECK_IS(pop_number(m), 1); /* an end that the newcomer stepped over ended no consumer */
	CHECK_IS(pop_number(late), SHMRING_UNAVAILABLE);
}

RING_TEST(a_branch_that_takes_a_number_again_has_no_end_yet)
{
	const struct shmring_branch_options latest = {.start = SHMRING_LATEST};
	shmring_consumer *again;

	push_end(p);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	shmring_consumer_close(m);
	NEED(shmring_unsubscribe(r, "b") == SHMRING_OK);
	m = consumer_with(r, "new", &latest);
	again = consumer_with(r, "new", &latest);
	CHECK_IS(m->branch->taken.ended, 0);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	push_end(p);
	CHECK_IS(pop_number(m), SHMRING_ENDED);
	CHECK_IS(pop_number(again), SHMRING_ENDED);
}

PRODUCER_TEST(who_passes_markers_on_gets_them_as_messages)
{
	struct shmring_lease l;
	struct shmring_message message;
	uint64_t at = 1;
	shmring_consumer *passing = consumer_of(r, "b"), *other = consumer_of(r, "b");

	shmring_consumer_take_ends(passing, true);
	push_n(p, 0, 1);
	push_end(p);
	CHECK_IS(pop_number(passing), 0);
	CHECK_IS(shmring_take(passing, 9, 9, &l), SHMRING_OK);
	CHECK(l.first == 1 && l.end == 2 && l.messages == 1);
	CHECK_IS(shmring_read(r, &at, l.end, &message), SHMRING_OK);
	CHECK(message.kind == SHMRING_KIND_END && message.length == 0);
	CHECK_IS(pop_number(passing), SHMRING_UNAVAILABLE);
	CHECK_IS(pop_number(other), SHMRING_ENDED);
	/* Handed back, the marker is delivered again to who wants it. */
	shmring_consumer_abandon(passing);
	passing = consumer_of(r, "b");
	shmring_consumer_take_ends(passing, true);
	CHECK_IS(shmring_take(passing, 9, 9, &l), SHMRING_OK);
	CHECK(l.first == 1 && l.end == 2 && l.redelivered);
	CHECK_IS(shmring_release(passing, 1, 2), SHMRING_OK);
	push_end(p);
	CHECK_IS(pop_number(other), SHMRING_ENDED);
	CHECK_IS(pop_number(passing), SHMRING_ENDED); /* the other one came to it first */
}

TEST(the_end_on_exclusive_drop_oldest_and_ephemeral_branches)
{
	static const struct shmring_branch_options options[] = {{.exclusive = true},
								{.drop_oldest = true},
								{.ephemeral = true},
								{.exclusive = true, .drop_oldest = true}};

	for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
		shmring *r = ring_new();
		shmring_producer *p = producer_of(r);
		shmring_consumer *m = consumer_with(r, "b", &options[i]);

		for (uint64_t run = 0; run < 1500; run++) {
			push_n(p, run, 1);
			push_end(p);
			CHECK_IS(pop_number(m), run);
			CHECK_IS(pop_number(m), SHMRING_ENDED);
			CHECK_IS(shmring_consumer_hold(m), NONE);
			CHECK_IS(m->seat->lease.hold, NONE);
		}
		end_all();
	}
}

/* While another process has the admin lock, an end waits for what the dead held: but a
 * branch with drop_oldest holds no producers meanwhile. */
TEST(an_end_that_waits_for_redelivery_holds_nothing_on_a_branch_with_drop_oldest)
{
	const struct shmring_branch_options drop_oldest = {.drop_oldest = true};
	shmring *r = ring_new(), *stopped = ring_again(ring_path());
	shmring_producer *p = producer_of(r);
	shmring_consumer *m = consumer_with(r, "b", &drop_oldest), *gone = consumer_with(r, "b", NULL);
	struct shmring_lease l;

	push_n(p, 0, 1);
	NEED(shmring_take(gone, 1, 1, &l) == SHMRING_OK);
	shmring_consumer_abandon(gone);
	push_end(p);
	NEED(admin_try(stopped));
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_UNAVAILABLE);
	CHECK(load_relaxed(&m->seat->lease.hold) == NONE);
	push_n(p, 1, 3 * r->capacity);
	admin_leave(stopped);
}

PRODUCER_TEST(who_reads_on_for_another_hears_of_the_ends_since_then)
{
	struct shmring_branch_info info;
	struct shmring_lease l;
	shmring_consumer *first = consumer_of(r, "b"), *other = consumer_of(r, "b"), *again;
	uint32_t id = shmring_consumer_branch(first);

	push_end(p);
	CHECK_IS(pop_number(first), SHMRING_ENDED);
	CHECK_IS(pop_number(other), SHMRING_ENDED);
	CHECK_IS(shmring_branch_info(r, id, &info), SHMRING_OK);
	CHECK_IS(info.ends, 1);
	push_n(p, 0, 2);
	push_end(p);
	push_n(p, 2, 1);
	CHECK_IS(shmring_take(first, 1, 1, &l), SHMRING_OK);
	CHECK_IS(pop_number(other), 1);
	CHECK_IS(pop_number(other), SHMRING_ENDED);
	CHECK_IS(pop_number(first), SHMRING_ENDED);
	shmring_consumer_abandon(first);
	again = consumer_of(r, "b");
	shmring_consumer_hear_ends(again, info.ends);
	CHECK_IS(pop_number(again), 0); /* message that the first consumer held, before the end */
	CHECK_IS(pop_number(again), SHMRING_ENDED);
	CHECK_IS(pop_number(again), 2);
	CHECK_IS(pop_number(again), SHMRING_UNAVAILABLE);
	shmring_consumer_close(again);
	again = consumer_of(r, "b");
	shmring_consumer_hear_ends(again, 7); /* ends told to an earlier branch of this name */
	CHECK_IS(pop_number(again), SHMRING_UNAVAILABLE);
}

RING_TEST(an_end_that_others_came_to_waits_for_what_the_dead_held)
{
	struct shmring_lease l;
	shmring *stopped = ring_again(ring_path());
	shmring_consumer *other = consumer_of(r, "b"), *again;

	push_n(p, 0, 1);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_OK);
	push_end(p);
	CHECK_IS(pop_number(other), SHMRING_ENDED);
	shmring_consumer_abandon(m);
	again = consumer_of(r, "b");
	shmring_consumer_hear_ends(again, 0);
	NEED(admin_try(stopped)); /* nobody can adopt now */
	CHECK_IS(shmring_take(again, 1, 1, &l), SHMRING_UNAVAILABLE);
	admin_leave(stopped);
	while (shmring_take(again, 1, 1, &l) == SHMRING_UNAVAILABLE)
		(void)shmring_wait_message(again, INT64_MAX, SHMRING_WAIT_DEFAULT);
	CHECK(l.redelivered && l.first == 0);
	CHECK_IS(shmring_release(again, l.first, l.end), SHMRING_OK);
	CHECK_IS(pop_number(again), SHMRING_ENDED);
}
