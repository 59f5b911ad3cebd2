/* CRC32C (Castagnoli), in hardware where the processor has it. */
#include <string.h>

#include "internal.h"

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t crc_hardware(uint32_t crc, const uint8_t *p, size_t n)
{
	uint64_t c = crc;

	for (; n >= 8; n -= 8, p += 8) {
		uint64_t word;

		memcpy(&word, p, 8);
		c = _mm_crc32_u64(c, word);
	}
	for (; n; n--, p++)
		c = _mm_crc32_u8((uint32_t)c, *p);
	return (uint32_t)c;
}

static bool have_hardware(void)
{
	return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>

#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif

__attribute__((target("+crc"))) static uint32_t crc_hardware(uint32_t crc, const uint8_t *p, size_t n)
{
	for (; n >= 8; n -= 8, p += 8) {
		uint64_t word;

		memcpy(&word, p, 8);
		crc = __crc32cd(crc, word);
	}
	for (; n; n--, p++)
		crc = __crc32cb(crc, *p);
	return crc;
}

static bool have_hardware(void)
{
	return getauxval(AT_HWCAP) & HWCAP_CRC32;
}
#endif

static uint32_t crc_portable(uint32_t crc, const uint8_t *p, size_t n)
{
	for (; n; n--, p++) {
		crc ^= *p;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0x82f63b78 & -(crc & 1));
	}
	return crc;
}

uint32_t shmring_crc32c(uint32_t crc, const void *data, size_t length)
{
#if defined(__x86_64__) || defined(__aarch64__)
	if (have_hardware())
		return ~crc_hardware(~crc, data, length);
#endif
	return ~crc_portable(~crc, data, length);
}
