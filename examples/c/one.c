/* Prints the messages of a ring until the end marker: README's one.py in C. */
#include <shmring.h>
#include <stdio.h>

static int failed(void)
{
	fprintf(stderr, "%s\n", shmring_error_message());
	return 1;
}

int main(int argc, char **argv)
{
	const struct shmring_options options = {.slots = 65536};
	const struct shmring_branch_options earliest = {.start = SHMRING_EARLIEST};
	char path[SHMRING_PATH_BYTES];
	shmring_consumer *in;
	shmring *ring;

	if (shmring_path_of(argc > 1 ? argv[1] : "orders", path, sizeof path) ||
	    shmring_open_or_create(path, &options, &ring) || shmring_join(ring, "billing", &earliest, "one", &in))
		return failed();
	for (;;) {
		struct shmring_lease lease;
		struct shmring_message message;
		uint64_t position;
		int status = shmring_take(in, 1, 1, &lease);

		if (status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED) {
			status = shmring_wait_message(in, INT64_MAX, SHMRING_WAIT_DEFAULT);
			if (status == SHMRING_OK || status == SHMRING_AGAIN)
				continue;
		}
		if (status == SHMRING_ENDED)
			break;
		position = lease.first;
		if (status || shmring_read(ring, &position, lease.end, &message))
			return failed();
		printf("%.*s\n", (int)message.length, (const char *)message.data);
		if (shmring_release(in, lease.first, lease.end))
			return failed();
	}
	shmring_consumer_close(in);
	shmring_close(ring);
	return 0;
}
