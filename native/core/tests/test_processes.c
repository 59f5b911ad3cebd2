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
	uint64_t told = 0, free = 0;
	pid_t children[2];

	NEED(shmring_subscribe(r, "b", NULL, NULL) == SHMRING_OK);
	snprintf(t->path, sizeof t->path, "%s", ring_path());
	for (int i = 0; i < 2; i++)
		children[i] = spawn(take_turns, t);
	while (told < 20000 * stress() && !check_broken)
		for (uint32_t i = KEPT; i < 5; i++) {
			if (shmring_participant_info(r, i, &seat)) {
				free++;
				continue;
			}
			told++;
			CHECK(is_one_of_them(&seat));
			if (check_broken)
				printf("  \"%s\", role %u, process %u%s\n", seat.name, seat.role, seat.pid,
				       seat.alive ? "" : ", dead");
		}
	store_relaxed(&t->over, 1);
	for (int i = 0; i < 2; i++)
		CHECK_IS(reap(children[i]), 0);
	printf("  %" PRIu64 " times taken, %" PRIu64 " times free\n", told, free);
	munmap(t, sizeof *t);
	ring_end(r);
}
