/* The points where one thread may give way to another: accesses to shared words, waits and deaths. */
#include "path.h"

#undef memcpy

/* Threads that have read and written each word in the whole exploration. A word is shared if two
 * threads use it and one of them writes. */
static uint8_t readers[MEMORY_WORDS], writers[MEMORY_WORDS];
static bool shared[MEMORY_WORDS];
bool more_is_shared;
uint32_t option;

/* --- the accesses of the core's text ------------------------------------------------------ */

const char *explore_weakened;
static struct explore_access *accesses[1024];
static size_t access_count;

static const char *description(const struct explore_access *a)
{
	static char text[256];
	const char *name = strrchr(a->file, '/');

	snprintf(text, sizeof text, "%s:%d:%s:%s", name ? name + 1 : a->file, a->line, a->name, a->operand);
	return text;
}

static void note_execution(struct explore_access *a)
{
	if (!a->known) {
		if (access_count == sizeof accesses / sizeof *accesses)
			explore_no_room("accesses");
		accesses[access_count++] = a;
		a->known = true;
		if (explore_weakened && strcmp(explore_weakened, description(a)) == 0)
			a->order = RELAXED;
	}
	a->executed |= running >= 0;
}

void accesses_print(void)
{
	for (size_t i = 0; i < access_count; i++)
		if (accesses[i]->executed && accesses[i]->order != RELAXED)
			printf("  executes %s\n", description(accesses[i]));
}

/* --- words that are shared ------------------------------------------------------------------ */

void accesses_begin(void)
{
	for (size_t i = 0; i < access_count; i++)
		accesses[i]->executed = false;
	memset(readers, 0, sizeof readers);
	memset(writers, 0, sizeof writers);
	memset(shared, 0, sizeof shared);
	weak_begin(shared);
}

void accesses_begin_anew(void)
{
	more_is_shared = false;
	weak_begin(shared);
}

static size_t word_of(const volatile void *address)
{
	uintptr_t offset = (uintptr_t)address - (uintptr_t)&memory;

	return offset < sizeof memory ? offset / 8 : MEMORY_WORDS;
}

/* Returns true for all words of a control entry except `published`, if the case does not interleave accesses
 * to them. */
static bool is_left_whole(size_t word)
{
	size_t first = offsetof(struct memory, control) / 8, last = offsetof(struct memory, slots) / 8;

	return exploring->whole_entries && word >= first && word < last &&
	       (word - first) % (sizeof(struct control) / 8) != 0;
}

static void note_access(int thread, size_t word, uint8_t *users)
{
	uint32_t all;

	if (users[word] >> thread & 1)
		return;
	users[word] |= (uint8_t)(1 << thread);
	all = readers[word] | writers[word];
	if (!shared[word] && !is_left_whole(word) && writers[word] && all & (all - 1)) {
		shared[word] = true;
		more_is_shared = true;
	}
}

/* --- one thread after the other -------------------------------------------------------------- */

/* Lets other threads run before an access to a shared word; returns when it is this thread's turn. */
static void point(int access, const volatile void *address, struct explore_access *here)
{
	size_t word = word_of(address);
	struct thread *t;

	option = 0;
	note_execution(here);
	if (running < 0 || word == MEMORY_WORDS)
		return;
	note_access(running, word, readers);
	t = &world.thread[running];
	if (shared[word]) {
		t->access = access;
		t->address = address;
		t->function = here->function;
		t->line = here->line;
		give_way();
		t->access = NO_ACCESS;
		t->address = NULL;
	}
	if (t->looking && shared[word])
		t->looked_at[word / 64] |= UINT64_C(1) << (word % 64);
}

static void changed_by(int thread, size_t word)
{
	for (int i = 0; i < THREADS; i++) {
		struct thread *t = &world.thread[i];

		if (i == thread || !(t->looked_at[word / 64] >> (word % 64) & 1))
			continue;
		t->stale = true;
		if (t->status == PARKED)
			t->status = READY;
	}
}

/* CHANGE: edit this for a new version of the layout */
/* Returns true for a seat's counters. They never change here: no thread acts on them, and if they changed,
 * no state would come twice. */
static bool is_counter(size_t word)
{
	size_t first = offsetof(struct memory, seats) / 8, n = sizeof(struct seat) / 8;
	size_t in_seat = (word - first) % n, counters = offsetof(struct seat, counters) / 8;

	return word >= first && word < first + SMALL_SEATS * n && in_seat >= counters &&
	       in_seat < counters + CELL / 8;
}

/* Call this before a word takes another value. Returns false if the word must keep its value. */
static bool changes(const volatile void *address)
{
	size_t word = word_of(address);

	if (word == MEMORY_WORDS || running < 0)
		return true;
	if (is_counter(word))
		return false;
	if (!state_includes((const void *)(uintptr_t)address))
		explore_violation("a word changes that is no part of the state");
	note_access(running, word, writers);
	changed_by(running, word);
	return true;
}

/* Returns the 64-bit word that contains a field. */
static uint64_t *word_with(const volatile void *p)
{
	return (uint64_t *)((uintptr_t)p & ~UINT64_C(7));
}

static unsigned shift_of(const volatile void *p)
{
	return ((uintptr_t)p & 7) * 8;
}

static uint64_t mask_of(size_t bytes)
{
	return bytes == 8 ? UINT64_MAX : (UINT64_C(1) << bytes * 8) - 1;
}

static uint64_t field(uint64_t word, const volatile void *p, size_t bytes)
{
	return word >> shift_of(p) & mask_of(bytes);
}

static uint64_t with_field(const volatile void *p, size_t bytes, uint64_t value)
{
	uint64_t mask = mask_of(bytes) << shift_of(p);

	return (*word_with(p) & ~mask) | (value << shift_of(p) & mask);
}

static bool is_weak(const volatile void *p)
{
	return running >= 0 && weak_has(p);
}

uint64_t explore_load(const volatile void *p, size_t bytes, struct explore_access *here)
{
	point(LOAD, p, here);
	if (option) /* this load sees an older store; looking again will show a newer one */
		world.thread[running].stale |= world.thread[running].looking;
	return field(is_weak(p) ? weak_load(running, p, here->order, option) : *word_with(p), p, bytes);
}

/* Under sequential consistency, storing the value that the word already has counts as a read. */
void explore_store(volatile void *p, size_t bytes, uint64_t value, struct explore_access *here)
{
	uint64_t word;

	point(STORE, p, here);
	word = with_field(p, bytes, value);
	if ((!is_weak(p) && *word_with(p) == word) || !changes(p))
		return;
	if (is_weak(p))
		weak_store(running, word_with(p), word, here->order, option);
	else
		*word_with(p) = word;
}

uint64_t explore_rmw_read(volatile void *p, size_t bytes, struct explore_access *here)
{
	point(OTHER, p, here);
	return field(is_weak(p) ? weak_rmw_read(running, word_with(p), here->order) : *word_with(p), p, bytes);
}

/* Reads for a compare-and-swap. A compare-and-swap that fails is a load, and may see an older store. It cannot
 * fail on an older store that has the expected value: then it reads the newest store. */
uint64_t explore_cas_read(volatile void *p, size_t bytes, uint64_t expected, struct explore_access *here)
{
	point(CAS, p, here);
	if (option && field(weak_value(p, option), p, bytes) != expected) {
		world.thread[running].stale |= world.thread[running].looking;
		return field(weak_load(running, p, here->order, option), p, bytes);
	}
	return field(is_weak(p) ? weak_rmw_read(running, word_with(p), here->order) : *word_with(p), p, bytes);
}

uint64_t explore_newest_read(volatile void *p, size_t bytes, uint64_t expected, struct explore_access *here)
{
	(void)expected;
	return explore_rmw_read(p, bytes, here);
}

uint64_t explore_kernel_load(void *p, size_t bytes, struct explore_access *here)
{
	point(OTHER, p, here);
	return field(is_weak(p) ? weak_kernel_load(running, word_with(p)) : *word_with(p), p, bytes);
}

void explore_rmw_write(volatile void *p, size_t bytes, uint64_t value, struct explore_access *here)
{
	uint64_t word = with_field(p, bytes, value);

	if ((!is_weak(p) && *word_with(p) == word) || !changes(p))
		return;
	if (is_weak(p))
		weak_rmw_write(running, word_with(p), word, here->order);
	else
		*word_with(p) = word;
}

/* Lets other threads run before a full fence, because the order of full fences makes a difference. */
static void fence_point(const struct explore_access *here)
{
	world.thread[running].access = OTHER;
	world.thread[running].function = here->function;
	world.thread[running].line = here->line;
	give_way();
	world.thread[running].access = NO_ACCESS;
}

void explore_fence(struct explore_access *here)
{
	note_execution(here);
	if (running < 0 || !explore_weak || here->order == RELAXED)
		return;
	if (here->order == SEQ_CST)
		fence_point(here);
	weak_fence(running, here->order);
}

void explore_fence_all(struct explore_access *here)
{
	note_execution(here);
	if (running < 0 || !explore_weak || here->order == RELAXED)
		return;
	fence_point(here);
	weak_fence_all(running);
}

static void plain_access(const volatile void *p, bool writes)
{
	uintptr_t offset = (uintptr_t)p - (uintptr_t)memory.slots;

	/* No check if a shared word was just found: that word orders nothing until the search restarts. */
	if (running >= 0 && explore_weak && !more_is_shared && offset < sizeof memory.slots)
		weak_plain_access(running, offset / SLOT_BYTES, writes);
}

void *explore_memcpy(void *to, const void *from, size_t n)
{
	if (n) {
		plain_access(from, false);
		plain_access(to, true);
	}
	return memcpy(to, from, n);
}

static void look(struct thread *t, bool on)
{
	memset(t->looked_at, 0, sizeof t->looked_at);
	t->stale = false;
	t->looking = on;
}

void explore_look(void)
{
	if (running >= 0)
		look(&world.thread[running], true);
}

void explore_found(void)
{
	if (running >= 0)
		look(&world.thread[running], false);
}

bool explore_spins(void)
{
	return world.thread[running].looking && !world.thread[running].stale;
}

void explore_wait(void)
{
	struct thread *t;

	if (running < 0)
		explore_violation("a wait where nobody else runs");
	t = &world.thread[running];
	if (!t->stale) {
		t->status = PARKED;
		t->function = __func__;
		t->line = 0;
		give_way();
	}
	look(t, false);
}

void explore_wait_for(const void *address)
{
	struct thread *t = &world.thread[running];
	size_t word = word_of(address);

	look(t, true);
	t->looked_at[word / 64] = UINT64_C(1) << (word % 64);
	explore_wait();
}

void explore_queue_on(const uint32_t *word)
{
	const uint32_t **free = world.thread[running].sleeps_on;

	while (*free)
		free++;
	*free = word;
}

void explore_leave_queues(void)
{
	memset(world.thread[running].sleeps_on, 0, sizeof world.thread[running].sleeps_on);
}

bool explore_is_woken(uint32_t words)
{
	for (uint32_t i = 0; i < words; i++)
		if (!world.thread[running].sleeps_on[i])
			return true;
	return false;
}

bool explore_sleep_queued(uint32_t words)
{
	struct thread *t = &world.thread[running];
	bool was_late = t->late;

	t->stale |= t->looking; /* a woken thread looks again at all words that it has looked at */
	if (!explore_is_woken(words)) {
		t->status = SLEEPING;
		t->slept = true;
		t->function = __func__;
		t->line = 0;
		give_way();
	}
	explore_leave_queues();
	return t->late == was_late;
}

bool explore_is_late(void)
{
	struct thread *t;

	if (running < 0 || !exploring->actor[running].in_time)
		return false;
	t = &world.thread[running];
	if (t->slept && !t->late) {
		t->access = CLOCK;
		t->function = __func__;
		t->line = 0;
		give_way();
		t->access = NO_ACCESS;
		t->stale |= t->looking; /* looking again later may find that the deadline has passed */
		t->late = option != 0;
	}
	return t->late;
}

/* Wakes the first threads in line. All sleepers on one word do the same, so the choice makes no
 * difference; a thread that sleeps on several words may take more than one wake-up before it runs. */
void explore_wake(const uint32_t *word, uint32_t threads)
{
	for (int i = 0; i < THREADS; i++)
		for (int k = 0; k < SLEEPS && threads; k++) {
			struct thread *t = &world.thread[i];

			if (t->sleeps_on[k] != word)
				continue;
			t->sleeps_on[k] = NULL;
			if (t->status == SLEEPING)
				t->status = READY;
			threads--;
		}
}

void explore_kill_handle(int handle)
{
	world.deaths++;
	for (size_t i = 0; i < SMALL_SEATS + 1; i++)
		if (memory.lock[i] == (uint64_t)handle + 1) {
			if (handle < THREADS)
				weak_unlock(handle, &memory.lock[i]);
			memory.lock[i] = 0;
			changed_by(handle, word_of(&memory.lock[i]));
		}
}

void thread_die(int i)
{
	const struct actor *a = &exploring->actor[i];

	world.thread[i] = (struct thread){.status = DEAD};
	if (world.consumer[i])
		world.ghost.consumer_died[a->branch] = 1;
	explore_kill_handle(i);
	weak_end(i);
	/* Wake all waiting threads, because waiters look for dead participants from time to time. */
	for (int k = 0; k < THREADS; k++) {
		world.thread[k].stale |= world.thread[k].looking;
		if (world.thread[k].status == PARKED)
			world.thread[k].status = READY;
	}
}

/* Counts the locks of mortal threads as written by them, because a thread that dies frees its locks. */
void note_deaths(void)
{
	for (int i = 0; i < THREADS; i++)
		for (size_t k = 0; exploring->actor[i].mortal && k < SMALL_SEATS + 1; k++)
			if (memory.lock[k] == (uint64_t)i + 1)
				note_access(i, word_of(&memory.lock[k]), writers);
}
