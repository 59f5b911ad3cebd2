/* Rings before an operation, and the handles that the child has when its stepping begins. */
#include "scenes.h"

const struct shmring_branch_options earliest = {.start = SHMRING_EARLIEST};

void push_numbers(shmring *r, uint64_t from, uint64_t to)
{
	shmring_producer *p = producer_of(r);

	push_n(p, from, to - from);
	shmring_producer_close(p);
}

void subscribe(shmring *r, const char *name, struct shmring_branch_options o)
{
	o.start = SHMRING_EARLIEST;
	NEED(shmring_subscribe(r, name, &o, NULL) == SHMRING_OK);
}

/* Makes a branch "w" whose consumers all sleep, so that every wake-up has work to do. */
void add_sleepers(shmring *r, struct shmring_branch_options o)
{
	shmring_consumer *m;

	subscribe(r, "w", o);
	m = consumer_of(r, "w");
	while (pop_number(m) >= 0)
		;
	NEED(shmring_wait_message(m, clock_ns() + 1, SHMRING_WAIT_FUTEX) == SHMRING_TIMEOUT);
	shmring_consumer_close(m);
}

void build_six(shmring *r)
{
	subscribe(r, "b", earliest);
	push_numbers(r, 0, 6);
	add_sleepers(r, earliest);
}

void build_followed(shmring *r)
{
	uint32_t id;

	subscribe(r, "b", earliest);
	push_numbers(r, 0, 6);
	NEED(shmring_find_branch(r, "b", &id) == SHMRING_OK);
	add_sleepers(r, (struct shmring_branch_options){.upstream = BIT(id)});
}

/* Dies while it holds four messages of "b" and one of "e". */
int die_holding_four(void *path)
{
	shmring *r = ring_again(path);
	shmring_consumer *m = consumer_of(r, "b"), *e;
	struct shmring_lease l;

	e = consumer_with(r, "e", &(struct shmring_branch_options){.start = SHMRING_EARLIEST, .ephemeral = true});
	NEED(shmring_take(e, 1, 1, &l) == SHMRING_OK);
	NEED(shmring_take(m, 2, 2, &l) == SHMRING_OK && shmring_take(m, 2, 2, &l) == SHMRING_OK);
	raise(SIGKILL);
	return 1;
}

static int die_filling_a_batch(void *path)
{
	shmring *r = ring_again(path);
	shmring_producer *p = producer_of(r);
	int64_t lo = shmring_next(p, 5);

	for (uint64_t i = 1; i < 5; i++) /* the state in publish_ones() before the first row is published */
		control_at(r, (uint64_t)lo + i)->published = (uint64_t)lo + i + 1;
	raise(SIGKILL);
	return 1;
}

void die(int (*job)(void *))
{
	NEED(reap(spawn(job, (void *)ring_path())) == -SIGKILL);
}

void build_orphan(shmring *r)
{
	build_six(r);
	die(die_holding_four);
	NEED(shmring_recover(r, NULL) == SHMRING_OK);
}

/* Takes six messages, hands the middle ones back (an orphan gets them), and dies. */
static int die_around_what_was_handed_back(void *path)
{
	shmring_consumer *m = consumer_of(ring_again(path), "b");
	struct shmring_lease l;

	NEED(shmring_take(m, 6, 6, &l) == SHMRING_OK && shmring_nack(m, 2, 4) == SHMRING_OK);
	raise(SIGKILL);
	return 1;
}

void build_dead_beside_an_orphan(shmring *r)
{
	build_six(r);
	die(die_around_what_was_handed_back);
}

void build_dead(shmring *r)
{
	build_six(r);
	die(die_holding_four);
	die(die_filling_a_batch);
}

void enter_producer(struct victim *v)
{
	v->p = producer_of(v->r);
}

void enter_consumer(struct victim *v)
{
	v->m = consumer_of(v->r, "b");
}

/* Returns a mask of the messages below 64 that shmring_table_row() shows. */
uint64_t visible_in_table(const shmring *r)
{
	struct shmring_row row;
	uint64_t numbers = 0, number;

	for (uint64_t i = 0; i < r->capacity; i++)
		if (shmring_table_row(r, i, &row, &number, sizeof number) == SHMRING_OK && row.filled &&
		    number < 64)
			numbers |= BIT(number);
	return numbers;
}
