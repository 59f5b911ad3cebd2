/* Operations that a child executes step by step, and the properties that must
 * hold after its death at any instruction. */
#ifndef KILLPOINTS_OPERATION_H
#define KILLPOINTS_OPERATION_H

#include "check.h"

#define BIT(number) (UINT64_C(1) << (number))

/* Mask of the six messages that "b" has still to release before the child acts. */
#define SIX_WAITING (BIT(6) - 1)

/* The child's progress, in memory that outlives the child. Messages are numbers below 64;
 * a mask has a bit for each. */
struct progress {
	uint64_t releasing; /* mask of messages that the child has begun to release */
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

/* Whether there is an end marker. MAY_END: the operation publishes one. */
enum ends { NO_END, MAY_END, ENDS };

struct operation {
	const char *name;
	/* Makes the ring before the operation; called once, in the process that checks. */
	void (*build)(shmring *r);
	void (*enter)(struct victim *v); /* the child's part before the stepping begins */
	void (*act)(struct victim *v); /* the stepped part */
	void (*check)(struct survivors *s); /* checks beyond those that follow every operation */
	struct shmring_options options;
	bool alone; /* the survivors cannot join while the child lives */
	bool drops; /* the operation may end "b" */
	uint64_t pushes; /* messages that the operation publishes, all in one step */
	uint64_t takes; /* messages that the operation takes */
	uint64_t held; /* messages that dead consumers, or the child when it enters, hold already */
	enum ends ends;
	bool numbered; /* "b" has other messages to release than the six */
	uint64_t behind; /* messages that "w" has still to see */
};

/* The operations on one subject; each subject has its own file. */
struct subject {
	const struct operation *operations;
	size_t count;
};

#endif
