/* What the child does while it is stepped, and what must be true after its
 * death at any point of it. */
#ifndef KILLPOINTS_OPERATIONS_H
#define KILLPOINTS_OPERATIONS_H

#include "check.h"

#define BIT(number) (UINT64_C(1) << (number))

/* What "b" has to release before the child acts. */
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

/* Those who live on: a consumer of "b", one of "w", and a producer. */
struct survivors {
	shmring *r;
	shmring_producer *p;
	shmring_consumer *b, *w;
	const struct progress *victim;
	/* What the points before this one have shown and no later one may undo. */
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
	bool drops; /* what it does may end "b" */
	uint64_t pushes; /* what it publishes, all in one step */
	uint64_t takes; /* what it takes */
	uint64_t held; /* what the dead, or the child when it enters, hold already */
	enum ends ends;
	bool numbered; /* "b" has something else to release than the six */
	uint64_t behind; /* what "w" has still to see */
};

/* What acts on the six, as designated initializers. */
#define PRODUCER(function) .build = build_six, .enter = enter_producer, .act = function
#define CONSUMER(function) .build = build_six, .enter = enter_consumer, .act = function

/* The operations on one subject, a file each. */
struct subject {
	const struct operation *operations;
	size_t count;
};

extern const struct subject pushing, taking, changing_branches, coming_and_going;

/* killpoints.c */
uint64_t visible_in_table(const shmring *r); /* of the numbers */

/* scenes.c */
extern const struct shmring_branch_options earliest;
void push_numbers(shmring *r, uint64_t from, uint64_t to);
void subscribe(shmring *r, const char *name, struct shmring_branch_options o);
void add_sleepers(shmring *r, struct shmring_branch_options o);
int die_holding_four(void *path);
void die(int (*job)(void *));
void build_six(shmring *r);
void build_followed(shmring *r);
void build_orphan(shmring *r);
void build_dead(shmring *r);
void enter_producer(struct victim *v);
void enter_consumer(struct victim *v);

#endif
