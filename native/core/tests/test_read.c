/* Consumers: leases in any order, and everything a take meets on its way. */
#include "check.h"

RING_TEST(leases_are_released_in_any_order_and_the_lowest_one_holds)
{
	uint64_t seed = 3;
	bool held[40];

	for (int round = 0; round < 200; round++) {
		uint64_t base = shmring_claimed(r);

		push_n(p, base, 40);
		for (uint64_t i = 0; i < 40; i++) {
			struct shmring_lease l = lease_of(m, 1);

			CHECK(l.first == base + i && l.end == base + i + 1);
			held[i] = true;
		}
		for (int left = 40; left > 0;) {
			uint64_t k = random_next(&seed) % 40, low = 0;

			if (!held[k])
				continue;
			CHECK_IS(shmring_release(m, base + k, base + k + 1), SHMRING_OK);
			held[k] = false;
			left--;
			while (low < 40 && !held[low])
				low++;
			CHECK_IS(branch_released(r, m->branch, false), base + low);
			CHECK_IS(shmring_consumer_hold(m), left ? base + low : UINT64_MAX);
		}
	}
}

RING_TEST(a_lease_is_split_and_joined_by_releases)
{
	push_n(p, 0, 100);
	lease_of(m, 100);
	CHECK_IS(shmring_release(m, 10, 20), SHMRING_OK); /* the middle */
	CHECK_IS(shmring_consumer_hold(m), 0);
	CHECK_IS(shmring_release(m, 0, 10), SHMRING_OK);
	CHECK_IS(shmring_consumer_hold(m), 20);
	CHECK_IS(shmring_release(m, 90, 100), SHMRING_OK);
	CHECK_IS(shmring_release(m, 30, 80), SHMRING_OK);
	CHECK_IS(shmring_release(m, 15, 85), SHMRING_E_INVALID); /* some of it is released already */
	CHECK_IS(shmring_consumer_hold(m), 20);
	CHECK_IS(shmring_release(m, 20, 30), SHMRING_OK);
	CHECK_IS(shmring_release(m, 80, 90), SHMRING_OK);
	CHECK_IS(shmring_consumer_hold(m), UINT64_MAX);
	CHECK_IS(branch_released(r, m->branch, false), 100);
}

RING_TEST(the_limit_of_separate_leases_and_releases_that_are_deferred)
{
	struct shmring_lease l;

	/* Every other slot held: 48 ranges. */
	push_n(p, 0, 200);
	for (uint64_t i = 0; i < 96; i++)
		lease_of(m, 1);
	for (uint64_t i = 1; i < 96; i += 2)
		CHECK_IS(shmring_release(m, i, i + 1), SHMRING_OK);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_E_LEASES);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_E_LEASES); /* and nothing was lost by it */
	CHECK_IS(shmring_release(m, 0, 1), SHMRING_OK);
	l = lease_of(m, 100);
	CHECK_IS(l.first, 96);
	CHECK_IS(l.end, 196);
	/* No entry to split [96, 196) with: kept, and done as soon as it can be. */
	CHECK_IS(shmring_release(m, 100, 110), SHMRING_OK);
	CHECK_IS(shmring_release(m, 120, 130), SHMRING_OK);
	CHECK_IS(shmring_release(m, 140, 150), SHMRING_OK);
	CHECK_IS(m->deferred.used, 2 * 3);
	CHECK_IS(shmring_release(m, 96, 100), SHMRING_OK); /* now [100, 110) is at an end */
	CHECK_IS(m->deferred.used, 2 * 2);
	CHECK_IS(shmring_release(m, 150, 196), SHMRING_OK); /* and now [140, 150) */
	CHECK_IS(m->deferred.used, 2);
	CHECK_IS(shmring_release(m, 2, 3), SHMRING_OK); /* an entry */
	CHECK_IS(m->deferred.used, 0);
	for (uint64_t i = 4; i < 96; i += 2)
		CHECK_IS(shmring_release(m, i, i + 1), SHMRING_OK);
	CHECK_IS(shmring_release(m, 110, 120), SHMRING_OK);
	CHECK_IS(shmring_consumer_hold(m), 130);
	CHECK_IS(shmring_release(m, 130, 140), SHMRING_OK);
	CHECK_IS(branch_released(r, m->branch, false), 196);
}

/* One lease, released one by one. If a release looked at all that wait, this
 * would take so many minutes that the alarm ended it. */
RING_TEST_WITH(releases_in_any_order_cost_the_same, .slots = 1 << 17)
{
	enum { N = 1 << 17, HALF = N / 2 };
	static const uint32_t step[] = {2, N - 2, 7919 * 2};
	struct shmring_lease l;

	for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
		uint64_t first = i * N, at = 1;

		push_n(p, 0, N);
		NEED(shmring_take(m, N, N, &l) == SHMRING_OK && l.first == first && l.end == first + N);
		for (uint64_t n = 0; n < HALF; n++, at = (at + step[i]) % N)
			CHECK_IS(shmring_release(m, first + at, first + at + 1), SHMRING_OK);
		CHECK(m->deferred.used > HALF);
		CHECK_IS(shmring_consumer_hold(m), first);
		at = 0;
		for (uint64_t n = 0; n < HALF; n++, at = (at + step[i]) % N)
			CHECK_IS(shmring_release(m, first + at, first + at + 1), SHMRING_OK);
		CHECK_IS(m->deferred.used, 0);
		CHECK_IS(shmring_consumer_hold(m), UINT64_MAX);
	}
}

RING_TEST(neighbouring_leases_need_one_entry)
{
	push_n(p, 0, 500);
	for (int i = 0; i < 500; i++)
		lease_of(m, 1);
	CHECK_IS(m->ranges_used, 1);
	shmring_consumer_close(m);
	CHECK_IS(branch_released(r, &r->cursors->branch[0], false), 500);
}

RING_TEST_WITH(one_message_is_taken_and_read_in_one_step, .slots = 1024, .checksum = true)
{
	struct shmring_message message;
	struct shmring_lease l[2], last;

	CHECK_IS(shmring_take_one(m, &last, &message), SHMRING_UNAVAILABLE);
	push_n(p, 0, 4);
	for (uint64_t i = 0; i < 2; i++) { /* the second while the first is held */
		CHECK_IS(shmring_take_one(m, &l[i], &message), SHMRING_OK);
		CHECK(l[i].first == i && l[i].end == i + 1 && message.message_id == i);
	}
	slot_at(r, 2)[0] ^= 1;
	CHECK_IS(shmring_take_one(m, &last, &message), SHMRING_E_DAMAGED);
	CHECK_IS(shmring_release(m, 2, 3), SHMRING_E_INVALID); /* it is not held any more */
	CHECK_IS(shmring_take_one(m, &last, &message), SHMRING_OK);
	CHECK_IS(message.message_id, 3);
	CHECK_IS(shmring_release(m, 3, 4), SHMRING_OK);
	CHECK_IS(shmring_release(m, 0, 2), SHMRING_OK);
}

RING_TEST(aborted_runs_are_stepped_over)
{
	struct shmring_lease l;

	for (int i = 0; i < 5; i++) {
		CHECK(shmring_next(p, 3) >= 0);
		CHECK_IS(shmring_abort(p), SHMRING_OK);
	}
	CHECK_IS(shmring_take(m, 5, 100, &l), SHMRING_UNAVAILABLE);
	CHECK_IS(branch_released(r, m->branch, false), 15);
	CHECK_IS(push_number(p, 4), SHMRING_OK);
	CHECK(shmring_next(p, 3) >= 0);
	CHECK_IS(shmring_abort(p), SHMRING_OK);
	CHECK_IS(push_number(p, 5), SHMRING_OK);
	CHECK_IS(pop_number(m), 4);
	CHECK_IS(pop_number(m), 5);
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
}

RING_TEST(a_take_stays_inside_its_bounds)
{
	struct shmring_lease l;
	char big[3000] = {0};

	CHECK_IS(shmring_take(m, 0, 10, &l), SHMRING_E_INVALID);
	CHECK_IS(shmring_push(p, big, 3000, 0, NULL), SHMRING_OK);
	CHECK_IS(shmring_push_many(p, big, 0, 20, NULL, 4, NULL), SHMRING_OK);
	CHECK_IS(shmring_push(p, big, 900, 0, NULL), SHMRING_OK);
	CHECK_IS(shmring_take(m, 5, 0, &l), SHMRING_OK);
	CHECK(l.first == 0 && l.end == 10 && l.messages == 1); /* one is taken whatever its size */
	CHECK_IS(shmring_take(m, 5, 100, &l), SHMRING_OK);
	CHECK(l.first == 10 && l.end == 15 && l.messages == 5);
	CHECK_IS(shmring_take(m, 100, 7, &l), SHMRING_OK);
	CHECK(l.first == 15 && l.end == 22 && l.messages == 7);
	CHECK_IS(shmring_take(m, 100, 9, &l), SHMRING_OK);
	CHECK(l.first == 22 && l.end == 30 && l.messages == 8); /* 900 bytes no longer fit */
	CHECK_IS(shmring_take(m, 100, 9, &l), SHMRING_OK);
	CHECK(l.first == 30 && l.end == 33 && l.messages == 1);
	CHECK_IS(shmring_take(m, 100, 9, &l), SHMRING_UNAVAILABLE);
}

PRODUCER_TEST(drop_oldest_loses_the_oldest_and_says_exactly_which)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .drop_oldest = true};
	shmring_consumer *m = consumer_with(r, "b", &o);
	uint64_t expected = 0, seed = 11, lost = 0, got = 0;
	struct shmring_participant_info seat;

	for (uint64_t pushed = 0; pushed < 50000;) {
		uint64_t n = random_next(&seed) % 700, take = random_next(&seed) % 400;

		push_n(p, pushed, n); /* never full: the branch does not gate */
		pushed += n;
		while (take--) {
			int64_t number = pop_number(m);

			if (number == SHMRING_OVERRUN) {
				uint64_t first, end;

				shmring_consumer_overrun(m, &first, &end);
				CHECK_IS(first, expected);
				CHECK(end > first && end <= pushed);
				lost += end - first;
				expected = end;
			} else if (number == SHMRING_UNAVAILABLE) {
				CHECK_IS(expected, pushed);
				break;
			} else {
				CHECK_IS(number, expected);
				expected++;
				got++;
			}
		}
	}
	CHECK(lost > 0 && got > 0 && lost + got == expected);
	CHECK_IS(shmring_participant_info(r, m->seat_index, &seat), SHMRING_OK);
	CHECK_IS(seat.overrun, lost);
}

PRODUCER_TEST(what_a_consumer_of_a_branch_with_drop_oldest_holds_is_not_overwritten)
{
	struct shmring_lease l;
	struct shmring_message message;
	uint64_t at, n = 0, value;
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .drop_oldest = true};
	shmring_consumer *m = consumer_with(r, "b", &o);

	push_n(p, 0, 100);
	CHECK_IS(pop_number(m), 0);
	l = lease_of(m, 10);
	for (uint64_t i = 100; i < 4000; i++)
		n += push_number(p, i) == SHMRING_OK;
	CHECK_IS(shmring_claimed(r), 1 + 1024);
	for (at = l.first, n = 1; shmring_read(r, &at, l.end, &message) == SHMRING_OK; n++) {
		memcpy(&value, message.data, 8);
		CHECK_IS(value, n);
	}
	CHECK_IS(n, 11);
	CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	CHECK_IS(push_number(p, 1), SHMRING_OK);
}

RING_TEST(one_slot_messages_side_by_side_are_rows)
{
	char rows[900] = "row";
	struct shmring_lease l;

	CHECK_IS(shmring_push_many(p, rows, 300, 3, NULL, 7, NULL), SHMRING_OK);
	CHECK_IS(shmring_push(p, rows, 300, 0, NULL), SHMRING_OK);
	l = lease_of(m, 4);
	CHECK(shmring_rows(r, l.first, l.end) == shmring_slot(r, 0));
	CHECK(shmring_rows(r, 1, 2) == shmring_slot(r, 1)); /* from within a run, and to */
	CHECK(shmring_rows(r, l.first, l.first) == NULL);
	CHECK(shmring_rows(r, l.first, l.first + 1025) == NULL);

	CHECK_IS(shmring_push(p, rows, 301, 0, NULL), SHMRING_OK);
	CHECK_IS(shmring_next(p, 1), 6);
	CHECK_IS(shmring_abort(p), SHMRING_OK);
	CHECK_IS(shmring_push(p, rows, 1, 0, NULL), SHMRING_OK);
	l = lease_of(m, 2);
	CHECK_IS(l.end, 8);
	CHECK(shmring_rows(r, 4, 6) == NULL);
	CHECK(shmring_rows(r, 6, 8) == NULL);
	CHECK(shmring_rows(r, 7, 8) == shmring_slot(r, 7));
	CHECK(shmring_rows(r, 7, 9) == NULL); /* nothing is published there */
}

/* Long ones are computed in three places at once. */
TEST(a_checksum_is_the_same_in_one_and_in_parts)
{
	static uint8_t data[100001];
	static const size_t lengths[] = {16383, 16384, 16385, 16391, 16407, 16408, 65536, 99999};

	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)(i * 2654435761u >> 24);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		uint32_t crc = 17;

		for (size_t at = 0; at < lengths[i]; at += 1000) {
			size_t rest = lengths[i] - at;

			crc = shmring_crc32c(crc, data + 1 + at, rest < 1000 ? rest : 1000);
		}
		CHECK_IS(shmring_crc32c(17, data + 1, lengths[i]), crc);
	}
}

RING_TEST_WITH(checksums_are_checked, .slots = 1024, .checksum = true)
{
	uint64_t at;
	uint32_t lengths[3] = {0, 17, 300};
	char rows[900];
	struct shmring_lease l;
	struct shmring_message message;

	CHECK_IS(shmring_crc32c(0, "123456789", 9), 0xe3069283);
	CHECK_IS(shmring_crc32c(shmring_crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
	memset(rows, 'r', sizeof rows);
	CHECK_IS(shmring_push_many(p, rows, 300, 3, lengths, 0, NULL), SHMRING_OK);
	CHECK_IS(shmring_push(p, rows, 900, 0, NULL), SHMRING_OK);
	l = lease_of(m, 4);
	for (at = l.first; at < l.end;) {
		CHECK_IS(shmring_read(r, &at, l.end, &message), SHMRING_OK);
		CHECK_IS(message.checksum, shmring_crc32c(0, message.data, message.length));
	}
	((char *)shmring_slot(r, 5))[299] ^= 1;
	((char *)shmring_slot(r, 1))[16] ^= 1;
	at = 0;
	CHECK_IS(shmring_read(r, &at, l.end, &message), SHMRING_OK);
	CHECK_IS(shmring_read(r, &at, l.end, &message), SHMRING_E_DAMAGED);
	CHECK_IS(shmring_read(r, &at, l.end, &message), SHMRING_OK); /* one may go on behind it */
	CHECK_IS(shmring_read(r, &at, l.end, &message), SHMRING_E_DAMAGED);
	CHECK_IS(shmring_read(r, &at, l.end, &message), SHMRING_UNAVAILABLE);
}

static void fill(uint8_t *bytes, size_t n, uint64_t salt)
{
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)(salt * 31 + i * 7 + (i >> 8));
}

RING_TEST(copies_stay_at_their_addresses_when_their_slots_are_overwritten)
{
	enum { BYTES = 40001, COUNT = 4 };
	static uint8_t written[BYTES];
	uint64_t base = shmring_claimed(r);

	for (int round = 0; round < 50; round++) {
		struct shmring_lease l[COUNT];
		struct shmring_message message[COUNT];
		struct shmring_copy copy[COUNT];

		for (int i = 0; i < COUNT; i++) {
			uint64_t at;

			fill(written, BYTES, base + (uint64_t)i);
			NEED(shmring_push(p, written, BYTES, KIND_BYTES, NULL) == SHMRING_OK);
			l[i] = lease_of(m, 1);
			at = l[i].first;
			CHECK_IS(shmring_read(r, &at, l[i].end, &message[i]), SHMRING_OK);
		}
		/* Neighbours share pages; the second and third move after the first map was left. */
		for (int i = 0; i < COUNT; i++) {
			int k = (i + 1) % COUNT;

			CHECK_IS(shmring_release_copied(m, l[k].first, l[k].end, message[k].data, &copy[k]),
				 SHMRING_OK);
			CHECK_IS(shmring_release_copied(m, l[k].first, l[k].end, message[k].data, &copy[k]),
				 SHMRING_E_INVALID);
		}
		CHECK_IS(shmring_consumer_hold(m), UINT64_MAX);
		for (int i = 0; i < 2 * COUNT; i++) { /* more than a lap */
			struct shmring_lease lap;
			struct shmring_message other;

			memset(written, 0xee, BYTES);
			NEED(shmring_push(p, written, BYTES, KIND_BYTES, NULL) == SHMRING_OK);
			CHECK_IS(shmring_take_one(m, &lap, &other), SHMRING_OK);
			CHECK(memcmp(other.data, written, BYTES) == 0);
			CHECK_IS(shmring_release(m, lap.first, lap.end), SHMRING_OK);
		}
		for (int i = 0; i < COUNT; i++) {
			fill(written, BYTES, base + (uint64_t)i);
			CHECK(memcmp(message[i].data, written, BYTES) == 0);
		}
		for (int i = 0; i < COUNT; i++)
			shmring_drop_copy(r, &copy[i]);
		CHECK(!r->older_maps);
		base = shmring_claimed(r);
	}
}

TEST(time_is_kept_as_asked)
{
	uint64_t at;
	struct shmring_message message;

	for (uint8_t clock = 0; clock < 3; clock++) {
		shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .clock = clock});
		shmring_producer *p = producer_of(r);
		shmring_consumer *m = consumer_of(r, "b");
		clockid_t kept = clock == SHMRING_CLOCK_PRECISE ? CLOCK_REALTIME : CLOCK_REALTIME_COARSE;
		uint64_t before = now_ns(kept), after;

		push_n(p, 0, 1);
		after = now_ns(kept);
		struct shmring_lease l = lease_of(m, 1);

		at = l.first;
		CHECK_IS(shmring_read(r, &at, l.end, &message), SHMRING_OK);
		if (clock == SHMRING_CLOCK_OFF)
			CHECK_IS(message.time, 0);
		else
			CHECK(before <= message.time && message.time <= after);
		end_all();
	}
}
