/* Runs CUDA kernels on a CPU, for tests: every thread of a block is a fiber, blocks run one after another.
 *
 * Barriers, shuffles, votes and the tensor-core instructions wait until all threads concerned have arrived,
 * as on the hardware. Dynamic shared memory is filled with NaN patterns before each block.
 * EMULATOR_ORDER=reverse or =random:SEED changes the order in which threads run between two barriers and in
 * which streams run between two waits (streams.cpp), which shows missing ones; a block whose threads all wait
 * for each other ends the program with a message. */
#ifndef BLURRY_EMULATOR_H
#define BLURRY_EMULATOR_H
#include "cuda_runtime.h"

#include <algorithm>
#include <functional>
#include <stdlib.h>
#include <tuple>

using std::max;
using std::min;

struct emulator_thread {
    uint3 thread_idx, block_idx;
    dim3 block_dim, grid_dim;
    int lane, warp;
    bool waited; /* whether it called cuda_wait_previous */
};
extern thread_local emulator_thread *emulator_self;
#define threadIdx (emulator_self->thread_idx)
#define blockIdx  (emulator_self->block_idx)
#define blockDim  (emulator_self->block_dim)
#define gridDim   (emulator_self->grid_dim)
#define warpSize  32

void emulator_run(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                  std::function<void()> body);
void *emulator_dynamic_shared(void);
void emulator_barrier(int id, int threads); /* id 0: the whole block */
void emulator_warp_barrier(unsigned mask);
/* All lanes of `mask` hand in `bytes` (at most EMULATOR_EXCHANGE) and see what the others handed in, so many
 * bytes apart by lane. `complete` may work on it once, when all have. */
enum { EMULATOR_EXCHANGE = 64 };
const unsigned char *emulator_exchange(unsigned mask, const void *mine, size_t bytes,
                                       void (*complete)(unsigned char *area) = nullptr);

#define CUDA_DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(emulator_dynamic_shared())

template <typename... P, typename... A>
static inline void cuda_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                               cudaStream_t stream, A... arguments)
{
    std::tuple<P...> copy(static_cast<P>(arguments)...);
    emulator_run(grid, block, shared_bytes, stream, [=] { std::apply(kernel, copy); });
}

/* A kernel that is launched early and does not wait ends the program. */
void emulator_check_waited(void);
static inline void cuda_wait_previous(void)
{
    emulator_self->waited = true;
}
static inline void cuda_start_next(void) {}
template <typename... P, typename... A>
static inline void cuda_launch_early(int, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream, A... arguments)
{
    std::tuple<P...> copy(static_cast<P>(arguments)...);
    emulator_run(grid, block, shared_bytes, stream, [=] {
        emulator_self->waited = false;
        std::apply(kernel, copy);
        emulator_check_waited();
    });
}

static inline void __syncthreads(void)
{
    emulator_barrier(0, 0);
}
static inline void barrier_named(int id, int threads)
{
    emulator_barrier(id, threads);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulator_warp_barrier(mask);
}
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}

/* ---- warp shuffles and votes ---- */
template <typename T> static inline T emulator_lane(unsigned mask, T x, int lane, int otherwise)
{
    const unsigned char *all = emulator_exchange(mask, &x, sizeof x);
    T r;
    memcpy(&r, all + EMULATOR_EXCHANGE * (lane >= 0 && lane < 32 ? lane : otherwise), sizeof r);
    return r;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32)
{
    int base = emulator_self->lane / width * width;
    return emulator_lane(mask, x, base + (lane & (width - 1)), 0);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32)
{
    int me = emulator_self->lane, to = me ^ bits;
    return emulator_lane(mask, x, to / width > me / width ? me : to, me);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    int me = emulator_self->lane, to = me + (int)by;
    return emulator_lane(mask, x, to / width != me / width ? me : to, me);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    int me = emulator_self->lane, to = me - (int)by;
    return emulator_lane(mask, x, to < me / width * width ? me : to, me);
}
static inline unsigned __ballot_sync(unsigned mask, int yes)
{
    int mine = yes != 0;
    const unsigned char *all = emulator_exchange(mask, &mine, sizeof mine);
    unsigned r = 0;
    for (int i = 0; i < 32; i++) {
        int his;
        memcpy(&his, all + EMULATOR_EXCHANGE * i, sizeof his);
        if ((mask >> i & 1) && his) r |= 1u << i;
    }
    return r;
}
static inline int __any_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) != 0;
}
static inline int __all_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) == mask;
}

/* ---- tensor cores and their loads ---- */
void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]);
void emulator_ldmatrix(uint32_t *r, const void *row, int matrices, bool transposed);
static inline void ldmatrix_x4(uint32_t *r, const void *row)
{
    emulator_ldmatrix(r, row, 4, false);
}
static inline void ldmatrix_x4_trans(uint32_t *r, const void *row)
{
    emulator_ldmatrix(r, row, 4, true);
}
static inline void ldmatrix_x2(uint32_t *r, const void *row)
{
    emulator_ldmatrix(r, row, 2, false);
}
static inline void ldmatrix_x2_trans(uint32_t *r, const void *row)
{
    emulator_ldmatrix(r, row, 2, true);
}

/* Products of warp groups (kernels/cuda_group.h), done when they are begun. Shared memory is addressed from
 * the beginning of the dynamic one. */
uint32_t cuda_shared_address(const void *p);
void emulator_group_multiply(float *d, int columns, const uint32_t *a, uint64_t b, bool by_rows, bool add);
template <bool BY_ROWS, int N>
static inline void group_multiply(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b, bool add)
{
    emulator_group_multiply(d[0], 8 * N, a, b, BY_ROWS, add);
}
static inline void group_begin(void) {}
static inline void group_publish(void) {}
static inline void group_commit(void) {}
template <int N> static inline void group_wait(void) {}
template <typename T, int N> static inline void group_hold(T (&)[N][4]) {}
static inline void group_known(float) {}

/* Copies land only when they are waited for, as late as the hardware may. */
void copy_async16(void *shared, const void *global, bool valid);
void copy_async_commit(void);
void emulator_copy_wait(int most);
template <int N> static inline void copy_async_wait(void)
{
    emulator_copy_wait(N);
}

/* Bulk copies spoil their destination when they begin and land when their barrier is waited for. */
void bulk_barrier_init(uint64_t *barrier);
void bulk_announce(uint64_t *barrier, uint32_t bytes);
void bulk_copy(void *shared, const void *global, uint32_t bytes, uint64_t *barrier);
void bulk_wait(uint64_t *barrier, int parity);

static inline void cuda_admit_next(void) {} /* kernels run one after another */

/* ---- numbers ---- */
struct alignas(2) __nv_bfloat16 {
    uint16_t bits;
};
uint16_t emulator_round_bf16(float x);
static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return {emulator_round_bf16(x)};
}
static inline float __bfloat162float(__nv_bfloat16 x)
{
    uint32_t bits = (uint32_t)x.bits << 16;
    float r;
    memcpy(&r, &bits, sizeof r);
    return r;
}
static inline uint32_t emulator_pack_bf16(float lo, float hi)
{
    return emulator_round_bf16(lo) | (uint32_t)emulator_round_bf16(hi) << 16;
}
uint32_t to_tf32(float x);
static inline float __uint_as_float(uint32_t x)
{
    float r;
    memcpy(&r, &x, sizeof r);
    return r;
}
static inline uint32_t __float_as_uint(float x)
{
    uint32_t r;
    memcpy(&r, &x, sizeof r);
    return r;
}
static inline int __float_as_int(float x)
{
    return (int)__float_as_uint(x);
}
static inline float __int_as_float(int x)
{
    return __uint_as_float((uint32_t)x);
}
template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcs(T *p, T x)
{
    *p = x;
}
template <typename T> static inline void __stcg(T *p, T x)
{
    *p = x;
}
#define __expf expf /* glibc has functions of these names */
#define __logf logf
#define __sinf sinf
#define __cosf cosf
/* The product is exact in double: but for a sum that lies within 2^-29 of the middle of two floats this is
 * fmaf, which is a call of the library without -mfma. */
static inline float emulator_fmaf(float a, float b, float c)
{
    return (float)((double)a * (double)b + (double)c);
}
#define fmaf emulator_fmaf
static inline float exp2_fast(float x)
{
    return x < -126.0f ? 0.0f : exp2f(x);
}
static inline float sqrt_fast(float x)
{
    return sqrtf(x);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float a)
{
    return 1 / a;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1 / sqrt(x);
}
static inline void sincospi(double x, double *s, double *c)
{
    *s = sin(3.14159265358979323846 * x), *c = cos(3.14159265358979323846 * x);
}
static inline double sinpi(double x)
{
    return sin(3.14159265358979323846 * x);
}
static inline double cospi(double x)
{
    return cos(3.14159265358979323846 * x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

static inline uint64_t __umul64hi(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}
static inline float sinpif(float x)
{
    return (float)sin(3.14159265358979323846 * (double)x);
}
static inline float cospif(float x)
{
    return (float)cos(3.14159265358979323846 * (double)x);
}

/* Integer counters only: floating-point atomics are not deterministic and not used. */
template <typename T> static inline T atomicAdd(T *p, T x)
{
    static_assert(std::is_integral<T>::value, "floating-point atomics are not deterministic");
    T old = *p;
    *p = old + x;
    return old;
}
template <typename T> static inline T atomicMax(T *p, T x)
{
    T old = *p;
    if (x > old) *p = x;
    return old;
}
template <typename T> static inline T atomicMin(T *p, T x)
{
    T old = *p;
    if (x < old) *p = x;
    return old;
}

#endif
