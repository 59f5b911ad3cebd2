/* Traffic through one ring for as long as asked, while processes are killed and
 * stopped at random: producers, consumers that share branches, a chain, guests
 * that come and go.
 *
 * How it is known that nothing is lost, with memory for the ring's size only:
 * an auditor, who is never killed, reads a branch that follows all the others,
 * so that it sees a message after everybody else has released it. Each consumer
 * marks each message for its branch before it releases it. Of every message the
 * auditor checks
 *   - that it is the next one of its producer (each comes once, in order),
 *   - that its bytes are what the producer has written,
 *   - that every branch has marked it.
 * At the end each producer's count must lie between what it knew to be
 * published and what it had in hand.
 */
#include "body.h"

enum {
	PRODUCERS = 3,
	BRANCHES_SHARED = 3, /* b2 follows b0 */
	CONSUMERS = 2, /* consumers of each branch */
	GUESTS = 2,
	WORKERS = PRODUCERS + BRANCHES_SHARED * CONSUMERS + GUESTS,
	LIVES = 1 << 20, /* a producer that is started again has a new number */
	MARKS = 1 << 16, /* more than sequences can be under way */
	RING_SLOTS = 1024,
	BATCH = 50,
};

struct life {
	uint64_t begun; /* numbers below may have been published */
	uint64_t published; /* numbers below have been */
	uint64_t audited; /* numbers below have come to the auditor */
};

struct books {
	uint32_t lives;
	uint64_t errors;
	uint64_t redelivered, guests, aborted;
	uint64_t audited;
	bool stop; /* the auditor ends when nothing is left */
	uint64_t mark[BRANCHES_SHARED][MARKS]; /* message_id + 1 */
	struct life life[LIVES];
};

static struct books *books;
static char path[64];

static void complain(const char *what, uint64_t a, uint64_t b)
{
	if (__atomic_fetch_add(&books->errors, 1, __ATOMIC_RELAXED) < 10)
		printf("  %s (%" PRIu64 ", %" PRIu64 ") [%s]\n", what, a, b, shmring_error_message());
}

static void add(uint64_t *counter, uint64_t n)
{
	__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* --- producers ---------------------------------------------------------------------- */

static int produce(void *argument)
{
	shmring *r = ring_again(path);
	shmring_producer *p = producer_of(r);
	uint64_t seed = (uint64_t)getpid() * 7919 + 1, number = 0;
	uint32_t life = __atomic_fetch_add(&books->lives, 1, __ATOMIC_RELAXED);
	struct life *l = &books->life[life];

	(void)argument;
	NEED(life < LIVES);
	for (;;) {
		uint64_t choice = random_next(&seed);
		bool batch = choice % 4 != 0;
		uint32_t n = batch ? 1 + (uint32_t)(choice >> 8) % BATCH : 1;
		uint32_t length = (uint32_t)sizeof(struct body) + (uint32_t)(choice >> 16) % (batch ? 200 : 900);
		uint32_t lengths[BATCH];
		uint32_t slots = batch ? n : (uint32_t)shmring_slots_for(length, false);
		uint64_t lo = claim(p, slots, SHMRING_WAIT_DEFAULT);

		if ((choice >> 32) % 64 == 0) {
			NEED(shmring_abort(p) == SHMRING_OK);
			add(&books->aborted, 1);
			continue;
		}
		store_release(&l->begun, number + n);
		for (uint32_t i = 0; i < n; i++) {
			lengths[i] = length;
			body_fill(shmring_slot(r, lo + i), life, number + i, length, &seed);
		}
		NEED((batch ? shmring_publish_ones(p, lo + n - 1, lengths, 0)
			    : shmring_publish(p, length, KIND_BYTES, 0)) == SHMRING_OK);
		number += n;
		store_release(&l->published, number);
	}
}

/* --- consumers ---------------------------------------------------------------------------- */

static bool is_whole(const struct shmring_message *m, struct body *b)
{
	return body_read(m, b) && b->producer < LIVES;
}

static void mark(uint32_t branch, const struct shmring_message *m, bool redelivered)
{
	uint64_t *word = &books->mark[branch][m->message_id % MARKS];

	if (__atomic_exchange_n(word, m->message_id + 1, __ATOMIC_ACQ_REL) == m->message_id + 1 && !redelivered)
		complain("delivered twice", branch, m->message_id);
}

static int serve(void *argument)
{
	uint32_t branch = *(uint32_t *)argument;
	uint64_t seed = (uint64_t)getpid() * 7919 + 1;
	shmring *r = ring_again(path);
	shmring_consumer *m = consumer_of(r, branch_name(branch));

	for (;;) {
		struct shmring_lease l;
		struct shmring_message message;
		struct body b;
		uint64_t second = 0;
		int status = take(m, 1 + (uint32_t)(random_next(&seed) % 60), 256, SHMRING_WAIT_DEFAULT, &l);

		if (status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED)
			continue;
		NEED(status == SHMRING_OK);
		for (uint64_t at = l.first; (status = shmring_read(r, &at, l.end, &message)) == SHMRING_OK;) {
			if (!is_whole(&message, &b))
				complain("torn", branch, message.message_id);
			mark(branch, &message, l.redelivered);
			second = second ? second : at;
		}
		if (status != SHMRING_UNAVAILABLE)
			complain("cannot be read", branch, l.first);
		add(&books->redelivered, l.redelivered ? l.messages : 0);
		if (seed % 256 == 0) /* or no kill would ever meet a lease */
			nap_ms(1);
		if (second && second < l.end && seed % 8 == 0) { /* in two pieces, the later one first */
			NEED(shmring_release(m, second, l.end) == SHMRING_OK);
			l.end = second;
		}
		NEED(shmring_release(m, l.first, l.end) == SHMRING_OK);
	}
}

/* Comes, reads for a while, and goes: each producer's numbers without a gap. */
static int visit(void *argument)
{
	uint64_t seed = (uint64_t)getpid() * 7919 + 1;
	uint64_t *next = calloc(LIVES, sizeof *next);
	shmring *r = ring_again(path);

	(void)argument;
	NEED(next);
	for (;;) {
		uint64_t kind = random_next(&seed) >> 20;
		struct shmring_branch_options o = {
		    .start = (uint8_t)(kind & 1), .ephemeral = true, .drop_oldest = kind & 2};
		uint64_t left = 10 + random_next(&seed) % 400;
		shmring_consumer *m;
		char name[24];

		snprintf(name, sizeof name, "guest %d", (int)getpid());
		m = consumer_with(r, name, &o);
		memset(next, 0, LIVES * sizeof *next);
		for (uint64_t n = 0; n < left; n++) {
			struct shmring_lease l;
			struct shmring_message message;
			struct body b;
			int status = take(m, 100, 256, SHMRING_WAIT_DEFAULT, &l);

			if (status == SHMRING_OVERRUN)
				memset(next, 0, LIVES * sizeof *next);
			if (status)
				continue;
			for (uint64_t at = l.first; shmring_read(r, &at, l.end, &message) == SHMRING_OK;) {
				if (!is_whole(&message, &b))
					complain("torn at a guest", b.producer, message.message_id);
				else if (next[b.producer] && next[b.producer] != b.number + 1)
					complain("a gap at a guest", next[b.producer] - 1, b.number);
				next[b.producer] = b.number + 2;
			}
			NEED(shmring_release(m, l.first, l.end) == SHMRING_OK);
		}
		shmring_consumer_close(m);
		add(&books->guests, 1);
	}
}

/* --- the auditor ---------------------------------------------------------------------------- */

static void audit_message(const struct shmring_message *m)
{
	struct body b;
	struct life *l;

	if (!is_whole(m, &b)) {
		complain("torn at the auditor", m->length, m->message_id);
		return;
	}
	l = &books->life[b.producer];
	if (b.number != l->audited)
		complain("lost, twice or out of order", l->audited, b.number);
	l->audited = b.number + 1;
	for (uint32_t branch = 0; branch < BRANCHES_SHARED; branch++)
		if (load_acquire(&books->mark[branch][m->message_id % MARKS]) != m->message_id + 1)
			complain("released and never delivered", branch, m->message_id);
	books->audited++;
}

static int audit(void *argument)
{
	shmring *r = ring_again(path);
	shmring_consumer *m = consumer_of(r, "audit");

	(void)argument;
	for (;;) {
		bool last = __atomic_load_n(&books->stop, __ATOMIC_ACQUIRE);
		struct shmring_lease l;
		struct shmring_message message;
		int status = take(m, 200, 256, SHMRING_WAIT_DEFAULT, &l);

		if (status == SHMRING_UNAVAILABLE && last)
			return 0;
		if (status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED)
			continue;
		NEED(status == SHMRING_OK && !l.redelivered);
		for (uint64_t at = l.first; shmring_read(r, &at, l.end, &message) == SHMRING_OK;)
			audit_message(&message);
		NEED(shmring_release(m, l.first, l.end) == SHMRING_OK);
	}
}

/* --- the conductor ----------------------------------------------------------------------------- */

struct worker {
	int (*job)(void *);
	uint32_t branch;
	pid_t pid;
};

static void make_branches(shmring *r)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST};
	uint64_t all = 0;
	uint32_t id;

	for (uint32_t i = 0; i < BRANCHES_SHARED; i++) {
		o.upstream = i == 2 ? 1 : 0;
		NEED(shmring_subscribe(r, branch_name(i), &o, &id) == SHMRING_OK && id == i);
		all |= UINT64_C(1) << id;
	}
	o.upstream = all;
	NEED(shmring_subscribe(r, "audit", &o, &id) == SHMRING_OK);
}

static void start(struct worker *w)
{
	w->pid = spawn(w->job, &w->branch);
}

static void disturb(struct worker *workers, int64_t end, uint64_t pause_ns, uint64_t *kills, uint64_t *stops)
{
	uint64_t seed = (uint64_t)getpid() * 31 + 5;

	while (clock_ns() < end && load_relaxed(&books->errors) == 0) {
		struct worker *w = &workers[random_next(&seed) % WORKERS];

		nanosleep(&(struct timespec){.tv_nsec = (long)(random_next(&seed) % pause_ns)}, NULL);
		if (seed >> 33 & 1) {
			kill(w->pid, SIGSTOP);
			nap_ms((long)(random_next(&seed) % 20));
			kill(w->pid, SIGCONT);
			++*stops;
			continue;
		}
		kill(w->pid, SIGKILL);
		if (reap(w->pid) != -SIGKILL)
			complain("a worker ended by itself", (uint64_t)(w - workers), 0);
		++*kills;
		start(w);
	}
}

static void stop(struct worker *workers, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		kill(workers[i].pid, SIGKILL);
		if (reap(workers[i].pid) != -SIGKILL)
			complain("a worker ended by itself", i, 0);
	}
}

/* Every branch has released all that was claimed. */
static void await_the_end(shmring *r)
{
	for (uint32_t id = 0; id < BRANCHES_SHARED; id++)
		while (branch_released(r, &r->cursors->branch[id], false) < shmring_claimed(r)) {
			(void)shmring_recover(r, NULL);
			nap_ms(1);
		}
}

static void check_books(void)
{
	for (uint32_t i = 0; i < books->lives; i++) {
		const struct life *l = &books->life[i];

		if (l->audited < l->published || l->audited > l->begun)
			complain("published and audited differ", l->published, l->audited);
	}
}

int main(int argc, char **argv)
{
	int64_t seconds = argc > 1 ? atoll(argv[1]) : 0, begun = clock_ns();
	/* At most, between kills; after each one a sleeper needs 50 ms to notice. */
	uint64_t pause_ns = (argc > 2 ? (uint64_t)atoi(argv[2]) : 250) * 1000000;
	struct worker workers[WORKERS];
	uint64_t kills = 0, stops = 0, laps;
	uint32_t n = 0;
	pid_t auditor;
	shmring *r;

	if (seconds < 1)
		return fprintf(stderr, "soak SECONDS [MILLISECONDS BETWEEN KILLS]\n"), 2;
	run_in_a_child();
	alarm((unsigned)seconds + 120); /* a soak that hangs has failed */
	setvbuf(stdout, NULL, _IOLBF, 0);
	snprintf(path, sizeof path, "%s", ring_path());
	books = shared_memory(sizeof *books);
	r = ring_with(&(struct shmring_options){.slots = RING_SLOTS});
	make_branches(r);
	for (uint32_t i = 0; i < PRODUCERS; i++)
		workers[n++] = (struct worker){.job = produce};
	for (uint32_t i = 0; i < GUESTS; i++)
		workers[n++] = (struct worker){.job = visit};
	for (uint32_t i = 0; i < BRANCHES_SHARED * CONSUMERS; i++)
		workers[n++] = (struct worker){.job = serve, .branch = i / CONSUMERS};
	auditor = spawn(audit, NULL);
	for (uint32_t i = 0; i < WORKERS; i++)
		start(&workers[i]);
	disturb(workers, begun + seconds * 1000000000, pause_ns, &kills, &stops);
	stop(workers, 0, PRODUCERS + GUESTS);
	await_the_end(r);
	__atomic_store_n(&books->stop, true, __ATOMIC_RELEASE);
	if (reap(auditor) != check_broken)
		complain("the auditor failed", 0, 0);
	stop(workers, PRODUCERS + GUESTS, WORKERS);
	check_books();
	laps = shmring_claimed(r) / RING_SLOTS;
	printf("soak: %" PRId64 " s, %" PRIu64 " messages each seen by %d branches and audited, %" PRIu64
	       " wrap-arounds, %" PRIu64 " kills, %" PRIu64 " stops, %" PRIu64 " redelivered, %" PRIu64
	       " guests, %" PRIu64 " errors\n",
	       (clock_ns() - begun) / 1000000000, books->audited, BRANCHES_SHARED, laps, kills, stops,
	       books->redelivered, books->guests, books->errors);
	end_all();
	return books->errors != 0;
}
