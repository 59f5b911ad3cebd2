/* Makes the rings of the operations before the child acts, and inspects the rings after its death. */
#ifndef KILLPOINTS_SCENES_H
#define KILLPOINTS_SCENES_H

#include "operation.h"

/* Initialize a struct operation: its ring has six messages (build_six), and the child, a producer or a consumer of
 * branch "b", calls `function`. */
#define PRODUCER(function) .build = build_six, .enter = enter_producer, .act = function
#define CONSUMER(function) .build = build_six, .enter = enter_consumer, .act = function

extern const struct shmring_branch_options earliest;
void push_numbers(shmring *r, uint64_t from, uint64_t to);
void subscribe(shmring *r, const char *name, struct shmring_branch_options o);
void add_sleepers(shmring *r, struct shmring_branch_options o);
int die_holding_four(void *path);
void die(int (*job)(void *));
void build_six(shmring *r);
void build_followed(shmring *r);
void build_orphan(shmring *r);
void build_dead_beside_an_orphan(shmring *r);
void build_dead(shmring *r);
void enter_producer(struct victim *v);
void enter_consumer(struct victim *v);
uint64_t visible_in_table(const shmring *r); /* mask of message numbers below 64 */

#endif
