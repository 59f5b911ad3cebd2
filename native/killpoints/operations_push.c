/* Operations that claim and publish. */
#include "scenes.h"

static void act_push(struct victim *v)
{
	NEED(push_number(v->p, 10) == SHMRING_OK);
}

static void act_push_slots(struct victim *v)
{
	uint64_t words[100];

	for (int i = 0; i < 100; i++)
		words[i] = 10;
	NEED(shmring_push(v->p, words, sizeof words, KIND_BYTES, NULL) == SHMRING_OK);
}

static void act_push_many(struct victim *v)
{
	uint64_t rows[4] = {10, 11, 12, 13};

	NEED(shmring_push_many(v->p, rows, 8, 4, NULL, 8, NULL) == SHMRING_OK);
}

/* Claims slots and fills four rows from the first claimed slot on; returns the first sequence. */
static int64_t claim_and_fill(struct victim *v, uint32_t claimed)
{
	int64_t lo = shmring_next(v->p, claimed);

	NEED(lo >= 0);
	for (uint32_t i = 0; i < 4; i++) {
		uint64_t number = 10 + i;

		memcpy(shmring_slot(v->r, (uint64_t)lo + i), &number, 8);
	}
	return lo;
}

static void act_claim_commit(struct victim *v)
{
	int64_t lo = claim_and_fill(v, 6);

	NEED(shmring_publish_ones(v->p, (uint64_t)lo + 3, NULL, 8) == SHMRING_OK);
}

static void act_publish_parts(struct victim *v)
{
	struct shmring_part parts[3] = {{1, 8, 0, KIND_BYTES}, {2, 8, 0, KIND_BYTES}, {1, 8, 0, KIND_BYTES}};
	int64_t lo = shmring_next(v->p, 4);

	NEED(lo >= 0);
	for (uint64_t i = 0, at = (uint64_t)lo; i < 3; at += parts[i++].slots) {
		uint64_t number = 10 + i;

		memcpy(shmring_slot(v->r, at), &number, 8);
	}
	NEED(shmring_publish_parts(v->p, parts, 3) == SHMRING_OK);
}

static void act_claim_abort(struct victim *v)
{
	(void)claim_and_fill(v, 6);
	NEED(shmring_abort(v->p) == SHMRING_OK);
}

static void act_go_on(struct victim *v)
{
	int64_t end = shmring_producer_available(v->p);
	int64_t lo = claim_and_fill(v, 1);

	NEED(end > lo + 3 && shmring_publish_ones(v->p, (uint64_t)lo + 3, NULL, 8) == SHMRING_OK);
}

static void act_push_end(struct victim *v)
{
	push_end(v->p);
}

#define FOUR_ROWS (BIT(10) | BIT(11) | BIT(12) | BIT(13))

/* First sequence shortly before the end of the slots, so that messages wrap around. */
#define WRAPS (BIT(20) - 8)

static const struct operation operations[] = {
    {.name = "push", PRODUCER(act_push), .pushes = BIT(10)},
    {.name = "push of three slots",
     PRODUCER(act_push_slots),
     .options = {.first_sequence = WRAPS},
     .pushes = BIT(10)},
    {.name = "push with a checksum", PRODUCER(act_push), .options = {.checksum = true}, .pushes = BIT(10)},
    {.name = "push by a single producer",
     PRODUCER(act_push),
     .options = {.single_producer = true},
     .alone = true,
     .pushes = BIT(10)},
    {.name = "batched push", PRODUCER(act_push_many), .pushes = FOUR_ROWS},
    {.name = "claim of six, commit of four", PRODUCER(act_claim_commit), .pushes = FOUR_ROWS},
    {.name = "claim, publication of three parts",
     PRODUCER(act_publish_parts),
     .pushes = BIT(10) | BIT(11) | BIT(12)},
    {.name = "claim and abort", PRODUCER(act_claim_abort)},
    {.name = "claim that goes on",
     PRODUCER(act_go_on),
     .options = {.single_producer = true},
     .alone = true,
     .pushes = FOUR_ROWS},
    {.name = "push of an end marker", PRODUCER(act_push_end), .ends = MAY_END},
};

const struct subject pushing = {operations, sizeof operations / sizeof *operations};
