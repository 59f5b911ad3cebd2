/* Kills and stops at random while traffic flows. */
#include "death.h"

static const struct shmring_branch_options earliest = {.start = SHMRING_EARLIEST};

/* --- kills at random while traffic flows -------------------------------------------------------- */

struct soak {
	char path[64];
	uint64_t committed[MAX_PRODUCERS]; /* by child: numbers below were published */
	uint64_t torn, twice, got;
	uint8_t seen[MAX_PRODUCERS][1 << 20];
};

struct soaker {
	struct soak *s;
	uint32_t id;
};

static int soak_produce(void *argument)
{
	struct soaker *w = argument;
	shmring *r = ring_again(w->s->path);
	shmring_producer *p = producer_of(r);
	uint64_t seed = (uint64_t)getpid() * 7919 + 1;
	/* A number that may have been published by a predecessor is not used again. */
	uint64_t number = w->s->committed[w->id] + 60;

	w->s->committed[w->id] = number;
	for (;;) {
		uint32_t n = random_next(&seed) % 4 ? 1 : 1 + (uint32_t)(seed >> 40) % 50;
		uint32_t lengths[50];
		int64_t lo;

		if (number + n >= 1 << 20)
			pause();
		lo = shmring_next(p, n);
		if (lo == SHMRING_UNAVAILABLE)
			(void)shmring_wait_space(p, n, INT64_MAX, SHMRING_WAIT_DEFAULT);
		if (lo < 0)
			continue;
		for (uint32_t i = 0; i < n; i++) {
			lengths[i] = 50 + (uint32_t)(random_next(&seed) % 200);
			traffic_fill(shmring_slot(r, (uint64_t)lo + i), w->id, number + i, lengths[i], &seed);
		}
		NEED(shmring_publish_ones(p, (uint64_t)lo + n - 1, lengths, 0) == SHMRING_OK);
		for (uint32_t i = 0; i < n; i++)
			__atomic_fetch_or(&w->s->seen[w->id][number + i], 0x80, __ATOMIC_RELAXED); /* committed */
		number += n;
		store_release(&w->s->committed[w->id], number);
	}
}

static int soak_consume(void *argument)
{
	struct soaker *w = argument;
	shmring *r = ring_again(w->s->path);
	shmring_consumer *m = consumer_of(r, "b");
	uint64_t seed = (uint64_t)getpid() * 7919 + 1;

	for (;;) {
		struct shmring_lease l;
		struct shmring_message message;
		uint64_t at;
		int status = shmring_take(m, 1 + (uint32_t)(random_next(&seed) % 30), 64, &l);

		if (status == SHMRING_UNAVAILABLE)
			(void)shmring_wait_message(m, clock_ns() + 20000000, SHMRING_WAIT_DEFAULT);
		if (status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED)
			continue;
		NEED(status == SHMRING_OK);
		for (at = l.first; shmring_read(r, &at, l.end, &message) == SHMRING_OK;) {
			struct body b;
			uint8_t *seen;

			memcpy(&b, message.data, sizeof b);
			if (message.length < sizeof b || b.length != message.length ||
			    b.producer >= MAX_PRODUCERS || b.number >= 1 << 20 ||
			    b.crc != shmring_crc32c(b.producer, (const uint8_t *)message.data + sizeof b,
						    b.length - sizeof b)) {
				__atomic_fetch_add(&w->s->torn, 1, __ATOMIC_RELAXED);
				continue;
			}
			seen = &w->s->seen[b.producer][b.number];
			/* low bits: 1 seen once; only a redelivery may come again */
			if ((__atomic_fetch_or(seen, 1, __ATOMIC_RELAXED) & 1) && !l.redelivered)
				__atomic_fetch_add(&w->s->twice, 1, __ATOMIC_RELAXED);
			__atomic_fetch_add(&w->s->got, 1, __ATOMIC_RELAXED);
		}
		if (at != l.end)
			__atomic_fetch_add(&w->s->torn, 1, __ATOMIC_RELAXED);
		NEED(shmring_release(m, l.first, l.end) == SHMRING_OK);
	}
}

TEST(random_kills_and_stops_lose_nothing)
{
	enum { CHILDREN = 6 }; /* three of each */
	struct soak *s = shared_memory(sizeof *s);
	shmring *r = ring_new();
	pid_t pids[CHILDREN];
	struct soaker workers[CHILDREN];
	uint64_t seed = 5, kills = 0, lost = 0, committed = 0;
	shmring_consumer *m;

	snprintf(s->path, sizeof s->path, "%s", ring_path());
	NEED(shmring_subscribe(r, "b", &earliest, NULL) == SHMRING_OK);
	for (uint32_t i = 0; i < CHILDREN; i++) {
		workers[i] = (struct soaker){s, i};
		pids[i] = spawn(i < 3 ? soak_produce : soak_consume, &workers[i]);
	}
	while (kills < 100 * stress()) {
		uint32_t victim = (uint32_t)(random_next(&seed) % CHILDREN);

		nanosleep(&(struct timespec){.tv_nsec = (long)(random_next(&seed) % 20000000)}, NULL);
		if (seed >> 33 & 1) {
			kill(pids[victim], SIGSTOP);
			nap_ms(2);
			kill(pids[victim], SIGCONT);
			continue;
		}
		kill(pids[victim], SIGKILL);
		(void)reap(pids[victim]);
		kills++;
		pids[victim] = spawn(victim < 3 ? soak_produce : soak_consume, &workers[victim]);
	}
	for (int i = 0; i < CHILDREN; i++) {
		kill(pids[i], SIGKILL);
		(void)reap(pids[i]);
	}
	/* What is left. */
	m = consumer_of(r, "b");
	for (int i = 0; i < 50 && (recover(r) || i < 3); i++)
		nap_ms(1);
	for (;;) {
		struct shmring_lease l;
		struct shmring_message message;
		uint64_t at;
		int status = shmring_take(m, 1, 1, &l);

		if (status)
			break;
		for (at = l.first; shmring_read(r, &at, l.end, &message) == SHMRING_OK;) {
			struct body b;

			memcpy(&b, message.data, sizeof b);
			if (s->seen[b.producer][b.number] & 1 && !l.redelivered)
				s->twice++;
			s->seen[b.producer][b.number] |= 1;
		}
		NEED(shmring_release(m, l.first, l.end) == SHMRING_OK);
	}
	for (uint32_t i = 0; i < 3; i++)
		for (uint64_t k = 0; k < 1 << 20; k++) {
			committed += s->seen[i][k] >> 7;
			lost += s->seen[i][k] == 0x80;
		}
	printf("  %" PRIu64 " kills, %" PRIu64 " laps, %" PRIu64 " committed, %" PRIu64 " read\n", kills,
	       shmring_claimed(r) / 1024, committed, s->got);
	CHECK_IS(lost, 0);
	CHECK_IS(s->torn, 0);
	CHECK_IS(s->twice, 0);
	CHECK_IS(branch_released(r, m->branch, false), shmring_claimed(r));
	check_works(r, m);
	shmring_consumer_close(m);
	CHECK_IS(seats_in_use(r), 1);
	munmap(s, sizeof *s);
	ring_end(r);
}
