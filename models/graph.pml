/* The floor in two steps; subscribe, overrun and unsubscribe while traffic flows.
 * docs/protocol.md P4, P6, P8.
 *
 * Two producers want space. Branch 0 is reliable and reads everything. Branch 1
 * comes and goes twice, at the floor or at the claim word, reliable or such that
 * it drops the oldest. Its consumer's hold waits in the store buffer until it drains by
 * itself, by a locked instruction, or by a heavy barrier.
 */
#define SLOTS 2
#ifndef LAST
#define LAST 4
#endif
#ifndef VISITS
#define VISITS 2
#endif
#ifndef PRODUCERS
#define PRODUCERS 2
#endif
#define NONE 255
#define FREE 0
#define ACTIVE 1
#define DROPPING 2
#define DROPPED 3

byte content[SLOTS]; /* sequence + 1 */
byte claim_word;
byte floor_word;
byte floor_next;
bool gates; /* bit of branch 1 */
byte changes; /* of the graph */
byte state;
bool drops_oldest;
byte taken[2];
byte hold = NONE; /* of branch 1's consumer; read.pml has branches with several */
byte hold_wait = NONE; /* a hold that has not left the processor */
bool joined;

byte in_use = NONE; /* what must be true: the sequence that branch 1's consumer reads */

inline drain()
{
	if
	:: hold_wait != NONE -> hold = hold_wait; hold_wait = NONE
	:: else
	fi
}

/* Nobody holds what is overwritten, and nobody has it still to come. */
inline write_message()
{
	if
	:: claim_word >= SLOTS ->
		assert(in_use != claim_word - SLOTS);
		assert(taken[0] > claim_word - SLOTS);
		assert(!(gates && state == ACTIVE && !drops_oldest && taken[1] <= claim_word - SLOTS))
	:: else
	fi;
	content[claim_word % SLOTS] = claim_word + 1;
	claim_word++
}

inline gate(low)
{
	bit_set = gates;
	low = taken[0];
	if
	:: bit_set ->
		atomic { drop_oldest = drops_oldest; holds_only = drop_oldest }
		atomic { holds_only = (holds_only || state == DROPPED) }
		if
		:: !holds_only -> atomic { low = (taken[1] < low -> taken[1] : low) }
		:: else
		fi;
		atomic { low = (hold < low -> hold : low) }
	:: else
	fi;
	atomic { bit_set = false; holds_only = false }
}

#define OTHER_RELEASED ((drops_oldest || state == DROPPED) && hold > floor_word || \
	taken[1] > floor_word && hold > floor_word)
#define CAN_RISE (taken[0] > floor_word && (!gates || OTHER_RELEASED))

proctype producer()
{
	byte floor, next, later, seen;
	bool drop_oldest, bit_set, holds_only;

again:
	atomic {
		floor = 0; next = 0; later = 0; seen = 0; drop_oldest = false;
		if
		:: claim_word < LAST && claim_word < floor_word + SLOTS -> write_message(); goto again
		:: claim_word < LAST && claim_word >= floor_word + SLOTS && CAN_RISE -> floor = floor_word
		fi
	}
#ifndef BREAK_CHANGES_LATE
	seen = changes;
	gate(next);
#else
	gate(next);
	seen = changes;
#endif
	if
	:: next <= floor -> goto again
	:: else
	fi;
	atomic { floor_next = (floor_next < next -> next : floor_next) }
	later = next;
#ifndef BREAK_LOOK_ONCE
	if
	:: !drop_oldest && changes != seen -> gate(later)
	:: drop_oldest || changes == seen
	fi;
	if
	:: drop_oldest ->
#ifndef BREAK_NO_HEAVY_FOR_OVERRUN
		atomic { drain() }
#endif
		gate(later)
	:: else
	fi;
#endif
	atomic {
		later = (later < next -> later : next);
		floor_word = (floor_word < later -> later : floor_word);
		goto again
	}
}

/* Branch 0: takes and releases. */
active proctype reader()
{
	do
	:: atomic { taken[0] < LAST && content[taken[0] % SLOTS] == taken[0] + 1 -> taken[0]++ }
	od
}

/* Whoever has the admin lock: subscribes, unsubscribes. */
active proctype manager()
{
	byte visits, at, next;

	do
	:: visits == VISITS -> break
	:: visits < VISITS ->
		atomic {
			visits++;
			hold = NONE;
			if
			:: drops_oldest = true
			:: drops_oldest = false
			fi;
			if
			:: at = floor_word
			:: at = claim_word
			fi
		}
		taken[1] = at;
#ifdef BREAK_NEWCOMER_UNCOUNTED
		gates = true;
#else
#ifdef BREAK_COUNTED_EARLY
		changes++;
		gates = true;
#else
		gates = true;
		changes++; /* heavy barrier: the advancers' words are not buffered */
#endif
#endif
		next = floor_next;
#ifndef BREAK_NEWCOMER_DOES_NOT_LOOK
		at = (next > at -> next : at);
#endif
		taken[1] = at;
		atomic { state = ACTIVE; joined = true; at = 0; next = 0 }
		if
		:: true /* drops it at any time */
#ifdef BREAK_DROP_AT_ONCE
		   state = DROPPED;
		   atomic { drain() }
#else
		   state = DROPPING;
#ifndef BREAK_NO_HEAVY_FOR_DROP
		   atomic { drain() }
#endif
		   state = DROPPED;
#endif
		   !joined;
		   atomic { gates = false; state = FREE }
		:: visits == VISITS -> break /* or never */
		fi
	od
}

/* Branch 1's consumer. */
active proctype consumer()
{
	byte t, next;

again:
	atomic { joined; t = taken[1]; next = 0 }
	if
	:: drops_oldest ->
#ifdef BREAK_OVERRUN_LOOKS_FIRST
		next = floor_next;
		hold_wait = t;
#else
		hold_wait = t;
		next = floor_next;
#endif
		if
		:: next > t -> /* overrun; the move is a locked instruction */
			atomic { drain(); taken[1] = next }
			hold = NONE;
			goto again
		:: else
		fi
	:: else
	fi;
	if
	:: content[t % SLOTS] != t + 1 -> /* nothing there: looks again when there is */
		atomic { drain(); hold = NONE }
		if
		:: state != ACTIVE -> joined = false
		:: content[t % SLOTS] == t + 1 || (drops_oldest && floor_next > t)
		fi;
		goto again
	:: else
	fi;
	if
	:: !drops_oldest -> hold_wait = t
	:: else
	fi;
	if
	:: state != ACTIVE ->
		atomic { drain() }
		hold = NONE;
		joined = false;
		goto again
	:: state == ACTIVE
	fi;
	atomic { drain(); taken[1] = t + 1; in_use = t }
	atomic { assert(content[t % SLOTS] == t + 1); in_use = NONE }
	hold = NONE;
	goto again
}

active proctype store_buffer()
{
	do
	:: atomic { hold_wait != NONE -> drain() }
	od
}

active proctype watcher()
{
	atomic {
		timeout;
		assert(claim_word == LAST && taken[0] == LAST);
		assert(state == FREE || taken[1] == LAST)
	}
}

init {
	atomic {
		run producer();
#if PRODUCERS > 1
		run producer()
#endif
	}
}
