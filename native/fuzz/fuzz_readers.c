/* Fuzzes cursors, seats and control entries: each call that takes, reads, pushes,
 * waits or recovers must return. */
#include "fuzz.h"

struct ring {
	shmring *r;
	shmring_producer *p;
	shmring_consumer *m[3];
	uint8_t *image; /* cursors, seats and control as they are before each input */
	size_t bytes;
};

static void set_up(struct ring *f)
{
	static const char *const names[] = {"b", "f", "l"};

	f->r = fuzz_ring();
	fuzz_fence(f->r);
	for (int i = 0; i < 3; i++)
		f->m[i] = consumer_of(f->r, names[i]);
	f->p = producer_of(f->r);
	f->bytes = (size_t)(f->r->slots - (uint8_t *)f->r->cursors);
	f->image = malloc(f->bytes);
	NEED(f->image);
	memcpy(f->image, f->r->cursors, f->bytes);
}

/* Restores the ring and the handles, so that nothing of the last input remains. */
static void put_back(struct ring *f)
{
	memcpy(f->r->cursors, f->image, f->bytes);
	for (int i = 0; i < 3; i++) {
		shmring_consumer *m = f->m[i];

		m->ranges_used = 0;
		m->upstream_released = 0;
		deferred_free(&m->deferred);
		m->deferred = (struct deferred){0};
	}
	f->p->claim_n = 0;
	f->p->floor = 0;
}

static uint32_t touch(const struct shmring_message *m)
{
	return shmring_crc32c(0, m->data, m->length);
}

static void take(struct ring *f, shmring_consumer *m, uint64_t choice)
{
	struct shmring_lease l;
	struct shmring_message message;

	if (shmring_take(m, 1 + (uint32_t)(choice & 15), 1 + (choice >> 4 & 1023), &l))
		return;
	for (uint64_t at = l.first; shmring_read(f->r, &at, l.end, &message) == SHMRING_OK;)
		(void)touch(&message);
	(void)shmring_release(m, l.first + (choice >> 14 & 1), l.end);
}

/* Returns the wait strategy that an input's 'choice' names. */
static uint8_t strategy(uint64_t choice)
{
	return (uint8_t)(choice >> 8) % SHMRING_WAIT_STRATEGIES;
}

static void act(struct ring *f, uint64_t choice)
{
	shmring_consumer *m = f->m[(choice >> 4) % 3];
	uint64_t id;
	uint32_t branch;

	switch (choice & 15) {
	case 0:
		(void)shmring_push(f->p, "x", 1, KIND_BYTES, &id);
		break;
	case 1:
		(void)shmring_push_many(f->p, &id, 0, 1 + (uint32_t)(choice >> 8 & 31), NULL, 8, &id);
		break;
	case 2:
		(void)shmring_recover(f->r, NULL);
		break;
	case 3:
		(void)shmring_wait_message(m, 0, strategy(choice));
		(void)shmring_wait_any(&(struct shmring_wait){.consumer = m}, 1, NULL, 0, 0, strategy(choice));
		break;
	case 4:
		(void)shmring_wait_space(f->p, 1 + (choice >> 8 & 1023), 0, strategy(choice));
		break;
	case 5:
		(void)shmring_consumer_available(m);
		break;
	case 6:
		(void)shmring_subscribe(f->r, "new", NULL, &branch);
		break;
	case 7:
		(void)shmring_unsubscribe(f->r, "new");
		break;
	case 8:
		(void)shmring_follow(f->r, (uint32_t)(choice >> 8 & 63), UINT64_C(1) << (choice >> 4 & 63));
		break;
	default:
		take(f, m, choice >> 8);
	}
	if (f->p->claim_n)
		(void)shmring_abort(f->p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct ring f;
	struct fuzz_input in = {data, size};

	if (!f.r)
		set_up(&f);
	put_back(&f);
	for (int i = 0; i < 8 && in.left; i++) {
		fuzz_scribble(f.r, &in);
		for (uint64_t n = 1 + fuzz_take(&in, 1) % 4; n; n--)
			act(&f, fuzz_take(&in, 3));
	}
	return 0;
}
