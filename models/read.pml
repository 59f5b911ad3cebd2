/* Take, release, confirm; death at any step; recovery, adoption, handing back, and
 * death in each. docs/protocol.md P5, P7, P10, and what P4 reads of them.
 *
 * Two consumers share a branch and may die; a third one clears up after them, and
 * takes when it is alone. With NACKS the two hand so many messages back, and there
 * is a seat that nobody has. A range table is a set of sequences here (bit s: s is
 * recorded), a STEP one access to shared words.
 */
#define CONSUMERS 3
#ifndef NACKS
#define NACKS 0
#endif
#if NACKS > 0
#define SEATS 4
#define SPARE_GATES GATES(3)
#define SPARE_IS_ORPHAN (state[3] == ORPHAN)
#else
#define SEATS 3
#define SPARE_GATES NONE
#define SPARE_IS_ORPHAN false
#endif
#define SLOTS 2
#ifndef LAST
#define LAST 3 /* sequences: more than the ring has slots */
#endif
#ifndef KILLS
#define KILLS 2
#endif
#define NONE 255
#define FREE 0
#define ACTIVE 1
#define ORPHAN 2

#define BIT(s) (1 << (s))
#define RANGE(lo, hi) ((1 << (hi)) - (1 << (lo)))
#define LOWEST(set) ((set) == 0 -> NONE : ((set) & 1 -> 0 : ((set) & 2 -> 1 : ((set) & 4 -> 2 : 3))))

byte content[SLOTS]; /* sequence + 1 of the message in the slot */
byte claim_word; /* one producer publishes as it claims: claim.pml does the rest */
byte floor_word;

byte taken, taker = NONE; /* one word */
byte orphans;
byte moves;

byte state[SEATS];
bool locked[SEATS];
bool is_consumer[SEATS];
byte hold[SEATS];
byte take_lo[SEATS];
byte take_end[SEATS];
bool pending[SEATS];
byte ranges[SEATS];
byte adopt_from[SEATS]; /* seat + 1 */
bool away[SEATS]; /* one word with adopt_from: the lease is on its way to that seat */
byte adopt_lo[SEATS];

byte admin = NONE;
byte adopter; /* seat + 1 */
byte kills, nacks;

/* What must be true. */
byte held[CONSUMERS]; /* given to the consumer's user and not yet given back */
byte released; /* given back by a living user */

#define MAY_DIE(me) (me < 2 && kills < KILLS)
#define STEP(action) \
	if \
	:: atomic { action } \
	:: atomic { MAY_DIE(me) -> kills++; goto dead } \
	fi
#define DEAD(i) (state[i] == ACTIVE && !locked[i])
#define ANY_DEAD (DEAD(0) || DEAD(1))

inline give(set)
{
	assert((released & (set)) == 0);
	assert(((held[0] | held[1] | held[2]) & (set)) == 0);
	held[me] = held[me] | (set)
}

inline count_orphans()
{
	STEP(orphans = (state[0] == ORPHAN) + (state[1] == ORPHAN) + SPARE_IS_ORPHAN)
}

/* Under the admin lock: seat i is dead. */
inline settle(i)
{
	STEP(t = taken; last = taker);
	STEP(end = take_end[i]);
	if
	:: adopt_from[i] ->
		if
		:: ranges[adopt_from[i] - 1] & BIT(adopt_lo[i]) && (!away[i] || state[adopt_from[i] - 1] == ORPHAN) ->
			STEP(is_consumer[adopt_from[i] - 1] = is_consumer[adopt_from[i] - 1] || away[i]);
			STEP(ranges[i] = ranges[i] & ~BIT(adopt_lo[i]))
		:: else
		fi;
		STEP(adopt_from[i] = 0)
	:: else
	fi;
	if
	:: pending[i] ->
#ifndef BREAK_KEEP_PENDING
		if
		:: t == end && last == i
		:: else -> STEP(ranges[i] = ranges[i] & ~RANGE(take_lo[i], end))
		fi;
#endif
		STEP(pending[i] = false)
	:: else
	fi;
	if
	:: ranges[i] ->
		STEP(hold[i] = LOWEST(ranges[i]));
		STEP(orphans++);
		STEP(state[i] = ORPHAN)
	:: else ->
		STEP(is_consumer[i] = false);
		STEP(hold[i] = NONE);
		STEP(state[i] = FREE)
	fi;
	count_orphans()
}

inline recover()
{
	do
	:: DEAD(0) -> settle(0)
	:: DEAD(1) -> settle(1)
	:: !ANY_DEAD -> break
	od
}

inline free_orphan(i)
{
	STEP(is_consumer[i] = false);
	STEP(hold[i] = NONE);
	STEP(state[i] = FREE)
}

/* Under the admin lock: moves the oldest message of an orphan to this consumer. */
inline adopt(from)
{
	lo = LOWEST(ranges[from]);
	STEP(adopt_lo[me] = lo);
#ifndef BREAK_ADOPT_UNANNOUNCED
	STEP(adopt_from[me] = from + 1; away[me] = false);
#endif
#ifdef BREAK_STRIKE_FIRST
	STEP(ranges[from] = ranges[from] & ~BIT(lo));
	STEP(hold[from] = LOWEST(ranges[from]));
#endif
	STEP(ranges[me] = ranges[me] | BIT(lo));
	STEP(hold[me] = (lo < hold[me] -> lo : hold[me]));
#ifndef BREAK_NO_MOVES
	STEP(moves = (moves + 1) % 4);
#endif
#ifndef BREAK_STRIKE_FIRST
	STEP(ranges[from] = ranges[from] & ~BIT(lo));
	STEP(hold[from] = LOWEST(ranges[from]));
#endif
	STEP(adopt_from[me] = 0; give(BIT(lo)));
	if
	:: ranges[from] == 0 -> free_orphan(from)
	:: else
	fi;
	count_orphans()
}

/* Under the admin lock: hands message lo back to an orphan, which a free seat may become. */
inline hand_back(to)
{
	STEP(adopt_lo[me] = lo);
#ifndef BREAK_NACK_UNANNOUNCED
	STEP(adopt_from[me] = to + 1; away[me] = true);
#endif
#ifdef BREAK_NACK_STRIKES_FIRST
	STEP(ranges[me] = ranges[me] & ~BIT(lo));
#endif
	if
	:: state[to] == FREE -> STEP(ranges[to] = 0; hold[to] = NONE; adopt_from[to] = 0; pending[to] = false)
	:: else
	fi;
	STEP(hold[to] = (lo < hold[to] -> lo : hold[to]));
	STEP(ranges[to] = ranges[to] | BIT(lo));
	if
	:: state[to] == FREE ->
		STEP(state[to] = ORPHAN);
		STEP(is_consumer[to] = true)
	:: else
	fi;
#ifndef BREAK_NACK_NO_MOVES
	STEP(moves = (moves + 1) % 4);
#endif
	STEP(ranges[me] = ranges[me] & ~BIT(lo));
	STEP(hold[me] = LOWEST(ranges[me]));
	STEP(adopt_from[me] = 0);
	count_orphans()
}

/* Under the admin lock: a consumer that died moving a lease is settled before another one moves. */
inline leases_move()
{
#ifndef BREAK_NO_ADOPTER
	if
	:: adopter -> recover()
	:: else
	fi;
#endif
	STEP(adopter = me + 1)
}

#define READABLE(s) (content[(s) % SLOTS] == (s) + 1)
#define ALONE (!locked[0] && !locked[1])

proctype consumer(byte me)
{
	byte t, last, end, lo;
	bool won;

again:
	atomic { t = 0; last = 0; end = 0; lo = 0; won = false }
	if
	:: STEP(ANY_DEAD && admin == NONE && (me != 2 || ALONE) -> admin = me); /* waits, and looks for the dead */
		recover();
		STEP(admin = NONE);
		goto again
	:: STEP(orphans && admin == NONE && (me != 2 || ALONE) -> admin = me);
		leases_move();
		if
		:: state[0] == ORPHAN && ranges[0] -> adopt(0)
		:: state[1] == ORPHAN && ranges[1] -> adopt(1)
		/* Who emptied it died. */
		:: state[0] == ORPHAN && !ranges[0] -> free_orphan(0); count_orphans()
		:: state[1] == ORPHAN && !ranges[1] -> free_orphan(1); count_orphans()
#if NACKS > 0
		:: state[3] == ORPHAN && ranges[3] -> adopt(3)
		:: state[3] == ORPHAN && !ranges[3] -> free_orphan(3); count_orphans()
#endif
		:: state[0] != ORPHAN && state[1] != ORPHAN && !SPARE_IS_ORPHAN -> count_orphans()
		fi;
		STEP(adopter = 0);
		STEP(admin = NONE);
		goto again
#if NACKS > 0
	:: STEP(held[me] && me != 2 && nacks < NACKS && admin == NONE ->
		admin = me;
		nacks++;
		lo = LOWEST(held[me]);
		held[me] = held[me] & ~BIT(lo));
		leases_move();
		if
		:: state[1 - me] == ORPHAN -> hand_back(1 - me)
		:: state[1 - me] == FREE && state[3] == FREE -> hand_back(1 - me)
		:: state[1 - me] != ORPHAN -> hand_back(3)
		fi;
		STEP(adopter = 0);
		STEP(admin = NONE);
		goto again
#endif
	:: held[me] -> /* gives one message back */
		if
		:: held[me] & 1 -> lo = 0
		:: held[me] & 2 -> lo = 1
		:: held[me] & 4 -> lo = 2
		:: held[me] & 8 -> lo = 3
		fi;
		assert(READABLE(lo));
		STEP(ranges[me] = ranges[me] & ~BIT(lo);
			held[me] = held[me] & ~BIT(lo);
			released = released | BIT(lo));
		STEP(hold[me] = LOWEST(ranges[me]));
		goto again
	:: STEP(taken < LAST && READABLE(taken) && (me != 2 || ALONE) -> t = taken; last = taker)
	fi;
	STEP(if
	     :: READABLE(t) -> end = t + 1
	     :: READABLE(t) && READABLE(t + 1) && t + 2 <= LAST -> end = t + 2
	     :: !READABLE(t) -> end = t
	     fi);
	if
	:: end == t -> goto again
	:: else
	fi;
	STEP(take_lo[me] = t; take_end[me] = end; pending[me] = true);
	STEP(ranges[me] = ranges[me] | RANGE(t, end));
#ifndef BREAK_HOLD_LATE
	STEP(hold[me] = (hold[me] == NONE -> t : hold[me]));
#endif
#ifndef BREAK_NO_CONFIRM
	if
	:: last != NONE && last != me ->
		STEP(pending[last] = (pending[last] && take_end[last] != t))
	:: else
	fi;
#endif
	STEP(won = (taken == t && taker == last);
		if
		:: won -> taken = end; taker = me
		:: else
		fi);
#ifdef BREAK_HOLD_LATE
	STEP(hold[me] = (hold[me] == NONE -> t : hold[me]));
#endif
	if
	:: won ->
		STEP(pending[me] = false; give(RANGE(t, end)))
	:: else ->
		STEP(ranges[me] = ranges[me] & ~RANGE(t, end));
		STEP(pending[me] = false);
		STEP(hold[me] = LOWEST(ranges[me]))
	fi;
	goto again;

dead:
	atomic {
		locked[me] = false;
		held[me] = 0;
		if
		:: admin == me -> admin = NONE
		:: else
		fi;
		t = 0; last = 0; end = 0; lo = 0; won = false
	}
}

active proctype producer()
{
	byte old;

	do
	:: atomic {
		claim_word < LAST && claim_word < floor_word + SLOTS;
		if
		:: claim_word >= SLOTS ->
			old = claim_word - SLOTS; /* this message is overwritten */
			assert(released & BIT(old));
			old = 0
		:: else
		fi;
		content[claim_word % SLOTS] = claim_word + 1;
		claim_word++
	   }
	od
}

/* Who wants the floor higher. Besides when it can rise, he looks in vain at any
 * two moments. */
#define GATES(i) (is_consumer[i] -> hold[i] : NONE)
#define CAN_RISE (floor_word < taken && floor_word < GATES(0) && floor_word < GATES(1) && \
	floor_word < GATES(2) && floor_word < SPARE_GATES)

#ifndef FLOOR_BY_STEPS
active proctype advancer()
{
	do
	:: atomic { CAN_RISE -> floor_word++ }
	od
}
#else
active proctype advancer()
{
	byte low, before, i;
	byte vain = 2;

again:
	atomic {
		low = 0; before = 0; i = 0;
		floor_word < LAST;
		if
		:: CAN_RISE
		:: vain -> vain--
		fi
	}
	before = moves;
#ifdef BREAK_HOLDS_FIRST
	low = NONE;
#else
	low = taken;
#endif
	do
	:: i == SEATS -> break
	:: else -> atomic { low = (is_consumer[i] && hold[i] < low -> hold[i] : low); i++ }
	od;
#ifdef BREAK_HOLDS_FIRST
	low = (taken < low -> taken : low);
#endif
	if
	:: moves != before -> vain = (vain -> vain : 1); goto again
	:: else
	fi;
	atomic {
		floor_word = (floor_word < low -> low : floor_word);
		goto again
	}
}
#endif

/* When nothing moves any more, every message has been released by somebody. */
active proctype watcher()
{
	atomic {
		timeout;
		assert(claim_word == LAST && taken == LAST);
		assert(released == RANGE(0, LAST));
		assert(orphans == 0 && !ANY_DEAD && admin == NONE);
		assert(GATES(0) == NONE && GATES(1) == NONE && GATES(2) == NONE && SPARE_GATES == NONE)
	}
}

init {
	atomic {
		byte i;

		for (i : 0 .. CONSUMERS - 1) {
			state[i] = ACTIVE;
			locked[i] = true;
			is_consumer[i] = true;
			hold[i] = NONE;
			run consumer(i)
		}
#if NACKS > 0
		hold[3] = NONE
#endif
	}
}
