/* Litmus tests with known verdicts: the explorer's own tests. The names are those of the literature (Maranget,
 * Sarkar, Sewell, "A tutorial introduction to the Arm and POWER relaxed memory models"). Each test
 * must show all outcomes that C11 allows, and no other, except load buffering, which the explorer leaves out
 * (weak.c). */
#include "world.h"

#define X (&memory.litmus[0])
#define Y (&memory.litmus[1])
#define Z (&memory.litmus[2])

static void nothing_before(void)
{
}

static void found(int me, int i, uint64_t value)
{
	world.ghost.loaded[me][i] = value;
}

static unsigned loaded(int thread, int i)
{
	return (unsigned)world.ghost.loaded[thread][i];
}

/* CHANGE: edit this for a new memory ordering */
/* Message passing: a thread writes X, then Y, and another thread reads Y, then X. Unless the two synchronize, the
 * reader may see the new Y and the old X. */

static void mp_write_relaxed(int me)
{
	(void)me;
	store_relaxed(X, 1);
	store_relaxed(Y, 1);
}

static void mp_write_release(int me)
{
	(void)me;
	store_relaxed(X, 1);
	store_release(Y, 1);
}

static void mp_write_fence(int me)
{
	(void)me;
	store_relaxed(X, 1);
	fence_release();
	store_relaxed(Y, 1);
}

/* The last store is relaxed; it continues the release sequence that the thread's own release store began. */
static void mp_write_sequence(int me)
{
	(void)me;
	store_relaxed(X, 1);
	store_release(Y, 1);
	store_relaxed(Y, 2);
}

static void mp_read_relaxed(int me)
{
	found(me, 0, load_relaxed(Y));
	found(me, 1, load_relaxed(X));
}

static void mp_read_acquire(int me)
{
	found(me, 0, load_acquire(Y));
	found(me, 1, load_relaxed(X));
}

static void mp_read_fence(int me)
{
	found(me, 0, load_relaxed(Y));
	fence_acquire();
	found(me, 1, load_relaxed(X));
}

/* Another thread's read-modify-write continues the release sequence. */
static void add_to_y(int me)
{
	(void)me;
	(void)fetch_add_seq_cst(Y, 2);
}

static unsigned mp_outcome(void)
{
	return loaded(1, 0) * 2 + loaded(1, 1);
}

/* Store buffering: each thread stores to its word, and may miss the other thread's store. */

static void sb(int me, void (*fence)(void))
{
	store_relaxed(me ? Y : X, 1);
	fence();
	found(me, 0, load_acquire(me ? X : Y));
}

static void none(void)
{
}

static void full(void)
{
	fence_seq_cst();
}

static void light(void)
{
	light_barrier(true);
}

static void heavy(void)
{
	heavy_barrier(true);
}

static void sb_none(int me)
{
	sb(me, none);
}

static void sb_full(int me)
{
	sb(me, full);
}

static void sb_light(int me)
{
	sb(me, light);
}

static void sb_heavy(int me)
{
	sb(me, heavy);
}

static unsigned sb_outcome(void)
{
	return loaded(0, 0) * 2 + loaded(1, 0);
}

/* Load buffering: each thread loads one word, then stores to the other word. C11 allows both loads to see these
 * stores; the explorer never shows that outcome, and the test says so. */
static void lb(int me)
{
	found(me, 0, load_relaxed(me ? Y : X));
	store_relaxed(me ? X : Y, 1);
}

/* Independent reads of independent writes: two threads write one word each, and two readers may disagree which
 * write came first. */

static void write_x(int me)
{
	(void)me;
	store_release(X, 1);
}

static void write_y(int me)
{
	(void)me;
	store_release(Y, 1);
}

static void iriw(int me, void (*fence)(void))
{
	found(me, 0, load_acquire(me == 2 ? X : Y));
	fence();
	found(me, 1, load_acquire(me == 2 ? Y : X));
}

static void iriw_acquire(int me)
{
	iriw(me, none);
}

static void iriw_full(int me)
{
	iriw(me, full);
}

static unsigned iriw_outcome(void)
{
	return loaded(2, 0) * 8 + loaded(2, 1) * 4 + loaded(3, 0) * 2 + loaded(3, 1);
}

#define IRIW_DISAGREE (1u << (8 + 2))

/* Two threads write the same two words, in opposite order. */

static void crossed(int me, void (*fence)(void))
{
	store_release(me ? Y : X, 1);
	fence();
	store_release(me ? X : Y, 2);
}

static void crossed_release(int me)
{
	crossed(me, none);
}

static void crossed_full(int me)
{
	crossed(me, full);
}

static unsigned crossed_outcome(void)
{
	return (unsigned)((*X - 1) * 2 + *Y - 1);
}

/* Message passing over three threads: the last thread synchronizes with the first one through the middle one. */

static void isa2_middle(int me)
{
	found(me, 0, load_acquire(Y));
	store_release(Z, 1);
}

static void isa2_last(int me)
{
	found(me, 0, load_acquire(Z));
	found(me, 1, load_relaxed(X));
}

static unsigned isa2_outcome(void)
{
	return loaded(1, 0) * 4 + loaded(2, 0) * 2 + loaded(2, 1);
}

/* Coherence: no thread sees a word go back to an older value. */

static void count_x(int me)
{
	(void)me;
	store_relaxed(X, 1);
	store_relaxed(X, 2);
}

static void read_x_twice(int me)
{
	found(me, 0, load_relaxed(X));
	found(me, 1, load_relaxed(X));
}

static unsigned coherence_outcome(void)
{
	return loaded(1, 0) * 3 + loaded(1, 1);
}

static void add_to_x(int me)
{
	(void)me;
	(void)fetch_add_seq_cst(X, 1);
}

static unsigned sum_outcome(void)
{
	return (unsigned)*X;
}

#define ALL4 0xfu
#define NOT(outcome) (ALL4 & ~(1u << (outcome)))
#define LITMUS(text, of, sc, c11)                                                                                 \
	.name = text, .slots = 2, .weak = true, .before = nothing_before, .outcome = of, .interleaved = (sc),     \
	.allowed = (c11)

static const struct exploration tests[] = {
    {LITMUS("MP, relaxed", mp_outcome, NOT(2), ALL4), .actor = {{mp_write_relaxed}, {mp_read_relaxed}}},
    {LITMUS("MP, release and relaxed", mp_outcome, NOT(2), ALL4),
     .actor = {{mp_write_release}, {mp_read_relaxed}}},
    {LITMUS("MP, relaxed and acquire", mp_outcome, NOT(2), ALL4),
     .actor = {{mp_write_relaxed}, {mp_read_acquire}}},
    {LITMUS("MP, release and acquire", mp_outcome, NOT(2), NOT(2)),
     .actor = {{mp_write_release}, {mp_read_acquire}}},
    {LITMUS("MP, fences", mp_outcome, NOT(2), NOT(2)), .actor = {{mp_write_fence}, {mp_read_fence}}},
    {LITMUS("MP, release sequence of a thread", mp_outcome, 0x2b, 0x2b),
     .actor = {{mp_write_sequence}, {mp_read_acquire}}},
    {LITMUS("MP, release sequence through another thread", mp_outcome, 0xbb, 0xbb),
     .actor = {{mp_write_release}, {mp_read_acquire}, {add_to_y}}},
    {LITMUS("SB, relaxed", sb_outcome, NOT(0), ALL4), .actor = {{sb_none}, {sb_none}}},
    {LITMUS("SB, one fence", sb_outcome, NOT(0), ALL4), .actor = {{sb_full}, {sb_none}}},
    {LITMUS("SB, fences", sb_outcome, NOT(0), NOT(0)), .actor = {{sb_full}, {sb_full}}},
    {LITMUS("SB, light and heavy barrier", sb_outcome, NOT(0), NOT(0)), .actor = {{sb_light}, {sb_heavy}}},
    {LITMUS("SB, two light barriers", sb_outcome, NOT(0), ALL4), .actor = {{sb_light}, {sb_light}}},
    {LITMUS("LB, left out", sb_outcome, NOT(3), NOT(3)), .actor = {{lb}, {lb}}},
    {LITMUS("IRIW, acquire", iriw_outcome, 0xffffu & ~IRIW_DISAGREE, 0xffffu),
     .actor = {{write_x}, {write_y}, {iriw_acquire}, {iriw_acquire}}},
    {LITMUS("IRIW, fences", iriw_outcome, 0xffffu & ~IRIW_DISAGREE, 0xffffu & ~IRIW_DISAGREE),
     .actor = {{write_x}, {write_y}, {iriw_full}, {iriw_full}}},
    {LITMUS("2+2W, release", crossed_outcome, NOT(0), ALL4), .actor = {{crossed_release}, {crossed_release}}},
    {LITMUS("2+2W, fences", crossed_outcome, NOT(0), NOT(0)), .actor = {{crossed_full}, {crossed_full}}},
    {LITMUS("ISA2", isa2_outcome, 0xffu & ~(1u << 6), 0xffu & ~(1u << 6)),
     .actor = {{mp_write_release}, {isa2_middle}, {isa2_last}}},
    {LITMUS("CoRR", coherence_outcome, 0x137, 0x137), .actor = {{count_x}, {read_x_twice}}},
    {LITMUS("additions", sum_outcome, 1u << 2, 1u << 2), .actor = {{add_to_x}, {add_to_x}}},
};

const struct cases litmus_tests = {tests, sizeof tests / sizeof *tests};
