/* Calls that would break others' reading are refused, and nothing has changed. */
#include "check.h"

RING_TEST(only_kinds_that_are_what_they_say_are_published)
{
	static const uint8_t batch[24] = {0xff, 0xff, 0xff, 0xff, 16};
	const uint8_t refused[] = {KIND_ABORTED, KIND_END, KIND_ARROW_BATCH, KIND_ARROW_STREAM, 5, 15};
	struct shmring_part part = {1, 4, 0, 0};
	struct shmring_lease lease;

	for (size_t i = 0; i < sizeof refused; i++) {
		CHECK_IS(shmring_push(p, "four", 4, refused[i], NULL), SHMRING_E_INVALID);
		CHECK_IS(shmring_claimed(r), 0);
	}
	NEED(shmring_next(p, 1) == 0);
	for (size_t i = 0; i < sizeof refused; i++) {
		part.kind = refused[i];
		CHECK_IS(shmring_publish(p, 4, refused[i], 0), SHMRING_E_INVALID);
		CHECK_IS(shmring_publish_parts(p, &part, 1), SHMRING_E_INVALID);
	}
	CHECK_IS(shmring_take(m, 1, 1, &lease), SHMRING_UNAVAILABLE); /* the claim is still open */
	CHECK_IS(shmring_publish(p, 4, SHMRING_KIND_USER, 0), SHMRING_OK);
	CHECK_IS(shmring_push(p, NULL, 0, SHMRING_KIND_END, NULL), SHMRING_OK);
	CHECK_IS(shmring_push(p, batch, sizeof batch, SHMRING_KIND_ARROW_STREAM, NULL), SHMRING_OK);
	CHECK_IS(shmring_push(p, batch, 23, SHMRING_KIND_ARROW_STREAM, NULL), SHMRING_E_INVALID);
	CHECK_IS(shmring_push(p, batch, sizeof batch, SHMRING_KIND_ARROW_BATCH, NULL), SHMRING_E_INVALID);
	CHECK_IS(shmring_claimed(r), 3);
	end_all();

	r = ring_with(&(struct shmring_options){.slots = 1024, .schema = "schema", .schema_bytes = 6});
	p = producer_of(r);
	CHECK_IS(shmring_push(p, batch, sizeof batch, SHMRING_KIND_ARROW_BATCH, NULL), SHMRING_OK);
	CHECK_IS(shmring_push(p, batch, 7, SHMRING_KIND_ARROW_BATCH, NULL), SHMRING_E_INVALID);
}

RING_TEST(unknown_flags_and_wait_strategies_are_refused)
{
	shmring *again = NULL;

	CHECK_IS(shmring_attach(ring_path(), 4, &again), SHMRING_E_INVALID);
	CHECK_IS(shmring_attach(ring_path(), SHMRING_READ_ONLY | 0x80000000u, &again), SHMRING_E_INVALID);
	CHECK(!again);
	CHECK_IS(shmring_wait_message(m, 0, SHMRING_WAIT_STRATEGIES), SHMRING_E_INVALID);
	CHECK_IS(shmring_wait_space(p, 1, 0, 255), SHMRING_E_INVALID);
	CHECK_IS(shmring_wait_released(r, 0, 1, 0, SHMRING_WAIT_STRATEGIES), SHMRING_E_INVALID);
}

RING_TEST(a_release_of_what_is_not_held_changes_nothing)
{
	static const char bytes[2000];
	struct shmring_lease lease;
	shmring_consumer *newcomer;

	/* [0, 7), [7, 8), a claim given up [8, 11), and [11, 13). */
	NEED(shmring_push(p, bytes, 2000, 0, NULL) == SHMRING_OK && push_number(p, 1) == SHMRING_OK);
	NEED(shmring_next(p, 3) == 8 && shmring_abort(p) == SHMRING_OK);
	NEED(shmring_push(p, bytes, 600, 0, NULL) == SHMRING_OK);
	CHECK_IS(shmring_release(m, 0, 7), SHMRING_E_INVALID);
	CHECK_IS(shmring_take(m, 10, 1024, &lease), SHMRING_OK);
	CHECK(lease.first == 0 && lease.end == 13 && lease.messages == 3);
	CHECK_IS(shmring_release(m, 0, 1), SHMRING_E_INVALID); /* ends inside a message */
	CHECK_IS(shmring_release(m, 3, 7), SHMRING_E_INVALID); /* begins inside one */
	CHECK_IS(shmring_release(m, 7, 9), SHMRING_E_INVALID);
	CHECK_IS(shmring_release(m, 7, 14), SHMRING_E_INVALID); /* further than is held */
	CHECK_IS(shmring_release(m, 7, 7), SHMRING_E_INVALID);
	CHECK_IS(shmring_release(m, 8, 7), SHMRING_E_INVALID);
	CHECK_IS(shmring_consumer_hold(m), 0);
	CHECK_IS(shmring_release(m, 7, 11), SHMRING_OK);
	CHECK_IS(shmring_release(m, 0, 11), SHMRING_E_INVALID); /* some of it no more */
	CHECK_IS(shmring_release(m, 7, 11), SHMRING_E_INVALID);
	CHECK_IS(shmring_release(m, 0, 7), SHMRING_OK);
	CHECK_IS(shmring_consumer_hold(m), 11);
	CHECK_IS(floor_advance(r, 13), 11);
	newcomer = consumer_of(r, "late");
	CHECK_IS(shmring_take(newcomer, 10, 1024, &lease), SHMRING_OK);
	CHECK(lease.first == 11 && lease.end == 13);
}

RING_TEST(an_answer_says_what_it_means_and_not_what_an_earlier_error_was)
{
	struct shmring_participant_info info;
	struct shmring_lease lease;

	CHECK_IS(shmring_release(m, 0, 1), SHMRING_E_INVALID);
	CHECK(strstr(shmring_error_message(), "not held"));
	CHECK_IS(shmring_take(m, 1, 1, &lease), SHMRING_UNAVAILABLE);
	CHECK(!strstr(shmring_error_message(), "not held"));
	CHECK_IS(shmring_release(m, 0, 1), SHMRING_E_INVALID);
	CHECK(strstr(shmring_error_message(), "not held"));
	CHECK_IS(shmring_wait_message(m, 0, SHMRING_WAIT_DEFAULT), SHMRING_TIMEOUT);
	CHECK(strstr(shmring_error_message(), "time is over"));
	CHECK_IS(shmring_wait_message(m, INT64_MAX, SHMRING_WAIT_DEFAULT), SHMRING_AGAIN);
	CHECK(strstr(shmring_error_message(), "slice is over"));
	CHECK_IS(shmring_release(m, 0, 1), SHMRING_E_INVALID);
	CHECK_IS(shmring_participant_info(r, 100, &info), SHMRING_UNAVAILABLE);
	CHECK(!strstr(shmring_error_message(), "not held"));
	NEED(shmring_next(p, 1024) == 0 && shmring_publish(p, 1, 0, 0) == SHMRING_OK);
	CHECK_IS(shmring_release(m, 0, 1), SHMRING_E_INVALID);
	CHECK_IS(shmring_push(p, "x", 1, 0, NULL), SHMRING_UNAVAILABLE);
	CHECK(!strstr(shmring_error_message(), "not held"));
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
}
