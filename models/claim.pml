/* Claim, publish, abort; death at any step; recovery, and death in recovery.
 * docs/protocol.md P1, P2, P3; which C each part stands for: there, "Models".
 *
 * A STEP is one access to shared words; before any of them its process may die,
 * which frees its locks. Another process takes its place later.
 */
#ifndef PRODUCERS
#define PRODUCERS 3
#endif
#define SLOTS 4
#ifndef LAST
#define LAST 6 /* sequences: once round and a half */
#endif
#ifndef KILLS
#define KILLS 3
#endif
#define NONE 255
#define ENTRY(s) ((s) % SLOTS)

byte claim_word;
byte floor_word;
byte published[SLOTS]; /* sequence + 1 */
byte length[SLOTS]; /* of the run */
byte writer[SLOTS]; /* the producer's seat */
byte intent_lo[PRODUCERS];
byte intent_n[PRODUCERS];
bool used[PRODUCERS]; /* the seat's state */
bool locked[PRODUCERS]; /* its lock byte */

byte kills;
byte size_of[LAST + 2]; /* what must be true: size of the claim that begins here */
bool done[LAST + 2]; /* it has been published */

#ifdef ONE_CLAIM_EACH /* then nobody succeeds the dead, and no recoverer dies */
#define RECOVERER_STEP(action) atomic { action }
#else
#define RECOVERER_STEP(action) STEP(action)
#endif
#define STEP(action) \
	if \
	:: atomic { action } \
	:: atomic { kills < KILLS -> kills++; goto dead } \
	fi

inline publish_run(at, n)
{
	assert(n == size_of[at] && !done[at]);
	done[at] = true;
	length[ENTRY(at)] = n;
	published[ENTRY(at)] = at + 1
}

inline settle_claim_word()
{
	won = (claim_word == lo);
	if
	:: won ->
		claim_word = lo + n;
		assert(claim_word <= floor_word + SLOTS && size_of[lo] == 0);
		size_of[lo] = n
	:: else
	fi
}

proctype producer(byte seat)
{
	byte lo, n;
	bool won;

again:
	STEP(claim_word < LAST && claim_word < floor_word + SLOTS ->
		lo = claim_word;
		if
		:: n = 1
		:: lo + 2 <= floor_word + SLOTS -> n = 2
		fi);
	STEP(intent_n[seat] = n);
#ifndef BREAK_INTENT_LATE
	STEP(intent_lo[seat] = lo);
#endif
	STEP(settle_claim_word());
#ifdef BREAK_INTENT_LATE
	STEP(intent_lo[seat] = lo);
#endif
	if
	:: !won ->
		STEP(intent_lo[seat] = NONE; won = false);
		goto again
	:: else
	fi;
	if
	:: n == 2 -> /* a batch, last row first */
		STEP(writer[ENTRY(lo + 1)] = seat; length[ENTRY(lo + 1)] = 1);
		STEP(published[ENTRY(lo + 1)] = lo + 2)
	:: true /* one message, or an abort */
	fi;
#ifdef BREAK_CLEAR_EARLY
	STEP(intent_lo[seat] = NONE);
#endif
	STEP(writer[ENTRY(lo)] = seat; publish_run(lo, n));
#ifndef BREAK_CLEAR_EARLY
	STEP(intent_lo[seat] = NONE);
#endif
#ifdef ONE_CLAIM_EACH
	atomic { lo = 0; n = 0; won = false; false -> goto again }
#else
	atomic { lo = 0; n = 0; won = false; goto again }
#endif

dead:
	atomic { locked[seat] = false; lo = 0; n = 0; won = false }
#ifndef ONE_CLAIM_EACH
	/* Its successor finds the seat free. */
	atomic {
		!used[seat];
		intent_lo[seat] = NONE;
		intent_n[seat] = 0;
		locked[seat] = true;
		used[seat] = true;
		goto again
	}
#else
	atomic { false -> goto again }
#endif
}

inline is_hole()
{
	RECOVERER_STEP(hole = (h < claim_word));
	if
	:: hole ->
		RECOVERER_STEP(hole = (published[ENTRY(h)] != h + 1));
		if
		:: hole -> RECOVERER_STEP(hole = (floor_word <= h))
		:: else
		fi
	:: else
	fi
}

inline passed_through()
{
	RECOVERER_STEP(passed = (claim_word == h + n));
	j = 0;
	do
	:: passed || j == PRODUCERS -> break
	:: else -> RECOVERER_STEP(passed = (used[j] && intent_lo[j] == h + n); j++)
	od;
	if
	:: passed
	:: else ->
		RECOVERER_STEP(passed = (published[ENTRY(h + n)] == h + n + 1));
#ifndef BREAK_ROWS_ARE_EVIDENCE
		if
		:: passed -> RECOVERER_STEP(j = writer[ENTRY(h + n)]; passed = (intent_lo[j] != h))
		:: else
		fi
#endif
	fi
}

#define SOMEBODY_DEAD(s) (used[s] && !locked[s])

/* Whoever has the admin lock: one at a time, and if he dies another. */
proctype recoverer()
{
	byte h, i, j, n, best, seat;
	bool hole, passed, mine, live;

again:
	atomic {
		h = 0; i = 0; j = 0; n = 0; best = 0; live = false; hole = false; passed = false; mine = false;
		if
		:: SOMEBODY_DEAD(0) -> seat = 0
		:: SOMEBODY_DEAD(1) -> seat = 1
#if PRODUCERS > 2
		:: SOMEBODY_DEAD(2) -> seat = 2
#endif
		fi
	}
	RECOVERER_STEP(h = intent_lo[seat]; hole = false);
	if
	:: h != NONE -> is_hole()
	:: else
	fi;
#ifndef BREAK_LOOK_AGAIN_WITHOUT_A_HOLE
	if
	:: !hole -> goto settled
	:: else
	fi;
#endif
	do
	:: i == PRODUCERS -> break
	:: else ->
		RECOVERER_STEP(mine = (used[i] && intent_lo[i] == h));
		if
		:: mine ->
#ifndef BREAK_IGNORE_THE_LIVING
			RECOVERER_STEP(live = locked[i]);
#endif
			if
			:: live -> break
			:: else
			fi;
			RECOVERER_STEP(n = intent_n[i]);
#ifdef BREAK_NO_EVIDENCE
			passed = true;
#else
			passed_through();
#endif
			if
			:: n && passed && (best == 0 || n < best) -> best = n
			:: else
			fi
		:: else
		fi;
		i++
	od;
	if
	:: live -> /* tried again when that one has moved, or died */
		atomic { (intent_lo[i] != h || !locked[i]); goto again }
	:: else
	fi;
#ifndef BREAK_NO_SECOND_LOOK
	is_hole();
#endif
	if
	:: hole ->
		assert(best != 0);
		if
		:: best == 2 -> RECOVERER_STEP(published[ENTRY(h + 1)] = 0)
		:: else
		fi;
		RECOVERER_STEP(writer[ENTRY(h)] = seat; publish_run(h, best))
	:: else
	fi;
settled:
	RECOVERER_STEP(intent_lo[seat] = NONE);
	RECOVERER_STEP(used[seat] = false);
	goto again;
#ifndef ONE_CLAIM_EACH
dead:
	goto again
#endif
}

/* A branch: reads and releases. */
inline read_a_run()
{
	assert(floor_word < claim_word && done[floor_word]);
	n = length[ENTRY(floor_word)];
	assert(n == size_of[floor_word]);
	/* What lies behind is never looked at: one state for all of it. */
	size_of[floor_word] = 0;
	done[floor_word] = false;
	do
	:: n == 0 -> break
	:: else ->
		length[ENTRY(floor_word)] = 0;
		writer[ENTRY(floor_word)] = 0;
		published[ENTRY(floor_word)] = floor_word + 1;
		floor_word++;
		n--
	od
}

#if LAST > SLOTS
active proctype reader()
{
	byte n;

	do
	:: atomic { published[ENTRY(floor_word)] == floor_word + 1 -> read_a_run() }
	od
}
#endif

/* When nothing moves any more, nobody waits for the dead, and every number that
 * was taken can be read. */
active proctype watcher()
{
	byte n;

	atomic {
		timeout;
		do
		:: floor_word == claim_word -> break
		:: else -> read_a_run()
		od;
		#ifndef ONE_CLAIM_EACH
		assert(claim_word >= LAST)
#endif
	}
}

init {
	atomic {
		byte s;

		for (s : 0 .. PRODUCERS - 1) {
			intent_lo[s] = NONE;
			used[s] = true;
			locked[s] = true;
			run producer(s)
		}
		run recoverer()
	}
}
