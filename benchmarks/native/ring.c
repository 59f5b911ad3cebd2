/* The ring from C: processes made by fork, each attached by itself.
 *
 *   ring stream path=FILE slots=N batch=N take=N bytes=N read=message|array single=0|1
 *               producers=N consumers=N each=0|1 wait=STRATEGY seconds=S
 *   ring pingpong path=FILE bytes=N wait=STRATEGY seconds=S
 *
 * One producer and one consumer are pinned to two cores; more are left to the
 * scheduler. STRATEGY is a number of enum shmring_wait_strategy. Prints one JSON object.
 */
#include <stdatomic.h>
#include <sys/resource.h>

#include "rings.h"

#define ROW SHMRING_SLOT_BYTES

static double cpu_seconds(int who, uint64_t *sleeps)
{
	struct rusage u;

	getrusage(who, &u);
	*sleeps = (uint64_t)u.ru_nvcsw;
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* --- one way ----------------------------------------------------------------- */

struct stream {
	const char *path;
	uint64_t slots;
	uint32_t batch; /* messages a push, of a slot each unless it is 1 */
	uint32_t take; /* messages a take */
	uint32_t bytes; /* bytes of a message */
	uint32_t producers;
	uint32_t consumers;
	bool each; /* true: each consumer has a branch and sees all messages; false: all share one branch */
	bool single;
	bool as_array;
	uint8_t wait;
	double seconds;
};

#define MAX_PROCESSES 64

struct tally {
	_Atomic uint32_t ready;
	_Atomic uint32_t producing;
	double started[MAX_PROCESSES];
	double ended[MAX_PROCESSES];
	uint64_t sent[MAX_PROCESSES];
	uint64_t received[MAX_PROCESSES];
	uint64_t sums[MAX_PROCESSES];
};

/* All begin together. */
static void line_up(struct tally *tally, uint32_t processes)
{
	atomic_fetch_add(&tally->ready, 1);
	while (atomic_load(&tally->ready) < processes)
		sched_yield();
}

static void push(const struct stream *s, shmring_producer *producer, const char *rows, uint32_t count)
{
	uint64_t id;
	int status;

	for (;;) {
		if (count == 1)
			status = rows ? shmring_push(producer, rows, s->bytes, SHMRING_KIND_BYTES, &id)
				      : shmring_push(producer, NULL, 0, SHMRING_KIND_END, &id);
		else
			status = shmring_push_many(producer, rows, ROW, count, NULL, ROW, &id);
		if (status == SHMRING_UNAVAILABLE)
			(void)shmring_wait_space(producer, count * shmring_slots_for(s->bytes, false), INT64_MAX,
						 s->wait);
		else if (status != SHMRING_CONTENDED)
			break;
	}
	must(status, "push");
}

/* Makes the rows of one push. */
static char *make_rows(const struct stream *s)
{
	size_t room = (size_t)s->batch * s->bytes;
	char *rows = malloc(room);

	if (!rows)
		die("malloc");
	for (size_t i = 0; i < room; i++)
		rows[i] = (char)(i * 7);
	return rows;
}

static void produce(const struct stream *s, struct tally *tally, uint32_t me)
{
	shmring *ring = attach(s->path);
	shmring_producer *producer;
	char *rows = make_rows(s);
	uint32_t step = (size_t)s->batch * s->bytes <= ROW ? 1024 : 1;
	uint64_t sent = 0;

	if (s->producers + s->consumers == 2)
		pin(0);
	must(shmring_producer_open(ring, "producer", &producer), "producer");
	line_up(tally, s->producers + s->consumers);
	tally->started[me] = now();
	do {
		for (uint32_t i = 0; i < step; i++)
			push(s, producer, rows, s->batch);
		sent += (uint64_t)step * s->batch;
	} while (now() - tally->started[me] < s->seconds);
	tally->sent[me] = sent;
	if (atomic_fetch_sub(&tally->producing, 1) == 1)
		push(s, producer, NULL, 1); /* the end */
	shmring_producer_close(producer);
	shmring_close(ring);
}

/* Sums what is in the lease. */
static void read_messages(shmring *ring, const struct shmring_lease *lease, uint64_t *total)
{
	uint64_t at = lease->first;
	struct shmring_message message;

	while (shmring_read(ring, &at, lease->end, &message) == SHMRING_OK)
		*total += sum_bytes(message.data, message.length);
}

/* The same as one array of rows, if that is what it is. */
static void read_array(shmring *ring, const struct shmring_lease *lease, uint64_t *total)
{
	const void *rows = lease->messages == 1 ? NULL : shmring_rows(ring, lease->first, lease->end);

	if (rows)
		*total += sum_bytes(rows, (size_t)(lease->end - lease->first) * ROW);
	else
		read_messages(ring, lease, total);
}

static void consume(const struct stream *s, struct tally *tally, uint32_t me)
{
	struct shmring_branch_options options = {.start = SHMRING_EARLIEST, .exclusive = s->single};
	shmring *ring = attach(s->path);
	shmring_consumer *consumer;
	uint64_t received = 0, total = 0;
	char branch[32];

	if (s->producers + s->consumers == 2)
		pin(1);
	snprintf(branch, sizeof branch, "bench %u", s->each ? me : 0);
	must(shmring_join(ring, branch, &options, "consumer", &consumer), "join");
	line_up(tally, s->producers + s->consumers);
	for (;;) {
		struct shmring_lease lease;
		int status = shmring_take(consumer, s->take, UINT64_MAX, &lease);

		if (status == SHMRING_UNAVAILABLE) {
			(void)shmring_wait_message(consumer, INT64_MAX, s->wait);
			continue;
		}
		if (status == SHMRING_CONTENDED)
			continue;
		if (status == SHMRING_ENDED)
			break;
		must(status, "take");
		if (s->as_array)
			read_array(ring, &lease, &total);
		else
			read_messages(ring, &lease, &total);
		received += lease.messages;
		must(shmring_release(consumer, lease.first, lease.end), "release");
	}
	tally->ended[me] = now();
	tally->received[me] = received;
	tally->sums[me] = total;
	shmring_consumer_close(consumer);
	shmring_close(ring);
}

static struct stream stream_of(char **argv)
{
	return (struct stream){
	    .path = option(argv, "path", "/dev/shm/shmring.bench-native"),
	    .slots = number(argv, "slots", 65536),
	    .batch = (uint32_t)number(argv, "batch", 1),
	    .take = (uint32_t)number(argv, "take", number(argv, "batch", 1)),
	    .bytes = (uint32_t)number(argv, "bytes", ROW),
	    .producers = (uint32_t)number(argv, "producers", 1),
	    .consumers = (uint32_t)number(argv, "consumers", 1),
	    .each = number(argv, "each", 0),
	    .single = number(argv, "single", 0),
	    .as_array = !strcmp(option(argv, "read", "message"), "array"),
	    .wait = (uint8_t)number(argv, "wait", SHMRING_WAIT_DEFAULT),
	    .seconds = atof(option(argv, "seconds", "0.5")),
	};
}

/* Messages must have arrived as they were sent; batches differ in their rows. */
static void check_received(const struct stream *s, uint64_t sent, uint64_t received, uint64_t total)
{
	bool alike = s->batch == 1 && !s->as_array;
	char *row = make_rows(s);

	if (sent != received) {
		fprintf(stderr, "%llu messages were sent and %llu received\n", (unsigned long long)sent,
			(unsigned long long)received);
		exit(1);
	}
	if (alike && total != received * sum_bytes(row, s->bytes)) {
		fprintf(stderr, "what was received is not what was sent\n");
		exit(1);
	}
	free(row);
}

static void run_stream(struct stream s, struct tally *tally)
{
	struct shmring_options options = {.slots = s.slots, .single_producer = s.single};
	uint64_t sent = 0, received = 0, total = 0;
	uint64_t sleeps;
	double start = 1e300, end = 0, cpu;

	if (s.producers + s.consumers > MAX_PROCESSES)
		die("too many processes");
	unlink_at_exit(s.path);
	create(s.path, &options);
	atomic_store(&tally->producing, s.producers);
	for (uint32_t i = 0; i < s.producers + s.consumers; i++)
		if (child() == 0) {
			if (i < s.producers)
				produce(&s, tally, i);
			else
				consume(&s, tally, i - s.producers);
			_exit(0);
		}
	wait_for_children();
	for (uint32_t i = 0; i < s.producers; i++) {
		sent += tally->sent[i];
		start = tally->started[i] < start ? tally->started[i] : start;
	}
	for (uint32_t i = 0; i < s.consumers; i++) {
		if (s.each)
			check_received(&s, sent, tally->received[i], tally->sums[i]);
		received += tally->received[i];
		total += tally->sums[i];
		end = tally->ended[i] > end ? tally->ended[i] : end;
	}
	if (s.each)
		received /= s.consumers;
	else
		check_received(&s, sent, received, total);
	cpu = cpu_seconds(RUSAGE_CHILDREN, &sleeps);
	printf("{\"m_s\": %.4f, \"gb_s\": %.4f, \"messages\": %llu, "
	       "\"cpu_ns\": %.1f, \"sleeps\": %.3f}\n",
	       (double)received / (end - start) / 1e6, (double)received * s.bytes / (end - start) / 1e9,
	       (unsigned long long)received, cpu / (double)received * 1e9,
	       (double)sleeps / (double)received * 1e3);
}

static void measure_stream(char **argv)
{
	run_stream(stream_of(argv), shared(sizeof(struct tally)));
}

/* --- to and fro ---------------------------------------------------------------- */

struct end {
	shmring *ring[2];
	shmring_producer *out;
	shmring_consumer *in;
};

static struct end open_end(const char *to, const char *from)
{
	struct shmring_branch_options options = {.start = SHMRING_EARLIEST, .exclusive = true};
	struct end e;

	e.ring[0] = attach(to);
	e.ring[1] = attach(from);
	must(shmring_producer_open(e.ring[0], "producer", &e.out), "producer");
	must(shmring_join(e.ring[1], "bench", &options, "consumer", &e.in), "join");
	return e;
}

static void close_end(struct end *e)
{
	shmring_producer_close(e->out);
	shmring_consumer_close(e->in);
	shmring_close(e->ring[0]);
	shmring_close(e->ring[1]);
}

static void send_one(struct end *e, const void *data, size_t n, uint8_t kind)
{
	must(shmring_push(e->out, data, n, kind, NULL), "push"); /* never full: one message is under way */
}

/* Waits for a message and reads it; false if the stream has ended. */
static bool receive_one(struct end *e, uint8_t wait, uint64_t *total, struct shmring_lease *lease)
{
	int status;

	while ((status = shmring_take(e->in, 1, 1, lease)) != SHMRING_OK) {
		if (status == SHMRING_ENDED)
			return false;
		if (status == SHMRING_UNAVAILABLE)
			(void)shmring_wait_message(e->in, INT64_MAX, wait);
		else if (status != SHMRING_CONTENDED)
			must(status, "take");
	}
	read_messages(e->ring[1], lease, total);
	return true;
}

static void release(struct end *e, const struct shmring_lease *lease)
{
	must(shmring_release(e->in, lease->first, lease->end), "release");
}

static void measure_pingpong(char **argv)
{
	const char *ping = option(argv, "path", "/dev/shm/shmring.bench-native");
	char pong[4096];
	size_t bytes = number(argv, "bytes", 8);
	uint8_t wait = (uint8_t)number(argv, "wait", SHMRING_WAIT_SPIN);
	size_t trips = number(argv, "trips", 1); /* for each look at the clock */
	double seconds = atof(option(argv, "seconds", "0.5"));
	struct shmring_options options = {.slots = 1024, .single_producer = true};
	struct tally *tally = shared(sizeof *tally);
	struct shmring_lease lease;
	char data[ROW] = {1, 2, 3};
	struct times times;
	uint64_t total = 0;
	double start, before;
	struct end e;

	if (bytes > ROW)
		bytes = ROW;
	snprintf(pong, sizeof pong, "%s-pong", ping);
	create(ping, &options);
	create(pong, &options);
	if (child() == 0) {
		pin(1);
		e = open_end(pong, ping);
		line_up(tally, 2);
		/* Answers, then releases: a request whose server dies is to be delivered again. */
		while (receive_one(&e, wait, &total, &lease)) {
			send_one(&e, data, bytes, 0);
			release(&e, &lease);
		}
		close_end(&e);
		_exit(0);
	}
	pin(0);
	e = open_end(ping, pong);
	line_up(tally, 2);
	times_init(&times, 1 << 22);
	start = before = now();
	while (before - start < seconds) {
		double after;

		for (size_t i = 0; i < trips; i++) {
			send_one(&e, data, bytes, 0);
			(void)receive_one(&e, wait, &total, &lease);
			release(&e, &lease);
		}
		after = now();
		times_add(&times, (after - before) / (double)trips);
		before = after;
	}
	send_one(&e, NULL, 0, SHMRING_KIND_END);
	wait_for_children();
	close_end(&e);
	unlink(ping);
	unlink(pong);
	times_print(&times);
}

int main(int argc, char **argv)
{
	static const struct measurement known[] = {
	    {"stream", measure_stream},
	    {"pingpong", measure_pingpong},
	    {0},
	};

	return measure(argc, argv, known);
}
