/* The explorer: runs a few threads of the real core through every interleaving
 * of their accesses to shared words, with a death before each access. With --weak
 * it also tries every value that C11 lets each access see (weak.c).
 *
 * Threads are coroutines. A state is the memory that the threads share, the used
 * part of each stack, and what the checks remember. The explorer saves each state,
 * restores it for every choice, and enters no state twice (a 64-bit hash stands for
 * a state). A step that touches only words which one thread uses, or which no thread
 * writes, runs together with the step before, because its order does not matter to
 * the other threads. The explorer finds the shared words on the way: when a word
 * turns out to be shared, the exploration begins anew.
 */
#ifndef EXPLORE_WORLD_H
#define EXPLORE_WORLD_H

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "cells.h"

enum {
	THREADS = 4,
	STACK = 65536,
	SMALL_SEATS = 6,
	SMALL_SLOTS = 8,
	SMALL_BRANCHES = 3,
	NUMBERS = 16, /* messages are numbers below this */
	HANDLES = THREADS + 2, /* threads, and the handles BEFORE and AFTER, which act around the case */
	BEFORE = THREADS,
	AFTER = THREADS + 1,
	HEAP = 3072, /* bytes for each handle's producers and consumers */
};

struct memory {
	struct cursors cursors;
	struct seat seats[SMALL_SEATS];
	struct control control[SMALL_SLOTS];
	uint8_t slots[SMALL_SLOTS * SLOT_BYTES];
	uint64_t lock[SMALL_SEATS + 1]; /* the holder's handle + 1, 0 if free; the last is the admin lock */
	uint64_t litmus[3];
	_Alignas(CELL) uint8_t heap[HANDLES][HEAP]; /* here because threads share a handle's objects, too */
};

/* The only deadline of a wait: it passes before a waiter would look for dead participants or forgotten
 * sleepers. */
enum { EXPLORE_DEADLINE_NS = 1000000 };

/* Maximum number of words that a thread sleeps on at once. */
enum { SLEEPS = 3 };

enum thread_status { READY, PARKED, SLEEPING, FINISHED, DEAD };

#define MEMORY_WORDS (sizeof(struct memory) / 8)

struct thread {
	void *stack_pointer;
	enum thread_status status;
	bool looking; /* between explore_look() and explore_found() */
	bool stale; /* a word that the thread has read since explore_look() has changed */
	bool slept; /* the thread has slept, so its deadline may pass */
	bool late; /* the thread's deadline has passed */
	const uint32_t *sleeps_on[SLEEPS]; /* words by which the thread may still be woken */
	/* Kind of the access that the thread does next; NO_ACCESS if it does none. */
	enum { NO_ACCESS, LOAD, STORE, CAS, OTHER, CLOCK } access;
	const volatile void *address;
	const char *function;
	int line;
	uint64_t looked_at[(MEMORY_WORDS + 63) / 64];
};

/* Memory of the checks: events so far, which no thread of the case reads. */
struct ghost {
	uint8_t committed[NUMBERS];
	uint8_t delivered[SMALL_BRANCHES][NUMBERS]; /* number of deliveries of each message */
	uint8_t released[SMALL_BRANCHES][NUMBERS];
	uint8_t lost[SMALL_BRANCHES]; /* 1 if the branch was overrun or dropped */
	uint8_t consumer_died[SMALL_BRANCHES];
	uint64_t followed; /* bit set of the upstreams that branch "c" must have */
	uint8_t ends[THREADS]; /* ends of stream that each consumer has been told of */
	uint64_t last_seen[THREADS];
	uint64_t loaded[THREADS][2]; /* values that each thread of a litmus test has loaded */
};

struct world {
	struct thread thread[THREADS];
	struct shmring_producer *producer[HANDLES];
	struct shmring_consumer *consumer[HANDLES];
	struct shmring_consumer
	    *beside[THREADS]; /* second consumer of a thread that waits for two; the thread closes it */
	int outsider; /* the handle that acts while no thread runs */
	uint32_t deaths;
	uint32_t heap_used[HANDLES];
	struct ghost ghost;
};

/* Seat that an actor has from the beginning. */
enum actor_seat { NO_SEAT, A_PRODUCER, A_CONSUMER };

struct actor {
	void (*body)(int me);
	enum actor_seat seat;
	bool mortal;
	bool stays; /* serves for ever: waiting at the end is no error */
	bool in_time; /* the actor's waits have a deadline, which passes when the explorer chooses */
	uint32_t branch;
	uint8_t from, to; /* numbers that the actor pushes: from <= number < to */
	uint8_t slots; /* slots of each push */
};

struct exploration {
	const char *name;
	uint32_t slots;
	uint32_t options;
	bool whole_entries; /* the filling and the reading of a control entry are not interleaved */
	void (*before)(void); /* makes branches, consumers and producers */
	uint32_t keeps; /* number of branches that existed from the beginning; they must lose no message */
	void (*after)(void); /* checks beyond the common ones */
	bool weak; /* true if the case is small enough for C11's memory model */
	/* For a litmus test: returns the number of the run's outcome, below 32. The masks hold the outcomes that
	 * must all come: under sequential consistency (interleaved), or under C11 (allowed). */
	unsigned (*outcome)(void);
	uint32_t interleaved, allowed;
	struct actor actor[THREADS];
};

extern struct memory memory;
extern struct world world;
extern shmring handles[HANDLES]; /* during a case, only the fields about a handle's own seat change */
extern const struct exploration *exploring;

/* The cases of one subject; each subject has its own file. */
struct cases {
	const struct exploration *cases;
	size_t count;
};

/* A thread calls explore_look() before it looks for work. Then it calls explore_found() if there is work,
 * or explore_wait() to wait until a word that it has read since explore_look() changes. */
void explore_look(void);
void explore_found(void);
void explore_wait(void);
void explore_wait_for(const void *address); /* waits until this word changes */
bool explore_is_on(void); /* true while a thread runs; false before and after the case */
int explore_thread(void); /* the running thread */
void explore_wake(const uint32_t *word, uint32_t threads);
void explore_queue_on(const uint32_t *word); /* from now on, a wake-up of the word reaches the running thread */
void explore_leave_queues(void);
bool explore_is_woken(uint32_t words); /* true if one of the words that the thread is queued on was woken */
bool explore_sleep_queued(uint32_t words); /* false if the deadline passed during the sleep */
bool explore_is_late(void); /* true if the running thread's deadline has passed, or passes now */
void explore_kill_handle(int handle); /* kills the handle's owner, which frees its locks */
bool explore_spins(void); /* true if the thread has looked, and nothing that it read has changed since */

/* threads.c */
extern uint8_t stacks[THREADS][STACK];
extern int running; /* number of the running thread; -1 while the explorer runs */
void thread_make(int i);
void thread_run(int i); /* runs the thread until it gives way */
void give_way(void);

static inline bool thread_has_stack(int i)
{
	return world.thread[i].status < FINISHED;
}

/* accesses.c */
extern bool more_is_shared; /* true if a word turned out to be shared after the exploration began */
extern uint32_t option; /* option chosen for the access under way */
void accesses_begin(void); /* begins a case: no word is known to be shared */
void accesses_begin_anew(void); /* begins the case again with the shared words known so far */
void accesses_print(void); /* prints the accesses with an ordering that the case has executed */
extern const char *explore_weakened; /* access made relaxed, as FILE:LINE:ACCESS:OPERAND; or NULL */
void note_deaths(void);
void thread_die(int i);

/* weak.c */
enum { WEAK_OPTIONS = 15 }; /* maximum number of options of one access */
extern bool explore_weak; /* true for C11's memory model, false for sequential consistency */
extern bool explore_unfinished; /* true if the search has left something out */
extern bool explore_fences; /* true if both barriers of a pair are full fences */
void weak_begin(const bool *shared);
bool weak_has(const volatile void *address);
uint32_t weak_load_options(int thread, const volatile void *address);
uint32_t weak_store_options(int thread, const volatile void *address);
uint64_t weak_load(int thread, const volatile void *address, enum explore_order order, uint32_t option);
uint64_t weak_value(const volatile void *address, uint32_t option); /* value that the load would return */
void weak_store(int thread, void *address, uint64_t value, enum explore_order order, uint32_t option);
uint64_t weak_rmw_read(int thread, void *address, enum explore_order order);
void weak_rmw_write(int thread, void *address, uint64_t value, enum explore_order order);
uint64_t weak_kernel_load(int thread, void *address);
void weak_fence(int thread, enum explore_order order);
void weak_fence_all(int thread);
void weak_unlock(int thread, uint64_t *lock); /* frees a dead thread's lock, like the kernel */
void weak_end(int thread);
void weak_plain_access(int thread, size_t slot, bool writes);
void weak_normalise(void);
size_t weak_bytes(void);
const void *weak_state(void);
size_t weak_restore(const uint8_t *state);

/* states.c */
void state_describe(void); /* call this after the ring has been made */
bool state_includes(const void *address);
uint8_t *state_save(void); /* returns a copy of the state, which the caller frees */
void state_restore(const uint8_t *state);
bool state_is_new(void);
size_t state_count(void);
void state_forget_all(void);

/* system.c */
void world_make(const struct exploration *e);

/* CHANGE: edit this for a new case of the explorer */
/* checks.c */
void check_end(void);
uint64_t claim_slots(int me, uint32_t slots);
void fill(int me, uint64_t sequence, uint64_t number);
int take_one(shmring_consumer *consumer, uint32_t messages, uint64_t *last_seen);
void take_or_wait(int me, uint32_t messages);
void produce(int me);
void produce_batch(int me);
void produce_parts(int me);
void produce_asleep(int me); /* pushes all numbers, and waits with shmring_wait_space() */
void consume(int me);
void consume_asleep(int me); /* serves, and waits with shmring_wait_message() */
void consume_runs(int me); /* numbers below `from` must come before the end marker, the others after it */
void consume_runs_asleep(int me);
void consume_one_asleep(int me); /* takes one message, then no more, like a consumer that stays busy */
void consume_until_late(int me); /* takes messages until a wait times out, then no more */
void take_what_is_there(int me);
void take_and_abandon(int me);
void hand_back_and_consume(int me);
void consume_out_of_order(int me);
void scribble_over_ranges(int me);
void hand_back_without_a_seat(int me);
void consume_until_interrupted(int me); /* takes messages until it is interrupted, then leaves */
void produce_until_interrupted(int me); /* pushes its numbers until it is interrupted */

#endif
