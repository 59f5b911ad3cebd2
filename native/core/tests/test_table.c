/* The queue table: rows of live, dead and damaged rings, never a torn one. */
#include "death.h"

/* How many rows are filled; the text of the row that has `message_id`. */
static unsigned rows(const shmring *r, uint64_t message_id, struct shmring_row *wanted, char *text)
{
	unsigned n = 0;

	for (uint64_t i = 0; i < r->capacity; i++) {
		struct shmring_row row;
		char message[SLOT_BYTES] = {0};

		CHECK_IS(shmring_table_row(r, i, &row, message, sizeof message), SHMRING_OK);
		CHECK_IS(row.slot, i);
		if (!row.filled)
			continue;
		n++;
		if (row.message_id == message_id) {
			*wanted = row;
			memcpy(text, message, sizeof message);
		}
	}
	return n;
}

static void push_text(shmring_producer *p, const char *text)
{

	CHECK_IS(shmring_push(p, text, strlen(text), KIND_BYTES, NULL), SHMRING_OK);
}

PRODUCER_TEST(a_row_says_what_was_pushed_and_who_still_has_to_release_it)
{
	shmring_consumer *a = consumer_of(r, "a"), *b = consumer_of(r, "b");
	struct shmring_lease l;
	struct shmring_row row = {0};
	char text[SLOT_BYTES];

	CHECK_IS(rows(r, 0, &row, text), 0);
	push_text(p, "first");
	push_text(p, "second");
	CHECK_IS(rows(r, 1, &row, text), 2);
	CHECK(row.message_id == 1 && row.length == 6 && row.kind == KIND_BYTES && row.time != 0);
	CHECK(strcmp(text, "second") == 0);
	CHECK_IS(row.reference_count, 2);
	NEED(shmring_take(a, 2, 2, &l) == SHMRING_OK);
	rows(r, 1, &row, text);
	CHECK_IS(row.reference_count, 2); /* taken is not released */
	NEED(shmring_release(a, 1, 2) == SHMRING_OK);
	rows(r, 1, &row, text);
	CHECK_IS(row.reference_count, 1); /* though the one before it is still held */
	rows(r, 0, &row, text);
	CHECK_IS(row.reference_count, 2);
	NEED(shmring_release(a, 0, 1) == SHMRING_OK);
}

PRODUCER_TEST(what_is_not_committed_or_was_given_up_is_no_row)
{
	shmring_producer *q = producer_of(r);
	struct shmring_row row;
	char text[SLOT_BYTES];

	CHECK_IS(shmring_next(p, 5), 0);
	fill_rows(r, 0, 5, (uint8_t)p->seat_index); /* all but the store that publishes */
	CHECK_IS(shmring_next(q, 2), 5);
	CHECK_IS(rows(r, 0, &row, text), 0);
	CHECK_IS(shmring_abort(q), SHMRING_OK);
	CHECK_IS(rows(r, 0, &row, text), 0);
	CHECK_IS(shmring_publish_ones(p, 4, NULL, 8), SHMRING_OK);
	CHECK_IS(rows(r, 0, &row, text), 5);
}

RING_TEST(what_may_be_overwritten_is_no_row)
{
	struct shmring_row row;
	char text[SLOT_BYTES];

	for (uint64_t i = 0; i < 1500; i++)
		CHECK(push_number(p, i) == SHMRING_OK && (i < 500 || pop_number(m) == (int64_t)(i - 500)));
	CHECK_IS(rows(r, 1499, &row, text), shmring_claimed(r) - shmring_floor(r));
	CHECK_IS(row.message_id, 1499);
}

TEST(a_read_only_handle_sees_the_rows_of_a_ring_whose_users_are_dead)
{
	struct puppet *c = puppet_new(produce_and_die);
	shmring *r;
	struct shmring_row row;
	char text[SLOT_BYTES];

	NEED(shmring_create(ring_path(), &(struct shmring_options){.slots = 1024}, NULL) == SHMRING_OK);
	c->step = DIES_DONE;
	c->n = 1;
	puppet_die(c);
	r = ring_as(ring_path(), SHMRING_READ_ONLY);
	CHECK_IS(rows(r, 0, &row, text), 1);
	CHECK_IS(row.reference_count, 0);
}

PRODUCER_TEST(a_damaged_entry_is_said_and_the_others_are_shown)
{
	struct shmring_row row;
	char text[SLOT_BYTES];

	push_text(p, "a");
	push_text(p, "b");
	push_text(p, "c");
	control_at(r, 1)->run = 5000;
	CHECK_IS(shmring_table_row(r, 0, &row, text, sizeof text), SHMRING_OK);
	CHECK(row.filled);
	CHECK_IS(shmring_table_row(r, 1, &row, text, sizeof text), SHMRING_E_DAMAGED);
	CHECK(!row.filled && strstr(shmring_error_message(), "damaged"));
	CHECK_IS(shmring_table_row(r, 2, &row, text, sizeof text), SHMRING_OK);
	CHECK(row.filled);
}

/* --- while a producer overwrites ----------------------------------------------------- */

static int overwrite_for_ever(struct puppet *c)
{
	uint64_t words[SLOT_BYTES / 8], id;

	c->p = producer_of(c->r);
	for (uint64_t number = 0;; number++) {
		for (size_t i = 0; i < sizeof words / sizeof *words; i++)
			words[i] = number;
		NEED(shmring_push(c->p, words, sizeof words, KIND_BYTES, &id) == SHMRING_OK);
		__atomic_store_n(&c->ready, true, __ATOMIC_RELEASE); /* there is something to see */
	}
}

TEST(a_row_is_never_torn_while_its_slot_is_overwritten)
{
	struct puppet *c = puppet_new(overwrite_for_ever);
	shmring *r = ring_new();
	uint64_t words[SLOT_BYTES / 8], filled = 0, torn = 0;
	struct shmring_row row;
	pid_t pid = puppet_start(c);

	for (unsigned round = 0; round < 300 * stress(); round++)
		for (uint64_t i = 0; i < r->capacity; i++) {
			CHECK_IS(shmring_table_row(r, i, &row, words, sizeof words), SHMRING_OK);
			if (!row.filled)
				continue;
			filled++;
			for (size_t k = 0; k < sizeof words / sizeof *words; k++)
				torn += words[k] != words[0];
		}
	puppet_kill(pid);
	CHECK(filled > 0);
	CHECK_IS(torn, 0);
}

/* --- how much waits for a branch ----------------------------------------------------- */

static uint64_t waiting(const shmring *r, const shmring_consumer *m)
{
	uint64_t messages = UINT64_MAX;

	CHECK_IS(shmring_count_waiting(r, shmring_consumer_branch(m), &messages), SHMRING_OK);
	return messages;
}

/* Keeps 8 of 10 messages: 1 of its own size, 7 of a run; releases two in their middle. */
static int keeps_eight(struct puppet *c)
{
	struct shmring_lease l;

	c->m = consumer_of(c->r, "a");
	l = lease_of(c->m, 10);
	return shmring_release(c->m, l.first + 5, l.first + 7);
}

PRODUCER_TEST(what_the_dead_hold_and_what_was_handed_back_waits)
{
	struct puppet *c = puppet_new(keeps_eight);
	shmring_consumer *a = consumer_of(r, "a");
	char bytes[3 * SLOT_BYTES] = {0};
	pid_t pid;

	CHECK_IS(shmring_push(p, bytes, sizeof bytes, KIND_BYTES, NULL), SHMRING_OK);
	CHECK_IS(shmring_push_many(p, bytes, 8, 20, NULL, 8, NULL), SHMRING_OK);
	pid = puppet_start(c);
	CHECK_IS(waiting(r, a), 11); /* living consumers have theirs */
	puppet_kill(pid);
	CHECK_IS(waiting(r, a), 19);
	CHECK_IS(recover(r), 1);
	CHECK_IS(waiting(r, a), 19);
	lease_of(a, 1);
	CHECK_IS(waiting(r, a), 18);
	CHECK_IS(shmring_nack(a, 0, 3), SHMRING_OK);
	CHECK_IS(waiting(r, a), 19);
}

PRODUCER_TEST(what_waits_is_counted_in_messages)
{
	shmring_producer *q = producer_of(r);
	shmring_consumer *a = consumer_of(r, "a"), *b = consumer_of(r, "b");
	char bytes[3 * SLOT_BYTES] = {0};
	uint64_t none;

	CHECK_IS(waiting(r, a), 0);
	CHECK_IS(shmring_push(p, bytes, sizeof bytes, KIND_BYTES, NULL), SHMRING_OK); /* 0 to 2 */
	CHECK_IS(shmring_push_many(p, bytes, 8, 10, NULL, 8, NULL), SHMRING_OK); /* to 12 */
	CHECK_IS(waiting(r, a), 11);
	CHECK_IS(shmring_next(p, 4), 13);
	CHECK_IS(shmring_abort(p), SHMRING_OK);
	push_text(p, "x"); /* 17 */
	CHECK_IS(waiting(r, a), 12);
	shmring_release(a, 0, lease_of(a, 4).end); /* the first and three of the ten */
	CHECK_IS(waiting(r, a), 8);
	CHECK_IS(waiting(r, b), 12);
	CHECK_IS(shmring_next(q, 2), 18);
	push_end(p); /* 20 */
	push_text(p, "y");
	CHECK_IS(waiting(r, a), 8); /* up to the claim */
	CHECK_IS(shmring_publish(q, 8, KIND_BYTES, 0), SHMRING_OK);
	CHECK_IS(waiting(r, a), 10); /* without the end */
	CHECK_IS(shmring_count_waiting(r, 63, &none), SHMRING_E_NO_BRANCH);
	control_at(r, 20)->run = 0; /* damaged: whoever takes it reports it */
	CHECK_IS(waiting(r, a), 9);
	control_at(r, 20)->run = 1;
}

RING_TEST_WITH(beyond_65536_messages_what_waits_is_estimated, .slots = 1 << 18)
{
	char bytes[2 * SLOT_BYTES] = {0};

	for (int i = 0; i < 1 << 17; i++)
		CHECK_IS(shmring_push(p, bytes, sizeof bytes, KIND_BYTES, NULL), SHMRING_OK);
	CHECK_IS(waiting(r, m), 1 << 17); /* all of them are of one size */
}

TEST(what_waits_is_counted_while_it_is_overwritten)
{
	struct puppet *c = puppet_new(overwrite_for_ever);
	shmring *r = ring_new();
	shmring_consumer *m = consumer_with(
	    r, "b", &(struct shmring_branch_options){.drop_oldest = true, .start = SHMRING_EARLIEST});
	pid_t pid = puppet_start(c);

	for (unsigned round = 0; round < 10000 * stress(); round++)
		CHECK(waiting(r, m) <= r->capacity);
	puppet_kill(pid);
	CHECK(waiting(r, m) > 0);
}
