/* No missed wake-up of producers, who sleep for different amounts of space.
 * docs/protocol.md P9.
 *
 * Stores wait in the processors' buffers as in wake.pml. Two consumers share a
 * reliable branch: 0 holds message 0, 1 holds message 1, message 2 is still to be
 * taken. Consumer 2 holds message 0 on a branch that gates by its holds alone (it may
 * drop the oldest, or has been dropped). One producer waits for a floor of 2, one for 3.
 */
#define CONSUMERS 3
#define LAST 3
#ifndef WITHOUT
#define WITHOUT 1 /* a consumer that is not there, to keep it small */
#endif
#define NONE 255

byte taken[2]; /* of the reliable branch; of the other one */
byte hold[CONSUMERS];
chan buffer[CONSUMERS] = [2] of { bit, byte }; /* 0: hold, 1: wanted; and the value */
byte futex; /* bit 0: a producer sleeps */
byte wanted = NONE;
bool sleeping[2];
byte satisfied;

#define LOWEST(a, b) ((a) < (b) -> (a) : (b))

inline drain_one(i)
{
	buffer[i]?word, value;
	if
	:: word == 0 -> hold[i] = value
	:: else -> wanted = value
	fi;
	word = 0;
	value = 0
}

inline drain(i)
{
	do
	:: nempty(buffer[i]) -> drain_one(i)
	:: empty(buffer[i]) -> break
	od
}

proctype drains(byte i)
{
	bit word;
	byte value;

	do
	:: atomic { nempty(buffer[i]) -> drain_one(i) }
	od
}

/* shmring_release() of the message this consumer holds, and of one it takes then. */
proctype consumer(byte me)
{
	byte seen, wish, position, value;
	bit word;
	bool more;

release:
	buffer[me]!0, NONE;
	seen = futex;
	if
	:: seen & 1 ->
		wish = wanted;
		position = taken[me / 2];
		if
		:: wish == NONE && position != NONE
#ifdef BREAK_TAKEN_WHERE_HOLDS_GATE
		:: wish != NONE && position < wish
		:: wish != NONE && position >= wish ->
#else
		:: wish != NONE && position < wish && me < 2
		:: wish != NONE && (position >= wish || me == 2) ->
#endif
			seen = futex; /* wake_producers() */
			do
			:: !(seen & 1) -> break
			:: else ->
#ifdef BREAK_WISH_LATE
				more = false;
#else
				buffer[me]!1, NONE;
#endif
				atomic {
					drain(me);
					if
					:: futex == seen -> futex++; more = false
					:: else -> seen = futex; more = true
					fi
				}
				if
				:: !more ->
#ifdef BREAK_WISH_LATE
					wanted = NONE;
#endif
					atomic { sleeping[0] = false; sleeping[1] = false };
					break
				:: else
				fi
			od
		fi
	:: else
	fi;
	atomic { seen = 0; wish = 0; position = 0 }
	if
	:: atomic { me < 2 && taken[0] < LAST; /* the take's CAS drains the buffer */
		drain(me);
		hold[me] = taken[0];
		taken[0]++;
		goto release }
	:: me == 2 || taken[0] == LAST
	fi
}

proctype producer(byte me; byte need)
{
	byte seen, low, word, value, i;

	do
	:: atomic { /* a locked instruction */
#ifdef BREAK_WISH_FIRST
		wanted = LOWEST(need, wanted) }
	   atomic {
#endif
		futex = futex | 1;
		seen = futex }
#ifndef BREAK_WISH_FIRST
	   atomic { wanted = LOWEST(need, wanted) }
#endif
#ifndef BREAK_NO_HEAVY
	   atomic {
		drain(0);
		drain(1);
		drain(2)
	   }
#endif
	   low = taken[0];
	   atomic {
		low = LOWEST(hold[0], low);
		low = LOWEST(hold[1], low);
		low = LOWEST(hold[2], low);
		if
		:: low >= need -> break
		:: else -> low = 0
		fi
	   }
	   atomic { sleeping[me] = (futex == seen); seen = 0 }
	   !sleeping[me]
	od;
	satisfied++
}

active proctype watcher()
{
	atomic {
		timeout;
		assert(satisfied == 2)
	}
}

init {
	atomic {
		byte i;

		hold[0] = 0;
		hold[1] = 1;
		hold[2] = 0;
		taken[0] = 2;
		taken[1] = 1;
		for (i : 0 .. CONSUMERS - 1) {
			if
			:: i == WITHOUT -> hold[i] = NONE
			:: else -> run consumer(i); run drains(i)
			fi
		}
		run producer(0, 2);
		run producer(1, 3)
	}
}
