/* One end marker ends every consumer once. docs/protocol.md P11.
 *
 * Two consumers share a branch, and one of them may die; with JOINS, one comes when it
 * likes. Two runs go through a ring of a few slots, each with its end; behind the first
 * marker lies an aborted run, so that who comes there may see more or less of what is
 * one end. A lease is its hold here: read.pml has the rest. A STEP is one access to
 * shared words.
 *
 * The core leaves that aborted run to the next take, which is one way less to go on. Which
 * of several markers belong to one end, their entries say, and nothing of that changes
 * while somebody looks: tests/test_end.c and the explorer have it.
 */
#define CONSUMERS 2
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef LAST
#define LAST 6
#endif
#define MESSAGE 0
#define END 1
#define ABORTED 2
/* message, end, aborted, message, end, message */
#define KIND(s) ((s) == 1 || (s) == 4 -> END : ((s) == 2 -> ABORTED : MESSAGE))
#define ENDS_BEFORE(s) (((s) > 1) + ((s) > 4))
#define NONE 255

byte published[SLOTS]; /* sequence + 1 */
byte kind[SLOTS];
byte claim_word; /* the producer publishes as it claims: claim.pml does the rest */
byte taken, taker = NONE; /* one word */
byte ended_at, ended_count; /* one word; the count is modulo 2 */
byte ends;
byte hold[CONSUMERS] = NONE;
byte heard[CONSUMERS];
bool dead[CONSUMERS];
bool killed;

#define STEP(action) \
	if \
	:: atomic { action } \
	:: atomic { !killed -> killed = true; goto dead_now } \
	fi
#define IS_PUBLISHED(s) (published[(s) % SLOTS] == (s) + 1)
#define UNTOLD (ends - heard[me])
#define IS_ENDED(t) (UNTOLD > 1 || (UNTOLD == 1 && (t) >= ended_at))

/* From a marker on, further markers and aborted runs; `marker`: there is one. */
inline behind_markers()
{
	do
	:: end < LAST ->
		STEP(found = IS_PUBLISHED(end));
		if
		:: found
		:: else -> break
		fi;
		STEP(k = kind[end % SLOTS]);
		if
		:: k != MESSAGE -> atomic { marker = (marker || k == END); end++ }
		:: else -> break
		fi
	:: else -> break
	od
}

/* Sets `found`: the branch still stands at t. */
inline announce()
{
	STEP(n = ends);
	STEP(before_at = ended_at; before_count = ended_count);
#ifndef BREAK_NO_LOOK
	STEP(found = (taken == t && taker == last));
#else
	found = true;
#endif
	first = false;
	if
	:: found ->
		do
		:: true ->
#ifndef BREAK_COUNTED_BY_EACH
			first = (before_at <= t);
#else
			first = true;
#endif
			STEP(if
			     :: ended_at == before_at && ended_count == before_count ->
				ended_at = (end > before_at -> end : before_at);
				ended_count = (before_count + first) % 2;
				before_count = ended_count;
				break
			     :: else -> before_at = ended_at; before_count = ended_count
			     fi)
		od;
		if
#ifndef BREAK_NOT_COMPLETED
		:: n % 2 != before_count ->
#else
		:: first && n % 2 != before_count ->
#endif
			STEP(ends = (ends == n -> n + 1 : ends))
		:: else
		fi
	:: else
	fi
}

#define MOVE(end) \
	STEP(won = (taken == t && taker == last); \
	     if \
	     :: won -> taken = end; taker = me \
	     :: else \
	     fi)

proctype consumer(byte me)
{
	byte t, last, end, k, n, before_at, before_count;
	bool found, marker, first, won;

#ifdef JOINS
	if
	:: me == 0 -> goto again
	:: me == 1
	fi;
	do
	:: true ->
		atomic { end = 0; k = 0; n = 0; found = false; marker = false; first = false; won = false }
		STEP(before_at = ended_at; before_count = ended_count);
		STEP(t = taken; last = taker; end = t);
		if
		:: before_at && t <= before_at -> behind_markers()
		:: else
		fi;
		if
		:: end == t -> break
		:: else
		fi;
#ifndef BREAK_ABORTED_IS_AN_END
		if
		:: marker -> announce()
		:: else -> found = true
		fi;
#else
		announce();
#endif
		if
		:: found -> MOVE(end)
		:: else
		fi;
		if
		:: won -> break
		:: else
		fi
	od;
	STEP(heard[me] = ends);
#endif

again:
	atomic {
		t = 0; last = 0; end = 0; k = 0; n = 0; before_at = 0; before_count = 0;
		found = false; marker = false; first = false; won = false
	}
	if
	:: STEP(IS_PUBLISHED(taken) || IS_ENDED(taken) -> t = taken; last = taker)
	fi;
	STEP(found = IS_ENDED(t));
	if
	:: found -> heard[me]++; goto again
	:: else
	fi;
	STEP(found = IS_PUBLISHED(t));
	if
	:: found
	:: else -> goto again
	fi;
	STEP(k = kind[t % SLOTS]);
	end = t + 1;
	if
	:: k == MESSAGE ->
		STEP(hold[me] = t);
		MOVE(end);
		if
		:: won ->
			/* It was told of each end that lies before, and of no other. */
			assert(IS_PUBLISHED(t) && heard[me] == ENDS_BEFORE(t))
		:: else
		fi;
		STEP(hold[me] = NONE)
	:: k == ABORTED -> MOVE(end)
	:: k == END ->
		behind_markers();
#ifdef BREAK_COUNTED_LATE
		MOVE(end);
		if
		:: won -> atomic { t = end; last = me }; announce()
		:: else
		fi
#else
		announce();
		if
		:: found -> MOVE(end)
		:: else
		fi
#endif
	fi;
	goto again;

dead_now:
	atomic { dead[me] = true; hold[me] = NONE }
}

#define FREE(s) (taken > (s) && hold[0] > (s) && hold[1] > (s))

active proctype producer()
{
	do
	:: atomic {
		claim_word < LAST && (claim_word < SLOTS || FREE(claim_word - SLOTS));
		/* One word after the other: who reads the old entry may see some of the new. */
		kind[claim_word % SLOTS] = KIND(claim_word)
	   }
	   atomic { published[claim_word % SLOTS] = claim_word + 1; claim_word++ }
	od
}

/* When nothing moves any more, everybody who lives has been told of each end. */
active proctype watcher()
{
	byte i;

	atomic {
		timeout;
		assert(claim_word == LAST && taken == LAST && ends == ENDS_BEFORE(LAST));
		for (i : 0 .. CONSUMERS - 1) {
			assert(dead[i] || heard[i] == ends)
		}
	}
}

init {
	atomic {
		run consumer(0);
		run consumer(1)
	}
}
