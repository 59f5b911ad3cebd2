/* Many participants on one ring.
 *
 *   crowd redelivery path=FILE seats=N seconds=S   takes what a dead consumer held, beside N others
 *   crowd idle path=FILE consumers=N seconds=S       N threads wait for a message that never comes
 *   crowd share path=FILE consumers=N seconds=S      N consumers of a branch sleep; one message at a time
 *
 * Default waiting everywhere. Prints one JSON object.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "rings.h"

#define MAX_CONSUMERS 240
#define SETTLE_SECONDS 0.5

struct tally {
	_Atomic uint32_t ready;
	_Atomic bool go;
	_Atomic bool ended;
	_Atomic uint64_t received;
	double cpu[MAX_CONSUMERS];
};

static const char *path;
static struct tally *tally;

static shmring_consumer *join(shmring *ring)
{
	struct shmring_branch_options branch = {.start = SHMRING_EARLIEST};
	shmring_consumer *consumer;

	must(shmring_join(ring, "bench", &branch, "consumer", &consumer), "join");
	return consumer;
}

static shmring *begin(char **argv)
{
	struct shmring_options options = {.slots = 16384, .participants = 248};

	path = option(argv, "path", "/dev/shm/shmring.bench-crowd");
	unlink_at_exit(path);
	create(path, &options);
	tally = shared(sizeof *tally);
	return attach(path);
}

static void await_ready(uint32_t processes)
{
	while (atomic_load(&tally->ready) < processes)
		usleep(1000);
}

static double process_cpu(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- redelivery ----------------------------------------------------------------- */

enum { HELD = 8192 };

static void measure_redelivery(char **argv)
{
	uint32_t seats = (uint32_t)number(argv, "seats", 200);
	double seconds = atof(option(argv, "seconds", "0.5"));
	shmring *ring = begin(argv);
	shmring_consumer *consumer = join(ring);
	shmring_producer *producer;
	struct shmring_lease lease;
	char row[SHMRING_SLOT_BYTES] = {0};
	uint64_t id, taken = 0;
	pid_t others, dead;
	double start, took;

	must(shmring_producer_open(ring, "producer", &producer), "producer");
	for (int i = 0; i < HELD; i++)
		must(shmring_push(producer, row, sizeof row, 0, &id), "push");
	others = child();
	if (others == 0) {
		for (uint32_t i = 0; i < seats; i++)
			(void)attach(path);
		atomic_fetch_add(&tally->ready, 1);
		for (;;)
			pause();
	}
	await_ready(1);
	dead = child();
	if (dead == 0) {
		must(shmring_take(join(attach(path)), HELD, HELD, &lease), "take");
		raise(SIGKILL);
	}
	waitpid(dead, NULL, 0);
	must(shmring_recover(ring, NULL), "recover");
	start = now();
	do {
		must(shmring_take(consumer, 1, 1, &lease), "take from the dead");
		if (!lease.redelivered)
			die("this was not redelivered");
		must(shmring_release(consumer, lease.first, lease.end), "release");
		took = now() - start;
	} while (++taken < HELD && took < seconds);
	kill(others, SIGKILL);
	waitpid(others, NULL, 0);
	printf("{\"us\": %.3f, \"messages\": %llu}\n", took * 1e6 / (double)taken, (unsigned long long)taken);
}

/* --- nothing to do ----------------------------------------------------------------- */

/* A process has a seat of its own: 200 of one consumer each would not find room. */
enum { THREADS = 5 };

static void *wait_in_vain(void *ring)
{
	shmring_consumer *consumer = join(ring);

	atomic_fetch_add(&tally->ready, 1);
	while (!atomic_load(&tally->ended)) {
		struct shmring_lease lease;

		if (shmring_take(consumer, 1, 1, &lease) != SHMRING_UNAVAILABLE)
			die("there was a message");
		(void)shmring_wait_message(consumer, INT64_MAX, SHMRING_WAIT_DEFAULT);
	}
	return NULL;
}

static void idle_process(uint32_t me, double seconds)
{
	shmring *ring = attach(path);
	pthread_t thread;
	double start, cpu;

	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread, NULL, wait_in_vain, ring))
			die("pthread_create");
	while (!atomic_load(&tally->go))
		usleep(20000);
	start = now();
	cpu = process_cpu();
	usleep((useconds_t)(seconds * 1e6));
	tally->cpu[me] = (process_cpu() - cpu) / (now() - start);
	_exit(0);
}

static void measure_idle(char **argv)
{
	uint32_t consumers = (uint32_t)number(argv, "consumers", 200);
	double seconds = atof(option(argv, "seconds", "3")), percent = 0;
	shmring *ring = begin(argv);

	if (consumers > MAX_CONSUMERS || consumers % THREADS)
		die("consumers come in fives");
	for (uint32_t i = 0; i < consumers / THREADS; i++) {
		if (child() == 0)
			idle_process(i, seconds);
		await_ready((i + 1) * THREADS);
	}
	usleep((useconds_t)(SETTLE_SECONDS * 1e6));
	atomic_store(&tally->go, true);
	wait_for_children();
	for (uint32_t i = 0; i < consumers / THREADS; i++)
		percent += 100 * tally->cpu[i];
	printf("{\"percent\": %.4f}\n", percent);
	shmring_close(ring);
}

/* --- one message, many who could take it --------------------------------------------- */

static void serve(uint32_t me)
{
	shmring *ring = attach(path);
	shmring_consumer *consumer = join(ring);
	double cpu = process_cpu();

	atomic_fetch_add(&tally->ready, 1);
	while (!atomic_load(&tally->ended)) {
		struct shmring_lease lease;
		int status = shmring_take(consumer, 1, 1, &lease);

		if (status == SHMRING_OK) {
			must(shmring_release(consumer, lease.first, lease.end), "release");
			atomic_fetch_add(&tally->received, 1);
		} else if (status == SHMRING_UNAVAILABLE) {
			(void)shmring_wait_message(consumer, INT64_MAX, SHMRING_WAIT_DEFAULT);
		}
	}
	tally->cpu[me] = process_cpu() - cpu;
	_exit(0);
}

static void measure_share(char **argv)
{
	uint32_t consumers = (uint32_t)number(argv, "consumers", 48);
	double seconds = atof(option(argv, "seconds", "0.5")), start, took, cpu = 0;
	shmring *ring = begin(argv);
	shmring_producer *producer;
	uint64_t id, sent = 0;

	if (consumers > MAX_CONSUMERS)
		die("too many consumers");
	for (uint32_t i = 0; i < consumers; i++) {
		if (child() == 0)
			serve(i);
		await_ready(i + 1);
	}
	usleep((useconds_t)(SETTLE_SECONDS * 1e6));
	must(shmring_producer_open(ring, "producer", &producer), "producer");
	start = now();
	do {
		must(shmring_push(producer, "?", 1, 0, &id), "push");
		sent++;
		while (atomic_load(&tally->received) < sent)
			sched_yield();
		took = now() - start;
	} while (took < seconds);
	atomic_store(&tally->ended, true);
	wait_for_children();
	for (uint32_t i = 0; i < consumers; i++)
		cpu += tally->cpu[i];
	printf("{\"us\": %.3f, \"cpu_us\": %.3f, \"messages\": %llu}\n", took * 1e6 / (double)sent,
	       cpu * 1e6 / (double)sent, (unsigned long long)sent);
	shmring_producer_close(producer);
	shmring_close(ring);
}

int main(int argc, char **argv)
{
	static const struct measurement known[] = {
	    {"redelivery", measure_redelivery},
	    {"idle", measure_idle},
	    {"share", measure_share},
	    {0},
	};

	return measure(argc, argv, known);
}
