/* SHA-256 (FIPS 180-4), for content hashes of data and settings. */
#ifndef BLURRY_BASE_SHA256_H
#define BLURRY_BASE_SHA256_H
#include <stddef.h>
#include <stdint.h>

typedef struct sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes taken in */
    uint8_t block[64];
} sha256;

void sha256_init(sha256 *h);
void sha256_update(sha256 *h, const void *data, size_t length);
void sha256_final(sha256 *h, uint8_t digest[32]);

/* The digest as 64 lower-case hexadecimal digits and a final 0. */
void sha256_hex(const uint8_t digest[32], char hex[65]);

#endif
