/* Bodies of the threads, and the properties that every interleaving must keep. */
#include "path.h"

/* Progress of a message's release. If the consumer died at BEGUN, the release may have happened or not. */
enum { BEGUN = 1, DONE = 2 };

static struct ghost *ghost(void)
{
	return &world.ghost;
}

static uint64_t payload(uint64_t sequence)
{
	uint64_t number;

	memcpy(&number, slot_at(&handles[AFTER], sequence), sizeof number);
	return number;
}

/* Waits until another thread changes something. First recovers dead participants, which
 * shmring_wait_message() does from time to time. */
static void wait_for_others(int me)
{
	unsigned found = 0;

	if (world.deaths)
		(void)shmring_recover(&handles[me], &found);
	/* Let time pass, which stands still otherwise: a consumer that has put off an adoption tries again. */
	if (world.consumer[me] && world.consumer[me]->adopt_after_ns) {
		world.consumer[me]->adopt_after_ns = world.consumer[me]->adopt_pause_ns = 0;
	} else if (!found) {
		explore_wait();
	}
}

/* --- producers -------------------------------------------------------------------------- */

static void sleep_for_space(int me, uint32_t slots)
{
	(void)shmring_wait_space(world.producer[me], slots, INT64_MAX, SHMRING_WAIT_FUTEX);
	MUST(!explore_spins());
}

static void wait_or_sleep_for_space(int me, uint32_t slots, bool sleeps)
{
	if (sleeps)
		sleep_for_space(me, slots);
	else
		wait_for_others(me);
}

/* Returns true if a call must be tried again. If there was no room, first waits for other threads. */
static bool failed(int me, int64_t status, uint32_t slots, bool sleeps)
{
	if (status >= 0) {
		explore_found();
		return false;
	}
	MUST(status == SHMRING_CONTENDED || status == SHMRING_UNAVAILABLE);
	if (status == SHMRING_UNAVAILABLE)
		wait_or_sleep_for_space(me, slots, sleeps);
	return true;
}

static uint64_t claim(int me, uint32_t slots, bool sleeps)
{
	int64_t lo;

	do {
		explore_look();
		lo = shmring_next(world.producer[me], slots);
	} while (failed(me, lo, slots, sleeps));
	return (uint64_t)lo;
}

uint64_t claim_slots(int me, uint32_t slots)
{
	return claim(me, slots, false);
}

static void push(int me, uint64_t number, bool sleeps)
{
	int status;

	do {
		explore_look();
		status = shmring_push(world.producer[me], &number, sizeof number, KIND_BYTES, NULL);
	} while (failed(me, status, 1, sleeps));
}

void fill(int me, uint64_t sequence, uint64_t number)
{
	memcpy(slot_at(&handles[me], sequence), &number, sizeof number);
}

static void produce_each(int me, bool sleeps)
{
	const struct actor *a = &exploring->actor[me];

	for (uint64_t number = a->from; number < a->to; number++) {
		if (a->slots <= 1) {
			push(me, number, sleeps);
		} else {
			fill(me, claim(me, a->slots, sleeps), number);
			MUST(shmring_publish(world.producer[me], 8, KIND_BYTES, 0) == SHMRING_OK);
		}
		ghost()->committed[number] = 1;
	}
}

void produce(int me)
{
	produce_each(me, false);
}

/* CHANGE: edit this for a new case of the explorer */
void produce_asleep(int me)
{
	produce_each(me, true);
}

void produce_until_interrupted(int me)
{
	shmring_producer *p = world.producer[me];
	uint64_t number = exploring->actor[me].from;

	for (;;) {
		int status;

		explore_look();
		if (load_relaxed(&p->interrupted) || number == exploring->actor[me].to)
			break;
		status = shmring_push(p, &number, sizeof number, KIND_BYTES, NULL);
		if (!failed(me, status, 1, true))
			ghost()->committed[number++] = 1;
	}
	explore_found();
}

/* Publishes all numbers as one run, by one store, and gives up the slots claimed beyond them. */
void produce_batch(int me)
{
	const struct actor *a = &exploring->actor[me];
	uint32_t n = (uint32_t)(a->to - a->from);
	uint64_t lo = claim(me, a->slots > n ? a->slots : n, false);

	for (uint64_t i = 0; i < n; i++)
		fill(me, lo + i, a->from + i);
	MUST(shmring_publish_ones(world.producer[me], lo + n - 1, NULL, 8) == SHMRING_OK);
	for (uint64_t i = 0; i < n; i++)
		ghost()->committed[a->from + i] = 1;
}

/* Publishes all numbers by one store: the first in `slots` slots, each of the others in one slot. */
void produce_parts(int me)
{
	const struct actor *a = &exploring->actor[me];
	uint32_t n = (uint32_t)(a->to - a->from), claimed = a->slots + n - 1;
	uint64_t lo = claim(me, claimed, false), at = lo;
	struct shmring_part parts[SMALL_SLOTS];

	for (uint32_t i = 0; i < n; at += parts[i++].slots) {
		parts[i] = (struct shmring_part){.slots = i ? 1 : a->slots, .length = 8, .kind = KIND_BYTES};
		fill(me, at, a->from + i);
	}
	MUST(shmring_publish_parts(world.producer[me], parts, n) == SHMRING_OK);
	for (uint32_t i = 0; i < n; i++)
		ghost()->committed[a->from + i] = 1;
}

/* --- consumers ------------------------------------------------------------------------------- */

/* Reads and checks all messages of a lease. Stores their sequences and numbers for give_back(), and returns how
 * many messages there are. */
static uint32_t deliver(shmring_consumer *m, const struct shmring_lease *l, uint64_t *last_seen,
			uint64_t *sequences, uint64_t *numbers)
{
	struct ghost *g = ghost();
	uint32_t b = m->branch_index, n = 0;
	uint64_t upstream = m->branch->d.upstream;

	for (uint64_t at = l->first; at < l->end;) {
		struct shmring_message message;
		int status = shmring_read(m->ring, &at, l->end, &message);
		uint64_t number;

		if (status == SHMRING_UNAVAILABLE)
			break;
		MUST(status == SHMRING_OK && message.length == 8);
		memcpy(&number, message.data, 8);
		MUST(number < NUMBERS);
		if (l->redelivered) {
			MUST(g->consumer_died[b] && l->redelivered >= g->delivered[b][number]);
			g->delivered[b][number] = (uint8_t)(l->redelivered + 1);
		} else {
			MUST(!g->delivered[b][number]++);
			MUST(*last_seen <= message.message_id);
			*last_seen = message.message_id + 1;
		}
		MUST(g->released[b][number] != DONE);
		for (uint64_t up = upstream; up; up &= up - 1)
			MUST(g->released[__builtin_ctzll(up)][number]);
		sequences[n] = message.message_id;
		numbers[n++] = number;
	}
	MUST(n == l->messages);
	return n;
}

static void give_back(shmring_consumer *m, const struct shmring_lease *l, const uint64_t *sequences,
		      const uint64_t *numbers, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		MUST(payload(sequences[i]) == numbers[i]); /* a held message was not overwritten */
		ghost()->released[m->branch_index][numbers[i]] = BEGUN;
	}
	MUST(shmring_release(m, l->first, l->end) == SHMRING_OK);
	for (uint32_t i = 0; i < n; i++)
		ghost()->released[m->branch_index][numbers[i]] = DONE;
}

int take_one(shmring_consumer *m, uint32_t messages, uint64_t *last_seen)
{
	struct shmring_lease l;
	struct shmring_message only;
	uint64_t sequences[SMALL_SLOTS], numbers[SMALL_SLOTS];
	int status = messages == 1 ? shmring_take_one(m, &l, &only) : shmring_take(m, messages, SMALL_SLOTS, &l);

	if (status != SHMRING_UNAVAILABLE)
		explore_found();
	if (status == SHMRING_OK && messages == 1)
		MUST(only.length == 8 && only.message_id >= l.first && only.message_id < l.end);
	if (status == SHMRING_OK)
		give_back(m, &l, sequences, numbers, deliver(m, &l, last_seen, sequences, numbers));
	if (status == SHMRING_OVERRUN)
		ghost()->lost[m->branch_index] = 1;
	return status;
}

void take_or_wait(int me, uint32_t messages)
{
	int status = take_one(world.consumer[me], messages, &ghost()->last_seen[me]);

	MUST(status == SHMRING_OK || status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED);
	if (status == SHMRING_UNAVAILABLE)
		wait_for_others(me);
}

/* Takes three messages in one lease, and releases the second, the third, and then the first. */
void consume_out_of_order(int me)
{
	shmring_consumer *m = world.consumer[me];
	uint64_t sequences[SMALL_SLOTS], numbers[SMALL_SLOTS];
	struct shmring_lease l;

	MUST(shmring_take(m, 3, SMALL_SLOTS, &l) == SHMRING_OK);
	MUST(deliver(m, &l, &ghost()->last_seen[me], sequences, numbers) == 3);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t k = (i + 1) % 3;
		struct shmring_lease one = {.first = sequences[k], .end = sequences[k] + 1};

		give_back(m, &one, &sequences[k], &numbers[k], 1);
	}
	MUST(shmring_consumer_hold(m) == NONE);
}

/* Overwrites the ranges in the first consumer's seat. */
void scribble_over_ranges(int me)
{
	struct range *ranges = world.consumer[0]->seat->range;

	(void)me;
	store_relaxed(&ranges[0].lo, NONE);
	store_relaxed(&ranges[1].hi, 3);
	store_relaxed(&ranges[1].lo, 0);
	store_relaxed(&ranges[0].hi, 0);
}

static void sleep_for_message(shmring_consumer *m)
{
	(void)shmring_wait_message(m, INT64_MAX, SHMRING_WAIT_FUTEX);
	MUST(!explore_spins());
}

static void serve(int me, bool sleeps)
{
	const struct actor *a = &exploring->actor[me];

	for (;;) {
		int status;

		explore_look();
		status = take_one(world.consumer[me], a->slots ? a->slots : 1, &ghost()->last_seen[me]);
		if (status == SHMRING_E_DROPPED)
			return;
		MUST(status == SHMRING_OK || status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED ||
		     status == SHMRING_OVERRUN);
		if (status == SHMRING_UNAVAILABLE && sleeps)
			sleep_for_message(world.consumer[me]);
		else if (status == SHMRING_UNAVAILABLE)
			wait_for_others(me);
	}
}

void consume(int me)
{
	serve(me, false);
}

void consume_asleep(int me)
{
	serve(me, true);
}

/* Takes messages: numbers below `from` must come before the end marker, the others after it. */
static void serve_runs(int me, bool sleeps)
{
	const struct actor *a = &exploring->actor[me];
	shmring_consumer *m = world.consumer[me];

	for (;;) {
		uint64_t sequences[SMALL_SLOTS], numbers[SMALL_SLOTS];
		struct shmring_lease l;
		int status;

		explore_look();
		status = shmring_take(m, 1, SMALL_SLOTS, &l);
		if (status != SHMRING_UNAVAILABLE)
			explore_found();
		if (status == SHMRING_ENDED)
			MUST(!ghost()->ends[me]++);
		if (status == SHMRING_OK) {
			uint32_t n = deliver(m, &l, &ghost()->last_seen[me], sequences, numbers);

			for (uint32_t i = 0; i < n; i++) /* a redelivered message may come late */
				MUST(l.redelivered || (numbers[i] >= a->from) == ghost()->ends[me]);
			give_back(m, &l, sequences, numbers, n);
		}
		MUST(status == SHMRING_OK || status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED ||
		     status == SHMRING_ENDED);
		if (status == SHMRING_UNAVAILABLE && sleeps)
			sleep_for_message(m);
		else if (status == SHMRING_UNAVAILABLE)
			wait_for_others(me);
	}
}

void consume_runs(int me)
{
	serve_runs(me, false);
}

void consume_runs_asleep(int me)
{
	serve_runs(me, true);
}

void consume_one_asleep(int me)
{
	while (take_one(world.consumer[me], 1, &ghost()->last_seen[me]) != SHMRING_OK)
		(void)shmring_wait_message(world.consumer[me], INT64_MAX, SHMRING_WAIT_FUTEX);
}

void consume_until_late(int me)
{
	int status;

	do {
		explore_look();
		status = take_one(world.consumer[me], 1, &ghost()->last_seen[me]);
		if (status == SHMRING_UNAVAILABLE)
			status = shmring_wait_message(world.consumer[me], EXPLORE_DEADLINE_NS, SHMRING_WAIT_FUTEX);
		MUST(status == SHMRING_TIMEOUT || !explore_spins());
	} while (status != SHMRING_TIMEOUT);
	explore_found();
}

/* Takes messages until another thread interrupts it, as a thread does that closes the handle; then leaves. */
void consume_until_interrupted(int me)
{
	shmring_consumer *m = world.consumer[me];

	for (;;) {
		explore_look();
		if (load_relaxed(&m->interrupted))
			break;
		if (take_one(m, 1, &ghost()->last_seen[me]) == SHMRING_UNAVAILABLE)
			sleep_for_message(m);
	}
	explore_found();
	shmring_consumer_close(m);
	world.consumer[me] = NULL;
}

void take_what_is_there(int me)
{
	int status;

	do
		status = take_one(world.consumer[me], 1, &ghost()->last_seen[me]);
	while (status == SHMRING_OK || status == SHMRING_CONTENDED || status == SHMRING_OVERRUN);
	MUST(status == SHMRING_UNAVAILABLE);
}

/* Takes one message, and leaves as if it had died with it. */
void take_and_abandon(int me)
{
	shmring_consumer *m = world.consumer[me];
	uint64_t sequences[SMALL_SLOTS], numbers[SMALL_SLOTS];
	struct shmring_lease l;

	if (shmring_take(m, 1, SMALL_SLOTS, &l) == SHMRING_OK)
		(void)deliver(m, &l, &ghost()->last_seen[me], sequences, numbers);
	ghost()->consumer_died[m->branch_index] = 1;
	shmring_consumer_abandon(m);
	world.consumer[me] = NULL;
}

/* Hands the last message of its first lease back if the admin lock is free, and serves on. */
void hand_back_and_consume(int me)
{
	shmring_consumer *m = world.consumer[me];
	uint64_t sequences[SMALL_SLOTS], numbers[SMALL_SLOTS];
	struct shmring_lease l;
	int status;

	if (shmring_take(m, exploring->actor[me].slots, SMALL_SLOTS, &l) == SHMRING_OK) {
		(void)deliver(m, &l, &ghost()->last_seen[me], sequences, numbers);
		ghost()->consumer_died[m->branch_index] = 1; /* from here on, the message may be delivered again */
		status = shmring_nack(m, l.end - 1, l.end);
		MUST(status == SHMRING_OK || status == SHMRING_CONTENDED);
		if (status == SHMRING_OK) {
			l.end--;
			l.messages--;
		}
		if (l.messages)
			give_back(m, &l, sequences, numbers, l.messages);
	}
	serve(me, false);
}

/* Hands its first message back while no seat is free to keep the message: this consumer's own next take must
 * get it. */
void hand_back_without_a_seat(int me)
{
	shmring_consumer *m = world.consumer[me];
	uint64_t sequences[SMALL_SLOTS], numbers[SMALL_SLOTS], first;
	struct shmring_lease l;

	if (shmring_take(m, 1, SMALL_SLOTS, &l) == SHMRING_OK) {
		(void)deliver(m, &l, &ghost()->last_seen[me], sequences, numbers);
		ghost()->consumer_died[m->branch_index] = 1; /* from here on, the message may be delivered again */
		first = l.first;
		if (shmring_nack(m, l.first, l.end) == SHMRING_OK) {
			MUST(shmring_release(m, l.first, l.end) == SHMRING_E_INVALID);
			MUST(shmring_take(m, 1, SMALL_SLOTS, &l) == SHMRING_OK);
			MUST(l.redelivered && l.first == first);
			(void)deliver(m, &l, &ghost()->last_seen[me], sequences, numbers);
		}
		give_back(m, &l, sequences, numbers, 1);
	}
	serve(me, false);
}

/* --- checks after an interleaving -------------------------------------------------------------- */

static bool is_alive(int i)
{
	return world.thread[i].status != DEAD;
}

/* Checks that no waiting thread could take something. */
static void check_that_waiters_have_nothing(void)
{
	for (int i = 0; i < THREADS; i++) {
		shmring_consumer *m = world.consumer[i];
		struct shmring_lease l;

		if (m && (world.thread[i].status == PARKED || world.thread[i].status == SLEEPING))
			MUST(shmring_take(m, 1, SMALL_SLOTS, &l) == SHMRING_UNAVAILABLE);
	}
}

static void drain(shmring_consumer *m)
{
	uint64_t last_seen = 0;
	int status;

	while ((status = take_one(m, 1, &last_seen)) != SHMRING_UNAVAILABLE)
		MUST(status == SHMRING_OK || status == SHMRING_CONTENDED || status == SHMRING_OVERRUN ||
		     status == SHMRING_ENDED);
}

/* Checks that every committed message was released in each of the first `branches`
 * branches, except in a branch that was overrun or dropped. */
static void check_that_nothing_is_lost(uint32_t branches)
{
	for (uint32_t b = 0; b < branches; b++)
		for (uint32_t number = 0; number < NUMBERS && !ghost()->lost[b]; number++)
			if (ghost()->committed[number])
				MUST(ghost()->released[b][number]);
}

/* Checks that a run, published by one store, was delivered as a whole or not at all. */
static void check_that_runs_are_whole(uint32_t branches)
{
	for (int i = 0; i < THREADS; i++) {
		const struct actor *a = &exploring->actor[i];

		for (uint32_t b = 0; b < branches; b++)
			for (uint8_t n = a->from; n < a->to; n++)
				if (a->body == produce_batch || a->body == produce_parts)
					MUST(!ghost()->delivered[b][n] == !ghost()->delivered[b][a->from]);
	}
}

static void check_laps(shmring_producer *p, shmring_consumer *const *m, uint32_t consumers)
{
	for (uint64_t i = 0; i < 2 * exploring->slots; i++) {
		uint64_t number = 1000 + i, id;
		int status = shmring_push(p, &number, 8, KIND_BYTES, &id);

		MUST(status == SHMRING_OK);
		for (uint32_t k = 0; k < consumers; k++) {
			struct shmring_lease l;

			while ((status = shmring_take(m[k], 1, 1, &l)) == SHMRING_OVERRUN)
				;
			MUST(status == SHMRING_OK && !l.redelivered && payload(l.first) == number);
			MUST(shmring_release(m[k], l.first, l.end) == SHMRING_OK);
		}
	}
}

static void check_seats(void)
{
	for (uint32_t i = 0; i < SMALL_SEATS; i++) {
		const struct seat *s = &memory.seats[i];

		MUST(s->id.state != SEAT_ORPHAN);
		MUST(s->id.state != SEAT_ACTIVE || seat_alive(&handles[AFTER], i));
	}
}

/* Leaves the ring, like shmring_close(). */
static void leave(int i)
{
	shmring *r = &handles[i];
	uint32_t own = load_relaxed(&r->seat);

	MUST(admin_enter(r) == SHMRING_OK);
	if (own != NOBODY && memory.lock[own] == (uint64_t)i + 1) /* not killed: it has its lock */
		seat_give_back(r, own);
	admin_leave(r);
}

/* Checks the end of a run: no waiter has missed a message, nothing is lost, and the ring still works. */
void check_end(void)
{
	shmring *r = &handles[AFTER];
	shmring_consumer *m[SMALL_BRANCHES] = {0};
	shmring_producer *p;
	uint32_t branches = 0;

	world.outsider = AFTER;
	check_that_waiters_have_nothing();
	/* Living threads leave, so that only seats of the dead are left to check. */
	for (int i = 0; i < THREADS; i++)
		if (is_alive(i)) {
			shmring_producer_close(world.producer[i]);
			shmring_consumer_close(world.consumer[i]);
			leave(i);
		}
	leave(BEFORE);
	MUST(shmring_recover(r, NULL) == SHMRING_OK);
	for (uint32_t b = 0; b < SMALL_BRANCHES; b++) {
		struct shmring_branch_info info;

		if (shmring_branch_info(r, b, &info))
			continue;
		MUST(shmring_join(r, info.name, NULL, "after", &m[branches]) == SHMRING_OK);
		drain(m[branches++]);
	}
	MUST(shmring_recover(r, NULL) == SHMRING_OK);
	check_that_nothing_is_lost(exploring->keeps);
	check_that_runs_are_whole(exploring->keeps);
	if (exploring->after)
		exploring->after();
	MUST(shmring_producer_open(r, "after", &p) == SHMRING_OK);
	check_laps(p, m, branches);
	check_seats();
	shmring_producer_close(p);
}
