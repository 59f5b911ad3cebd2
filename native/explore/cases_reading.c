/* Cases of reading and writing ahead: a consumer reads messages before it takes them, a reader of the
 * table or of a seat holds nothing, and a producer writes slots before it claims them. */
#include "cases.h"

/* Publishes all numbers. The producer claims one slot, fills the free slots after it too, and publishes
 * them together. */
static void produce_ahead(int me)
{
	const struct actor *a = &exploring->actor[me];
	shmring_producer *p = world.producer[me];

	for (uint64_t number = a->from; number < a->to;) {
		uint64_t lo = claim_slots(me, 1), room = (uint64_t)shmring_producer_available(p) - lo,
			 n = a->to - number;

		n = n < room ? n : room;
		for (uint64_t i = 0; i < n; i++)
			fill(me, lo + i, number + i);
		MUST(shmring_publish_ones(p, lo + n - 1, NULL, 8) == SHMRING_OK);
		for (; n; n--)
			world.ghost.committed[number++] = 1;
	}
}

/* Reads all messages that the consumer could take, before it takes any. */
static void consume_read(int me)
{
	shmring_consumer *m = world.consumer[me];

	for (;;) {
		uint64_t at = load_relaxed(&m->branch->taken.v) >> 8, end, number;
		struct shmring_message message;

		explore_look();
		end = shmring_consumer_available(m);
		MUST(shmring_consumer_reach(m) >= end);
		while (at < end) {
			MUST(shmring_read(m->ring, &at, end, &message) == SHMRING_OK);
			memcpy(&number, message.data, 8);
			MUST(number < NUMBERS);
		}
		take_or_wait(me, 2);
	}
}

/* Publishes a message of two slots. A consumer that scans the two short messages in these slots may
 * read entries of two laps, and must not report them as damage. */
static void produce_a_long_one(int me)
{
	(void)claim_slots(me, 2);
	MUST(shmring_publish(world.producer[me], SLOT_BYTES + 1, KIND_BYTES, 0) == SHMRING_OK);
}

static void two_short_ones(void)
{
	(void)make_branch("a", (struct shmring_branch_options){0});
	push_before(2);
	memset(world.ghost.committed, 0, sizeof world.ghost.committed);
	seat_actors();
}

static void consume_any_length(int me)
{
	shmring_consumer *m = world.consumer[me];

	for (;;) {
		struct shmring_lease l;
		int status;

		explore_look();
		status = shmring_take(m, 2, 1, &l);
		if (status != SHMRING_UNAVAILABLE)
			explore_found();
		MUST(status == SHMRING_OK || status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED);
		if (status == SHMRING_OK)
			MUST(shmring_release(m, l.first, l.end) == SHMRING_OK);
		if (status == SHMRING_UNAVAILABLE)
			explore_wait();
	}
}

/* Returns the length of the message at a sequence: all messages differ in length, so that
 * read_table() notices a row made of two messages. A producer may overwrite a slot while it is read,
 * because a reader of the table holds no slot. */
static uint32_t length_of(uint64_t sequence)
{
	return 1 + (uint32_t)sequence;
}

static void produce_lengths(int me)
{
	const struct actor *a = &exploring->actor[me];
	uint64_t number = 0;

	for (uint64_t i = a->from; i < a->to; i++)
		MUST(shmring_push(world.producer[me], &number, length_of(i), KIND_BYTES, NULL) == SHMRING_OK);
}

static struct shmring_row row_at(int me, uint64_t slot)
{
	struct shmring_row row;
	uint8_t message[8];

	MUST(shmring_table_row(&handles[me], slot, &row, message, sizeof message) == SHMRING_OK);
	return row;
}

static void read_table(int me)
{
	for (uint64_t slot = 0; slot < exploring->slots; slot++) {
		struct shmring_row row = row_at(me, slot);

		MUST(!row.filled || row.length == length_of(row.message_id));
	}
}

/* Checks that the messages of a run become visible together: if row 1 is filled, row 0 is filled, too. */
static void read_table_backwards(int me)
{
	bool later = row_at(me, 1).filled;

	MUST(row_at(me, 0).filled || !later);
}

/* Checks that the second row of a dead producer's half-filled claim never shows a message. */
static void read_the_second_row(int me)
{
	MUST(!row_at(me, 1).filled);
}

/* Each owner of the seat has a number, and stores it as its role, branch, name and claim. A reader of the
 * seat must see one number in all of them, although owners follow each other. */
enum { A_THIRD_ROLE = ROLE_CONSUMER + 1 };

static uint32_t sit_down(int me, uint32_t number)
{
	char name[] = {(char)('0' + number), 0};
	uint32_t index, barred;

	MUST(seat_try(&handles[me], number, name, number, &index, &barred) == SHMRING_OK);
	store_relaxed(&memory.seats[index].intent.lo, number);
	return index;
}

static void the_first_sits(void)
{
	MUST(sit_down(0, ROLE_PRODUCER) == 0);
}

static void make_room_for_the_second(int me)
{
	seat_give_back(&handles[me], 0);
	MUST(sit_down(me, ROLE_CONSUMER) == 0);
}

static void make_room_twice(int me)
{
	make_room_for_the_second(me);
	seat_give_back(&handles[me], 0);
	MUST(sit_down(me, A_THIRD_ROLE) == 0);
}

static void an_orphan_sits(void)
{
	seat_prepare(&memory.seats[0], 0);
	store_release(&memory.seats[0].id.state, SEAT_ORPHAN);
}

static void take_the_seat_of_the_orphan(int me)
{
	store_release(&memory.seats[0].id.state, SEAT_FREE);
	MUST(sit_down(me, ROLE_CONSUMER) == 0);
}

static void look_at_the_seat(int me)
{
	struct shmring_participant_info info;
	struct seat_owner owner;

	if (!read_seat(&handles[me], 0, &owner, &info))
		return;
	if (info.state == SEAT_ORPHAN) {
		MUST(!info.alive && !info.pid && !info.branch && !info.name[0] && info.claim == NONE);
		return;
	}
	MUST(info.alive && info.role == info.branch && info.name[0] == (char)('0' + info.role));
	MUST(info.claim == info.role || (info.claim == NONE && info.role != ROLE_PRODUCER));
}

/* CHANGE: edit this for a new case of the explorer */
static const struct exploration cases[] = {
    {.name = "a single producer writes ahead of its claim",
     .weak = true,
     .slots = 2,
     .options = OPT_SINGLE_PRODUCER,
     .before = an_exclusive_branch,
     .keeps = 1,
     .actor = {{PRODUCER(produce_ahead), .from = 0, .to = 4}, {SERVES}}},
    {.name = "a consumer reads before it takes while a producer laps",
     .weak = true,
     .slots = 2,
     .before = an_exclusive_branch,
     .keeps = 1,
     .actor = {{PUSHES(0, 3)}, {CONSUMER(consume_read), .stays = true}}},
    {.name = "a long message overwrites what two consumers scan",
     .weak = true,
     .slots = 2,
     .before = two_short_ones,
     .actor = {{PRODUCER(produce_a_long_one)},
	       {CONSUMER(consume_any_length), .stays = true},
	       {CONSUMER(consume_any_length), .stays = true}}},
    {.name = "a long message overwrites what nobody reads",
     .weak = true,
     .slots = 2,
     .before = a_full_ring,
     .actor = {{PRODUCER(produce_a_long_one)}, {PUSHES(0, 1)}}},
    {.name = "the table is read while a producer laps",
     .weak = true,
     .slots = 2,
     .before = seat_actors,
     .actor = {{PRODUCER(produce_lengths), .from = 0, .to = 4}, {.body = read_table}}},
    {.name = "the table is read while a hole is recovered",
     .weak = true,
     .slots = 4,
     .before = a_hole,
     .keeps = 1,
     .actor = {{.body = recover}, {.body = read_the_second_row}}},
    {.name = "the table is read while a run comes",
     .weak = true,
     .slots = 2,
     .before = seat_actors,
     .actor = {{PUSHES_RUN(0, 1)}, {.body = read_table_backwards}}},
    {.name = "a seat is read while it changes hands",
     .weak = true,
     .slots = 2,
     .before = the_first_sits,
     .actor = {{.body = make_room_for_the_second}, {.body = look_at_the_seat}}},
    {.name = "a seat changes hands twice while it is read, and the clock stands still",
     .slots = 2,
     .before = the_first_sits,
     .actor = {{.body = make_room_twice}, {.body = look_at_the_seat}}},
    {.name = "an orphan's seat is read while it changes hands",
     .weak = true,
     .slots = 2,
     .before = an_orphan_sits,
     .actor = {{.body = take_the_seat_of_the_orphan}, {.body = look_at_the_seat}}},
};

const struct cases cases_of_reading = {cases, sizeof cases / sizeof *cases};
