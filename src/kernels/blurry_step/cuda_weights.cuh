/* Write weights of single tokens on the device, and a state's rows as 16-byte vectors.
 *
 * A token at position t stands f slots beside slot n, |f| <= 1/2 (base/dirichlet.c). Its weight for slot j is
 *     phi_j = sin(pi f)/S / ((-1)^d sin(pi (f + d) / S)),  d = n - j,
 * and the sum formula makes the sine from sin, cos (pi f / S) and a table of (-1)^d (cos, sin)(pi d / S),
 * which has period S in d because S is odd. n and f come from t / T modulo 1 in 64-bit fixed point. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_CUDA_WEIGHTS_CUH
#define BLURRY_KERNELS_BLURRY_STEP_CUDA_WEIGHTS_CUH
#include "kernels/blurry_step/cuda.h"
#include "kernels/cuda.h"

struct token_place {
    int slot;
    float height, sine, cosine; /* sin(pi f)/S, sin(pi f/S), cos(pi f/S) */
};

static __device__ inline token_place place_token(const bla_step_cuda_shape &s, const bla_step_head &head,
                                                 int64_t t)
{
    const uint64_t turn =
        (uint64_t)t * head.turn_hi + __umul64hi((uint64_t)t, head.turn_lo); /* 2^64 is one */
    const int64_t beside = (int64_t)(turn * (uint64_t)s.S);                 /* 2^64 is one slot */
    int slot = (int)__umul64hi(turn, (uint64_t)s.S) + (beside < 0 ? 1 : 0);
    const float f = (float)beside * 0x1p-64f;
    token_place p;
    p.slot = slot == s.S ? 0 : slot;
    p.height = sinpif(f) * s.per_slot;
    p.sine = sinpif(f * s.per_slot);
    p.cosine = cospif(f * s.per_slot);
    return p;
}

static __device__ inline float token_weight(const token_place &p, const float2 *wave, int S, int j)
{
    int d = p.slot - j;
    d += d < 0 ? S : 0;
    float2 w = wave[d];
    if (d == 0 && fabsf(p.sine) < 1e-12f) return 1.0f; /* on the slot's centre */
    return __fdividef(p.height, fmaf(p.sine, w.x, p.cosine * w.y));
}

/* ---- 16 bytes of a row ---- */
template <typename E> struct row_vector;

template <> struct row_vector<float> {
    enum { N = 4 };
    uint4 raw;
    __device__ inline void unpack(float *x) const
    {
        x[0] = __uint_as_float(raw.x), x[1] = __uint_as_float(raw.y);
        x[2] = __uint_as_float(raw.z), x[3] = __uint_as_float(raw.w);
    }
    __device__ inline void pack(const float *x)
    {
        raw = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                         __float_as_uint(x[3]));
    }
};

template <> struct row_vector<bf16> {
    enum { N = 8 };
    uint4 raw;
    __device__ inline void unpack(float *x) const
    {
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 two = unpack_bf16(words[i]);
            x[2 * i] = two.x, x[2 * i + 1] = two.y;
        }
    }
    __device__ inline void pack(const float *x)
    {
        raw = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                         pack_bf16(x[6], x[7]));
    }
};

/* Element i of an array of tokens' type. */
static __device__ inline float token_element(const void *from, int64_t i, int is_bf16)
{
    return is_bf16 ? from_bf16(((const bf16 *)from)[i]) : ((const float *)from)[i];
}
static __device__ inline void store_token_element(void *to, int64_t i, int is_bf16, float x)
{
    if (is_bf16)
        ((bf16 *)to)[i] = to_bf16(x);
    else
        ((float *)to)[i] = x;
}

/* ---- states ---- */
static __device__ inline char *state_at(const bla_step_cuda_shape &s, const bla_step_cuda_states &states,
                                        int64_t b)
{
    return states.each ? (char *)states.each[b] : (char *)states.first + b * s.state_bytes;
}

/* Whether this plan may use the state: the checks that the host makes on the CPU. */
static __device__ inline bool state_usable(const bla_step_cuda_shape &s, const bla_state_header &h)
{
    return h.magic == BLA_STATE_MAGIC && h.version == BLA_STATE_VERSION && h.header_bytes == sizeof h &&
           h.fingerprint == s.fingerprint && h.position >= 0 && h.position <= BLA_POSITION_MAX &&
           h.empty_at >= 0 && h.empty_at <= h.position &&
           h.checksum == bla_state_checksum(h.fingerprint, h.position, h.empty_at);
}

/* The block of slot j. */
static __device__ inline int block_of(const bla_step_cuda_shape &s, int j)
{
    return (int)(((float)j + 0.5f) * s.per_block);
}

/* Tokens that the rows of block r lack, the newest at ring index `at`, `held` of them in the ring
 * (blurry_step.h). A block that is due now has lacked all of them before, none after. */
static __device__ inline int block_missed(const bla_step_cuda_shape &s, int r, int at, int held, bool before)
{
    int since = at - s.phase[r];
    since += since < (before ? 1 : 0) ? s.fold : 0;
    return since < held ? since : held;
}

#endif
