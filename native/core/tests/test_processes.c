/* Processes, each with a mapping of its own. */
#include "traffic.h"

struct worker {
	struct traffic *traffic;
	uint32_t id;
	bool produces;
};

static int work(void *argument)
{
	struct worker *w = argument;
	shmring *r = ring_again(w->traffic->path);

	if (w->produces)
		traffic_produce(w->traffic, r, w->id);
	else
		traffic_consume(w->traffic, r, w->id);
	shmring_close(r);
	return 0;
}

static bool without_membarrier;

static void run(const struct shmring_options *o, struct traffic *t, bool chained)
{
	pid_t children[MAX_PRODUCERS + 32];
	uint32_t n = 0;
	shmring *r = ring_with(o);

	if (without_membarrier)
		r = ring_without_membarrier(r);
	traffic_branches(t, r, chained);
	for (uint32_t i = 0; i < t->producers; i++)
		children[n++] = spawn(work, &(struct worker){t, i, true});
	for (uint32_t b = 0; b < t->branches; b++)
		for (uint32_t i = 0; i < t->consumers; i++)
			children[n++] = spawn(work, &(struct worker){t, b, false});
	for (uint32_t i = 0; i < n; i++)
		CHECK_IS(reap(children[i]), 0);
	traffic_verdict(t, r);
	printf("  %" PRIu64 " laps\n", shmring_claimed(r) / o->slots);
	traffic_free(t);
	ring_end(r);
}

TEST(one_producer_one_consumer)
{
	struct traffic *t = traffic_new(1, 1, 1, 100000 * stress());

	t->batches = true;
	run(&(struct shmring_options){.slots = 1024, .single_producer = true}, t, false);
}

TEST(four_producers_four_consumers)
{
	struct traffic *t = traffic_new(4, 1, 4, 25000 * stress());

	t->max_bytes = 900;
	t->abort_some = true;
	t->batches = true;
	run(&(struct shmring_options){.slots = 1024, .checksum = true}, t, false);
}

TEST(three_producers_three_branches_of_two)
{
	struct traffic *t = traffic_new(3, 3, 2, 15000 * stress());

	t->batches = true;
	run(&(struct shmring_options){.slots = 4096}, t, false);
}

TEST(a_chain_of_three_branches)
{
	struct traffic *t = traffic_new(2, 3, 2, 15000 * stress());

	t->batches = true;
	t->abort_some = true;
	run(&(struct shmring_options){.slots = 1024}, t, true);
}

TEST(scattered_with_small_messages)
{
	struct traffic *t = traffic_new(3, 2, 1, 20000 * stress());

	t->batches = true;
	run(&(struct shmring_options){.slots = 1024, .scattered = true}, t, false);
}

TEST(every_way_of_waiting)
{
	for (uint8_t strategy = SHMRING_WAIT_YIELD; strategy < SHMRING_WAIT_STRATEGIES; strategy++) {
		struct traffic *t = traffic_new(2, 1, 2, 5000 * stress());

		t->strategy = strategy;
		run(&(struct shmring_options){.slots = 1024}, t, false);
	}
}

TEST(full_fences_where_there_is_no_membarrier)
{
	without_membarrier = true;
	three_producers_three_branches_of_two();
	every_way_of_waiting();
	without_membarrier = false;
}

int main(void)
{
	return run_tests();
}
