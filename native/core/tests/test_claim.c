/* Producers: claims, runs, and what is refused. */
#include "check.h"

static uint8_t bytes[4 * 1024 * SLOT_BYTES];

RING_TEST_WITH(numbers_follow_each_other_and_none_is_burned_when_full, .slots = 1024, .first_sequence = 1000)
{
	for (uint64_t i = 0; i < 1024; i++) {
		CHECK_IS(shmring_next(p, 1), 1000 + i);
		CHECK_IS(shmring_publish(p, 0, KIND_BYTES, 0), SHMRING_OK);
	}
	for (int i = 0; i < 10; i++)
		CHECK_IS(shmring_next(p, 1), SHMRING_UNAVAILABLE);
	CHECK_IS(shmring_claimed(r), 2024);
	CHECK_IS(pop_number(m), 0);
	CHECK_IS(shmring_next(p, 1), 2024);
	CHECK_IS(shmring_abort(p), SHMRING_OK);
	CHECK_IS(shmring_next(p, 1), SHMRING_UNAVAILABLE);
}

PRODUCER_TEST(what_a_claim_refuses)
{
	uint64_t id;
	uint32_t lengths[2] = {10, 301};

	CHECK_IS(shmring_next(p, 0), SHMRING_E_INVALID);
	CHECK_IS(shmring_next(p, 1025), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_next(p, UINT32_MAX), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_publish(p, 1, 0, 0), SHMRING_E_INVALID);
	CHECK_IS(shmring_publish_ones(p, 0, NULL, 1), SHMRING_E_INVALID);
	CHECK_IS(shmring_abort(p), SHMRING_E_INVALID);
	CHECK_IS(shmring_push(p, bytes, 1024 * SLOT_BYTES + 1, 0, &id), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_push(p, bytes, SIZE_MAX, 0, &id), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_push(p, bytes, SIZE_MAX - 299, 0, &id), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_push_many(p, bytes, 300, 2, NULL, 301, &id), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_push_many(p, bytes, 300, 2, lengths, 0, &id), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_push_many(p, bytes, 300, 0, NULL, 1, &id), SHMRING_E_INVALID);
	CHECK_IS(shmring_push_many(p, bytes, 300, 1025, NULL, 1, &id), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_claimed(r), 0); /* nothing of this moved anything */
	CHECK_IS(shmring_next(p, 2), 0);
	CHECK_IS(shmring_next(p, 1), SHMRING_E_CLAIM_OPEN);
	CHECK_IS(shmring_push(p, bytes, 1, 0, &id), SHMRING_E_CLAIM_OPEN);
	CHECK_IS(shmring_publish(p, 601, 0, 0), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_publish(p, 590, 0, 11), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_publish(p, UINT32_MAX, 0, 255), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_publish_ones(p, 2, NULL, 1), SHMRING_E_INVALID);
	CHECK_IS(shmring_publish_ones(p, UINT64_MAX, NULL, 1), SHMRING_E_INVALID);
	CHECK_IS(shmring_publish_ones(p, 1, lengths, 0), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_publish(p, 590, 0, 10), SHMRING_OK); /* the claim was still open */
	CHECK_IS(shmring_push(p, NULL, 0, 0, &id), SHMRING_OK);
	CHECK_IS(id, 2);
}

RING_TEST_WITH(parts_of_a_claim_become_readable_at_once, .slots = 1024, .checksum = true)
{
	const struct shmring_part parts[] = {{1, 10, 0, KIND_BYTES}, {3, 890, 10, 17}, {2, 0, 0, KIND_BYTES}};
	struct shmring_message message;
	struct shmring_lease lease;
	uint32_t messages;
	uint64_t at, end;

	for (int round = 0; round < 1000; round++) {
		int64_t lo = shmring_next(p, 6);

		NEED(lo >= 0);
		memset(shmring_slot(r, (uint64_t)lo), round & 255, 6 * SLOT_BYTES);
		CHECK_IS(shmring_publish_parts(p, parts, 2), SHMRING_E_INVALID); /* not the whole claim */
		CHECK_IS(shmring_take(m, 10, 10, &lease), SHMRING_UNAVAILABLE);
		CHECK_IS(shmring_publish_parts(p, parts, 3), SHMRING_OK);
		CHECK_IS(shmring_measure(r, (uint64_t)lo, UINT64_MAX, 2, 100, &end, &messages), SHMRING_OK);
		CHECK(end == (uint64_t)lo + 4 && messages == 2);
		CHECK_IS(shmring_take(m, 10, 10, &lease), SHMRING_OK);
		CHECK(lease.first == (uint64_t)lo && lease.end == lease.first + 6 && lease.messages == 3);
		at = lease.first;
		for (int i = 0; i < 3; i++) {
			NEED(shmring_read(r, &at, lease.end, &message) == SHMRING_OK);
			CHECK(message.slots == parts[i].slots && message.length == parts[i].length &&
			      message.kind == parts[i].kind);
			CHECK(!message.length || *(const uint8_t *)message.data == (round & 255));
		}
		CHECK_IS(shmring_release(m, lease.first, lease.end), SHMRING_OK);
	}
	CHECK_IS(shmring_next(p, 3), 6000);
	CHECK_IS(shmring_publish_parts(p, &(struct shmring_part){3, 900, 1, 0}, 1), SHMRING_E_TOO_LARGE);
	CHECK_IS(shmring_publish_parts(p, &(struct shmring_part){0, 0, 0, 0}, 1), SHMRING_E_INVALID);
	CHECK_IS(shmring_publish_parts(p, &(struct shmring_part){3, 900, 0, 0}, 1), SHMRING_OK);
}

/* A file of numbers, removed already. */
static int file_of(const char *where, size_t count)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof path, "%s/shmring-fill-XXXXXX", where);
	fd = mkstemp(path);
	NEED(fd >= 0 && unlink(path) == 0);
	for (uint32_t i = 0; i < count; i++)
		NEED(write(fd, &i, sizeof i) == sizeof i);
	return fd;
}

static void fill_from(const char *where)
{
	const size_t length = 1000 * SLOT_BYTES, skipped = 40 * sizeof(uint32_t);
	int fd = file_of(where, (length + skipped) / sizeof(uint32_t));
	struct shmring_lease lease;
	struct shmring_message message;
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
	shmring_consumer *m = consumer_of(r, "b");

	for (int round = 0; round < 3; round++) { /* the second one runs over the end of the slots */
		uint64_t position;
		int64_t lo = shmring_next(p, 1000);
		uint32_t number;

		NEED(lo == round * 1000);
		CHECK_IS(shmring_fill(p, 600, fd, skipped + 600, length - 600), SHMRING_OK);
		CHECK_IS(shmring_fill(p, 0, fd, skipped, 600), SHMRING_OK);
		CHECK_IS(shmring_fill(p, length, fd, 0, 0), SHMRING_OK);
		CHECK_IS(shmring_fill(p, length, fd, 0, 1), SHMRING_E_INVALID);
		CHECK_IS(shmring_fill(p, 1, fd, 0, UINT64_MAX), SHMRING_E_INVALID);
		CHECK_IS(shmring_fill(p, UINT64_MAX, fd, 0, 1), SHMRING_E_INVALID);
		CHECK_IS(shmring_fill(p, 0, fd, skipped + 4, length), SHMRING_E_INVALID); /* it ends there */
		CHECK_IS(shmring_fill(p, 0, fd, skipped, length), SHMRING_OK);
		CHECK_IS(shmring_fill(p, 0, -1, 0, 1), SHMRING_E_SYSTEM);
		CHECK_IS(shmring_publish(p, (uint32_t)length, KIND_BYTES, 0), SHMRING_OK);
		CHECK_IS(shmring_take(m, 1, UINT64_MAX, &lease), SHMRING_OK);
		position = lease.first;
		CHECK_IS(shmring_read(r, &position, lease.end, &message), SHMRING_OK);
		CHECK_IS(message.length, length);
		for (uint32_t i = 0; i < length / sizeof i; i += 75) { /* one slot, one number */
			memcpy(&number, (const uint8_t *)message.data + i * sizeof i, sizeof number);
			CHECK_IS(number, i + 40);
		}
		CHECK_IS(shmring_release(m, lease.first, lease.end), SHMRING_OK);
	}
	CHECK_IS(shmring_fill(p, 0, fd, 0, 1), SHMRING_E_INVALID); /* no claim is open */
	end_all();
	close(fd);
}

TEST(a_claim_is_filled_from_a_file_of_this_and_of_another_file_system)
{
	fill_from("/dev/shm");
	fill_from(".");
}

TEST(slots_for)
{
	CHECK_IS(shmring_slots_for(0, false), 1);
	CHECK_IS(shmring_slots_for(0, true), 1);
	CHECK_IS(shmring_slots_for(300, false), 1);
	CHECK_IS(shmring_slots_for(301, false), 2);
	CHECK_IS(shmring_slots_for(240, true), 1);
	CHECK_IS(shmring_slots_for(241, true), 2);
	CHECK(shmring_slots_for(UINT64_MAX, true) > UINT64_MAX / 301);
}

RING_TEST(a_batch_is_one_run_and_what_was_claimed_beyond_it_is_aborted)
{
	uint32_t lengths[10];
	struct shmring_lease lease;
	struct shmring_message message;
	uint64_t at, n = 0;

	for (uint32_t i = 0; i < 10; i++)
		lengths[i] = i;
	CHECK_IS(shmring_next(p, 10), 0);
	for (uint64_t i = 0; i < 10; i++)
		memset(shmring_slot(r, i), (int)i, SLOT_BYTES);
	CHECK_IS(shmring_take(m, 100, 100, &lease), SHMRING_UNAVAILABLE);
	CHECK_IS(shmring_publish_ones(p, 6, lengths, 0), SHMRING_OK);
	CHECK_IS(push_number(p, 77), SHMRING_OK);
	CHECK_IS(shmring_claimed(r), 11);
	CHECK_IS(shmring_take(m, 100, 100, &lease), SHMRING_OK);
	CHECK(lease.first == 0 && lease.end == 11 && lease.messages == 8 && !lease.redelivered);
	for (at = lease.first; shmring_read(r, &at, lease.end, &message) == SHMRING_OK; n++) {
		CHECK_IS(message.message_id, n < 7 ? n : 10);
		CHECK_IS(message.length, n < 7 ? n : 8);
		CHECK(message.length == 0 || ((const uint8_t *)message.data)[0] == (n < 7 ? n : 77));
		CHECK_IS(message.slots, 1);
	}
	CHECK_IS(n, 8);
	CHECK_IS(at, 11);
}

RING_TEST(messages_run_over_the_end_of_the_slots)
{
	struct shmring_lease lease;
	struct shmring_message message;
	uint64_t id, at;

	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 7 + i / 251);
	for (int lap = 0; lap < 50; lap++) {
		size_t length = (size_t)(lap * 6007 % (1024 * SLOT_BYTES));

		CHECK_IS(shmring_push(p, bytes + lap, length, 19, &id), SHMRING_OK);
		CHECK_IS(shmring_take(m, 1, 1, &lease), SHMRING_OK);
		at = lease.first;
		CHECK_IS(shmring_read(r, &at, lease.end, &message), SHMRING_OK);
		CHECK(message.message_id == id && message.length == length && message.kind == 19);
		CHECK(memcmp(message.data, bytes + lap, length) == 0);
		CHECK_IS(shmring_release(m, lease.first, lease.end), SHMRING_OK);
	}
	CHECK_IS(shmring_push(p, bytes, 1024 * SLOT_BYTES, 0, &id), SHMRING_OK); /* all of the ring */
	CHECK_IS(shmring_next(p, 1), SHMRING_UNAVAILABLE);
}

PRODUCER_TEST(without_branches_the_oldest_is_overwritten_but_no_open_claim)
{
	shmring_producer *q = producer_of(r);

	push_n(p, 0, 5000);
	CHECK(shmring_floor(r) >= 5000 - 1024 && shmring_floor(r) < 5000);
	CHECK_IS(shmring_next(q, 3), 5000);
	for (int i = 0; i < 3000; i++)
		(void)push_number(p, 1);
	CHECK_IS(shmring_claimed(r), 5000 + 1024);
	CHECK_IS(shmring_publish(q, 1, 0, 0), SHMRING_OK);
	CHECK_IS(push_number(p, 1), SHMRING_OK);
}

RING_TEST_WITH(close_to_the_last_sequence, .slots = 1024, .first_sequence = (UINT64_C(1) << 55) - 1)
{
	for (int i = 0; i < 5000; i++) {
		CHECK_IS(push_number(p, (uint64_t)i), SHMRING_OK);
		CHECK_IS(pop_number(m), i);
	}
}

/* --- a producer that lost a race pauses, longer each time, until it gets its share --- */

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
