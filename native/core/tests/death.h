/* Children under our thumb, for the tests of death.
 *
 * A child plays the part of the one who dies: it calls the public API up to a
 * point, or writes the words of its seat as the code would have left them, and
 * then kills itself. `docs/protocol.md` names the steps. */
#ifndef SHMRING_DEATH_H
#define SHMRING_DEATH_H

#include "check.h"

struct puppet {
	char path[64];
	int (*act)(struct puppet *);
	shmring *r; /* the child's own */
	shmring_producer *p;
	shmring_consumer *m;
	uint64_t lo, n, step;
	bool ready, go, gone;
};

static inline int play_puppet(void *argument)
{
	struct puppet *c = argument;
	int status;

	c->r = ring_again(c->path);
	status = c->act(c);
	if (status)
		return status;
	__atomic_store_n(&c->ready, true, __ATOMIC_RELEASE);
	for (;;)
		pause();
}

/* It lives until it is killed. */
static inline pid_t puppet_start(struct puppet *c)
{
	pid_t pid;

	snprintf(c->path, sizeof c->path, "%s", ring_path());
	__atomic_store_n(&c->ready, false, __ATOMIC_RELAXED);
	pid = spawn(play_puppet, c);
	for (int i = 0; !__atomic_load_n(&c->ready, __ATOMIC_ACQUIRE); i++) {
		int status;

		NEED(i < 10000 && (i < 5 || waitpid(pid, &status, WNOHANG) == 0 || c->ready));
		nap_ms(1);
	}
	return pid;
}

static inline void puppet_kill(pid_t pid)
{
	int status;

	kill(pid, SIGKILL);
	(void)waitpid(pid, &status, 0);
}

static inline void puppet_die(struct puppet *c)
{
	puppet_kill(puppet_start(c));
}

/* Stays until the program ends. */
static inline struct puppet *puppet_new(int (*act)(struct puppet *))
{
	struct puppet *c = shared_memory(sizeof *c);

	c->act = act;
	return c;
}

static inline unsigned recover(shmring *r)
{
	unsigned n = 0;

	CHECK_IS(shmring_recover(r, &n), SHMRING_OK);
	return n;
}

/* The ring still works, over two laps. */
static inline void check_works(shmring *r, shmring_consumer *m)
{
	shmring_producer *p = producer_of(r);

	for (uint64_t i = 0; i < 2500; i++) {
		CHECK_IS(push_number(p, 1000000 + i), SHMRING_OK);
		CHECK_IS(pop_number(m), 1000000 + i);
		if (check_broken)
			break;
	}
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	shmring_producer_close(p);
}

/* --- acts of the children that die ---------------------------------------------- */

enum {
	DIES_CLAIMED,
	DIES_FILLED, /* a batch whose later rows carry their numbers */
	DIES_DONE,
};

static inline void fill_rows(shmring *r, uint64_t lo, uint64_t n, uint8_t seat)
{
	for (uint64_t i = n; i-- > 0;) {
		struct control *c = control_at(r, lo + i);

		memcpy(slot_at(r, lo + i), "garbage", 8);
		c->time = 1;
		c->length = 8;
		c->run = (uint32_t)(n - i);
		c->seat = seat;
		c->kind = KIND_BYTES;
		c->flags = FLAG_ONES;
		c->shift = 0;
		if (i)
			c->published = lo + i + 1;
	}
}

static inline int produce_and_die(struct puppet *c)
{
	uint64_t number = 1;

	c->p = producer_of(c->r);
	c->lo = (uint64_t)shmring_next(c->p, (uint32_t)c->n);
	if (c->step == DIES_FILLED)
		fill_rows(c->r, c->lo, c->n, (uint8_t)c->p->seat_index);
	if (c->step != DIES_DONE)
		return 0;
	memcpy(shmring_slot(c->r, c->lo), &number, sizeof number);
	return shmring_publish(c->p, 8, KIND_BYTES, 0);
}

static inline int take_and_die(struct puppet *c)
{
	struct shmring_lease l;

	c->m = consumer_of(c->r, "b");
	for (uint64_t i = 0; i < c->n; i++)
		if (shmring_take(c->m, 2, 2, &l))
			return 1;
	return 0;
}

static inline int hold_the_admin_lock(struct puppet *c)
{
	return admin_try(c->r) ? 0 : 1;
}

/* Takes one at a time; returns a bit for each number, and of which was redelivered. */
static inline uint64_t drain(shmring_consumer *m, uint64_t *redelivered)
{
	struct shmring_lease l;
	struct shmring_message message;
	uint64_t got = 0, at, number;
	int status;

	*redelivered = 0;
	while ((status = shmring_take(m, 1, 1, &l)) == SHMRING_OK || status == SHMRING_CONTENDED) {
		if (status)
			continue;
		at = l.first;
		NEED(shmring_read(m->ring, &at, l.end, &message) == SHMRING_OK);
		memcpy(&number, message.data, 8);
		NEED(number < 64);
		CHECK(!(got >> number & 1));
		got |= UINT64_C(1) << number;
		if (l.redelivered)
			*redelivered |= UINT64_C(1) << number;
		CHECK_IS(shmring_release(m, l.first, l.end), SHMRING_OK);
	}
	CHECK_IS(status, SHMRING_UNAVAILABLE);
	return got;
}

#endif
