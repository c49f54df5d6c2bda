/* Decoding on CUDA where the memory's speed can be reached: widths 64 and 128, the absolute grid, a ring of
 * at most 16 tokens, on compute capability 9. Every block takes its share of all heads of the batch, one
 * after another; the copy engine fetches a head's 65 KB (S = 127, D = 64, float) while the head before is
 * worked on. Other shapes take the kernel of cuda.cu. */
#include "kernels/blurry_step/cuda_host.h"
#include "kernels/blurry_step/cuda_stream.cuh"

template <typename KIND, int AT_ONCE>
__global__ void __launch_bounds__(KIND::THREADS, AT_ONCE)
    stream_kernel(const __grid_constant__ bla_step_cuda_shape s, bla_step_cuda_states states, int64_t heads,
                  step_io io)
{
    CUDA_DYNAMIC_SHARED(char, memory);
    const stream_shared m = stream_carve<KIND>(s, memory);
    const int tid = (int)threadIdx.x;
    if (tid == 0) bulk_barrier_init(m.fresh), bulk_barrier_init(m.rows_k), bulk_barrier_init(m.rows_v);
    const int64_t each = heads / gridDim.x, more = heads % gridDim.x, block = blockIdx.x;
    const int count = (int)(each + (block < more)); /* the first blocks take one more: they are on different
                                                       processors */
    const int64_t first = block * each + min(block, more);
    int64_t b = first / s.Hkv;
    int kv = (int)(first - b * s.Hkv);
    cuda_wait_previous();
    cuda_admit_next();
    char *state = state_at(s, states, b);
    if (tid == 0) fetch_fresh<KIND>(s, m, io, state, b, kv), fetch_rows<KIND>(s, m, state, kv);
    for (int j = tid; j < s.S; j += KIND::THREADS)
        m.wave[j] = __ldg((const float2 *)(const void *)s.wave + j);
    for (int n = s.S * KIND::CHUNKS + tid; n < KIND::ROWS * KIND::CHUNKS; n += KIND::THREADS)
        ((uint4 *)(void *)m.v)[n] = make_uint4(0, 0, 0, 0); /* rows that no slot has */
    __syncthreads();

    stream_shares<KIND> shares;
    step_moment now = {-1, 0, 0, 0, 0};
    bla_step_head head = {0, 0, 0};
    bool usable = false, entered = true; /* entered: the first head of a sequence */
    unsigned long long arrived = 0, mine = 0;
    int64_t empty_at = 0;
    for (int i = 0; i < count; i++) {
        const bla_step_head next = s.heads[kv];
        bool weighed = next.turn_hi == head.turn_hi && next.turn_lo == head.turn_lo;
        head = next;
        bulk_wait(m.fresh, i & 1);
        if (entered) {
            const step_moment before = now;
            usable = state_usable(s, *m.header) && m.header->position < BLA_POSITION_MAX;
            empty_at = m.header->empty_at;
            now = step_now(s, m.header->position, empty_at);
            weighed = weighed && now.t == before.t && now.held == before.held;
            if (tid == 0 && usable) { /* the header moves on when all blocks have it */
                mine = (unsigned long long)min((int64_t)(count - i), (int64_t)(s.Hkv - kv));
                arrived = atomicAdd(
                    (unsigned long long *)(void *)(state + offsetof(bla_state_header, arrived)), mine);
            }
            if (tid == 0 && !usable) *s.refused = 1;
        }
        if (!weighed) {
            shares.make(s, head, now, m.wave, now.t >= head.all_visible ? NULL : s.visible + kv * s.S);
            shares.tell(now, m);
        }
        unpack_tokens<KIND>(s, m, now, usable, state, kv);
        score_tokens<KIND>(s, m, now);
        const bool last_here = kv + 1 == s.Hkv;
        char *next_state = last_here && i + 1 < count ? state_at(s, states, b + 1) : state;
        __syncthreads();
        bulk_wait(m.rows_k, i & 1);
        for (int g = 0; g < s.group; g++)
            add_values<KIND>(m, slot_logit<KIND>(m, g, s.S, shares), shares, i & 1, g);
        const int64_t rows = (int64_t)kv * s.S * KIND::D * (int64_t)sizeof(typename KIND::E);
        if (usable) update_rows<KIND>(m, now, state + s.k + rows, state + s.v + rows);
        __syncthreads();
        const int64_t query = (b * s.Hkv + kv) * s.group;
        b += last_here, kv = last_here ? 0 : kv + 1;
        if (tid == 0 && i + 1 < count)
            fetch_fresh<KIND>(s, m, io, next_state, b, kv), fetch_rows<KIND>(s, m, next_state, kv);
        write_outputs<KIND>(s, m, usable, io.o, query);
        if (tid == 0 && entered && usable && arrived + mine == (unsigned long long)s.Hkv) {
            bla_state_header *header = (bla_state_header *)(void *)state;
            header->position = now.t + 1;
            header->checksum = bla_state_checksum(s.fingerprint, now.t + 1, empty_at);
            header->arrived = 0;
        }
        state = next_state, entered = last_here;
    }
}

/* ---- the launch ---- */

template <typename KIND, int AT_ONCE>
static bool launch(const bla_step_cuda_shape &s, const bla_step_cuda_states &states, const step_io &io,
                   cudaStream_t stream)
{
    enum { PROCESSOR = 228 * 1024, BLOCK = 227 * 1024, SYSTEM = 1024 }; /* bytes of shared memory */
    const size_t bytes = stream_carve<KIND>(s, NULL).bytes;
    if (bytes > BLOCK) return false;
    const int64_t heads = states.count * s.Hkv, fit = (int64_t)(PROCESSOR / (bytes + SYSTEM));
    const int64_t most = s.processors * min(fit, (int64_t)AT_ONCE);
    cuda_launch_early(1, stream_kernel<KIND, AT_ONCE>, dim3((unsigned)min(heads, most)), dim3(KIND::THREADS),
                      bytes, stream, s, states, heads, io);
    return true;
}

/* The same threads for every batch: a sequence gets the same bits in any company. */
template <typename E, int D, int ROWS>
static bool launch_rows(const bla_step_cuda_shape &s, const bla_step_cuda_states &states, const step_io &io,
                        cudaStream_t stream)
{
    return s.fold <= 8    ? launch<stream_kind<E, D, ROWS, 256, 8>, 2>(s, states, io, stream)
           : s.fold <= 16 ? launch<stream_kind<E, D, ROWS, 256, 16>, 2>(s, states, io, stream)
                          : false;
}

template <typename E, int D>
static bool launch_width(const bla_step_cuda_shape &s, const bla_step_cuda_states &states, const step_io &io,
                         cudaStream_t stream)
{
    return s.S <= 64    ? launch_rows<E, D, 64>(s, states, io, stream)
           : s.S <= 128 ? launch_rows<E, D, 128>(s, states, io, stream)
           : s.S <= 256 ? launch_rows<E, D, 256>(s, states, io, stream)
                        : false;
}

bool bla_step_cuda_stream(const bla_step_cuda_shape *shape, const bla_step_cuda_states *states, const void *q,
                          const void *k, const void *v, void *o, blurry_stream stream)
{
    const bla_step_cuda_shape &s = *shape;
    const step_io io = {q, k, v, o};
    const bool aligned = ((uintptr_t)q | (uintptr_t)k | (uintptr_t)v) % 16 == 0;
    if (!s.bulk_copies || s.relative || s.Dk != s.Dv || !aligned) return false;
    if (s.Dk == 64)
        return (s.state_bf16 ? launch_width<bf16, 64> : launch_width<float, 64>)(s, *states, io, stream);
    if (s.Dk == 128)
        return (s.state_bf16 ? launch_width<bf16, 128> : launch_width<float, 128>)(s, *states, io, stream);
    return false;
}
