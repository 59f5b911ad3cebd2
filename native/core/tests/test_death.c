/* Whoever dies wherever: the rest goes on, and nothing committed is lost.
 *
 * A child plays the part of the one who dies: it calls the public API up to a
 * point, or writes the words of its seat as the code would have left them, and
 * then kills itself. `docs/protocol.md` names the steps. */
#include "traffic.h"

static const struct shmring_branch_options earliest = {.start = SHMRING_EARLIEST};

/* --- a child under our thumb -------------------------------------------------- */

struct puppet {
	char path[64];
	int (*act)(struct puppet *);
	shmring *r; /* the child's own */
	shmring_producer *p;
	shmring_member *m;
	uint64_t lo, n, step;
	bool ready, go, gone;
	bool stays; /* lives until it is killed */
};

static int play_puppet(void *argument)
{
	struct puppet *c = argument;
	int status;

	c->r = ring_again(c->path);
	status = c->act(c);
	if (status)
		return status;
	__atomic_store_n(&c->ready, true, __ATOMIC_RELEASE);
	while (c->stays)
		pause();
	raise(SIGKILL);
	return 1;
}

static pid_t puppet_start(struct puppet *c)
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

static void puppet_kill(struct puppet *c, pid_t pid)
{
	int status;

	c->stays = false;
	kill(pid, SIGKILL);
	(void)waitpid(pid, &status, 0);
}

static void puppet_die(struct puppet *c)
{
	pid_t pid;

	c->stays = true;
	pid = puppet_start(c);
	puppet_kill(c, pid);
}

static struct puppet *puppet_new(int (*act)(struct puppet *))
{
	struct puppet *c = shared_memory(sizeof *c);

	c->act = act;
	return c;
}

static unsigned recover(shmring *r)
{
	unsigned n = 0;

	CHECK_IS(shmring_recover(r, &n), SHMRING_OK);
	return n;
}

/* The ring still works, over two laps. */
static void check_works(shmring *r, shmring_member *m)
{
	shmring_producer *p = producer_of(r);

	for (uint64_t i = 0; i < 2500; i++) {
		CHECK_IS(push_number(p, 1000000 + i), SHMRING_OK);
		CHECK_IS(pop_number(m), 1000000 + i);
	}
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	shmring_producer_close(p);
}

static unsigned seats_in_use(const shmring *r)
{
	struct shmring_seat_info seat;
	unsigned n = 0;

	for (uint32_t i = 0; i < r->seat_count; i++)
		n += shmring_seat_info(r, i, &seat) == SHMRING_OK;
	return n;
}

/* --- producers ------------------------------------------------------------------- */

enum {
	DIES_OPENED,
	DIES_INTENT, /* written, the claim word not moved */
	DIES_CLAIMED,
	DIES_FILLED, /* a batch whose later rows carry their numbers */
	DIES_FILLED_HALF,
	DIES_PUBLISHED, /* the intent still stands */
	DIES_DONE,
	PRODUCER_STEPS
};

static void fill_rows(shmring *r, uint64_t lo, uint64_t n, uint64_t from, uint8_t seat)
{
	for (uint64_t i = n; i-- > from;) {
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

static int produce_and_die(struct puppet *c)
{
	c->p = producer_of(c->r);
	if (c->step == DIES_OPENED)
		return 0;
	if (c->step == DIES_INTENT) {
		c->p->seat->intent.n = c->n;
		c->p->seat->intent.lo = shmring_claimed(c->r);
		return 0;
	}
	c->lo = (uint64_t)shmring_next(c->p, (uint32_t)c->n);
	if (c->step == DIES_FILLED || c->step == DIES_FILLED_HALF)
		fill_rows(c->r, c->lo, c->n, c->step == DIES_FILLED ? 0 : c->n / 2, (uint8_t)c->p->seat_index);
	if (c->step == DIES_PUBLISHED || c->step == DIES_DONE) {
		uint64_t number = 1;

		memcpy(shmring_slot(c->r, c->lo), &number, sizeof number);
		if (shmring_publish(c->p, 8, KIND_BYTES, 0))
			return 1;
		if (c->step == DIES_PUBLISHED)
			c->p->seat->intent.lo = c->lo;
	}
	return 0;
}

TEST(a_producer_dies_at_each_step_and_its_hole_is_stepped_over)
{
	struct puppet *c = puppet_new(produce_and_die);

	for (int single = 0; single < 2; single++)
		for (c->step = 0; c->step < PRODUCER_STEPS; c->step++)
			for (c->n = 1; c->n <= 1024; c->n = c->n * 4 + 1) {
				shmring *r =
				    ring_with(&(struct shmring_options){.slots = 1024, .single_producer = single});
				shmring_member *m = member_of(r, "b");
				shmring_producer *p;
				bool committed = c->step >= DIES_PUBLISHED;
				bool room;

				if (!single) {
					p = producer_of(r);
					CHECK_IS(push_number(p, 0), SHMRING_OK);
					shmring_producer_close(p);
					CHECK_IS(pop_number(m), 0);
				}
				puppet_die(c);
				room = c->step < DIES_CLAIMED || c->n < 1024;
				p = single ? NULL : producer_of(r);
				if (p && room)
					CHECK_IS(push_number(p, 2), SHMRING_OK);
				if (committed)
					CHECK_IS(pop_number(m), 1);
				CHECK_IS(recover(r), 2); /* its handle and its producer */
				CHECK_IS(recover(r), 0);
				if (p && room)
					CHECK_IS(pop_number(m), 2);
				CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
				shmring_producer_close(p);
				check_works(r, m);
				CHECK_IS(seats_in_use(r), 2);
				shmring_member_close(m);
				ring_end(r);
			}
	munmap(c, sizeof *c);
}

TEST(a_single_producer_that_died_makes_way_for_the_next_at_once)
{
	struct puppet *c = puppet_new(produce_and_die);
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .single_producer = true});
	shmring_member *m = member_of(r, "b");
	shmring_producer *p;

	c->step = DIES_FILLED;
	c->n = 10;
	puppet_die(c);
	p = producer_of(r); /* nobody has called recover */
	CHECK_IS(push_number(p, 5), SHMRING_OK);
	CHECK_IS(pop_number(m), 5);
	shmring_producer_close(p);
	shmring_member_close(m);
	munmap(c, sizeof *c);
	ring_end(r);
}

/* Several dead producers with an intent at the same place; one of them owns
 * the hole. What came after it, and whether its owner had begun to fill it,
 * must not mislead. */
static int die_with_an_intent(struct puppet *c)
{
	c->p = producer_of(c->r);
	c->p->seat->intent.n = c->n;
	c->p->seat->intent.lo = c->lo;
	return 0;
}

TEST(among_several_dead_with_an_intent_at_one_place_the_owner_is_found)
{
	enum { DEAD = 4, AFTERS = 5 };
	static const uint64_t sizes[DEAD] = {1, 2, 3, 7};
	struct puppet *c = puppet_new(die_with_an_intent);
	uint64_t seed = 99;

	for (int owner = 0; owner < DEAD; owner++)
		for (int after = 0; after < AFTERS; after++)
			for (int filled = 0; filled < 3; filled++) {
				shmring *r = ring_new();
				shmring_member *m = member_of(r, "b");
				shmring_producer *p = producer_of(r);
				uint64_t h = random_next(&seed) % 900, end, expected = 0;
				int order[DEAD] = {0, 1, 2, 3};
				pid_t pids[DEAD];
				uint8_t owner_seat = NOBODY;
				uint64_t behind;

				for (uint64_t i = 0; i < h; i++)
					CHECK(push_number(p, i) == 0 && pop_number(m) == (int64_t)i);
				for (int i = DEAD - 1; i > 0; i--) {
					int k = (int)(random_next(&seed) % (unsigned)(i + 1)), t = order[i];

					order[i] = order[k];
					order[k] = t;
				}
				for (int i = 0; i < DEAD; i++) {
					c->lo = h;
					c->n = sizes[order[i]];
					c->stays = true;
					pids[i] = puppet_start(c);
					if (order[i] == owner)
						for (uint32_t k = 0; k < r->seat_count; k++)
							if (r->seats[k].id.pid == (uint32_t)pids[i] &&
							    r->seats[k].id.role == ROLE_PRODUCER)
								owner_seat = (uint8_t)k;
				}
				/* The owner wins. */
				end = h + sizes[owner];
				store_release(&r->cursors->claim.v, end);
				if (filled)
					fill_rows(r, h, sizes[owner], filled == 1 ? 0 : 1, owner_seat);
				for (int i = 0; i < DEAD; i++)
					puppet_kill(c, pids[i]);
				/* What follows: nothing; single messages, which make every
				 * number a boundary; a batch; a living claim; a dead one. */
				if (after == 1)
					for (behind = 0; behind < 10; behind++)
						CHECK_IS(push_number(p, 5000 + behind), SHMRING_OK);
				if (after == 2) {
					uint64_t rows[10], id;

					for (behind = 0; behind < 10; behind++)
						rows[behind] = 5000 + behind;
					CHECK_IS(shmring_push_many(p, rows, 8, 10, NULL, 8, &id), SHMRING_OK);
				}
				if (after == 3)
					CHECK_IS(shmring_next(p, 3), end);
				if (after == 4) {
					struct puppet *d = puppet_new(produce_and_die);

					d->step = DIES_CLAIMED;
					d->n = 4;
					puppet_die(d);
					CHECK_IS(d->lo, end);
					munmap(d, sizeof *d);
					CHECK_IS(push_number(p, 5000), SHMRING_OK);
				}
				CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
				recover(r);
				CHECK(is_published(r, h));
				CHECK_IS(control_at(r, h)->run, sizes[owner]);
				CHECK_IS(control_at(r, h)->kind, KIND_ABORTED);
				if (after == 3) {
					uint64_t number = 5000;

					memcpy(shmring_slot(r, end), &number, 8);
					CHECK_IS(shmring_publish(p, 8, KIND_BYTES, 0), SHMRING_OK);
				}
				expected = after == 0 ? 0 : after < 3 ? 10 : 1;
				for (uint64_t i = 0; i < expected; i++)
					CHECK_IS(pop_number(m), 5000 + i);
				CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
				CHECK_IS(seats_in_use(r), 3);
				shmring_producer_close(p);
				check_works(r, m);
				shmring_member_close(m);
				ring_end(r);
			}
	munmap(c, sizeof *c);
}

TEST(a_living_producer_at_the_same_place_is_waited_for)
{
	struct puppet *c = puppet_new(produce_and_die);
	shmring *r = ring_new();
	shmring_member *m = member_of(r, "b");
	shmring_producer *slow = producer_of(r), *p = producer_of(r);

	/* It has written its intent and not yet tried its CAS. */
	slow->seat->intent.n = 3;
	store_release(&slow->seat->intent.lo, 0);
	c->step = DIES_CLAIMED;
	c->n = 2;
	puppet_die(c);
	CHECK_IS(push_number(p, 8), SHMRING_OK);
	CHECK_IS(recover(r), 1); /* the handle's seat; the producer's must wait */
	CHECK_IS(pop_number(m), SHMRING_UNAVAILABLE);
	store_release(&slow->seat->intent.lo, NONE); /* it lost */
	CHECK_IS(recover(r), 1);
	CHECK_IS(pop_number(m), 8);
	shmring_producer_close(slow);
	shmring_producer_close(p);
	check_works(r, m);
	shmring_member_close(m);
	munmap(c, sizeof *c);
	ring_end(r);
}

/* --- members ------------------------------------------------------------------------- */

static int take_and_die(struct puppet *c)
{
	struct shmring_lease l;

	c->m = member_of(c->r, "b");
	for (uint64_t i = 0; i < c->n; i++)
		if (shmring_take(c->m, 2, 2, &l))
			return 1;
	if (c->step) /* gave back the middle of what it had */
		return shmring_release(c->m, 2, 4);
	return 0;
}

/* Takes one at a time; returns a bit for each number, and of which was redelivered. */
static uint64_t drain(shmring_member *m, uint64_t *redelivered)
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

TEST(what_a_dead_member_held_comes_again_and_nothing_else)
{
	struct puppet *c = puppet_new(take_and_die);

	for (c->step = 0; c->step < 2; c->step++)
		for (int early = 0; early < 2; early++) { /* the other member is there already, or comes later */
			shmring *r = ring_new();
			shmring_producer *p = producer_of(r);
			shmring_member *m = NULL;
			uint64_t got, again;
			uint32_t id;

			NEED(shmring_subscribe(r, "b", &earliest, &id) == SHMRING_OK);
			for (uint64_t i = 0; i < 10; i++)
				CHECK_IS(push_number(p, i), SHMRING_OK);
			if (early)
				m = member_of(r, "b");
			c->n = 3;
			puppet_die(c);
			if (early)
				CHECK_IS(recover(r), 2);
			else
				m = member_of(r, "b");
			CHECK_IS(branch_released(r, m->branch, false), 0);
			if (!early)
				recover(r);
			got = drain(m, &again);
			CHECK_IS(got, c->step ? 0x3f3 : 0x3ff);
			CHECK_IS(again, c->step ? 0x33 : 0x3f);
			CHECK_IS(branch_released(r, m->branch, false), 10);
			shmring_producer_close(p);
			check_works(r, m);
			CHECK_IS(seats_in_use(r), 2);
			shmring_member_close(m);
			ring_end(r);
		}
	munmap(c, sizeof *c);
}

/* A take of [0, 2) word by word, as shmring_take() does it. */
enum { TAKE_MARKED = 1, TAKE_RECORDED, TAKE_HELD, TAKE_MOVED, TAKE_DONE, TAKE_STEPS };

static int take_by_halves(struct puppet *c)
{
	struct seat *s;
	uint64_t word;

	c->m = member_of(c->r, "b");
	s = c->m->seat;
	word = TAKE_WORD(UINT64_C(2), c->m->branch_index);
	if (c->step >= TAKE_MARKED) {
		s->lease.take_lo = 0;
		s->lease.take_end = word | TAKE_PENDING;
	}
	if (c->step >= TAKE_RECORDED) {
		s->range[0].hi = 2;
		s->range[0].lo = 0;
	}
	if (c->step >= TAKE_HELD)
		s->lease.hold = 0;
	if (c->step >= TAKE_MOVED)
		store_release(&c->m->branch->taken.v, UINT64_C(2) << 8 | c->m->seat_index);
	if (c->step >= TAKE_DONE)
		s->lease.take_end = word;
	return 0;
}

TEST(a_member_dies_at_each_step_of_a_take)
{
	struct puppet *c = puppet_new(take_by_halves);

	/* others: 0 nobody takes before the recovery; 1 somebody does while it
	 * lives; 2 somebody does after its death */
	for (c->step = 0; c->step < TAKE_STEPS; c->step++)
		for (int others = 0; others < 3; others++) {
			shmring *r = ring_new();
			shmring_producer *p = producer_of(r);
			shmring_member *m = member_of(r, "b");
			uint64_t got = 0, again, first = 0;
			pid_t pid;

			for (uint64_t i = 0; i < 6; i++)
				CHECK_IS(push_number(p, i), SHMRING_OK);
			c->stays = true;
			pid = puppet_start(c);
			if (others == 1)
				first = drain(m, &again);
			puppet_kill(c, pid);
			if (others == 2)
				first = drain(m, &again);
			if (others)
				CHECK_IS(first, c->step >= TAKE_MOVED ? 0x3c : 0x3f);
			CHECK_IS(recover(r), 2);
			got = drain(m, &again);
			CHECK_IS(got & first, 0); /* nothing twice */
			CHECK_IS(got | first, 0x3f);
			CHECK_IS(again, c->step >= TAKE_MOVED ? 3 : 0);
			shmring_producer_close(p);
			check_works(r, m);
			shmring_member_close(m);
			ring_end(r);
		}
	munmap(c, sizeof *c);
}

/* The same seat may serve another branch by the time its former owner's take
 * is confirmed there. */
static int pend_in_another_branch(struct puppet *c)
{
	struct seat *s;

	__atomic_store_n(&c->ready, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&c->go, __ATOMIC_ACQUIRE))
		nap_ms(1);
	c->m = member_of(c->r, "y");
	s = c->m->seat;
	s->lease.take_lo = 0;
	s->lease.take_end = TAKE_WORD(UINT64_C(2), c->m->branch_index) | TAKE_PENDING;
	s->range[0].hi = 2;
	s->range[0].lo = 0;
	s->lease.hold = 0;
	c->n = c->m->seat_index;
	__atomic_store_n(&c->gone, true, __ATOMIC_RELEASE);
	return 0;
}

TEST(a_take_is_not_confirmed_for_another_branch)
{
	struct puppet *c = puppet_new(pend_in_another_branch);
	shmring *r = ring_new();
	shmring_producer *p = producer_of(r);
	shmring_member *x = member_of(r, "x"), *y = member_of(r, "y"), *former;
	struct shmring_lease l;
	uint64_t again;
	uint32_t seat;
	pid_t pid;

	for (uint64_t i = 0; i < 6; i++)
		CHECK_IS(push_number(p, i), SHMRING_OK);
	/* `former` takes [0, 2) of x and leaves; its seat goes to the child's member. */
	former = member_of(r, "x");
	seat = former->seat_index;
	NEED(shmring_take(former, 2, 2, &l) == SHMRING_OK && shmring_release(former, 0, 2) == SHMRING_OK);
	/* The child's handle takes the next seat, its member then the one of `former`. */
	c->step = seat;
	c->stays = true;
	snprintf(c->path, sizeof c->path, "%s", ring_path());
	pid = puppet_start(c);
	shmring_member_close(former);
	__atomic_store_n(&c->go, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&c->gone, __ATOMIC_ACQUIRE))
		nap_ms(1);
	CHECK_IS(c->n, seat);
	CHECK_IS(drain(x, &again), 0x3c); /* confirms the seat that took [0, 2) of x */
	puppet_kill(c, pid);
	CHECK_IS(recover(r), 2);
	CHECK_IS(drain(y, &again), 0x3f);
	CHECK_IS(again, 0);
	shmring_member_close(x);
	shmring_member_close(y);
	shmring_producer_close(p);
	munmap(c, sizeof *c);
	ring_end(r);
}

/* Adopting [0, 4) of an orphan, word by word. */
enum { ADOPT_MARKED = 1, ADOPT_RECORDED, ADOPT_HELD, ADOPT_STRUCK, ADOPT_RAISED, ADOPT_DONE, ADOPT_STEPS };

static int adopt_by_halves(struct puppet *c)
{
	struct seat *s, *dead = NULL;
	uint32_t from = 0;

	c->m = member_of(c->r, "b");
	s = c->m->seat;
	for (uint32_t i = 0; i < c->r->seat_count; i++)
		if (c->r->seats[i].id.state == SEAT_ORPHAN)
			dead = &c->r->seats[from = i];
	if (!dead || dead->range[0].lo != 0)
		return 1;
	if (c->step >= ADOPT_MARKED) {
		s->lease.adopt_lo = 0;
		s->lease.adopt_hi = 4;
		s->lease.adopt_from = from + 1;
	}
	if (c->step >= ADOPT_RECORDED) {
		s->range[0].hi = 4;
		s->range[0].lo = 0;
	}
	if (c->step >= ADOPT_HELD) {
		s->lease.hold = 0;
		c->m->branch->d.moves++;
	}
	if (c->step >= ADOPT_STRUCK)
		dead->range[0].lo = c->n == 4 ? NONE : 4;
	if (c->step >= ADOPT_RAISED)
		dead->lease.hold = c->n == 4 ? NONE : 4;
	if (c->step >= ADOPT_DONE)
		s->lease.adopt_from = 0;
	return 0;
}

TEST(a_member_dies_at_each_step_of_adopting_from_the_dead)
{
	struct puppet *c = puppet_new(adopt_by_halves), *d = puppet_new(take_and_die);

	/* whole: it adopts all of the orphan's lease; recovered: before the other
	 * member takes, or by that take itself */
	for (c->step = 0; c->step < ADOPT_STEPS; c->step++)
		for (int whole = 0; whole < 2; whole++)
			for (int recovered = 0; recovered < 2; recovered++) {
				shmring *r = ring_new();
				shmring_producer *p = producer_of(r);
				shmring_member *m = member_of(r, "b");
				uint64_t got, again, later;

				for (uint64_t i = 0; i < 8; i++)
					CHECK_IS(push_number(p, i), SHMRING_OK);
				d->n = whole ? 2 : 3; /* holds [0, 4) or [0, 6) */
				puppet_die(d);
				CHECK_IS(recover(r), 2);
				c->n = whole ? 4 : 6;
				puppet_die(c);
				if (recovered)
					CHECK_IS(recover(r), 2);
				got = drain(m, &again);
				recover(r);
				got |= drain(m, &later);
				CHECK_IS(got, 0xff);
				CHECK_IS(again | later, whole ? 0xf : 0x3f);
				CHECK_IS(again & later, 0);
				CHECK_IS(branch_released(r, m->branch, false), 8);
				shmring_producer_close(p);
				check_works(r, m);
				CHECK_IS(seats_in_use(r), 2);
				shmring_member_close(m);
				ring_end(r);
			}
	munmap(c, sizeof *c);
	munmap(d, sizeof *d);
}

static int split_by_halves(struct puppet *c)
{
	struct shmring_lease l;
	struct seat *s;

	c->m = member_of(c->r, "b");
	s = c->m->seat;
	if (shmring_take(c->m, 8, 8, &l))
		return 1;
	/* release of [2, 4): the tail is recorded a second time first */
	s->range[1].hi = 8;
	s->range[1].lo = 4;
	if (c->step)
		s->range[0].hi = 2;
	return 0;
}

TEST(a_member_dies_while_it_splits_a_lease)
{
	struct puppet *c = puppet_new(split_by_halves);

	for (c->step = 0; c->step < 2; c->step++) {
		shmring *r = ring_new();
		shmring_producer *p = producer_of(r);
		shmring_member *m = member_of(r, "b");
		uint64_t again;

		for (uint64_t i = 0; i < 8; i++)
			CHECK_IS(push_number(p, i), SHMRING_OK);
		puppet_die(c);
		CHECK_IS(recover(r), 2);
		CHECK_IS(drain(m, &again), c->step ? 0xf3 : 0xff);
		CHECK_IS(again, c->step ? 0xf3 : 0xff);
		shmring_producer_close(p);
		check_works(r, m);
		shmring_member_close(m);
		ring_end(r);
	}
	munmap(c, sizeof *c);
}

static int join_and_die(struct puppet *c)
{
	struct shmring_branch_options o = {
	    .start = SHMRING_EARLIEST, .exclusive = c->step == 1, .ephemeral = c->step == 2};
	struct shmring_lease l;

	c->m = member_with(c->r, "b", &o);
	return shmring_take(c->m, 3, 3, &l);
}

TEST(branches_without_a_living_member_keep_or_go_by_their_policy)
{
	struct puppet *c = puppet_new(join_and_die);

	for (c->step = 0; c->step < 3; c->step++) {
		struct shmring_branch_options o = {
		    .start = SHMRING_EARLIEST, .exclusive = c->step == 1, .ephemeral = c->step == 2};
		shmring *r = ring_new();
		shmring_producer *p = producer_of(r);
		shmring_member *m;
		struct shmring_branch_info info;
		uint64_t again;
		uint32_t id;

		for (uint64_t i = 0; i < 6; i++)
			CHECK_IS(push_number(p, i), SHMRING_OK);
		puppet_die(c);
		CHECK_IS(recover(r), 2);
		CHECK_IS(shmring_find_branch(r, "b", &id), c->step == 2 ? SHMRING_E_NO_BRANCH : SHMRING_OK);
		if (c->step < 2) {
			CHECK_IS(shmring_branch_info(r, id, &info), SHMRING_OK);
			CHECK(info.orphans == 1 && info.members == 0 && info.position == 3 && info.released == 0);
		}
		m = member_with(r, "b", &o);
		CHECK_IS(drain(m, &again), 0x3f);
		CHECK_IS(again, c->step == 2 ? 0 : 7);
		shmring_member_close(m);
		shmring_producer_close(p);
		ring_end(r);
	}
	munmap(c, sizeof *c);
}

/* --- who recovers may die too --------------------------------------------------------- */

enum {
	HALF_HOLE_ENTRY, /* the aborted run is filled in, not published */
	HALF_HOLE_INTENT, /* published, the dead intent stands */
	HALF_ORPHAN, /* made, not counted */
	HALF_MEMBER, /* struck from its branch, its seat not free */
	HALF_DROPPING, /* a drop that had just begun */
	HALF_DROPPED, /* ... that had got as far as an orphan without its bit */
	HALF_BRANCH, /* announced in `active`, never made */
	HALF_EPHEMERAL, /* made, its maker died before joining */
	HALF_STEPS
};

static int recover_by_halves(struct puppet *c)
{
	shmring *r = c->r;
	struct branch *b = &r->cursors->branch[0];
	struct seat *producer = NULL, *member = NULL;
	uint32_t member_index = 0;

	for (uint32_t i = 0; i < r->seat_count; i++) {
		struct seat *s = &r->seats[i];

		if (s->id.state != SEAT_ACTIVE || seat_alive(r, i))
			continue;
		if (s->id.role == ROLE_PRODUCER)
			producer = s;
		if (s->id.role == ROLE_MEMBER)
			member = s, member_index = i;
	}
	if (!producer || !member)
		return 1;
	switch (c->step) {
	case HALF_HOLE_ENTRY:
		control_at(r, producer->intent.lo)->run = 3;
		control_at(r, producer->intent.lo)->kind = KIND_ABORTED;
		control_at(r, producer->intent.lo)->flags = 0;
		control_at(r, producer->intent.lo)->length = 0;
		break;
	case HALF_HOLE_INTENT:
		publish_aborted(r, producer->intent.lo, 3, 0);
		break;
	case HALF_ORPHAN:
		member->id.state = SEAT_ORPHAN;
		break;
	case HALF_MEMBER:
		b->d.state = BRANCH_DROPPED;
		b->d.members[0] &= ~(UINT64_C(1) << member_index);
		break;
	case HALF_DROPPING:
		b->d.state = BRANCH_DROPPING;
		break;
	case HALF_DROPPED:
		b->d.state = BRANCH_DROPPED;
		member->id.state = SEAT_ORPHAN;
		b->d.members[0] &= ~(UINT64_C(1) << member_index);
		break;
	case HALF_BRANCH:
		r->cursors->branch[1].taken.v = NOBODY;
		r->cursors->graph.active |= 2;
		break;
	default:
		r->cursors->branch[1].taken.v = NOBODY;
		memcpy(r->cursors->branch[1].d.name, "e", 2);
		r->cursors->branch[1].d.options = BRANCH_EPHEMERAL;
		r->cursors->graph.active |= 2;
		r->cursors->branch[1].d.state = BRANCH_ACTIVE;
	}
	return 0;
}

TEST(a_recovery_that_was_killed_is_finished_by_the_next)
{
	struct puppet *c = puppet_new(recover_by_halves);
	struct puppet *dead_producer = puppet_new(produce_and_die), *dead_member = puppet_new(take_and_die);

	for (c->step = 0; c->step < HALF_STEPS; c->step++)
		for (int by_join = 0; by_join < 2; by_join++) {
			bool dropped =
			    c->step == HALF_DROPPING || c->step == HALF_DROPPED || c->step == HALF_MEMBER;
			shmring *r = ring_new();
			shmring_producer *p = producer_of(r);
			shmring_member *m;
			uint64_t got, again;
			uint32_t id;

			NEED(shmring_subscribe(r, "b", &earliest, &id) == SHMRING_OK);
			for (uint64_t i = 0; i < 6; i++)
				CHECK_IS(push_number(p, i), SHMRING_OK);
			dead_member->n = 2;
			puppet_die(dead_member);
			dead_producer->step = DIES_FILLED;
			dead_producer->n = 3;
			puppet_die(dead_producer);
			puppet_die(c);
			if (!by_join)
				CHECK(recover(r) >= 4);
			m = member_of(r, "b");
			recover(r);
			CHECK_IS(push_number(p, 9), SHMRING_OK);
			got = drain(m, &again);
			if (check_broken)
				printf("  at step %d, by_join %d\n", (int)c->step, by_join);
			if (dropped) {
				CHECK(got & 1 << 9);
			} else {
				CHECK_IS(got, 0x23f);
				CHECK_IS(again, 0xf);
			}
			shmring_producer_close(p);
			check_works(r, m);
			CHECK_IS(seats_in_use(r), 2);
			CHECK_IS(load_relaxed(&r->cursors->graph.active), UINT64_C(1) << m->branch_index);
			shmring_member_close(m);
			ring_end(r);
		}
	munmap(c, sizeof *c);
	munmap(dead_producer, sizeof *c);
	munmap(dead_member, sizeof *c);
}

static int hold_the_admin_lock(struct puppet *c)
{
	return admin_try(c->r) ? 0 : 1;
}

TEST(the_admin_lock_falls_with_its_holder)
{
	struct puppet *c = puppet_new(hold_the_admin_lock);
	shmring *r = ring_new();
	shmring_member *m;
	struct shmring_lease l;
	pid_t pid;

	c->stays = true;
	pid = puppet_start(c);
	CHECK(!admin_try(r));
	puppet_kill(c, pid);
	m = member_of(r, "b");
	CHECK_IS(shmring_take(m, 1, 1, &l), SHMRING_UNAVAILABLE);
	shmring_member_close(m);
	munmap(c, sizeof *c);
	ring_end(r);
}

/* --- not dead -------------------------------------------------------------------------- */

TEST(a_stopped_process_is_not_dead)
{
	struct puppet *c = puppet_new(produce_and_die);
	shmring *r = ring_new();
	shmring_member *m = member_of(r, "b");
	pid_t pid;

	c->step = DIES_CLAIMED;
	c->n = 2;
	c->stays = true;
	pid = puppet_start(c);
	kill(pid, SIGSTOP);
	for (int i = 0; i < 20; i++) {
		CHECK_IS(recover(r), 0);
		CHECK_IS(shmring_wait_message(m, clock_ns() + 10000000, SHMRING_WAIT_FUTEX), SHMRING_TIMEOUT);
	}
	CHECK(!is_published(r, 0));
	kill(pid, SIGCONT);
	puppet_kill(c, pid);
	CHECK_IS(recover(r), 2);
	CHECK(is_published(r, 0));
	check_works(r, m);
	shmring_member_close(m);
	munmap(c, sizeof *c);
	ring_end(r);
}

/* --- fork ------------------------------------------------------------------------------ */

struct inherited {
	shmring *r;
	shmring_producer *p;
	shmring_member *m;
};

static char fork_path[64];

static int use_and_attach_again(void *argument)
{
	struct inherited copy = *(struct inherited *)argument;
	shmring *own;
	shmring_producer *p;

	own = ring_again(fork_path);
	p = producer_of(own);
	if (push_number(p, 42))
		return 1;
	shmring_producer_close(p);
	shmring_close(own);
	{
		struct shmring_lease l;
		shmring_producer *q;
		shmring_member *m;
		uint64_t id;
		uint32_t branch;

		CHECK_IS(shmring_publish(copy.p, 8, 0, 0), SHMRING_E_FORKED);
		CHECK_IS(shmring_publish_ones(copy.p, 0, NULL, 8), SHMRING_E_FORKED);
		CHECK_IS(shmring_abort(copy.p), SHMRING_E_FORKED);
		CHECK_IS(shmring_next(copy.p, 1), SHMRING_E_FORKED);
		CHECK_IS(shmring_push(copy.p, "", 0, 0, &id), SHMRING_E_FORKED);
		CHECK_IS(shmring_push_many(copy.p, "x", 1, 1, NULL, 1, &id), SHMRING_E_FORKED);
		CHECK_IS(shmring_producer_available(copy.p), SHMRING_E_FORKED);
		CHECK_IS(shmring_take(copy.m, 1, 1, &l), SHMRING_E_FORKED);
		CHECK_IS(shmring_release(copy.m, 0, 1), SHMRING_E_FORKED);
		CHECK_IS(shmring_wait_space(copy.p, 1, 0, 0), SHMRING_E_FORKED);
		CHECK_IS(shmring_wait_message(copy.m, 0, 0), SHMRING_E_FORKED);
		CHECK_IS(shmring_producer_open(copy.r, "x", &q), SHMRING_E_FORKED);
		CHECK_IS(shmring_join(copy.r, "b", NULL, "x", &m), SHMRING_E_FORKED);
		CHECK_IS(shmring_subscribe(copy.r, "c", NULL, &branch), SHMRING_E_FORKED);
		CHECK_IS(shmring_unsubscribe(copy.r, "b"), SHMRING_E_FORKED);
		CHECK_IS(shmring_follow(copy.r, 0, 0), SHMRING_E_FORKED);
		CHECK_IS(shmring_recover(copy.r, NULL), SHMRING_E_FORKED);
		CHECK(strstr(shmring_error_message(), "attach again") != NULL);
		shmring_count_dropped(copy.p);
		shmring_producer_close(copy.p);
		shmring_member_close(copy.m);
		shmring_close(copy.r);
	}
	return 0;
}

TEST(a_fork_in_the_middle_of_a_claim)
{
	shmring *r = ring_new(), *other = ring_again(ring_path());
	struct inherited h = {r, producer_of(r), member_of(r, "b")};
	uint64_t number = 1;
	struct shmring_seat_info seat;

	snprintf(fork_path, sizeof fork_path, "%s", ring_path());
	CHECK_IS(shmring_next(h.p, 1), 0);
	CHECK_IS(reap(spawn(use_and_attach_again, &h)), 0);
	/* The child's end has not ended us. */
	CHECK_IS(recover(other), 0);
	CHECK_IS(shmring_seat_info(other, h.p->seat_index, &seat), SHMRING_OK);
	CHECK(seat.alive && seat.claim == 0 && seat.dropped == 0);
	memcpy(shmring_slot(r, 0), &number, 8);
	CHECK_IS(shmring_publish(h.p, 8, 0, 0), SHMRING_OK);
	CHECK_IS(pop_number(h.m), 1);
	CHECK_IS(pop_number(h.m), 42);
	shmring_member_close(h.m);
	shmring_producer_close(h.p);
	shmring_close(other);
	ring_end(r);
}

static int fork_and_claim(struct puppet *c)
{
	pid_t pid;

	c->p = producer_of(c->r);
	if (shmring_next(c->p, 2) < 0)
		return 1;
	pid = fork();
	if (pid == 0) { /* keeps the mapping, and does nothing */
		store_release(&c->n, 1);
		for (int i = 0; i < 3000; i++)
			nap_ms(1);
		_exit(0);
	}
	while (!load_acquire(&c->n)) /* its copy of the locks is closed before fork() returns there */
		nap_ms(1);
	c->lo = (uint64_t)pid;
	return 0;
}

TEST(a_parent_is_dead_although_its_forked_child_lives)
{
	struct puppet *c = puppet_new(fork_and_claim);
	shmring *r = ring_new();
	shmring_member *m = member_of(r, "b");

	puppet_die(c);
	NEED((pid_t)c->lo > 0 && kill((pid_t)c->lo, 0) == 0);
	CHECK_IS(recover(r), 2);
	CHECK(is_published(r, 0));
	kill((pid_t)c->lo, SIGKILL);
	check_works(r, m);
	shmring_member_close(m);
	munmap(c, sizeof *c);
	ring_end(r);
}

/* --- seats and branches run out ------------------------------------------------------------ */

static int take_all_seats(struct puppet *c)
{
	shmring_producer *p;

	for (uint32_t i = 0; i < 3; i++)
		c->p = producer_of(c->r);
	return shmring_producer_open(c->r, "one too many", &p) == SHMRING_E_LIMIT ? 0 : 1;
}

TEST(seats_run_out_and_come_back)
{
	struct puppet *c = puppet_new(take_all_seats);
	shmring *r = NULL, *r2;
	pid_t pid;

	NEED(shmring_create(ring_path(), &(struct shmring_options){.slots = 1024, .participants = 4}) ==
	     SHMRING_OK);
	for (int round = 0; round < 3; round++) {
		c->stays = true;
		pid = puppet_start(c);
		CHECK_IS(shmring_attach(ring_path(), 0, &r), SHMRING_E_LIMIT);
		CHECK_IS(shmring_attach(ring_path(), SHMRING_READ_ONLY, &r2), SHMRING_OK);
		shmring_close(r2);
		puppet_kill(c, pid);
		r = ring_again(ring_path()); /* finds no free seat and clears the dead away */
		shmring_close(r);
	}
	munmap(c, sizeof *c);
	unlink(ring_path());
}

static int make_all_branches(struct puppet *c)
{
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .ephemeral = true};
	char name[16];

	for (int i = 0; i < 64; i++) {
		snprintf(name, sizeof name, "e%d", i);
		c->m = member_with(c->r, name, &o);
	}
	return 0;
}

TEST(branches_run_out_and_come_back)
{
	struct puppet *c = puppet_new(make_all_branches);
	shmring *r = ring_new();
	uint32_t id;
	pid_t pid;

	for (int round = 0; round < 2; round++) {
		c->stays = true;
		pid = puppet_start(c);
		CHECK_IS(shmring_subscribe(r, "mine", NULL, &id), SHMRING_E_LIMIT);
		puppet_kill(c, pid);
		CHECK_IS(shmring_subscribe(r, "mine", NULL, &id), SHMRING_OK);
		CHECK_IS(shmring_unsubscribe(r, "mine"), SHMRING_OK);
		recover(r);
		CHECK_IS(load_relaxed(&r->cursors->graph.active), 0);
		CHECK_IS(seats_in_use(r), 1);
	}
	munmap(c, sizeof *c);
	ring_end(r);
}

/* --- how soon --------------------------------------------------------------------------------- */

static int64_t wait_behind_a_hole(uint8_t strategy, int64_t slice_ns, bool traffic)
{
	struct puppet *c = puppet_new(produce_and_die);
	shmring *r = ring_new();
	shmring_member *m = member_of(r, "b");
	shmring_producer *p = producer_of(r);
	int64_t start, took;
	int64_t next = 0;

	(void)shmring_wait_message(m, clock_ns() + 1000000, strategy);
	c->step = DIES_CLAIMED;
	c->n = 1;
	puppet_die(c);
	CHECK_IS(push_number(p, 7), SHMRING_OK);
	start = clock_ns();
	while (pop_number(m) != 7 && clock_ns() - start < 2000000000) {
		if (traffic && clock_ns() > next) { /* keeps waking the sleeper in vain */
			(void)push_number(p, 8);
			next = clock_ns() + 3000000;
		}
		(void)shmring_wait_message(m, slice_ns ? clock_ns() + slice_ns : INT64_MAX, strategy);
	}
	took = clock_ns() - start;
	shmring_producer_close(p);
	shmring_member_close(m);
	munmap(c, sizeof *c);
	ring_end(r);
	return took;
}

TEST(a_hole_is_found_soon_by_whoever_waits)
{
	int64_t spinning = wait_behind_a_hole(SHMRING_WAIT_SPIN, 0, false);
	int64_t sleeping = wait_behind_a_hole(SHMRING_WAIT_FUTEX, 0, false);
	int64_t by_default = wait_behind_a_hole(SHMRING_WAIT_DEFAULT, 0, true);
	int64_t in_slices = wait_behind_a_hole(SHMRING_WAIT_FUTEX, 3000000, true);

	printf("  spinning %.2f ms, sleeping %.1f ms, with traffic behind it %.1f ms, with time-outs of 3 ms %.1f "
	       "ms\n",
	       (double)spinning / 1e6, (double)sleeping / 1e6, (double)by_default / 1e6, (double)in_slices / 1e6);
	CHECK(spinning < 50000000 && sleeping < 300000000 && by_default < 300000000 && in_slices < 300000000);
}

/* --- kills at random while traffic flows -------------------------------------------------------- */

struct soak {
	char path[64];
	uint64_t committed[MAX_PRODUCERS]; /* by child: numbers below were published */
	uint64_t alive;
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
	shmring_member *m = member_of(r, "b");
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
	uint64_t seed = 5, kills = 0, lost = 0, committed = 0, again;
	uint32_t id;
	shmring_member *m;
	int64_t end;

	snprintf(s->path, sizeof s->path, "%s", ring_path());
	NEED(shmring_subscribe(r, "b", &earliest, &id) == SHMRING_OK);
	for (uint32_t i = 0; i < CHILDREN; i++) {
		workers[i] = (struct soaker){s, i};
		pids[i] = spawn(i < 3 ? soak_produce : soak_consume, &workers[i]);
	}
	end = clock_ns() + 3000000000 * (int64_t)stress();
	while (clock_ns() < end) {
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
	m = member_of(r, "b");
	for (int i = 0; i < 50 && (recover(r) || i < 3); i++)
		nap_ms(1);
	(void)again;
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
	CHECK_IS(seats_in_use(r), 2);
	shmring_member_close(m);
	munmap(s, sizeof *s);
	ring_end(r);
}

int main(void)
{
	check_begin();
	RUN(a_producer_dies_at_each_step_and_its_hole_is_stepped_over);
	RUN(a_single_producer_that_died_makes_way_for_the_next_at_once);
	RUN(among_several_dead_with_an_intent_at_one_place_the_owner_is_found);
	RUN(a_living_producer_at_the_same_place_is_waited_for);
	RUN(what_a_dead_member_held_comes_again_and_nothing_else);
	RUN(a_member_dies_at_each_step_of_a_take);
	RUN(a_take_is_not_confirmed_for_another_branch);
	RUN(a_member_dies_at_each_step_of_adopting_from_the_dead);
	RUN(a_member_dies_while_it_splits_a_lease);
	RUN(branches_without_a_living_member_keep_or_go_by_their_policy);
	RUN(a_recovery_that_was_killed_is_finished_by_the_next);
	RUN(the_admin_lock_falls_with_its_holder);
	RUN(a_stopped_process_is_not_dead);
	RUN(a_fork_in_the_middle_of_a_claim);
	RUN(a_parent_is_dead_although_its_forked_child_lives);
	RUN(seats_run_out_and_come_back);
	RUN(branches_run_out_and_come_back);
	RUN(a_hole_is_found_soon_by_whoever_waits);
	RUN(random_kills_and_stops_lose_nothing);
	return check_summary();
}
