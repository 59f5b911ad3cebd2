/* A peer that writes whatever it likes wherever it likes while others run: they
 * get messages, are told of the damage, or find the ring full or empty. They
 * never crash, never read outside the map, and never hang. */
#include "check.h"

enum { ROUNDS = 40, ROUND_MS = 60 };

static struct {
	char path[64];
	uint64_t answers; /* of all children, of this round */
	bool stop;
} *scene;

static bool over(void)
{
	return __atomic_load_n(&scene->stop, __ATOMIC_ACQUIRE);
}

/* Whatever a call says is all right, if it says it. */
static void answered(void)
{
	__atomic_fetch_add(&scene->answers, 1, __ATOMIC_RELAXED);
}

static int64_t soon(void)
{
	return clock_ns() + 2000000;
}

static int push_on(void *unused)
{
	shmring *r;
	shmring_producer *p;
	uint64_t seed = (uint64_t)getpid();
	uint8_t rows[20][8] = {{0}}, text[900] = {0};

	(void)unused;
	if (shmring_attach(scene->path, 0, &r) || shmring_producer_open(r, "p", &p))
		return 0;
	while (!over()) {
		if (random_next(&seed) & 1)
			(void)shmring_push(p, text, seed % sizeof text, KIND_BYTES, NULL);
		else
			(void)shmring_push_many(p, rows, 8, 1 + (uint32_t)(seed >> 8) % 20, NULL, 8, NULL);
		(void)shmring_wait_space(p, 1, soon(), SHMRING_WAIT_DEFAULT);
		answered();
	}
	return 0;
}

static int take_on(void *name)
{
	shmring *r;
	shmring_consumer *m;
	struct shmring_lease held[40], l;
	struct shmring_message message;
	uint64_t seed = (uint64_t)getpid();
	size_t n = 0;
	volatile uint32_t sum = 0;

	if (shmring_attach(scene->path, 0, &r) || shmring_join(r, name, NULL, "m", &m))
		return 0;
	while (!over()) {
		(void)shmring_wait_message(m, soon(), SHMRING_WAIT_DEFAULT);
		if (n < sizeof held / sizeof *held && shmring_take(m, 10, 100, &held[n]) == SHMRING_OK) {
			l = held[n++];
			for (uint64_t at = l.first; shmring_read(r, &at, l.end, &message) == SHMRING_OK;)
				sum += shmring_crc32c(0, message.data, message.length);
		}
		while (n && random_next(&seed) % 40 < n) { /* from the middle of what is held, too */
			size_t k = seed % n;

			l = held[k];
			if (seed >> 32 & 1 && l.end - l.first > 2)
				(void)shmring_release(m, l.first + 1, l.first + 2);
			held[k] = held[--n];
			if (seed >> 33 & 7)
				(void)shmring_release(m, l.first, l.end);
			else
				(void)shmring_nack(m, l.first, l.end);
		}
		(void)shmring_recover(r, NULL);
		answered();
	}
	return 0;
}

/* Subscribes, drops and looks on. */
static int fuss_on(void *unused)
{
	shmring *r;
	struct shmring_branch_info branch;
	struct shmring_participant_info seat;
	struct shmring_row row;
	char message[500];

	(void)unused;
	if (shmring_attach(scene->path, 0, &r))
		return 0;
	while (!over()) {
		(void)shmring_subscribe(r, "guest", NULL, NULL);
		(void)shmring_unsubscribe(r, "guest");
		for (uint64_t i = 0; i < 64; i++)
			(void)shmring_table_row(r, i, &row, message, sizeof message);
		for (uint32_t i = 0; i < BRANCHES; i++)
			(void)shmring_branch_info(r, i, &branch);
		for (uint32_t i = 0; i < r->seat_count; i++)
			(void)shmring_participant_info(r, i, &seat);
		answered();
	}
	return 0;
}

/* `from` and `to` bound what is scribbled over. */
static void scribble(uint8_t *from, size_t bytes, uint64_t *seed)
{
	uint64_t end = (uint64_t)clock_ns() + ROUND_MS * UINT64_C(1000000);

	while ((uint64_t)clock_ns() < end) {
		for (int i = 0; i < 20; i++) {
			uint64_t at = random_next(seed) % bytes, what = random_next(seed);

			switch (what >> 60 & 3) {
			case 0: /* a bit */
				from[at] ^= (uint8_t)(1 << (what & 7));
				break;
			case 1: /* a byte */
				from[at] = (uint8_t)what;
				break;
			case 2: /* a word */
				memcpy(from + at / 8 * 8 % (bytes - 7), &what, 8);
				break;
			default: /* something plausible */
				what &= 2047;
				memcpy(from + at / 8 * 8 % (bytes - 7), &what, 8);
			}
		}
		nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	}
}

static void run_round(uint64_t round, uint64_t *seed)
{
	static char b[] = "b", f[] = "f";
	struct shmring_branch_options o = {.start = SHMRING_EARLIEST, .drop_oldest = round % 3 == 2};
	shmring *r =
	    ring_with(&(struct shmring_options){.slots = 1024, .participants = 16, .checksum = round & 1});
	uint8_t *regions[] = {r->base, (uint8_t *)r->cursors, (uint8_t *)r->seats, (uint8_t *)r->control,
			      r->slots};
	size_t at = round % 5;
	uint8_t *end = at == 4 ? r->base + r->header.file_bytes : regions[at + 1];
	/* Of the cursors, those that are in use. */
	size_t bytes =
	    at == 1 ? offsetof(struct cursors, branch) + 4 * sizeof(struct branch) : (size_t)(end - regions[at]);
	pid_t children[5];
	uint32_t id;

	snprintf(scene->path, sizeof scene->path, "%s", ring_path());
	scene->answers = 0;
	scene->stop = false;
	NEED(shmring_subscribe(r, b, &o, &id) == SHMRING_OK);
	o.upstream = UINT64_C(1) << id;
	NEED(shmring_subscribe(r, f, &o, &id) == SHMRING_OK);
	children[0] = spawn(push_on, NULL);
	children[1] = spawn(push_on, NULL);
	children[2] = spawn(take_on, b);
	children[3] = spawn(take_on, f);
	children[4] = spawn(fuss_on, NULL);
	while (__atomic_load_n(&scene->answers, __ATOMIC_RELAXED) < 100) /* all are at work */
		nap_ms(1);
	scribble(regions[at], bytes, seed);
	__atomic_store_n(&scene->stop, true, __ATOMIC_RELEASE);
	for (size_t i = 0; i < 5; i++)
		CHECK_IS(reap(children[i]), 0); /* by itself, and soon: run_tests() set an alarm */
	end_all();
}

TEST(whatever_a_peer_writes_the_others_get_answers)
{
	uint64_t seed = 20261121;

	scene = shared_memory(sizeof *scene);
	for (uint64_t round = 0; round < ROUNDS * stress(); round++)
		run_round(round, &seed);
	munmap(scene, sizeof *scene);
}
