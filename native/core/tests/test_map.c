/* Attaching, and everything that is not a ring. */

#include "check.h"

static int create_status(struct shmring_options options)
{
	int status;

	unlink(ring_path());
	status = shmring_create(ring_path(), &options, NULL);
	unlink(ring_path());
	return status;
}

static int attach_status(void)
{
	shmring *r = NULL;
	int status = shmring_attach(ring_path(), 0, &r);

	if (!status)
		shmring_close(r);
	return status;
}

/* CHANGE: edit this for a new option of a ring */
TEST(sizes_that_are_refused)
{
	const uint64_t bad[] = {0, 1, 1000, 1023, 1025, 512, UINT64_C(1) << 32, UINT64_MAX, UINT64_C(1) << 63};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		CHECK_IS(create_status((struct shmring_options){.slots = bad[i]}), SHMRING_E_INVALID);
	CHECK_IS(create_status((struct shmring_options){.slots = 1024, .participants = 249}), SHMRING_E_INVALID);
	CHECK_IS(create_status((struct shmring_options){.slots = 1024, .clock = 3}), SHMRING_E_INVALID);
	CHECK_IS(create_status((struct shmring_options){.slots = 1024, .mode = 04600}), SHMRING_E_INVALID);
	CHECK_IS(create_status((struct shmring_options){.slots = 1024, .first_sequence = UINT64_C(1) << 55}),
		 SHMRING_E_INVALID);
	CHECK_IS(create_status((struct shmring_options){.slots = 1024, .schema = "", .schema_bytes = SIZE_MAX}),
		 SHMRING_E_TOO_LARGE);
}

TEST(regions_begin_on_pages_and_memory_is_what_was_promised)
{
	long page = sysconf(_SC_PAGESIZE);
	shmring *r = ring_new();
	const struct header *h = &r->header;

	CHECK(h->schema_offset % page == 0 && h->cursors_offset % page == 0 && h->seats_offset % page == 0 &&
	      h->control_offset % page == 0 && h->slots_offset % page == 0 && h->file_bytes % page == 0);
	CHECK_IS((uintptr_t)r->slots % page, 0);
	CHECK_IS((uintptr_t)&r->cursors->claim % CELL, 0);
	CHECK(h->file_bytes <= h->slots * (SLOT_BYTES + CONTROL_BYTES) + 256 * 1024);
}

TEST(the_slots_are_mapped_twice_back_to_back)
{
	shmring *r = ring_new();
	uint8_t *first = shmring_slot(r, 0);
	uint8_t *last = shmring_slot(r, 1023);
	size_t whole = 1024 * SLOT_BYTES;

	memset(last, 0x5a, 2 * SLOT_BYTES); /* runs over the end */
	CHECK_IS(first[0], 0x5a);
	CHECK_IS(first[SLOT_BYTES - 1], 0x5a);
	CHECK_IS(first[SLOT_BYTES], 0);
	first[whole + 2 * SLOT_BYTES] = 7; /* through the second mapping */
	CHECK_IS(first[2 * SLOT_BYTES], 7);
	CHECK(shmring_slot(r, 1024) == shmring_slot(r, 0));
}

TEST(every_flipped_header_byte_is_noticed)
{
	struct header h;
	shmring *r = ring_new();
	int fd = open(ring_path(), O_RDWR);

	shmring_close(r);
	NEED(fd >= 0 && pread(fd, &h, sizeof h, 0) == sizeof h);
	for (size_t i = 0; i < sizeof h; i++)
		for (int bit = 0; bit < 8; bit += 3) {
			uint8_t byte = ((uint8_t *)&h)[i] ^ (uint8_t)(1 << bit);
			int status;

			NEED(pwrite(fd, &byte, 1, (off_t)i) == 1);
			status = attach_status();
			CHECK(status == SHMRING_E_NOT_A_RING || status == SHMRING_E_DAMAGED ||
			      status == SHMRING_E_VERSION);
			NEED(pwrite(fd, (uint8_t *)&h + i, 1, (off_t)i) == 1);
		}
	CHECK_IS(attach_status(), SHMRING_OK);
	close(fd);
	unlink(ring_path());
}

TEST(a_forged_header_with_a_right_checksum_is_refused)
{
	struct header good, h;
	uint64_t seed = 7;
	shmring *r = ring_new();
	int fd = open(ring_path(), O_RDWR);

	shmring_close(r);
	NEED(pread(fd, &good, sizeof good, 0) == sizeof good);
	h = good;
	h.major++;
	h.crc = header_crc(&h);
	NEED(pwrite(fd, &h, sizeof h, 0) == sizeof h);
	CHECK_IS(attach_status(), SHMRING_E_VERSION);
	h = good;
	h.options |= 1u << 31; /* not one of this version */
	h.crc = header_crc(&h);
	NEED(pwrite(fd, &h, sizeof h, 0) == sizeof h);
	CHECK_IS(attach_status(), SHMRING_E_VERSION);
	for (int n = 0; n < 3000; n++) {
		static const uint64_t edges[] = {0,  1, 4096, UINT64_MAX, UINT64_C(1) << 31, UINT64_C(1) << 63,
						 300};
		size_t word = 2 + (size_t)(random_next(&seed) % (offsetof(struct header, reserved) / 8 - 2));
		uint64_t value = n % 2 ? edges[random_next(&seed) % 7] : random_next(&seed);

		h = good;
		memcpy((uint8_t *)&h + 8 * word, &value, 8);
		h.crc = header_crc(&h);
		NEED(pwrite(fd, &h, sizeof h, 0) == sizeof h);
		attach_status(); /* some fields may say anything (uuid, time): no crash is what counts */
		if (h.slots != good.slots || h.slots_offset != good.slots_offset || h.seats != good.seats ||
		    h.file_bytes != good.file_bytes || h.control_offset != good.control_offset)
			CHECK(attach_status() != SHMRING_OK);
	}
	close(fd);
	unlink(ring_path());
}

TEST(a_header_of_a_later_minor_version_is_read)
{
	struct shmring_options wanted = {.slots = 1024};
	struct shmring_info info;
	struct header h;
	shmring *r = ring_with(&wanted);
	int fd = open(ring_path(), O_RDWR);

	h = r->header;
	shmring_close(r);
	h.minor++;
	memset(h.reserved, 0x5a, sizeof h.reserved); /* fields that this version does not know */
	h.crc = header_crc(&h);
	NEED(fd >= 0 && pwrite(fd, &h, sizeof h, 0) == sizeof h);
	r = ring_again(ring_path());
	shmring_get_info(r, &info);
	CHECK(info.layout_minor == LAYOUT_MINOR + 1);
	CHECK_IS(shmring_push(producer_of(r), "hello", 5, KIND_BYTES, NULL), SHMRING_OK);
	h.reserved[sizeof h.reserved - 1] ^= 1;
	NEED(pwrite(fd, &h, sizeof h, 0) == sizeof h);
	CHECK_IS(attach_status(), SHMRING_E_DAMAGED);
	h.major++; /* its checksum may be made in another way */
	NEED(pwrite(fd, &h, sizeof h, 0) == sizeof h);
	CHECK_IS(attach_status(), SHMRING_E_VERSION);
	close(fd);
	unlink(ring_path());
}

TEST(a_damaged_schema_is_noticed)
{
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .schema = "schema", .schema_bytes = 6});
	int fd = open(ring_path(), O_RDWR);

	NEED(pwrite(fd, "X", 1, (off_t)r->header.schema_offset) == 1);
	shmring_close(r);
	CHECK_IS(attach_status(), SHMRING_E_DAMAGED);
	close(fd);
	unlink(ring_path());
}

/* Everything that an observer asks for. */
static void look_on(const shmring *r, uint64_t claimed)
{
	struct shmring_participant_info seat;
	struct shmring_branch_info branch;
	struct shmring_holder holder;
	struct shmring_row row;
	struct shmring_info info;
	uint64_t waiting;
	char words[512];

	shmring_get_info(r, &info);
	CHECK(info.schema_bytes == 6 && memcmp(info.schema, "schema", 6) == 0);
	CHECK(shmring_claimed(r) == claimed && shmring_floor(r) == 0);
	CHECK_IS(shmring_branch_info(r, 0, &branch), SHMRING_OK);
	CHECK_IS(shmring_count_waiting(r, 0, &waiting), SHMRING_OK);
	CHECK(waiting == claimed);
	CHECK_IS(shmring_participant_info(r, 0, &seat), SHMRING_OK);
	CHECK(seat.alive && seat.pid == (uint32_t)getpid());
	CHECK_IS(shmring_find_holder(r, &holder), SHMRING_OK);
	shmring_explain_full(r, words, sizeof words);
	CHECK_IS(shmring_table_row(r, 0, &row, words, sizeof words), SHMRING_OK);
	CHECK(row.filled && row.length == 5 && words[0] == 0);
	for (uint64_t i = 1; i < r->capacity; i++)
		CHECK(shmring_table_row(r, i, &row, words, sizeof words) == SHMRING_OK && !row.filled);
}

TEST(a_ring_that_others_may_shorten_is_read_without_a_mapping)
{
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .schema = "schema", .schema_bytes = 6});
	struct shmring_participant_info seat;
	shmring *copy = NULL, *leaver;
	shmring_producer *p = producer_of(r);
	uint32_t number;

	CHECK_IS(shmring_subscribe(r, "b", NULL, NULL), SHMRING_OK);
	CHECK_IS(shmring_push(p, "hello", 5, KIND_BYTES, NULL), SHMRING_OK);
	CHECK_IS(shmring_attach(ring_path(), SHMRING_FOREIGN_COPY, &copy), SHMRING_E_INVALID);
	copy = ring_as(ring_path(), SHMRING_READ_ONLY | SHMRING_FOREIGN_COPY);
	CHECK(!copy->copied); /* nobody but its owner may write */
	shmring_close(copy);
	leaver = ring_again(ring_path());
	number = leaver->seat;
	NEED(chmod(ring_path(), 0620) == 0);
	copy = ring_as(ring_path(), SHMRING_READ_ONLY | SHMRING_FOREIGN_COPY);
	CHECK(copy->copied);
	CHECK_IS(shmring_participant_info(copy, number, &seat), SHMRING_OK);
	shmring_close(leaver); /* and is not dead to who has a copy of it */
	CHECK_IS(shmring_participant_info(copy, number, &seat), SHMRING_UNAVAILABLE);
	look_on(copy, 1);
	NEED(truncate(ring_path(), 0) == 0);
	look_on(copy, 1);
	shmring_close(copy);
	CHECK_IS(shmring_attach(ring_path(), SHMRING_READ_ONLY | SHMRING_FOREIGN_COPY, &copy),
		 SHMRING_E_NOT_A_RING);
	CHECK_IS(shmring_reap(ring_path()), SHMRING_E_NOT_A_RING);
	NEED(truncate(ring_path(), (off_t)r->header.file_bytes) == 0); /* so that it can be closed */
}

RING_TEST(a_copy_has_the_entries_of_what_is_held)
{
	uint64_t waiting = 0, filled = 0;
	struct shmring_lease lease;
	struct shmring_row row;
	shmring *copy = NULL;
	char message[8];

	push_n(p, 0, 1000);
	for (uint64_t taken = 0; taken < 1000; taken = lease.end) {
		CHECK_IS(shmring_take(m, 1000, 1000, &lease), SHMRING_OK);
		CHECK_IS(shmring_release(m, lease.first, lease.end), SHMRING_OK);
	}
	push_n(p, 1000, 100); /* over the end of the table */
	NEED(chmod(ring_path(), 0620) == 0);
	copy = ring_as(ring_path(), SHMRING_READ_ONLY | SHMRING_FOREIGN_COPY);
	CHECK(copy->copied);
	CHECK_IS(shmring_count_waiting(copy, 0, &waiting), SHMRING_OK);
	CHECK(waiting == 100);
	for (uint64_t i = 0; i < copy->capacity; i++) {
		CHECK_IS(shmring_table_row(copy, i, &row, message, sizeof message), SHMRING_OK);
		filled += row.filled && row.message_id >= 1000;
	}
	CHECK(filled == 100);
}

TEST(a_copy_has_a_limit)
{
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024});
	struct header h = r->header;
	shmring *copy = NULL;
	struct shmring_row row;
	int fd = open(ring_path(), O_RDWR);

	shmring_close(r);
	h.slots = UINT64_C(1) << 24; /* ThreadSanitizer leaves no addresses for many more */
	lay_out(&h);
	h.crc = header_crc(&h);
	NEED(pwrite(fd, &h, sizeof h, 0) == sizeof h);
	NEED(ftruncate(fd, (off_t)h.file_bytes) == 0 && fchmod(fd, 0666) == 0);
	copy = ring_as(ring_path(), SHMRING_READ_ONLY | SHMRING_FOREIGN_COPY);
	CHECK(copy->copied);
	CHECK_IS(shmring_table_row(copy, h.slots - 1, &row, NULL, 0), SHMRING_OK);
	CHECK(!row.filled);
	shmring_close(copy);
	close(fd);
	unlink(ring_path());
}

TEST(read_only_takes_no_seat_and_cannot_disturb)
{
	struct shmring_participant_info seat;
	shmring_producer *p;
	shmring_consumer *m;
	shmring *ro = NULL;

	(void)ring_new();
	ro = ring_as(ring_path(), SHMRING_READ_ONLY);
	CHECK_IS(shmring_participant_info(ro, 0, &seat), SHMRING_OK);
	CHECK(seat.alive && seat.pid == (uint32_t)getpid());
	CHECK_IS(shmring_participant_info(ro, 1, &seat), SHMRING_UNAVAILABLE);
	CHECK_IS(shmring_participant_info(ro, 1000, &seat), SHMRING_E_INVALID);
	CHECK_IS(shmring_producer_open(ro, "x", &p), SHMRING_E_PERMISSION);
	CHECK_IS(shmring_join(ro, "b", NULL, "x", &m), SHMRING_E_PERMISSION);
	CHECK_IS(shmring_subscribe(ro, "b", NULL, NULL), SHMRING_E_PERMISSION);
	CHECK_IS(shmring_unsubscribe(ro, "b"), SHMRING_E_PERMISSION);
	CHECK_IS(shmring_follow(ro, 0, 0), SHMRING_E_PERMISSION);
	CHECK_IS(shmring_unfollow(ro, 0, 0), SHMRING_E_PERMISSION);
	CHECK_IS(shmring_recover(ro, NULL), SHMRING_E_PERMISSION);
	CHECK_IS(mprotect(ro->base, 4096, PROT_READ | PROT_WRITE), -1); /* opened O_RDONLY */
}
