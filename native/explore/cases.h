/* The cases: at most two producers and two consumers, a few slots, and a possible death before each step. */
#ifndef EXPLORE_CASES_H
#define EXPLORE_CASES_H

#include "path.h"

/* Designated initializers of actors. */
#define PRODUCER(function) .body = function, .seat = A_PRODUCER
#define CONSUMER(function) .body = function, .seat = A_CONSUMER
#define PUSHES(first, last) PRODUCER(produce), .from = first, .to = (last) + 1
#define PUSHES_RUN(first, last) PRODUCER(produce_batch), .from = first, .to = (last) + 1
#define SERVES CONSUMER(consume), .stays = true
#define SERVES_BRANCH(b) CONSUMER(consume), .stays = true, .branch = b

/* CHANGE: edit this for a new case of the explorer */
/* scenes.c */
uint32_t make_branch(const char *name, struct shmring_branch_options o);
void open_producer(int i);
void push_before(uint64_t count);
void take_and_die(
    uint32_t messages); /* a consumer of branch "a" takes messages, and dies before the case begins */
void seat_actors(void);
void hold_the_admin_lock(int me); /* takes the admin lock and releases it */
void one_branch(void);
void two_waiting(void);
void a_full_ring(void);
void an_exclusive_branch(void);
void two_branches(void);
void a_chain(void);

/* cases_messages.c */
void a_hole(void);
void recover(int me);

#endif
