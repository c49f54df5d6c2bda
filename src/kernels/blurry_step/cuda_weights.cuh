/* Write weights of single tokens on the device, and a state's rows as 16-byte vectors.
 *
 * A token at position t stands f slots beside slot n, |f| <= 1/2 (base/dirichlet.c). Its weight for slot j is
 *     phi_j = sin(pi f)/S / ((-1)^d sin(pi (f + d) / S)),  d = n - j,
 * and the sum formula makes the sine from sin, cos (pi f / S) and a table of (-1)^d (cos, sin)(pi d / S),
 * which has period S in d because S is odd. f is found in double, from an exact remainder. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_CUDA_WEIGHTS_CUH
#define BLURRY_KERNELS_BLURRY_STEP_CUDA_WEIGHTS_CUH
#include "kernels/blurry_step/cuda.h"
#include "kernels/cuda.h"

struct token_place {
    int slot;
    float height, sine, cosine; /* sin(pi f)/S, sin(pi f/S), cos(pi f/S) */
};

/* t mod T. t = n T + r with n the rounded-down quotient, or one too many or too few where the quotient was
 * rounded across a whole number: r is a multiple of T's last place and below 2 T, so the fused product and
 * the correction are exact. */
static __device__ inline double exact_remainder(double t, double T)
{
    double r = fma(-floor(t / T), T, t);
    if (r < 0) r += T;
    return r >= T ? r - T : r;
}

static __device__ inline token_place place_token(int S, double T, int64_t t)
{
    const int64_t early = 1 << 21; /* as base/dirichlet.c rounds there */
    double at = (double)t, tau;
    if (t < early && T != rint(T)) {
        double turns = at / T;
        tau = (turns - floor(turns)) * (double)S;
    } else {
        tau = exact_remainder(at, T) * (double)S / T;
    }
    double nearest = rint(tau), f = tau - nearest, sine, cosine, slot_sine, slot_cosine;
    sincospi(f, &sine, &cosine);
    sincospi(f / (double)S, &slot_sine, &slot_cosine);
    token_place p;
    p.slot = (int)nearest == S ? 0 : (int)nearest;
    p.height = (float)(sine / (double)S);
    p.sine = (float)slot_sine;
    p.cosine = (float)slot_cosine;
    return p;
}

static __device__ inline float token_weight(const token_place &p, const float2 *wave, int S, int j)
{
    int d = p.slot - j;
    d += d < 0 ? S : 0;
    float2 w = wave[d];
    if (d == 0 && fabsf(p.sine) < 1e-18f) return 1.0f; /* on the slot's centre */
    return __fdividef(p.height, fmaf(p.sine, w.x, p.cosine * w.y));
}

/* Whether slot j is visible at t; the order of operations decides ties (base/dirichlet.c). From t = T on all
 * are. */
static __device__ inline bool slot_visible(int S, double T, int j, int64_t t)
{
    return (double)t >= T || (double)t >= rint((double)j / (double)S * T);
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

/* t mod fold at which block r is brought up to date, and how many tokens it misses when token t, the newest,
 * is `held` tokens after the last time nothing was pending (blurry_step.h). */
static __device__ inline int block_phase(const bla_step_cuda_shape &s, int r)
{
    return (int)((unsigned)r * (unsigned)s.fold / (unsigned)s.n_blocks);
}
static __device__ inline int block_missed(const bla_step_cuda_shape &s, int r, int at, int held)
{
    int since = at - block_phase(s, r);
    since += since < 0 ? s.fold : 0;
    return since < held ? since : held;
}

#endif
