/* Threads over one handle: what ThreadSanitizer can see. */
#include <pthread.h>

#include "traffic.h"

struct worker {
	struct traffic *traffic;
	shmring *ring;
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

static void run(const struct shmring_options *o, struct traffic *t, bool chained)
{
	pthread_t threads[MAX_PRODUCERS + 32], looker;
	struct worker workers[MAX_PRODUCERS + 32];
	uint32_t n = 0;
	shmring *r = ring_with(o);
	struct stop stop = {r, 0};

	traffic_branches(t, r, chained);
	for (uint32_t i = 0; i < t->producers; i++)
		workers[n++] = (struct worker){t, r, i, true};
	for (uint32_t b = 0; b < t->branches; b++)
		for (uint32_t i = 0; i < t->consumers; i++)
			workers[n++] = (struct worker){t, r, b, false};
	pthread_create(&looker, NULL, look_on, &stop);
	for (uint32_t i = 0; i < n; i++)
		pthread_create(&threads[i], NULL, work, &workers[i]);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	store_relaxed(&stop.now, 1);
	pthread_join(looker, NULL);
	traffic_verdict(t, r);
	printf("  %" PRIu64 " laps\n", shmring_claimed(r) / 1024);
	traffic_free(t);
	ring_end(r);
}

TEST(one_producer_one_consumer)
{
	struct traffic *t = traffic_new(1, 1, 1, 20000 * stress());

	t->batches = true;
	run(&(struct shmring_options){.slots = 1024, .single_producer = true}, t, false);
}

TEST(three_producers_three_consumers_messages_of_several_slots)
{
	struct traffic *t = traffic_new(3, 1, 3, 8000 * stress());

	t->max_bytes = 1500;
	t->abort_some = true;
	run(&(struct shmring_options){.slots = 1024, .checksum = true}, t, false);
}

TEST(three_producers_two_branches_of_two_batches)
{
	struct traffic *t = traffic_new(3, 2, 2, 8000 * stress());

	t->batches = true;
	t->abort_some = true;
	run(&(struct shmring_options){.slots = 1024}, t, false);
}

TEST(a_chain_of_three_branches_on_a_scattered_ring)
{
	struct traffic *t = traffic_new(2, 3, 2, 6000 * stress());

	t->batches = true;
	run(&(struct shmring_options){.slots = 1024, .scattered = true, .clock = SHMRING_CLOCK_OFF}, t, true);
}

TEST(waiting_by_yielding)
{
	struct traffic *t = traffic_new(2, 1, 2, 6000 * stress());

	t->strategy = SHMRING_WAIT_YIELD;
	run(&(struct shmring_options){.slots = 1024}, t, false);
}

/* Joins, leaves, subscriptions and looks from many threads of one handle. */
static void *churn(void *argument)
{
	shmring *r = argument;
	char name[32];

	snprintf(name, sizeof name, "%lx", (unsigned long)pthread_self());
	for (unsigned i = 0; i < 150 * stress(); i++) {
		shmring_producer *p = producer_of(r);
		shmring_consumer *m = consumer_with(r, i % 2 ? name : "shared", NULL);

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
	ring_end(r);
}
