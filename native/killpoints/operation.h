/* Operations that a child executes step by step, and the properties that must
 * hold after its death at any instruction. */
#ifndef KILLPOINTS_OPERATION_H
#define KILLPOINTS_OPERATION_H

#include "check.h"

#define BIT(number) (UINT64_C(1) << (number))

/* Messages that "b" has to release before the child acts. */
#define SIX_WAITING (BIT(6) - 1)

/* The child's side. Messages are numbers below 64; a mask has a bit for each.
 * What stands in `shared` outlives it. */
struct progress {
	uint64_t releasing; /* it has begun to give these back */
	uint64_t released;
	bool done; /* the operation has returned */
};

struct victim {
	shmring *r;
	shmring_producer *p;
	shmring_consumer *m;
	struct shmring_lease lease[3];
	const char *path;
	struct progress *shared;
};

/* Survivors of the child: a consumer of "b", a consumer of "w", and a producer. */
struct survivors {
	shmring *r;
	shmring_producer *p;
	shmring_consumer *b, *w;
	const struct progress *victim;
	/* Masks of messages that earlier kill points have shown; no later point may undo them. */
	uint64_t arrived;
	uint64_t gone;
};

/* Is there an end marker? What it does may bring one. */
enum ends { NO_END, MAY_END, ENDS };

struct operation {
	const char *name;
	/* Makes what is there before; once, in the process that checks. */
	void (*build)(shmring *r);
	void (*enter)(struct victim *v); /* up to where the stepping begins */
	void (*act)(struct victim *v); /* the stepped part */
	void (*check)(struct survivors *s); /* beyond what must hold after all of them */
	struct shmring_options options;
	bool alone; /* the survivors cannot be there beside the child */
	bool drops; /* the operation may end "b" */
	uint64_t pushes; /* messages that the operation publishes, all in one step */
	uint64_t takes; /* messages that the operation takes */
	uint64_t held; /* messages that the dead, or the child when it enters, hold already */
	enum ends ends;
	bool numbered; /* "b" has something else to release than the six */
	uint64_t behind; /* messages that "w" has still to see */
};

/* The operations on one subject, a file each. */
struct subject {
	const struct operation *operations;
	size_t count;
};

#endif
