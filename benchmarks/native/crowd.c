/* Many participants on one ring.
 *
 *   crowd redelivery path=FILE seats=N seconds=S   takes what a dead member held, beside N others
 *   crowd idle path=FILE members=N seconds=S       N threads wait for a message that never comes
 *   crowd share path=FILE members=N seconds=S      N members of a branch sleep; one message at a time
 *
 * Default waiting everywhere. Prints one JSON object.
 */
#include <pthread.h>
#include <shmring.h>
#include <stdatomic.h>

#include "bench.h"

#define MAX_MEMBERS 240
#define SETTLE_SECONDS 0.5

struct tally {
	_Atomic uint32_t ready;
	_Atomic bool go;
	_Atomic bool ended;
	_Atomic uint64_t received;
	double cpu[MAX_MEMBERS];
};

static const char *current_path;
static pid_t owner;
static struct tally *tally;

static void must(int status, const char *what)
{
	if (status >= 0)
		return;
	fprintf(stderr, "%s: %d %s\n", what, status, shmring_error_message());
	exit(1);
}

static void unlink_current(void)
{
	if (current_path && getpid() == owner)
		unlink(current_path);
}

static shmring *attach(void)
{
	shmring *ring;

	must(shmring_attach(current_path, 0, &ring), "attach");
	return ring;
}

static shmring_member *join(shmring *ring)
{
	struct shmring_branch_options branch = {.start = SHMRING_EARLIEST};
	shmring_member *member;

	must(shmring_join(ring, "bench", &branch, "member", &member), "join");
	return member;
}

static shmring *create(char **argv)
{
	struct shmring_options options = {.slots = 16384, .participants = 248};

	current_path = option(argv, "path", "/dev/shm/shmring.bench-crowd");
	owner = getpid();
	unlink(current_path);
	must(shmring_create(current_path, &options, NULL), "create");
	tally = shared(sizeof *tally);
	return attach();
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
	shmring *ring = create(argv);
	shmring_member *member = join(ring);
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
			(void)attach();
		atomic_fetch_add(&tally->ready, 1);
		for (;;)
			pause();
	}
	await_ready(1);
	dead = child();
	if (dead == 0) {
		must(shmring_take(join(attach()), HELD, HELD, &lease), "take");
		raise(SIGKILL);
	}
	waitpid(dead, NULL, 0);
	must(shmring_recover(ring, NULL), "recover");
	start = now();
	do {
		must(shmring_take(member, 1, 1, &lease), "take from the dead");
		if (!lease.redelivered)
			die("this was not redelivered");
		must(shmring_release(member, lease.first, lease.end), "release");
		took = now() - start;
	} while (++taken < HELD && took < seconds);
	kill(others, SIGKILL);
	waitpid(others, NULL, 0);
	printf("{\"us\": %.3f, \"messages\": %llu}\n", took * 1e6 / (double)taken, (unsigned long long)taken);
}

/* --- nothing to do ----------------------------------------------------------------- */

/* A process has a seat of its own: 200 of one member each would not find room. */
enum { THREADS = 5 };

static void *wait_in_vain(void *ring)
{
	shmring_member *member = join(ring);

	atomic_fetch_add(&tally->ready, 1);
	while (!atomic_load(&tally->ended)) {
		struct shmring_lease lease;

		if (shmring_take(member, 1, 1, &lease) != SHMRING_UNAVAILABLE)
			die("there was a message");
		(void)shmring_wait_message(member, INT64_MAX, SHMRING_WAIT_DEFAULT);
	}
	return NULL;
}

static void idle_process(uint32_t me, double seconds)
{
	shmring *ring = attach();
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
	uint32_t members = (uint32_t)number(argv, "members", 200);
	double seconds = atof(option(argv, "seconds", "3")), percent = 0;
	shmring *ring = create(argv);

	if (members > MAX_MEMBERS || members % THREADS)
		die("members come in fives");
	for (uint32_t i = 0; i < members / THREADS; i++) {
		if (child() == 0)
			idle_process(i, seconds);
		await_ready((i + 1) * THREADS);
	}
	usleep((useconds_t)(SETTLE_SECONDS * 1e6));
	atomic_store(&tally->go, true);
	wait_for_children();
	for (uint32_t i = 0; i < members / THREADS; i++)
		percent += 100 * tally->cpu[i];
	printf("{\"percent\": %.4f}\n", percent);
	shmring_close(ring);
}

/* --- one message, many who could take it --------------------------------------------- */

static void serve(uint32_t me)
{
	shmring *ring = attach();
	shmring_member *member = join(ring);
	double cpu = process_cpu();

	atomic_fetch_add(&tally->ready, 1);
	while (!atomic_load(&tally->ended)) {
		struct shmring_lease lease;
		int status = shmring_take(member, 1, 1, &lease);

		if (status == SHMRING_OK) {
			must(shmring_release(member, lease.first, lease.end), "release");
			atomic_fetch_add(&tally->received, 1);
		} else if (status == SHMRING_UNAVAILABLE) {
			(void)shmring_wait_message(member, INT64_MAX, SHMRING_WAIT_DEFAULT);
		}
	}
	tally->cpu[me] = process_cpu() - cpu;
	_exit(0);
}

static void measure_share(char **argv)
{
	uint32_t members = (uint32_t)number(argv, "members", 48);
	double seconds = atof(option(argv, "seconds", "0.5")), start, took, cpu = 0;
	shmring *ring = create(argv);
	shmring_producer *producer;
	uint64_t id, sent = 0;

	if (members > MAX_MEMBERS)
		die("too many members");
	for (uint32_t i = 0; i < members; i++) {
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
	for (uint32_t i = 0; i < members; i++)
		cpu += tally->cpu[i];
	printf("{\"us\": %.3f, \"cpu_us\": %.3f, \"messages\": %llu}\n", took * 1e6 / (double)sent,
	       cpu * 1e6 / (double)sent, (unsigned long long)sent);
	shmring_producer_close(producer);
	shmring_close(ring);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	die_with_parent();
	atexit(unlink_current);
	if (!strcmp(what, "redelivery"))
		measure_redelivery(argv);
	else if (!strcmp(what, "idle"))
		measure_idle(argv);
	else if (!strcmp(what, "share"))
		measure_share(argv);
	else {
		fprintf(stderr, "usage: crowd redelivery|idle|share [key=value ...]\n");
		return 2;
	}
	return 0;
}
