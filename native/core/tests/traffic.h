/* Producers and consumers that check every message: each arrives once at every
 * branch, untouched, and in its producer's order. For threads and processes. */
#ifndef SHMRING_TRAFFIC_H
#define SHMRING_TRAFFIC_H

#include "body.h"

enum { MAX_PRODUCERS = 8, MAX_TRAFFIC_BRANCHES = 4 };

struct traffic {
	char path[64];
	uint32_t producers, branches, consumers; /* consumers of each branch */
	uint64_t each; /* messages of each producer */
	uint32_t max_bytes;
	uint8_t strategy;
	bool batches;
	bool abort_some;
	uint64_t errors;
	uint64_t redelivered;
	uint64_t received[MAX_TRAFFIC_BRANCHES];
	uint8_t seen[]; /* [branch][producer][number] */
};

static inline uint8_t *seen_at(struct traffic *t, uint32_t branch, uint32_t producer, uint64_t number)
{
	return &t->seen[((uint64_t)branch * t->producers + producer) * t->each + number];
}

static inline struct traffic *traffic_new(uint32_t producers, uint32_t branches, uint32_t consumers, uint64_t each)
{
	struct traffic *t = shared_memory(sizeof *t + branches * producers * each);

	snprintf(t->path, sizeof t->path, "%s", ring_path());
	t->producers = producers;
	t->branches = branches;
	t->consumers = consumers;
	t->each = each;
	t->max_bytes = 280;
	return t;
}

static inline void traffic_free(struct traffic *t)
{
	munmap(t, sizeof *t + t->branches * t->producers * t->each);
}

#define TRAFFIC_ERROR(t, ...)                                                                                     \
	do {                                                                                                      \
		if (__atomic_fetch_add(&(t)->errors, 1, __ATOMIC_RELAXED) < 5)                                    \
			printf("  " __VA_ARGS__);                                                                 \
	} while (0)

static inline void traffic_produce(struct traffic *t, shmring *r, uint32_t id)
{
	shmring_producer *p = producer_of(r);
	uint64_t seed = 0x9e3779b97f4a7c15 * (id + 1);

	for (uint64_t number = 0; number < t->each;) {
		uint32_t length = (uint32_t)sizeof(struct body) +
				  (uint32_t)(random_next(&seed) % (t->max_bytes - sizeof(struct body)));
		bool batch = t->batches && seed % 3 == 0;
		uint32_t n = batch ? 1 + (uint32_t)(seed >> 20) % 50 : (uint32_t)shmring_slots_for(length, false);
		bool give_up = t->abort_some && (seed >> 30) % 16 == 0;
		int64_t lo = shmring_next(p, n);
		uint32_t lengths[50];
		int status;

		if (lo == SHMRING_UNAVAILABLE)
			(void)shmring_wait_space(p, n, INT64_MAX, t->strategy);
		if (lo == SHMRING_UNAVAILABLE || lo == SHMRING_CONTENDED)
			continue;
		NEED(lo >= 0);
		if (give_up) {
			NEED(shmring_abort(p) == SHMRING_OK);
			continue;
		}
		if (batch) {
			if (n > t->each - number)
				n = (uint32_t)(t->each - number);
			for (uint32_t i = 0; i < n; i++) {
				lengths[i] = (uint32_t)sizeof(struct body) + (uint32_t)(random_next(&seed) % 200);
				body_fill(shmring_slot(r, (uint64_t)lo + i), id, number + i, lengths[i], &seed);
			}
			status = shmring_publish_ones(p, (uint64_t)lo + n - 1, lengths, 0);
			number += n;
		} else {
			body_fill(shmring_slot(r, (uint64_t)lo), id, number, length, &seed);
			status = shmring_publish(p, length, KIND_BYTES, 0);
			number++;
		}
		NEED(status == SHMRING_OK);
	}
	shmring_producer_close(p);
}

static inline void traffic_check(struct traffic *t, uint32_t branch, const struct shmring_message *message,
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

static inline void traffic_consume(struct traffic *t, shmring *r, uint32_t branch)
{
	char name[16];
	shmring_consumer *m;
	int64_t last[MAX_PRODUCERS];
	uint64_t seed = (uint64_t)getpid() << 32 | branch << 8 | 1;

	snprintf(name, sizeof name, "b%u", branch);
	m = consumer_of(r, name);
	memset(last, -1, sizeof last);
	while (__atomic_load_n(&t->received[branch], __ATOMIC_RELAXED) < t->each * t->producers) {
		struct shmring_lease l;
		struct shmring_message message;
		uint64_t at, n = 0;
		int status = shmring_take(m, 1 + (uint32_t)(random_next(&seed) % 20), 64, &l);

		if (status == SHMRING_UNAVAILABLE)
			(void)shmring_wait_message(m, clock_ns() + 20000000, t->strategy);
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
static inline void traffic_branches(struct traffic *t, shmring *r, bool chained)
{
	uint32_t id = 0;
	char name[16];

	for (uint32_t i = 0; i < t->branches; i++) {
		struct shmring_branch_options o = {.start = SHMRING_EARLIEST,
						   .exclusive = t->consumers == 1,
						   .upstream = chained && i ? UINT64_C(1) << id : 0};

		snprintf(name, sizeof name, "b%u", i);
		NEED(shmring_subscribe(r, name, &o, &id) == SHMRING_OK);
	}
}

static inline void traffic_verdict(struct traffic *t, shmring *r)
{
	uint64_t missing = 0, twice = 0;

	for (uint64_t i = 0; i < t->branches * t->producers * t->each; i++) {
		missing += t->seen[i] == 0;
		twice += t->seen[i] > 1;
	}
	CHECK_IS(missing, 0);
	CHECK_IS(twice, 0);
	CHECK_IS(t->errors, 0);
	/* What was claimed last may have been given up after the last message. */
	for (uint32_t b = 0; b < t->branches; b++) {
		char name[16];
		shmring_consumer *m;

		snprintf(name, sizeof name, "b%u", b);
		m = consumer_of(r, name);
		CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
		shmring_consumer_close(m);
		CHECK_IS(branch_released(r, &r->cursors->branch[b], false), shmring_claimed(r));
	}
}

#endif
