/* The head of a state's bytes, read and written on the host and by the CUDA kernels. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_STATE_H
#define BLURRY_KERNELS_BLURRY_STEP_STATE_H
#include <stdint.h>

#ifdef __CUDACC__
#define BLA_STATE_INLINE static __host__ __device__ inline
#else
#define BLA_STATE_INLINE static inline
#endif

/* Positions stay exact in double. */
#define BLA_POSITION_MAX ((int64_t)1 << 53)
#define BLA_STATE_MAGIC  0x5441545352554c42u /* the bytes BLURSTAT, lowest first */
enum { BLA_STATE_VERSION = 2 };

typedef struct bla_state_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint64_t fingerprint; /* of everything that decides the meaning of the bytes */
    int64_t position;     /* tokens seen */
    int64_t empty_at;     /* the position at which no token was pending */
    uint64_t arrived;     /* blocks of a CUDA step that have read the header; 0 between steps */
    uint64_t reserved;    /* 0 */
    uint64_t checksum;    /* of fingerprint, position and empty_at; the rest has one right value */
} bla_state_header;

BLA_STATE_INLINE uint64_t bla_state_mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

BLA_STATE_INLINE uint64_t bla_state_checksum(uint64_t fingerprint, int64_t position, int64_t empty_at)
{
    return bla_state_mix(bla_state_mix(fingerprint ^ (uint64_t)position) ^ (uint64_t)empty_at);
}

BLA_STATE_INLINE bla_state_header bla_state_head(uint64_t fingerprint, int64_t position, int64_t empty_at)
{
    bla_state_header h = {BLA_STATE_MAGIC,
                          BLA_STATE_VERSION,
                          sizeof(bla_state_header),
                          fingerprint,
                          position,
                          empty_at,
                          0,
                          0,
                          bla_state_checksum(fingerprint, position, empty_at)};
    return h;
}

/* Whether position and empty_at are what was written. */
BLA_STATE_INLINE int bla_state_intact(const bla_state_header *h)
{
    return h->checksum == bla_state_checksum(h->fingerprint, h->position, h->empty_at) && h->position >= 0 &&
           h->empty_at >= 0 && h->empty_at <= h->position && h->position <= BLA_POSITION_MAX &&
           h->arrived == 0 && h->reserved == 0;
}

#endif
