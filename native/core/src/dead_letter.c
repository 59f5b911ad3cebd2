/* Messages that were delivered as often as they may be go into another ring, and are released here:
 * docs/concepts/death.md. */
#include <string.h>

#include "cells.h"
#include "error.h"
#include "kind.h"
#include "nack.h"

#define EXPLANATION_BYTES 512

static int is_full(const shmring_consumer *consumer, const struct shmring_lease *lease)
{
	const shmring *to = consumer->dead_letters->ring;
	char holder[EXPLANATION_BYTES];

	shmring_explain_full(to, holder, sizeof holder);
	return fail(
	    SHMRING_E_NO_SPACE,
	    "ring \"%s\": message %llu was delivered %u times, which is the most, and ring \"%s\" for dead "
	    "letters is full: %s; the message stays, and the next take tries again",
	    consumer->ring->name, (unsigned long long)lease->first, consumer->max_deliveries, to->name, holder);
}

/* Whether this one message has gone into the other ring. Else it is to be delivered, or *status says why it
 * stays. A process that is killed after the push pushes the message twice, and loses none. */
static bool set_aside(shmring_consumer *consumer, const struct shmring_lease *lease, int *status)
{
	struct shmring_message message;
	uint64_t at = lease->first;

	/* Who is given a damaged message gets an error for it, once. An end ends more than its reader. */
	if (lease->redelivered < consumer->max_deliveries ||
	    shmring_read(consumer->ring, &at, lease->end, &message) || message.kind == KIND_END)
		return false;
	*status = shmring_push(consumer->dead_letters, message.data, message.length, message.kind, NULL);
	if (*status == SHMRING_UNAVAILABLE)
		*status = is_full(consumer, lease);
	if (*status) {
		if (keep_to_give_again(consumer, lease->first, lease->end))
			*status = SHMRING_E_NO_MEMORY;
		return false;
	}
	*status = shmring_release(consumer, lease->first, lease->end);
	return *status == SHMRING_OK;
}

static bool same_schema(const shmring *r, const shmring *to)
{
	struct shmring_info from, other;

	shmring_get_info(r, &from);
	shmring_get_info(to, &other);
	return from.schema_bytes == 0 || (from.schema_bytes == other.schema_bytes &&
					  memcmp(from.schema, other.schema, from.schema_bytes) == 0);
}

int shmring_consumer_dead_letters(shmring_consumer *consumer, uint32_t max_deliveries, shmring_producer *producer)
{
	shmring *r = consumer->ring, *to = producer->ring;
	int status = SHMRING_OK;

	if (max_deliveries < 1 || max_deliveries > UINT8_MAX)
		return fail(SHMRING_E_INVALID, "ring \"%s\": a message is delivered 1 to %d times, not %u",
			    r->name, UINT8_MAX, max_deliveries);
	if (memcmp(r->header.uuid, to->header.uuid, sizeof to->header.uuid) == 0)
		return fail(
		    SHMRING_E_INVALID,
		    "ring \"%s\" cannot be the ring for its own dead letters: they would be delivered again",
		    r->name);
	if (!same_schema(r, to))
		return fail(
		    SHMRING_E_INVALID,
		    "ring \"%s\" needs the Arrow schema of ring \"%s\" to have its dead letters; create it "
		    "with the same schema",
		    to->name, r->name);
	if (!load_relaxed(&to->cursors->graph.active)) /* nobody would keep them */
		status = shmring_subscribe(to, "default", NULL, NULL);
	if (!status) {
		consumer->max_deliveries = max_deliveries;
		consumer->dead_letters = producer;
		consumer->set_aside = set_aside;
	}
	return status;
}
