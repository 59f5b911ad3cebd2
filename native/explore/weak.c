/* Shared words under C11's memory model, after its view-based operational semantics (Kang et al., "A promising
 * semantics", without promises; Lahav et al., RC11). Each word keeps its stores in modification order. Each
 * thread has a view: for each word, the oldest store that the thread may still read. Each store carries the view
 * that its reader learns.
 *
 * A load may return any store from the thread's view on; a plain store may go before newer stores that the thread
 * has not seen. A read-modify-write sees the newest store; a compare-and-swap that fails is a load. The explorer
 * leaves out loads that see a store which depends on the load (load buffering; RC11 forbids it). */
#include "path.h"

#undef malloc
#undef calloc
#undef free
#undef memcpy

enum {
	SEVERAL = -1,
	WORDS = 96, /* maximum number of shared words in one case */
	WRITES = SMALL_SLOTS, /* entries of a view for the last write of each slot's payload */
	READS = SMALL_SLOTS * THREADS, /* entries of a view for each thread's last read of each slot's payload */
	VIEW_ENTRIES = WORDS + WRITES + READS,
	STORES = 500, /* maximum number of stores that some thread may still read */
	NOT_VIEWED = 0xff,
};

/* One entry for each word: the position of a store in the word's modification order. And one for each payload
 * access: 1 if the access happens before. */
struct view {
	uint8_t at[VIEW_ENTRIES];
};

struct store {
	uint64_t value;
	struct view released; /* view that an acquiring load learns */
	uint8_t word;
	int8_t author; /* thread whose next plain store, right after this one, releases `released` too;
			  SEVERAL: no thread's */
	bool adjacent; /* read-modify-write: no store may come between it and the store that it read */
};

static const struct view nothing;

/* A thread's views: what it has seen, what an acquire fence would add, and what its last release fence
 * releases. */
struct views {
	struct view seen, read, fenced;
};

static struct {
	size_t stores;
	struct views thread[THREADS];
	struct view fences; /* joined view of all full fences so far */
	struct view departed; /* joined view of ended threads, which membarrier(2) covers too */
	bool accessed[WRITES + READS]; /* true if some thread may not know the access yet */
	struct store store[STORES]; /* sorted by word, then by modification order */
} weak;

static uint8_t entry_of[MEMORY_WORDS];
static uint64_t *word_at[WORDS];

/* --- views -------------------------------------------------------------------------- */

static void join(struct view *v, const struct view *other)
{
	for (size_t i = 0; i < VIEW_ENTRIES; i++)
		v->at[i] = v->at[i] < other->at[i] ? other->at[i] : v->at[i];
}

static bool includes(const struct view *v, const struct view *other)
{
	uint8_t beyond = 0;

	for (size_t i = 0; i < VIEW_ENTRIES;
	     i++) /* no branch in the loop, so that the compiler can vectorize it */
		beyond |= v->at[i] < other->at[i];
	return !beyond;
}

static void for_each_view(size_t entry, void (*act)(uint8_t *at, uint8_t n), uint8_t n)
{
	for (int i = 0; i < THREADS; i++) {
		act(&weak.thread[i].seen.at[entry], n);
		act(&weak.thread[i].read.at[entry], n);
		act(&weak.thread[i].fenced.at[entry], n);
	}
	act(&weak.fences.at[entry], n);
	act(&weak.departed.at[entry], n);
	for (size_t i = 0; i < weak.stores; i++)
		act(&weak.store[i].released.at[entry], n);
}

static void lower(uint8_t *at, uint8_t n)
{
	*at = (uint8_t)(*at > n ? *at - n : 0);
}

static void make_room(uint8_t *at, uint8_t n)
{
	*at = (uint8_t)(*at + (*at >= n));
}

static void clear(uint8_t *at, uint8_t n)
{
	(void)n;
	*at = 0;
}

/* --- a word's stores ------------------------------------------------------------------ */

static size_t first_of(size_t word)
{
	size_t i = 0;

	while (i < weak.stores && weak.store[i].word < word)
		i++;
	return i;
}

static size_t count_of(size_t word)
{
	size_t n = 0;

	for (size_t i = 0; i < weak.stores; i++)
		n += weak.store[i].word == word;
	return n;
}

/* Adds a store of a word at a position of the word's modification order. */
static struct store *add(size_t word, size_t position, uint64_t value)
{
	size_t i = first_of(word) + position;

	if (weak.stores == STORES || position == UINT8_MAX)
		explore_no_room("stores");
	memmove(&weak.store[i + 1], &weak.store[i], (weak.stores - i) * sizeof *weak.store);
	weak.stores++;
	weak.store[i] = (struct store){.value = value, .word = (uint8_t)word, .author = SEVERAL};
	return &weak.store[i];
}

static void drop(size_t i)
{
	memmove(&weak.store[i], &weak.store[i + 1], (--weak.stores - i) * sizeof *weak.store);
	memset(&weak.store[weak.stores], 0, sizeof *weak.store);
}

/* Returns a word's newest store. If none is kept, because all threads know the word's value, makes one from
 * memory. */
static struct store *newest(size_t word)
{
	size_t n = count_of(word);

	return n ? &weak.store[first_of(word) + n - 1] : add(word, 0, *word_at[word]);
}

static size_t entry_in_views(const volatile void *address)
{
	size_t word = ((uintptr_t)address - (uintptr_t)&memory) / 8;

	return explore_weak && word < MEMORY_WORDS ? entry_of[word] : NOT_VIEWED;
}

bool weak_has(const volatile void *address)
{
	return entry_in_views(address) != NOT_VIEWED;
}

/* --- options of loads and stores ---------------------------------------------------------- */

/* Returns a bit set: bit k if the load may return the k-th store before the newest one. */
uint32_t weak_load_options(int thread, const volatile void *address)
{
	size_t word = entry_in_views(address), n = count_of(word);
	size_t unseen = n ? n - 1 - weak.thread[thread].seen.at[word] : 0;

	if (unseen >= WEAK_OPTIONS) { /* leave out the oldest stores */
		unseen = WEAK_OPTIONS - 1;
		explore_unfinished = true;
	}
	return (2u << unseen) - 1;
}

/* Returns a bit set: bit k if the store may come before the k newest stores. */
uint32_t weak_store_options(int thread, const volatile void *address)
{
	size_t word = entry_in_views(address), n = count_of(word), first = first_of(word);
	uint32_t options = weak_load_options(thread, address);

	for (size_t k = 1; k < n && k < WEAK_OPTIONS; k++)
		if (weak.store[first + n - k].adjacent)
			options &= ~(1u << k);
	return options;
}

static void learn(int thread, const struct store *s, enum explore_order order)
{
	join(order & ACQUIRE ? &weak.thread[thread].seen : &weak.thread[thread].read, &s->released);
}

static const struct store *back(size_t word, uint32_t option)
{
	return &weak.store[first_of(word) + count_of(word) - 1 - option];
}

uint64_t weak_value(const volatile void *address, uint32_t option)
{
	return back(entry_in_views(address), option)->value;
}

uint64_t weak_load(int thread, const volatile void *address, enum explore_order order, uint32_t option)
{
	size_t word = entry_in_views(address), n = count_of(word);
	const struct store *s;

	if (!n)
		return *word_at[word];
	s = back(word, option);
	weak.thread[thread].seen.at[word] = (uint8_t)(n - 1 - option);
	learn(thread, s, order);
	return s->value;
}

/* Sets the view that a store releases. A store directly after one of the same thread continues that store's
 * release sequence. */
static void release(int thread, struct store *s, enum explore_order order)
{
	const struct views *v = &weak.thread[thread];

	join(&s->released, order & RELEASE ? &v->seen : &v->fenced);
	if (v->seen.at[s->word] && s[-1].author == thread)
		join(&s->released, &s[-1].released);
	s->released.at[s->word] = v->seen.at[s->word];
	s->author = (int8_t)thread;
}

/* Stores a word. For a store to half a word, `value` has the other half of the newest store. */
void weak_store(int thread, void *address, uint64_t value, enum explore_order order, uint32_t option)
{
	size_t word = entry_in_views(address), position;

	(void)newest(word); /* may add a store, which moves the others */
	position = count_of(word) - option;
	for_each_view(word, make_room, (uint8_t)position);
	weak.thread[thread].seen.at[word] = (uint8_t)position;
	release(thread, add(word, position, value), order);
	if (option == 0)
		*word_at[word] = value;
}

uint64_t weak_rmw_read(int thread, void *address, enum explore_order order)
{
	size_t word = entry_in_views(address);
	const struct store *s = newest(word);

	weak.thread[thread].seen.at[word] = (uint8_t)(count_of(word) - 1);
	learn(thread, s, order);
	return s->value;
}

/* Loads a word as the kernel does, under the kernel's own lock: a thread learns all that the threads of earlier
 * kernel loads knew. */
uint64_t weak_kernel_load(int thread, void *address)
{
	struct store *s;
	uint64_t value = weak_rmw_read(thread, address, ACQUIRE);

	s = newest(entry_in_views(address));
	join(&s->released, &weak.thread[thread].seen);
	s->author = SEVERAL;
	return value;
}

/* Writes for a read-modify-write, which continues the release sequence of the store that it has read. */
void weak_rmw_write(int thread, void *address, uint64_t value, enum explore_order order)
{
	size_t word = entry_in_views(address), position = count_of(word);
	struct store *s = add(word, position, value);

	s->adjacent = true;
	weak.thread[thread].seen.at[word] = (uint8_t)position;
	release(thread, s, order);
	join(&s->released, &s[-1].released);
	if (s[-1].author != thread && !includes(&nothing, &s[-1].released))
		s->author = SEVERAL;
	*word_at[word] = value;
}

void weak_fence(int thread, enum explore_order order)
{
	struct views *v = &weak.thread[thread];

	if (order & ACQUIRE)
		join(&v->seen, &v->read);
	if (order == SEQ_CST) {
		join(&v->seen, &weak.fences);
		weak.fences = v->seen;
	}
	if (order & RELEASE)
		v->fenced = v->seen;
}

/* membarrier(2): every running thread executes a full fence between the call and its return. */
void weak_fence_all(int thread)
{
	join(&weak.fences, &weak.departed);
	weak_fence(thread, SEQ_CST);
	for (int i = 0; i < THREADS; i++)
		if (thread_has_stack(i))
			weak_fence(i, SEQ_CST);
	weak_fence(thread, SEQ_CST);
}

void weak_end(int thread)
{
	join(&weak.departed, &weak.thread[thread].seen);
	memset(&weak.thread[thread], 0, sizeof weak.thread[thread]);
}

/* Frees a dead thread's lock, like the kernel: all that the thread has stored is visible by then. */
void weak_unlock(int thread, uint64_t *lock)
{
	if (weak_has(lock))
		weak_store(thread, lock, 0, RELEASE, 0);
}

/* --- payload ------------------------------------------------------------------------------- */

static void must_know(int thread, size_t mark, size_t slot, const char *what)
{
	if (weak.accessed[mark - WORDS] && !weak.thread[thread].seen.at[mark])
		explore_violation("thread %d does not come behind the last %s of slot %zu", thread, what, slot);
}

static void mark(int thread, size_t entry)
{
	for_each_view(entry, clear, 0);
	weak.thread[thread].seen.at[entry] = 1;
	weak.accessed[entry - WORDS] = true;
}

void weak_plain_access(int thread, size_t slot, bool writes)
{
	size_t reads = WORDS + WRITES + slot * THREADS;

	must_know(thread, WORDS + slot, slot, "write");
	if (!writes) {
		mark(thread, reads + (size_t)thread);
		return;
	}
	for (size_t i = reads; i < reads + THREADS; i++) {
		if (i != reads + (size_t)thread)
			must_know(thread, i, slot, "read");
		for_each_view(i, clear, 0);
		weak.accessed[i - WORDS] = false;
	}
	mark(thread, WORDS + slot);
}

/* --- states ---------------------------------------------------------------------------------- */

void weak_begin(const bool *shared)
{
	size_t n = 0;

	memset(&weak, 0, sizeof weak);
	memset(entry_of, NOT_VIEWED, sizeof entry_of);
	for (size_t i = 0; i < MEMORY_WORDS; i++) {
		if (!explore_weak || !shared[i])
			continue;
		if (n == WORDS)
			explore_violation("more shared words than the explorer has room for");
		word_at[n] = (uint64_t *)(void *)&memory + i;
		entry_of[i] = (uint8_t)n++;
	}
}

static uint8_t least_seen(size_t entry)
{
	uint8_t least = UINT8_MAX;

	for (int i = 0; i < THREADS; i++)
		if (thread_has_stack(i) && weak.thread[i].seen.at[entry] < least)
			least = weak.thread[i].seen.at[entry];
	return least;
}

static bool known_to_all(const struct view *v)
{
	for (int i = 0; i < THREADS; i++)
		if (thread_has_stack(i) && !includes(&weak.thread[i].seen, v))
			return false;
	return true;
}

/* Changes the state's bytes: states that no thread can tell apart get the same bytes. */
void weak_normalise(void)
{
	for (size_t i = 0; i < weak.stores;) {
		size_t word = weak.store[i].word;
		uint8_t old = least_seen(word);

		if (old == UINT8_MAX)
			return;
		for (uint8_t k = 0; k < old; k++)
			drop(i);
		if (old)
			for_each_view(word, lower, old);
		while (i < weak.stores && weak.store[i].word == word)
			i++;
	}
	for (size_t i = 0; i < weak.stores; i++)
		if (known_to_all(&weak.store[i].released)) {
			weak.store[i].released = nothing;
			weak.store[i].author = SEVERAL;
		}
	for (size_t i = weak.stores; i-- > 0;)
		if (count_of(weak.store[i].word) == 1 && includes(&nothing, &weak.store[i].released))
			drop(i);
	for (size_t i = WORDS; i < VIEW_ENTRIES; i++)
		if (weak.accessed[i - WORDS] && least_seen(i)) {
			for_each_view(i, clear, 0);
			weak.accessed[i - WORDS] = false;
		}
	for (int i = 0; i < THREADS; i++) {
		if (includes(&weak.thread[i].seen, &weak.thread[i].read))
			weak.thread[i].read = nothing;
		if (known_to_all(&weak.thread[i].fenced))
			weak.thread[i].fenced = nothing;
	}
	if (known_to_all(&weak.fences))
		weak.fences = nothing;
	if (known_to_all(&weak.departed))
		weak.departed = nothing;
}

size_t weak_bytes(void)
{
	return explore_weak ? (size_t)((uint8_t *)&weak.store[weak.stores] - (uint8_t *)&weak) : 0;
}

const void *weak_state(void)
{
	return &weak;
}

/* Restores a state; returns the number of bytes read. */
size_t weak_restore(const uint8_t *state)
{
	size_t used = weak.stores;

	if (!explore_weak)
		return 0;
	memcpy(&weak.stores, state, sizeof weak.stores);
	if (used > weak.stores)
		memset(&weak.store[weak.stores], 0, (used - weak.stores) * sizeof *weak.store);
	memcpy(&weak, state, weak_bytes());
	return weak_bytes();
}
