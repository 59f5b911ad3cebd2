/* Stray writes, word by word: between the calls of one process, and by another one in the middle
 * of calls. Each call gets an answer: nobody crashes, reads outside the map or hangs. What a seat
 * says of its owner's own leases makes no difference to him. */
#include "check.h"

#include <sys/resource.h>

enum { ROUNDS = 500, STEPS = 400, HELD = 64, PEERS = 4 };

/* --- one word -------------------------------------------------------------------- */

TEST(a_stray_write_into_a_seats_ranges_changes_no_release)
{
	for (uint64_t word = 0; word < 2 * LEASES; word++) {
		shmring *r = ring_new();
		shmring_producer *p = producer_of(r);
		shmring_consumer *m = consumer_of(r, "b");
		uint64_t *ranges = (uint64_t *)m->seat->range;

		push_n(p, 0, 200);
		lease_of(m, 200);
		ranges[word] =
		    word % 4 ? 0 : 200; /* every fourth word records all messages once more, the others none */
		for (uint64_t i = 1; i < 199; i += 2)
			CHECK_IS(shmring_release(m, i, i + 1), SHMRING_OK);
		for (uint64_t i = 0; i < 200; i += 2)
			CHECK_IS(shmring_release(m, i, i + 1), SHMRING_OK);
		CHECK_IS(shmring_release(m, 199, 200), SHMRING_OK);
		CHECK_IS(shmring_consumer_hold(m), UINT64_MAX);
		CHECK_IS(branch_released(r, m->branch, false), 200);
		end_all();
	}
}

RING_TEST(ranges_that_overlap_are_those_of_a_damaged_ring)
{
	struct shmring_lease l;

	push_n(p, 0, 200);
	lease_of(m, 200);
	for (uint64_t i = 1; i < 2 * LEASES - 2; i += 2) /* one entry is left */
		CHECK_IS(shmring_release(m, i, i + 1), SHMRING_OK);
	m->branch->taken.v = UINT64_C(120) << 8 | m->seat_index; /* it is held, to the end */
	CHECK_IS(shmring_take(m, 10, 10, &l), SHMRING_E_DAMAGED);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_E_DAMAGED);
	CHECK_IS(shmring_release(m, 122, 125), SHMRING_OK);
	CHECK_IS(shmring_release(m, 130, 131), SHMRING_OK); /* deferred */
	CHECK_IS(shmring_release(m, 132, 133), SHMRING_OK);
}

/* The range of an orphan and the range of its heir overlap. */
RING_TEST(what_a_consumer_holds_is_not_adopted_again)
{
	shmring *other = ring_again(ring_path());
	shmring_consumer *dead = consumer_of(other, "b");
	struct shmring_lease l;
	uint32_t seat;

	push_n(p, 0, 20);
	lease_of(m, 10);
	lease_of(dead, 10);
	seat = dead->seat_index;
	shmring_consumer_abandon(dead);
	r->seats[seat].range[0].lo = 5;
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_E_DAMAGED);
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_UNAVAILABLE); /* said once */
	CHECK_IS(shmring_release(m, 0, 10), SHMRING_OK);
}

RING_TEST(no_lease_is_larger_than_the_ring)
{
	struct shmring_lease l;

	push_n(p, 0, 1000);
	for (uint64_t i = 1; i < 1000; i++) { /* each says that it is as long as the ring */
		r->control[i].run = 1024;
		r->control[i].published = i + 1;
	}
	CHECK_IS(shmring_take(m, UINT32_MAX, UINT64_MAX, &l), SHMRING_OK);
	CHECK(l.end - l.first <= r->capacity);
	r->control[1].kind = KIND_ABORTED; /* and one that counts for nothing comes first */
	CHECK(shmring_measure(r, 1, UINT64_MAX, UINT32_MAX, UINT64_MAX, &l.end, &l.messages) != SHMRING_OK ||
	      l.end - 1 <= r->capacity);
}

/* --- any words, while two consumers, a producer and a dead one's leases go on -------------- */

struct life {
	shmring *r, *other;
	shmring_producer *p;
	shmring_consumer *m[3];
	struct shmring_lease held[3][HELD];
	size_t count[3];
	uint64_t seed;
};

static uint64_t below(struct life *v, uint64_t n)
{
	return (random_next(&v->seed) >> 11) % n;
}

/* The seats and the cursors above all; the schema and what lies in the slots say nothing here. */
static uint64_t *any_word(struct life *v)
{
	shmring *r = v->r;
	uint64_t where = below(v, 16);

	if (where < 7)
		return (uint64_t *)&r->seats[below(v, 6)] + below(v, sizeof(struct seat) / 8);
	if (where < 11)
		return (uint64_t *)r->cursors +
		       below(v, (offsetof(struct cursors, branch) + 3 * sizeof(struct branch)) / 8);
	if (where < 15)
		return (uint64_t *)r->control + below(v, 300 * CONTROL_BYTES / 8);
	return (uint64_t *)r->base + below(v, HEADER_BYTES / 8);
}

static uint64_t any_value(struct life *v, uint64_t old)
{
	static const uint64_t edges[] = {0,
					 1,
					 2,
					 NONE,
					 NONE - 1,
					 MAX_SEQUENCE,
					 MAX_SEQUENCE - 1,
					 UINT64_C(1) << 63,
					 UINT64_C(1) << 32,
					 UINT32_MAX,
					 1023,
					 1024,
					 1025,
					 2048};
	uint64_t claim = load_relaxed(&v->r->cursors->claim.v);

	switch (below(v, 8)) {
	case 0:
		return edges[below(v, sizeof edges / sizeof *edges)];
	case 1:
		return random_next(&v->seed);
	case 2:
		return old ^ UINT64_C(1) << below(v, 64);
	case 3:
		return old + below(v, 5) - 2;
	case 4: /* format of the word `taken` */
		return (claim - below(v, 1500)) << 8 | below(v, 256);
	case 5: /* format of a seat's take word */
		return (claim - below(v, 1500)) << 7 | below(v, 128);
	case 6:
		return below(v, 2500);
	default:
		return claim - below(v, 1500) + 20;
	}
}

static void take_some(struct life *v, size_t i)
{
	struct shmring_lease *l = &v->held[i][v->count[i]];
	struct shmring_message message;
	volatile uint32_t sum = 0;

	if (v->count[i] == HELD ||
	    shmring_take(v->m[i], 1 + (uint32_t)below(v, 40), 1 + below(v, 60), l) != SHMRING_OK)
		return;
	for (uint64_t at = l->first; shmring_read(v->r, &at, l->end, &message) == SHMRING_OK;)
		sum += shmring_crc32c(0, message.data, message.length);
	if (shmring_rows(v->r, l->first, l->end))
		sum += shmring_crc32c(0, shmring_rows(v->r, l->first, l->end),
				      (size_t)(l->end - l->first) * SLOT_BYTES);
	v->count[i]++;
}

/* A lease, or a part of one, or one that is none. */
static void let_go(struct life *v, size_t i)
{
	size_t k = v->count[i] ? below(v, v->count[i]) : 0;
	struct shmring_lease l = v->held[i][k];
	uint64_t n = l.end - l.first;

	if (!v->count[i])
		return;
	if (n > 1 && below(v, 4)) {
		l.first += below(v, n);
		l.end = l.first + 1;
	} else {
		v->held[i][k] = v->held[i][--v->count[i]];
	}
	if (below(v, 4))
		(void)shmring_release(v->m[i], l.first, l.end);
	else
		(void)shmring_nack(v->m[i], l.first, l.end);
}

static void push_some(struct life *v)
{
	static uint8_t data[900];
	uint32_t n = 1 + (uint32_t)below(v, 30);

	switch (below(v, 6)) {
	case 0:
		(void)shmring_push(v->p, data, below(v, sizeof data), KIND_BYTES, NULL);
		break;
	case 1:
		if (shmring_next(v->p, n) >= 0)
			(void)shmring_abort(v->p);
		break;
	case 2:
		if (!below(v, 8))
			(void)shmring_push(v->p, NULL, 0, SHMRING_KIND_END, NULL);
		break;
	default:
		(void)shmring_push_many(v->p, data, 8, n, NULL, 8, NULL);
	}
}

static void look_round(struct life *v)
{
	struct shmring_branch_info branch;
	struct shmring_participant_info seat;
	struct shmring_row row;
	char text[1000];
	uint64_t end;
	uint32_t messages;

	switch (below(v, 9)) {
	case 0:
		shmring_explain_full(v->r, text, sizeof text);
		shmring_explain_empty(v->m[0], text, sizeof text);
		break;
	case 1:
		(void)shmring_branch_info(v->r, (uint32_t)below(v, BRANCHES), &branch);
		(void)shmring_participant_info(v->r, (uint32_t)below(v, v->r->seat_count), &seat);
		break;
	case 2:
		for (uint64_t i = 0; i < 20; i++)
			(void)shmring_table_row(v->r, below(v, 1024), &row, text, sizeof text);
		break;
	case 3:
		end = shmring_consumer_available(v->m[0]) + shmring_consumer_reach(v->m[1]);
		(void)shmring_measure(v->r, end - below(v, 2000), end, 100, 1000, &end, &messages);
		break;
	case 4:
		(void)shmring_wait_message(v->m[0], clock_ns(), SHMRING_WAIT_DEFAULT);
		(void)shmring_wait_space(v->p, 1, clock_ns(), SHMRING_WAIT_DEFAULT);
		break;
	case 5:
		(void)shmring_recover(v->r, NULL);
		break;
	case 6:
		(void)shmring_subscribe(v->r, "guest", NULL, NULL);
		(void)shmring_unsubscribe(v->r, "guest");
		break;
	case 7:
		if (v->m[2])
			shmring_consumer_abandon(v->m[2]);
		v->m[2] = NULL;
		v->count[2] = 0;
		break;
	default:
		if (!v->m[2] && shmring_join(v->other, "b", NULL, "again", &v->m[2]))
			v->m[2] = NULL;
	}
}

static void take_a_step(struct life *v)
{
	size_t i = below(v, v->m[2] ? 3 : 2);

	switch (below(v, 8)) {
	case 0:
	case 1:
		push_some(v);
		break;
	case 2:
	case 3:
		take_some(v, i);
		break;
	case 4:
	case 5:
	case 6:
		let_go(v, i);
		break;
	default:
		look_round(v);
	}
}

static void scribble(struct life *v)
{
	uint64_t *word = any_word(v);

	*word = any_value(v, *word);
}

/* After some steps a word. Each second life ends by closing, the others as by a kill. */
static int live(void *seed)
{
	uint64_t number = *(uint64_t *)seed;
	struct life v = {.seed = number * UINT64_C(0x9e3779b97f4a7c15) + 1};
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .drop_oldest = number % 5 == 4};
	struct shmring_options options = {
	    .slots = 1024, .participants = 6, .checksum = number % 3 == 2, .single_producer = number % 4 == 3};

	uint64_t pause = number % 11 < 4 ? 150 : number % 11 < 8 ? 40 : 10;

	setrlimit(RLIMIT_CORE, &(struct rlimit){0});
	alarm(300);
	v.r = ring_with(&options);
	v.other = ring_again(ring_path());
	unlink(ring_path());
	v.p = producer_of(v.r);
	v.m[0] = consumer_with(v.r, "b", &o);
	v.m[1] = consumer_with(v.r, "b", &o);
	v.m[2] = consumer_with(v.other, "b", &o);
	for (int step = 0; step < STEPS; step++) {
		take_a_step(&v);
		if (below(&v, pause) == 0)
			scribble(&v);
	}
	if (number & 1)
		_exit(0);
	for (size_t i = 0; i < 3; i++)
		shmring_consumer_close(v.m[i]);
	shmring_producer_close(v.p);
	shmring_close(v.other);
	shmring_close(v.r);
	_exit(0); /* results of earlier rounds do not matter here */
}

TEST(whatever_word_is_overwritten_each_call_gets_an_answer)
{
	const char *from = getenv("SHMRING_SEED"); /* seed of a round that failed, to repeat it */
	uint64_t seed = from ? strtoull(from, NULL, 0) : 1;
	uint64_t end = from ? seed + 1 : seed + ROUNDS * stress();

	for (; seed < end; seed++) {
		int code = reap(spawn(live, &seed));

		if (code)
			printf("  SHMRING_SEED=%llu: %d\n", (unsigned long long)seed, code);
		CHECK_IS(code, 0);
	}
}

/* --- by a peer, while others are in the middle of their calls ------------------------------ */

static struct {
	char path[64];
	uint64_t answers; /* answers of all children in this round */
	uint32_t stop;
} *scene;

static int live_on(void *unused)
{
	struct life v = {.seed = (uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15) + 1};

	(void)unused;
	if (shmring_attach(scene->path, 0, &v.r) || shmring_attach(scene->path, 0, &v.other) ||
	    shmring_producer_open(v.r, "p", &v.p) || shmring_join(v.r, "b", NULL, "m", &v.m[0]) ||
	    shmring_join(v.r, "f", NULL, "m", &v.m[1]))
		return 0;
	while (!load_acquire(&scene->stop)) {
		for (int step = 0; step < 20; step++)
			take_a_step(&v);
		(void)shmring_wait_message(v.m[0], clock_ns() + 2000000, SHMRING_WAIT_DEFAULT);
		(void)shmring_wait_space(v.p, 1, clock_ns() + 2000000, SHMRING_WAIT_DEFAULT);
		__atomic_fetch_add(&scene->answers, 1, __ATOMIC_RELAXED);
	}
	return 0;
}

static void scribble_for_a_while(uint64_t round)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .drop_oldest = round % 3 == 2};
	struct life v = {.seed = round + 20261121};
	pid_t peers[PEERS];
	int64_t end;
	uint32_t id;

	v.r = ring_with(&(struct shmring_options){.slots = 1024, .participants = 16, .checksum = round & 1});
	snprintf(scene->path, sizeof scene->path, "%s", ring_path());
	scene->answers = scene->stop = 0;
	NEED(shmring_subscribe(v.r, "b", &o, &id) == SHMRING_OK);
	o.upstream = UINT64_C(1) << id;
	NEED(shmring_subscribe(v.r, "f", &o, &id) == SHMRING_OK);
	for (int i = 0; i < PEERS; i++)
		peers[i] = spawn(live_on, NULL);
	while (load_relaxed(&scene->answers) < 100) /* all are at work */
		nap_ms(1);
	for (end = clock_ns() + 60000000; clock_ns() < end; nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL))
		for (int i = 0; i < 20; i++)
			scribble(&v);
	store_release(&scene->stop, 1);
	for (int i = 0; i < PEERS; i++)
		CHECK_IS(reap(peers[i]), 0); /* by itself, and soon: run_tests() set an alarm */
	end_all();
}

TEST(whatever_a_peer_writes_the_others_get_answers)
{
	scene = shared_memory(sizeof *scene);
	for (uint64_t round = 0; round < 40 * stress(); round++)
		scribble_for_a_while(round);
	munmap(scene, sizeof *scene);
}
