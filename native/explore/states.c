/* Saves states, restores them, and recognises states seen before. */
#include "world.h"

#undef malloc
#undef calloc
#undef free
#undef memcpy

struct region {
	void *start;
	size_t bytes;
};

static struct region regions[128];
static size_t region_count;

static void add_region(void *start, size_t bytes)
{
	regions[region_count++] = (struct region){start, bytes};
}

/* Maximum number of separate leases of a consumer in any case. */
enum { LEASES_USED = 4 };

/* CHANGE: edit this for a new version of the layout */
/* Lists the memory that makes up a state, except the stacks. */
void state_describe(void)
{
	region_count = 0;
	add_region(&memory.cursors, offsetof(struct cursors, branch) + SMALL_BRANCHES * sizeof(struct branch));
	for (int i = 0; i < SMALL_SEATS; i++) {
		add_region(&memory.seats[i], offsetof(struct seat, counters));
		add_region(&memory.seats[i].range, LEASES_USED * sizeof(struct range));
	}
	add_region(memory.control, exploring->slots * sizeof *memory.control);
	for (uint32_t i = 0; i < exploring->slots; i++)
		add_region(memory.slots + (size_t)i * SLOT_BYTES, 8);
	add_region(memory.lock, sizeof memory.lock);
	add_region(memory.litmus, sizeof memory.litmus);
	add_region(memory.heap, sizeof memory.heap);
	add_region(&world, sizeof world);
	for (int i = 0; i < HANDLES; i++)
		add_region(&handles[i].seat, offsetof(shmring, held[SMALL_SEATS]) - offsetof(shmring, seat));
}

/* True if the saved state includes an address: memory outside of the saved state must not change. */
bool state_includes(const void *address)
{
	const uint8_t *p = address;

	for (size_t i = 0; i < region_count; i++)
		if (p >= (uint8_t *)regions[i].start && p < (uint8_t *)regions[i].start + regions[i].bytes)
			return true;
	return false;
}

static size_t stack_used(int i)
{
	return (size_t)(stacks[i] + STACK - (uint8_t *)world.thread[i].stack_pointer);
}

uint8_t *state_save(void)
{
	uint8_t *state, *p;
	size_t size = 0;

	for (size_t i = 0; i < region_count; i++)
		size += regions[i].bytes;
	for (int i = 0; i < THREADS; i++)
		size += thread_has_stack(i) ? stack_used(i) : 0;
	p = state = malloc(size + weak_bytes());
	if (!state)
		abort();
	memcpy(p, weak_state(), weak_bytes());
	p += weak_bytes();
	for (size_t i = 0; i < region_count; p += regions[i++].bytes)
		memcpy(p, regions[i].start, regions[i].bytes);
	for (int i = 0; i < THREADS; i++)
		if (thread_has_stack(i)) {
			memcpy(p, world.thread[i].stack_pointer, stack_used(i));
			p += stack_used(i);
		}
	return state;
}

void state_restore(const uint8_t *p)
{
	p += weak_restore(p);
	for (size_t i = 0; i < region_count; p += regions[i++].bytes)
		memcpy(regions[i].start, p, regions[i].bytes);
	for (int i = 0; i < THREADS; i++)
		if (thread_has_stack(i)) {
			memcpy(world.thread[i].stack_pointer, p, stack_used(i));
			p += stack_used(i);
		}
}

static uint64_t mix(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n)
{
	const uint8_t *p = bytes;
	uint64_t a, b;

	if (n >= 256) { /* four multiplications at a time, because each takes several cycles */
		uint64_t lane[4] = {h, ~h, h ^ UINT64_C(0x589965cc75374cc3), h ^ UINT64_C(0x1d8e4e27c47d124f)};

		for (; n >= 64; n -= 64, p += 64)
			for (int i = 0; i < 4; i++) {
				memcpy(&a, p + 16 * i, 8);
				memcpy(&b, p + 16 * i + 8, 8);
				lane[i] = mix(a ^ UINT64_C(0x2d358dccaa6c78a5) ^ lane[i],
					      b ^ UINT64_C(0x8bb84b93962eacc9));
			}
		h = mix(mix(lane[0] ^ UINT64_C(0x2d358dccaa6c78a5), lane[1]),
			mix(lane[2], lane[3] ^ UINT64_C(0x4b33a62ed433d4a3)));
	}
	for (; n >= 16; n -= 16, p += 16) {
		memcpy(&a, p, 8);
		memcpy(&b, p + 8, 8);
		h = mix(a ^ UINT64_C(0x2d358dccaa6c78a5) ^ h, b ^ UINT64_C(0x8bb84b93962eacc9));
	}
	a = b = 0;
	memcpy(&a, p, n < 8 ? n : 8);
	memcpy(&b, p + 8, n < 8 ? 0 : n - 8);
	return mix(a ^ UINT64_C(0x2d358dccaa6c78a5) ^ h, b ^ UINT64_C(0x4b33a62ed433d4a3) ^ n);
}

static uint64_t state_hash(void)
{
	uint64_t h = hash_bytes(0, weak_state(), weak_bytes());

	for (size_t i = 0; i < region_count; i++)
		h = hash_bytes(h, regions[i].start, regions[i].bytes);
	for (int i = 0; i < THREADS; i++)
		if (thread_has_stack(i))
			h = hash_bytes(h, world.thread[i].stack_pointer, stack_used(i));
	return h;
}

/* --- states seen before ---------------------------------------------------------------------- */

static uint64_t *seen;
static size_t seen_room, seen_count;

void state_forget_all(void)
{
	free(seen);
	seen_room = 1 << 16;
	seen_count = 0;
	seen = calloc(seen_room, sizeof *seen);
	if (!seen)
		abort();
}

static bool seen_add(uint64_t hash)
{
	size_t i;

	hash += hash == 0;
	for (i = hash & (seen_room - 1); seen[i]; i = (i + 1) & (seen_room - 1))
		if (seen[i] == hash)
			return false;
	seen[i] = hash;
	if (++seen_count * 2 > seen_room) {
		uint64_t *old = seen;
		size_t n = seen_room;

		seen_room *= 2;
		seen_count = 0;
		seen = calloc(seen_room, sizeof *seen);
		if (!seen)
			abort();
		for (i = 0; i < n; i++)
			if (old[i])
				(void)seen_add(old[i]);
		free(old);
	}
	return true;
}

bool state_is_new(void)
{
	return seen_add(state_hash());
}

size_t state_count(void)
{
	return seen_count;
}
