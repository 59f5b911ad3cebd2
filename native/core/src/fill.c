/* The kernel fills a claim from a file, without the mapping: a handle that has just
 * attached would have a page fault for each page of the claim, which takes twice as
 * long as the copy. */
#include <errno.h>
#include <unistd.h>

#include "cells.h"

static bool is_refusal(int error)
{
	return error == EXDEV || error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EPERM;
}

/* As copy_file_range(2), from fd into the slots at `to`; through their mapping
 * if the file systems cannot do it. */
static ssize_t copy_some(const shmring *r, uint8_t *to, int fd, off_t from, size_t n)
{
	uint64_t slots_bytes = r->capacity * SLOT_BYTES;
	uint64_t at = (uint64_t)(to - r->slots) % slots_bytes; /* they are mapped twice */
	off_t out = (off_t)(r->header.slots_offset + at);
	int ring_fd = lock_file_number(r->locks);
	ssize_t copied;

	if (n > slots_bytes - at)
		n = slots_bytes - at;
	if (ring_fd < 0)
		return pread(fd, to, n, from);
	copied = copy_file_range(fd, &(off_t){from}, ring_fd, &out, n, 0);
	/* The number may have been closed since, by other code of this process. */
	if (lock_file_number(r->locks) != ring_fd || (copied < 0 && is_refusal(errno)))
		return pread(fd, to, n, from);
	return copied;
}

int shmring_fill(const shmring_producer *p, uint64_t at, int fd, uint64_t offset, uint64_t length)
{
	const shmring *r = p->ring;
	uint64_t room = p->claim_n * SLOT_BYTES;
	uint8_t *to = slot_at(r, p->claim_lo) + at;

	if (at > room || length > room - at)
		return fail(SHMRING_E_INVALID, "ring \"%s\": these bytes do not lie in the open claim", r->name);
	while (length) {
		ssize_t n = copy_some(r, to, fd, (off_t)offset, length);

		if (n == 0)
			return fail(SHMRING_E_INVALID, "ring \"%s\": the file to copy from ends too early",
				    r->name);
		if (n < 0 && errno != EINTR)
			return fail_errno("cannot copy from the file", r->name);
		if (n > 0) {
			to += n;
			offset += (uint64_t)n;
			length -= (uint64_t)n;
		}
	}
	return SHMRING_OK;
}
