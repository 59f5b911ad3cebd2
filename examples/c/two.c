/* Sends one message and the end marker to a ring: README's two.py in C. */
#include <shmring.h>
#include <stdio.h>
#include <string.h>

static int failed(void)
{
	fprintf(stderr, "%s\n", shmring_error_message());
	return 1;
}

/* Waits for as long as the ring is full. */
static int push(shmring_producer *out, const char *text, uint8_t kind)
{
	size_t length = strlen(text);
	int status;

	while ((status = shmring_push(out, text, length, kind, NULL)) == SHMRING_UNAVAILABLE ||
	       status == SHMRING_CONTENDED) {
		status =
		    shmring_wait_space(out, shmring_slots_for(length, false), INT64_MAX, SHMRING_WAIT_DEFAULT);
		if (status && status != SHMRING_AGAIN)
			return status;
	}
	return status;
}

int main(int argc, char **argv)
{
	const struct shmring_options options = {.slots = 65536};
	char path[SHMRING_PATH_BYTES];
	shmring_producer *out;
	shmring *ring;

	if (shmring_path_of(argc > 1 ? argv[1] : "orders", path, sizeof path) ||
	    shmring_open_or_create(path, &options, &ring) || shmring_producer_open(ring, "two", &out) ||
	    push(out, "hello", SHMRING_KIND_BYTES) || push(out, "", SHMRING_KIND_END))
		return failed();
	shmring_producer_close(out);
	shmring_close(ring);
	return 0;
}
