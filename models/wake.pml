/* No missed wake-up of consumers. docs/protocol.md P9.
 *
 * Memory here is not sequentially consistent: a publication waits in the
 * producer's store buffer until it drains by itself, by a locked instruction of
 * the producer, or by somebody's heavy barrier. Nobody wakes by time: whoever
 * sleeps for ever is an error. A branch with two consumers, of which a wake-up goes to
 * one, and a branch that follows it.
 */
#ifndef PRODUCERS
#define PRODUCERS 2
#endif
#ifndef MESSAGES
#define MESSAGES 3
#endif
#define CONSUMERS 3 /* 0 and 1 share branch 0; 2 is alone in branch 1, which follows it */
#define BRANCH(i) ((i) / 2)
#define SHARE (MESSAGES / 2) /* of each of 0 and 1, which is then busy for ever: the other must be woken */

byte claim_word;
bool published[MESSAGES + 1];
byte buffered[PRODUCERS + CONSUMERS]; /* what has not left the processor: number + 1, or a hold */
byte taken[2];
byte hold[2]; /* consumers of branch 0: lowest held + 1; 0: nothing */
byte asleep; /* bit i: branch i */
byte futex[2];
bool sleeping[CONSUMERS];
bool was_woken[CONSUMERS]; /* and has to look whether there is work for others */

inline drain(i)
{
	if
	:: i < PRODUCERS && buffered[i] -> published[buffered[i] - 1] = true
	:: i >= PRODUCERS && buffered[i] -> hold[i - PRODUCERS] = 0
	:: else
	fi;
	buffered[i] = 0
}

inline heavy_barrier()
{
	atomic {
		b = 0;
		do
		:: b == PRODUCERS + 2 -> break
		:: else -> drain(b); b++
		od;
		b = 0
	}
}

inline wake_one(me, mask)
{
	atomic { drain(me); woken = asleep & (mask); asleep = asleep & ~(mask) }
	b = 0;
	do
	:: b == 2 -> break
	:: else ->
		if
		:: woken & (1 << b) ->
			futex[b]++;
			atomic { /* one of them */
				if
				:: b == 0 && sleeping[0] -> sleeping[0] = false; was_woken[0] = true
				:: b == 0 && sleeping[1] -> sleeping[1] = false; was_woken[1] = true
				:: b == 0 && !sleeping[0] && !sleeping[1]
				:: b == 1 -> sleeping[2] = false
				fi
			}
		:: else
		fi;
		b++
	od;
	woken = 0;
	b = 0
}

proctype producer(byte me)
{
	byte woken, b;
	bool seen;

	do
	:: claim_word < MESSAGES ->
#ifdef BREAK_LOOK_FIRST
		seen = asleep & 1;
#endif
		atomic {
			if
			:: claim_word < MESSAGES -> drain(me); claim_word++; buffered[me] = claim_word
			:: else -> break
			fi
		}
#ifndef BREAK_LOOK_FIRST
		seen = asleep & 1;
#endif
		if
		:: seen -> wake_one(me, 1)
		:: else
		fi;
		seen = false
	:: claim_word == MESSAGES -> break
	od
}

/* The store buffers' own pace. */
proctype drains(byte i)
{
	do
	:: atomic { buffered[i] -> drain(i) }
	od
}

#define RELEASED (hold[0] && hold[0] - 1 < taken[0] -> \
	(hold[1] && hold[1] < hold[0] -> hold[1] - 1 : hold[0] - 1) : \
	(hold[1] && hold[1] - 1 < taken[0] -> hold[1] - 1 : taken[0]))
#define READY(me) (BRANCH(me) == 0 -> published[taken[0]] : taken[1] < RELEASED)

/* Whoever was woken has taken its share. */
inline pass_on(me)
{
	was_woken[me] = false;
#ifndef BREAK_NOT_PASSED_ON
#ifdef BREAK_PASSES_ON_FIRST
	look = READY(me);
#endif
#ifndef BREAK_OTHERS_NOT_SHOWN
	atomic { drain(me + PRODUCERS); asleep = asleep | (1 << BRANCH(me)) }
#endif
#ifndef BREAK_NO_HEAVY_BEFORE_PASSING
	heavy_barrier();
#endif
#ifndef BREAK_PASSES_ON_FIRST
	look = READY(me);
#endif
	if
	:: look -> wake_one(me + PRODUCERS, 1 << BRANCH(me))
	:: else
	fi;
	look = false
#endif
}

proctype consumer(byte me)
{
	byte seen, woken, b, took;
	bool ready, look;

	do
	:: taken[BRANCH(me)] == MESSAGES || (me < 2 && took == SHARE) -> break
	:: atomic { READY(me) && taken[BRANCH(me)] < MESSAGES && (me == 2 || took < SHARE); /* takes one */
		if
		:: me < 2 -> drain(me + PRODUCERS); hold[me] = taken[0] + 1; took++
		:: else
		fi;
		taken[BRANCH(me)]++ }
	   if
	   :: me < 2 -> /* and releases it */
		buffered[me + PRODUCERS] = 1;
		look = ((asleep & 2) != 0);
		if
		:: look -> wake_one(me + PRODUCERS, 2)
		:: else
		fi;
		look = false
	   :: else
	   fi;
	   if
	   :: was_woken[me] -> pass_on(me)
	   :: else
	   fi
	:: !READY(me) && taken[BRANCH(me)] < MESSAGES && (me == 2 || took < SHARE) ->
#ifdef BREAK_LOOK_ONCE
		ready = READY(me);
#endif
#ifndef BREAK_FUTEX_LATE
		seen = futex[BRANCH(me)];
#endif
		atomic { /* a locked instruction */
			if
			:: me < 2 -> drain(me + PRODUCERS)
			:: else
			fi;
			asleep = asleep | (1 << BRANCH(me))
		}
#ifndef BREAK_NO_HEAVY
		heavy_barrier();
#endif
#ifndef BREAK_LOOK_ONCE
		ready = READY(me);
#endif
#ifdef BREAK_FUTEX_LATE
		seen = futex[BRANCH(me)];
#endif
		if
		:: !ready && taken[BRANCH(me)] < MESSAGES ->
			atomic { sleeping[me] = (futex[BRANCH(me)] == seen) }
			!sleeping[me] || taken[BRANCH(me)] == MESSAGES
		:: else
		fi;
		atomic { ready = false; seen = 0 }
	od
}

active proctype watcher()
{
	atomic {
		timeout;
		assert(taken[0] == MESSAGES && taken[1] == MESSAGES)
	}
}

init {
	atomic {
		byte i;

		for (i : 0 .. PRODUCERS - 1) {
			run producer(i);
			run drains(i)
		}
		for (i : 0 .. CONSUMERS - 1) {
			run consumer(i);
			if
			:: i < 2 -> run drains(i + PRODUCERS)
			:: else
			fi
		}
	}
}
