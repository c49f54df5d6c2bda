/* States on CUDA beside the step: slots with everything pending taken in, states made from slots, and the
 * table of functions with their device memory. */
extern "C" {
#include "base/dirichlet.h"
#include "base/status.h"
}
#include "kernels/blurry_step/cuda_host.h"
#include "kernels/blurry_step/cuda_weights.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 256, COUNTS = 256 };

/* ---- settled slots ---- */

/* One matrix of one head: out [S, D] from slots [S, row] and the ring [fold, row]; phi [fold, S] by age. */
template <typename E>
static __device__ void settle_rows(const bla_step_cuda_shape &s, const E *slots, const void *ring, int row,
                                   int D, const float *phi, int at, int held, float *out)
{
    for (int n = (int)threadIdx.x; n < s.S * D; n += THREADS) {
        int j = n / D, c = n - j * D;
        float x = from_bf16(slots[(int64_t)j * row + c]);
        for (int age = block_missed(s, block_of(s, j), at, held, false) - 1; age >= 0; age--) {
            int u = at - age;
            float w = phi[age * s.S + j],
                  token = token_element(ring, (int64_t)(u < 0 ? u + s.fold : u) * row + c, s.token_bf16);
            x = s.decay ? fmaf(w, token - x, x) : fmaf(w, token, x);
        }
        out[n] = x;
    }
}

template <typename E>
__global__ void __launch_bounds__(THREADS)
    settle_kernel(bla_step_cuda_shape s, const char *states, bla_step_cuda_slots to, int64_t *positions)
{
    CUDA_DYNAMIC_SHARED(float, phi); /* [fold, S] */
    __shared__ token_place places[BLA_STEP_CUDA_FOLD];
    const int64_t b = (int64_t)blockIdx.x / s.Hkv;
    const int kv = (int)((int64_t)blockIdx.x - b * s.Hkv);
    const char *state = states + b * s.state_bytes;
    const bla_state_header h = *(const bla_state_header *)(const void *)state;
    const bool usable = state_usable(s, h);
    const int64_t pending = usable ? h.position - h.empty_at : 0, newest = h.position - 1;
    const int held = (int)(pending < s.fold ? pending : s.fold);
    const int at = held > 0 ? (int)((uint64_t)newest % (unsigned)s.fold) : 0;
    if (threadIdx.x == 0 && kv == 0 && positions) positions[b] = usable ? h.position : 0;
    if (threadIdx.x == 0 && !usable) *s.refused = 1;
    if ((int)threadIdx.x < held) places[threadIdx.x] = place_token(s, s.heads[kv], newest - (int)threadIdx.x);
    __syncthreads();
    const float2 *wave = (const float2 *)(const void *)s.wave;
    for (int n = (int)threadIdx.x; n < held * s.S; n += THREADS)
        phi[n] = token_weight(places[n / s.S], wave, s.S, n % s.S);
    __syncthreads();
    float *k = to.k + b * to.stride_k + (int64_t)kv * s.S * s.Dk;
    float *v = to.v + b * to.stride_v + (int64_t)kv * s.S * s.Dv;
    if (!usable) {
        for (int n = (int)threadIdx.x; n < s.S * s.Dk; n += THREADS) k[n] = NAN;
        for (int n = (int)threadIdx.x; n < s.S * s.Dv; n += THREADS) v[n] = NAN;
        return;
    }
    const size_t token = s.token_bf16 ? sizeof(bf16) : sizeof(float);
    settle_rows(s, (const E *)(const void *)(state + s.k) + (int64_t)kv * s.S * s.row_k,
                state + s.ring_k + (size_t)kv * s.fold * s.row_k * token, s.row_k, s.Dk, phi, at, held, k);
    settle_rows(s, (const E *)(const void *)(state + s.v) + (int64_t)kv * s.S * s.row_v,
                state + s.ring_v + (size_t)kv * s.fold * s.row_v * token, s.row_v, s.Dv, phi, at, held, v);
}

static blurry_status settle(const bla_step_cuda_shape *s, const void *states, int64_t count,
                            const bla_step_cuda_slots *slots, int64_t *positions, blurry_stream stream)
{
    if (count == 0) return BLURRY_OK;
    dim3 grid((unsigned)(count * s->Hkv));
    size_t bytes = sizeof(float) * (size_t)(s->fold * s->S);
    if (s->state_bf16)
        cuda_launch(settle_kernel<bf16>, grid, dim3(THREADS), bytes, stream, *s, (const char *)states, *slots,
                    positions);
    else
        cuda_launch(settle_kernel<float>, grid, dim3(THREADS), bytes, stream, *s, (const char *)states,
                    *slots, positions);
    return bla_step_cuda_launched("settling states");
}

/* ---- states from slots ---- */

/* How far each sequence moves on: in the launch itself, because host memory may be gone when it runs. */
struct store_counts {
    int64_t of[COUNTS];
};

/* One matrix of one head, padding included. */
template <typename E>
static __device__ void store_rows(const bla_step_cuda_shape &s, const float *from, int D, int row, E *slots)
{
    for (int n = (int)threadIdx.x; n < s.S * row; n += THREADS) {
        int j = n / row, c = n - j * row;
        slots[n] = cuda_element<E>(from && c < D ? from[j * D + c] : 0.0f);
    }
}

template <typename E>
__global__ void __launch_bounds__(THREADS)
    store_kernel(bla_step_cuda_shape s, char *states, int zero, bla_step_cuda_slots from,
                 const int64_t *positions, store_counts counts)
{
    const int64_t b = (int64_t)blockIdx.x / s.Hkv;
    const int kv = (int)((int64_t)blockIdx.x - b * s.Hkv);
    char *state = states + b * s.state_bytes;
    if (zero || from.k) {
        const float *k = zero ? NULL : from.k + b * from.stride_k + (int64_t)kv * s.S * s.Dk;
        const float *v = zero ? NULL : from.v + b * from.stride_v + (int64_t)kv * s.S * s.Dv;
        store_rows(s, k, s.Dk, s.row_k, (E *)(void *)(state + s.k) + (int64_t)kv * s.S * s.row_k);
        store_rows(s, v, s.Dv, s.row_v, (E *)(void *)(state + s.v) + (int64_t)kv * s.S * s.row_v);
    }
    if (kv != 0) return;
    uint4 *ring = (uint4 *)(void *)(state + s.ring_k); /* both rings, to the end of the state */
    for (int64_t n = threadIdx.x; n < (s.state_bytes - s.ring_k) / 16; n += THREADS)
        ring[n] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x != 0) return;
    int64_t position = (positions ? positions[b] : 0) + counts.of[b];
    if (position > BLA_POSITION_MAX) *s.refused = 1, position = BLA_POSITION_MAX;
    *(bla_state_header *)(void *)state = bla_state_head(s.fingerprint, position, position);
}

static blurry_status store(const bla_step_cuda_shape *s, void *states, int64_t count, int zero,
                           const bla_step_cuda_slots *slots, const int64_t *positions, int64_t tokens,
                           const int64_t *offsets, blurry_stream stream)
{
    for (int64_t first = 0; first < count; first += COUNTS) {
        int64_t n = count - first < COUNTS ? count - first : (int64_t)COUNTS;
        store_counts counts;
        for (int64_t i = 0; i < n; i++)
            counts.of[i] = offsets ? offsets[first + i + 1] - offsets[first + i] : tokens;
        bla_step_cuda_slots from = slots ? *slots : bla_step_cuda_slots{NULL, NULL, 0, 0};
        if (from.k) from.k += first * from.stride_k, from.v += first * from.stride_v;
        char *to = (char *)states + first * s->state_bytes;
        const int64_t *at = positions ? positions + first : NULL;
        dim3 grid((unsigned)(n * s->Hkv));
        if (s->state_bf16)
            cuda_launch(store_kernel<bf16>, grid, dim3(THREADS), 0, stream, *s, to, zero, from, at, counts);
        else
            cuda_launch(store_kernel<float>, grid, dim3(THREADS), 0, stream, *s, to, zero, from, at, counts);
    }
    return bla_step_cuda_launched("storing states");
}

/* ---- host side ---- */

static blurry_status fail(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return BLURRY_OK;
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        return status_fail(BLURRY_E_MEMORY, "no device memory for %s: use a smaller batch", what);
    return status_fail(BLURRY_E_DEVICE, "%s failed on the cuda device: %s; device=cpu works without it", what,
                       cudaGetErrorString(error));
}

blurry_status bla_step_cuda_launched(const char *what)
{
    return fail(cudaGetLastError(), what);
}

static blurry_status device_alloc(void **memory, size_t bytes)
{
    *memory = NULL;
    return fail(cudaMalloc(memory, bytes), "states");
}

static void device_release(void *memory)
{
    (void)cudaFree(memory);
}

static blurry_status device_copy(void *to, const void *from, size_t bytes)
{
    blurry_status status = fail(cudaDeviceSynchronize(), "work under way");
    if (status != BLURRY_OK) return status;
    status = fail(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "a copy");
    return status == BLURRY_OK ? fail(cudaDeviceSynchronize(), "a copy") : status;
}

static blurry_status check_shape(const bla_step_cuda_shape *s)
{
    enum { SHARED_MOST = 200 * 1024 };
    if (s->Dk > BLA_STEP_CUDA_WIDTH || s->Dv > BLA_STEP_CUDA_WIDTH)
        return status_fail(BLURRY_E_UNSUPPORTED,
                           "%s is %d: the cuda device takes up to %d; use more heads, which makes them "
                           "narrower, or device=cpu",
                           s->Dk > BLA_STEP_CUDA_WIDTH ? "dim_k" : "dim_v", s->Dk > s->Dv ? s->Dk : s->Dv,
                           (int)BLA_STEP_CUDA_WIDTH);
    if (bla_step_cuda_shared(s) > SHARED_MOST)
        return status_fail(
            BLURRY_E_UNSUPPORTED,
            "modes is %d with %d heads to a key/value head and fold %d: decoding needs %zu bytes of "
            "shared memory, the cuda device has %d; use fewer modes or device=cpu",
            (s->S + 1) / 2, s->H / s->Hkv, s->fold, bla_step_cuda_shared(s), (int)SHARED_MOST);
    return BLURRY_OK;
}

/* 2^128 / T, rounded down and modulo 2^128: T = m 2^e is divided bit by bit. */
static void turns(double T, bla_step_head *head)
{
    int e;
    uint64_t m = (uint64_t)ldexp(frexp(T, &e), 53), rest = 0, hi = 0, lo = 0;
    e -= 53;
    for (int bit = 128 - e; bit >= 0; bit--) { /* the dividend 2^(128 - e), from its first bit on */
        rest = rest << 1 | (bit == 128 - e);
        hi = hi << 1 | lo >> 63, lo <<= 1;
        if (rest >= m) rest -= m, lo |= 1;
    }
    head->turn_hi = hi, head->turn_lo = lo;
}

static void derive(bla_step_cuda_shape *s)
{
    s->group = s->H / s->Hkv;
    s->per_block = 1.0f / (float)s->block, s->per_slot = 1.0f / (float)s->S;
    const float piece = s->token_bf16 ? 8.0f : 4.0f;
    s->per_row_k = piece / (float)s->row_k, s->per_row_v = piece / (float)s->row_v;
    int device = 0, capability = 0;
    s->processors = 132;
    if (cudaGetDevice(&device) == cudaSuccess) {
        (void)cudaDeviceGetAttribute(&s->processors, cudaDevAttrMultiProcessorCount, device);
        (void)cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device);
    }
    (void)cudaGetLastError(); /* without a device the tables below say so */
    s->bulk_copies = capability >= 9;
    memset(s->due, -1, sizeof s->due);
    for (int r = 0; r < s->n_blocks; r++) {
        s->phase[r] = (unsigned char)(r * s->fold / s->n_blocks);
        s->due[s->phase[r]] = (signed char)r;
    }
}

/* Host memory laid out as on the device: heads [Hkv], visible [Hkv, S], waves [S, 2], the flag. */
static void fill_tables(const bla_step_cuda_shape *s, const double *period, bla_step_head *heads,
                        int64_t *visible, float *wave)
{
    for (int h = 0; h < s->Hkv; h++) {
        turns(period[h], &heads[h]);
        for (int j = 0; j < s->S; j++) visible[h * s->S + j] = dirichlet_visible_from(s->S, period[h], j);
        heads[h].all_visible = visible[(h + 1) * s->S - 1];
    }
    for (int n = 0; n < s->S; n++) {
        int d = n > (s->S - 1) / 2 ? n - s->S : n; /* the accurate one of two equal angles */
        double angle = 3.14159265358979323846 * d / s->S, sign = d & 1 ? -1.0 : 1.0;
        wave[2 * n] = (float)(sign * cos(angle)), wave[2 * n + 1] = (float)(sign * sin(angle));
    }
}

static blurry_status open(bla_step_cuda_shape *s, const double *period)
{
    derive(s);
    STATUS_TRY(check_shape(s));
    const size_t heads = sizeof(bla_step_head) * (size_t)s->Hkv;
    const size_t visible = sizeof(int64_t) * (size_t)s->Hkv * (size_t)s->S,
                 waves = 2 * sizeof(float) * (size_t)s->S;
    const size_t bytes = heads + visible + waves + sizeof(int);
    char *host = (char *)calloc(1, bytes), *memory = NULL;
    if (!host) return status_fail(BLURRY_E_MEMORY, "no memory for %zu bytes of a plan's tables", bytes);
    fill_tables(s, period, (bla_step_head *)(void *)host, (int64_t *)(void *)(host + heads),
                (float *)(void *)(host + heads + visible));
    blurry_status status = fail(cudaMalloc((void **)&memory, bytes), "a plan's tables");
    if (status == BLURRY_OK)
        status = fail(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice), "a plan's tables");
    free(host);
    if (status != BLURRY_OK) {
        (void)cudaFree(memory);
        return status;
    }
    s->heads = (const bla_step_head *)(const void *)memory;
    s->visible = (const int64_t *)(const void *)(memory + heads);
    s->wave = (const float *)(const void *)(memory + heads + visible);
    s->refused = (int *)(void *)(memory + heads + visible + waves);
    return BLURRY_OK;
}

static void close(bla_step_cuda_shape *s)
{
    (void)cudaFree((void *)(uintptr_t)s->heads);
    s->heads = NULL;
}

static blurry_status sync(const bla_step_cuda_shape *s, blurry_stream stream)
{
    int refused = 0;
    STATUS_TRY(fail(cudaStreamSynchronize(stream), "work under way"));
    STATUS_TRY(fail(cudaMemcpy(&refused, s->refused, sizeof refused, cudaMemcpyDeviceToHost), "a copy"));
    if (!refused) return BLURRY_OK;
    STATUS_TRY(fail(cudaMemset(s->refused, 0, sizeof refused), "a copy"));
    return status_fail(BLURRY_E_INVALID,
                       "a state was refused on the cuda device: it is damaged, not initialised, past "
                       "the last position, or of a plan with another shape, period, decay, grid, type "
                       "or fold; its results are NaN");
}

static const bla_step_cuda table = {
    open, close,        bla_step_cuda_run, settle,     store, bla_step_cuda_launched,
    sync, device_alloc, device_release,    device_copy};

const bla_step_cuda *bla_step_cuda_kernels(void)
{
    return &table;
}
