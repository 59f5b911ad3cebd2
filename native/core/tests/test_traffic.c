/* Traffic by threads over one handle, which ThreadSanitizer can see, and by processes, each with a
 * mapping of its own: every message arrives once at every branch, untouched, and in its producer's
 * order. */
#include <pthread.h>

#include "body.h"

enum { MAX_PRODUCERS = 8, MAX_TRAFFIC_BRANCHES = 4 };

struct traffic {
	char path[64];
	uint32_t producers, branches, consumers; /* consumers of each branch */
	uint64_t each; /* messages of each producer */
	uint32_t max_bytes;
	uint8_t strategy;
	bool chained; /* each branch behind the one before */
	bool batches;
	bool abort_some;
	uint64_t errors;
	uint64_t redelivered;
	uint64_t received[MAX_TRAFFIC_BRANCHES];
	uint8_t seen[]; /* [branch][producer][number] */
};

static uint8_t *seen_at(struct traffic *t, uint32_t branch, uint32_t producer, uint64_t number)
{
	return &t->seen[((uint64_t)branch * t->producers + producer) * t->each + number];
}

static struct traffic *traffic_new(const struct traffic *wanted, uint64_t each)
{
	struct traffic *t = shared_memory(sizeof *t + wanted->branches * wanted->producers * each);

	*t = *wanted;
	if (!t->max_bytes)
		t->max_bytes = 280;
	snprintf(t->path, sizeof t->path, "%s", ring_path());
	t->each = each;
	return t;
}

static void traffic_free(struct traffic *t)
{
	munmap(t, sizeof *t + t->branches * t->producers * t->each);
}

#define TRAFFIC_ERROR(t, ...)                                                                                     \
	do {                                                                                                      \
		if (__atomic_fetch_add(&(t)->errors, 1, __ATOMIC_RELAXED) < 5)                                    \
			printf("  " __VA_ARGS__);                                                                 \
	} while (0)

static void traffic_produce(struct traffic *t, shmring *r, uint32_t id)
{
	shmring_producer *p = producer_of(r);
	uint64_t seed = 0x9e3779b97f4a7c15 * (id + 1);

	for (uint64_t number = 0; number < t->each;) {
		uint32_t length = (uint32_t)sizeof(struct body) +
				  (uint32_t)(random_next(&seed) % (t->max_bytes - sizeof(struct body)));
		bool batch = t->batches && seed % 3 == 0;
		uint32_t n = batch ? 1 + (uint32_t)(seed >> 20) % 50 : (uint32_t)shmring_slots_for(length, false);
		bool give_up = t->abort_some && (seed >> 30) % 16 == 0;
		uint64_t lo = claim(p, n, t->strategy);
		uint32_t lengths[50];
		int status;

		if (give_up) {
			NEED(shmring_abort(p) == SHMRING_OK);
			continue;
		}
		if (batch) {
			if (n > t->each - number)
				n = (uint32_t)(t->each - number);
			for (uint32_t i = 0; i < n; i++) {
				lengths[i] = (uint32_t)sizeof(struct body) + (uint32_t)(random_next(&seed) % 200);
				body_fill(shmring_slot(r, lo + i), id, number + i, lengths[i], &seed);
			}
			status = shmring_publish_ones(p, lo + n - 1, lengths, 0);
			number += n;
		} else {
			body_fill(shmring_slot(r, lo), id, number, length, &seed);
			status = shmring_publish(p, length, KIND_BYTES, 0);
			number++;
		}
		NEED(status == SHMRING_OK);
	}
	shmring_producer_close(p);
}

static void traffic_check(struct traffic *t, uint32_t branch, const struct shmring_message *message,
			  bool redelivered, int64_t *last)
{
	struct body b;

	if (message->length < sizeof b) {
		TRAFFIC_ERROR(t, "message %" PRIu64 " has %u bytes\n", message->message_id, message->length);
		return;
	}
	if (!body_read(message, &b) || b.producer >= t->producers || b.number >= t->each) {
		TRAFFIC_ERROR(t, "message %" PRIu64 " is torn\n", message->message_id);
		return;
	}
	if (__atomic_fetch_add(seen_at(t, branch, b.producer, b.number), 1, __ATOMIC_RELAXED) != 0 && !redelivered)
		TRAFFIC_ERROR(t, "branch %u got %u/%" PRIu64 " twice\n", branch, b.producer, b.number);
	if (!redelivered && last[b.producer] >= (int64_t)b.number)
		TRAFFIC_ERROR(t, "branch %u got %u/%" PRIu64 " after %" PRId64 "\n", branch, b.producer, b.number,
			      last[b.producer]);
	if (!redelivered)
		last[b.producer] = (int64_t)b.number;
}

static void traffic_consume(struct traffic *t, shmring *r, uint32_t branch)
{
	shmring_consumer *m = consumer_of(r, branch_name(branch));
	int64_t last[MAX_PRODUCERS];
	uint64_t seed = (uint64_t)getpid() << 32 | branch << 8 | 1;

	memset(last, -1, sizeof last);
	while (__atomic_load_n(&t->received[branch], __ATOMIC_RELAXED) < t->each * t->producers) {
		struct shmring_lease l;
		struct shmring_message message;
		uint64_t at, n = 0;
		int status = take(m, 1 + (uint32_t)(random_next(&seed) % 20), 64, t->strategy, &l);

		if (status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED)
			continue;
		if (status) {
			TRAFFIC_ERROR(t, "take: %d: %s\n", status, shmring_error_message());
			break;
		}
		for (at = l.first; (status = shmring_read(r, &at, l.end, &message)) == SHMRING_OK; n++)
			traffic_check(t, branch, &message, l.redelivered, last);
		if (status != SHMRING_UNAVAILABLE || n != l.messages)
			TRAFFIC_ERROR(t, "read %d, %" PRIu64 " of %u: %s\n", status, n, l.messages,
				      shmring_error_message());
		__atomic_fetch_add(l.redelivered ? &t->redelivered : &t->received[branch], n, __ATOMIC_RELAXED);
		NEED(shmring_release(m, l.first, l.end) == SHMRING_OK);
	}
	shmring_consumer_close(m);
}

/* Makes the branches, so that nothing is published before they stand. */
static void traffic_branches(struct traffic *t, shmring *r)
{
	uint32_t id = 0;

	for (uint32_t i = 0; i < t->branches; i++) {
		struct shmring_branch_options o = {.start = SHMRING_EARLIEST,
						   .exclusive = t->consumers == 1,
						   .upstream = t->chained && i ? UINT64_C(1) << id : 0};

		NEED(shmring_subscribe(r, branch_name(i), &o, &id) == SHMRING_OK);
	}
}

static void traffic_verdict(struct traffic *t, shmring *r)
{
	uint64_t missing = 0, twice = 0;

	for (uint64_t i = 0; i < t->branches * t->producers * t->each; i++) {
		missing += t->seen[i] == 0;
		twice += t->seen[i] > 1;
	}
	CHECK_IS(missing, 0);
	CHECK_IS(twice, 0);
	CHECK_IS(t->errors, 0);
	/* The last claim may have been given up after the last message. */
	for (uint32_t b = 0; b < t->branches; b++) {
		shmring_consumer *m = consumer_of(r, branch_name(b));

		CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
		shmring_consumer_close(m);
		CHECK_IS(branch_released(r, &r->cursors->branch[b], false), shmring_claimed(r));
	}
}

struct worker {
	struct traffic *traffic;
	shmring *ring; /* the threads' common handle; NULL for processes */
	uint32_t id;
	bool produces;
};

static void *work(void *argument)
{
	struct worker *w = argument;

	if (w->produces)
		traffic_produce(w->traffic, w->ring, w->id);
	else
		traffic_consume(w->traffic, w->ring, w->id);
	return NULL;
}

static int work_alone(void *argument)
{
	struct worker *w = argument;

	w->ring = ring_again(w->traffic->path);
	work(w);
	shmring_close(w->ring);
	return 0;
}

struct stop {
	shmring *ring;
	uint64_t now;
};

/* Looks at everything all the while. */
static void *look_on(void *argument)
{
	struct stop *s = argument;
	char text[512];

	while (!load_relaxed(&s->now)) {
		struct shmring_row row;
		struct shmring_participant_info seat;
		struct shmring_branch_info branch;

		for (uint64_t i = 0; i < 1024; i += 7)
			(void)shmring_table_row(s->ring, i, &row, text, sizeof text);
		for (uint32_t i = 0; i < 64; i++) {
			(void)shmring_participant_info(s->ring, i, &seat);
			(void)shmring_branch_info(s->ring, i, &branch);
		}
		(void)shmring_recover(s->ring, NULL);
	}
	return NULL;
}

static bool without_membarrier;

/* `o` with its traffic, by threads or by processes. */
static void run(const struct shmring_options *o, struct traffic *t, bool threads)
{
	struct worker workers[MAX_PRODUCERS + 32];
	pthread_t thread[MAX_PRODUCERS + 32], looker;
	pid_t child[MAX_PRODUCERS + 32];
	uint32_t n = 0;
	shmring *r = ring_with(o);
	struct stop stop = {NULL, 0};

	if (without_membarrier)
		r = ring_without_membarrier(r);
	stop.ring = r;
	traffic_branches(t, r);
	for (uint32_t i = 0; i < t->producers; i++)
		workers[n++] = (struct worker){t, r, i, true};
	for (uint32_t b = 0; b < t->branches; b++)
		for (uint32_t i = 0; i < t->consumers; i++)
			workers[n++] = (struct worker){t, r, b, false};
	if (threads)
		pthread_create(&looker, NULL, look_on, &stop);
	for (uint32_t i = 0; i < n; i++)
		if (threads)
			pthread_create(&thread[i], NULL, work, &workers[i]);
		else
			child[i] = spawn(work_alone, &workers[i]);
	for (uint32_t i = 0; i < n; i++)
		if (threads)
			pthread_join(thread[i], NULL);
		else
			CHECK_IS(reap(child[i]), 0);
	if (threads) {
		store_relaxed(&stop.now, 1);
		pthread_join(looker, NULL);
	}
	traffic_verdict(t, r);
	traffic_free(t);
	end_all();
}

/* First by processes, then by threads, which ThreadSanitizer slows: it knows nothing of full fences. */
static void run_each_way(const struct shmring_options *o, const struct traffic *wanted)
{
	for (int threads = 0; threads < (without_membarrier ? 1 : 2); threads++)
		run(o, traffic_new(wanted, wanted->each / (threads ? 4 : 1) * stress()), threads);
}

/* So many producers, branches, consumers of each branch, and messages of each producer. */
#define TRAFFIC(p, b, c, n, ...)                                                                                  \
	(&(struct traffic){.producers = (p), .branches = (b), .consumers = (c), .each = (n), __VA_ARGS__})

TEST(one_producer_one_consumer)
{
	run_each_way(&(struct shmring_options){.slots = 1024, .single_producer = true},
		     TRAFFIC(1, 1, 1, 100000, .batches = true));
}

TEST(four_producers_four_consumers_messages_of_several_slots)
{
	run_each_way(&(struct shmring_options){.slots = 1024, .checksum = true},
		     TRAFFIC(4, 1, 4, 25000, .max_bytes = 900, .batches = true, .abort_some = true));
}

TEST(three_producers_three_branches_of_two)
{
	run_each_way(&(struct shmring_options){.slots = 4096},
		     TRAFFIC(3, 3, 2, 15000, .batches = true, .abort_some = true));
}

TEST(a_chain_of_three_branches)
{
	run_each_way(&(struct shmring_options){.slots = 1024},
		     TRAFFIC(2, 3, 2, 15000, .chained = true, .batches = true, .abort_some = true));
}

TEST(every_way_of_waiting)
{
	for (uint8_t strategy = SHMRING_WAIT_YIELD; strategy < SHMRING_WAIT_STRATEGIES; strategy++)
		run_each_way(&(struct shmring_options){.slots = 1024},
			     TRAFFIC(2, 1, 2, 5000, .strategy = strategy));
}

TEST(full_fences_where_there_is_no_membarrier)
{
	without_membarrier = true;
	three_producers_three_branches_of_two();
	every_way_of_waiting();
	without_membarrier = false;
}

/* Joins, leaves, subscriptions and looks from many threads of one handle. */
static void *churn(void *argument)
{
	shmring *r = argument;
	char name[32];

	snprintf(name, sizeof name, "%lx", (unsigned long)pthread_self());
	for (unsigned i = 0; i < 150 * stress(); i++) {
		shmring_producer *p = producer_of(r);
		const struct shmring_branch_options o = {.ephemeral = i % 6 == 1, .drop_oldest = i % 4 == 1};
		shmring_consumer *m = consumer_with(r, i % 2 ? name : "shared", i % 2 ? &o : NULL);

		(void)shmring_push(p, name, sizeof name, KIND_BYTES, NULL);
		(void)pop_number(m);
		shmring_consumer_close(m);
		shmring_producer_close(p);
		if (i % 2)
			(void)shmring_unsubscribe(r, name);
	}
	return NULL;
}

TEST(joins_and_leaves_from_all_sides)
{
	pthread_t threads[4], looker;
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .participants = 16});
	struct stop stop = {r, 0};
	struct shmring_participant_info seat;

	pthread_create(&looker, NULL, look_on, &stop);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, churn, r);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	store_relaxed(&stop.now, 1);
	pthread_join(looker, NULL);
	for (uint32_t i = 1; i < 16; i++)
		CHECK_IS(shmring_participant_info(r, i, &seat), SHMRING_UNAVAILABLE);
}

/* Two processes take seats by turns, each time in another role, while we look on. */
struct turns {
	uint32_t seated; /* how many have the seats that they keep */
	uint32_t over;
	char path[64];
};

enum { KEPT = 3 }; /* the first seats: of this test's handle and of theirs */

static int take_turns(void *argument)
{
	struct turns *t = argument;
	shmring *r = ring_again(t->path);
	shmring_producer *kept = producer_of(r); /* has the handle's own seat: the others are taken and left */
	char producer[32], consumer[32];

	snprintf(producer, sizeof producer, "producer of %d", (int)getpid());
	snprintf(consumer, sizeof consumer, "consumer of %d", (int)getpid());
	fetch_add_seq_cst(&t->seated, 1);
	while (load_relaxed(&t->seated) < 2)
		nap_ms(1);
	while (!load_relaxed(&t->over)) {
		shmring_producer *p = NULL;
		shmring_consumer *m = NULL;

		NEED(shmring_producer_open(r, producer, &p) == SHMRING_OK);
		shmring_producer_close(p);
		NEED(shmring_join(r, "b", NULL, consumer, &m) == SHMRING_OK);
		shmring_consumer_close(m);
	}
	shmring_producer_close(kept);
	shmring_close(r);
	return 0;
}

/* Whether all that is told belongs to one of them, who lives. */
static bool is_one_of_them(const struct shmring_participant_info *seat)
{
	char name[SHMRING_NAME_BYTES];

	snprintf(name, sizeof name, "%s of %u", seat->role == 1 ? "producer" : "consumer", seat->pid);
	return seat->alive && strcmp(seat->name, name) == 0;
}

TEST(a_seat_that_changes_hands_is_never_told_as_a_mixture_of_two)
{
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .participants = 5});
	struct turns *t = shared_memory(sizeof *t);
	struct shmring_participant_info seat;
	uint64_t told = 0;
	pid_t children[2];

	NEED(shmring_subscribe(r, "b", NULL, NULL) == SHMRING_OK);
	snprintf(t->path, sizeof t->path, "%s", ring_path());
	for (int i = 0; i < 2; i++)
		children[i] = spawn(take_turns, t);
	while (told < 20000 * stress() && !check_broken)
		for (uint32_t i = KEPT; i < 5; i++) {
			if (shmring_participant_info(r, i, &seat))
				continue;
			told++;
			CHECK(is_one_of_them(&seat));
			if (check_broken)
				printf("  \"%s\", role %u, process %u%s\n", seat.name, seat.role, seat.pid,
				       seat.alive ? "" : ", dead");
		}
	store_relaxed(&t->over, 1);
	for (int i = 0; i < 2; i++)
		CHECK_IS(reap(children[i]), 0);
	munmap(t, sizeof *t);
}
