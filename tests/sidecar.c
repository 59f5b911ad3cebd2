/* A C program on the installed header and library: sends each word it reads
 * from one branch back in upper case, until the end marker. */
#include <ctype.h>
#include <shmring.h>
#include <stdio.h>
#include <string.h>

static int failed(void)
{
	fprintf(stderr, "%s\n", shmring_error_message());
	return 1;
}

int main(int argc, char **argv)
{
	struct shmring_branch_options options = {.start = SHMRING_EARLIEST};
	shmring_producer *out;
	shmring_consumer *in;
	shmring *requests, *answers;

	if (argc != 3 || shmring_attach(argv[1], 0, &requests) || shmring_attach(argv[2], 0, &answers) ||
	    shmring_join(requests, "c", &options, "c", &in) || shmring_producer_open(answers, "c", &out))
		return failed();
	for (;;) {
		struct shmring_lease lease;
		struct shmring_message message;
		char word[SHMRING_SLOT_BYTES];
		uint64_t position, id;
		int status = shmring_take(in, 1, 1, &lease);

		if (status == SHMRING_UNAVAILABLE || status == SHMRING_CONTENDED) {
			status = shmring_wait_message(in, INT64_MAX, SHMRING_WAIT_DEFAULT);
			if (status == SHMRING_OK || status == SHMRING_AGAIN)
				continue;
		}
		if (status == SHMRING_ENDED)
			break;
		position = lease.first;
		if (status || shmring_read(requests, &position, lease.end, &message))
			return failed();
		for (uint32_t i = 0; i < message.length; i++)
			word[i] = (char)toupper(((const char *)message.data)[i]);
		if (shmring_push(out, word, message.length, 0, &id) || shmring_release(in, lease.first, lease.end))
			return failed();
	}
	shmring_consumer_close(in);
	shmring_producer_close(out);
	shmring_close(requests);
	shmring_close(answers);
	return 0;
}
