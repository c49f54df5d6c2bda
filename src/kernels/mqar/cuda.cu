/* One block makes one sample. The random words of a sample are numbered: K for the keys, K for the values,
 * two per place, one per filler token. A uniform draw rejects a word about once in a million; then word and
 * draw no longer go together, and one thread makes the draws of that sample one after another.
 *
 * Which sample it is takes a walk of some ten microseconds that cannot be shared (base/order.h). So the
 * samples of the coming step are looked up beside this one, in the side queue or, where there is none, by one
 * more warp beside the workers; a block then finds its own looked up. */
#include "kernels/mqar/mqar.h"
#include "base/order.h"
#include "kernels/cuda.h"
#include "kernels/cuda_side.h"

enum { WORKERS = 512, THREADS = WORKERS + 32 };

/* Shared memory of a block. Draw i of a shuffle without replacement takes what lies at place target[i] >= i
 * and moves there what lies at place i. */
typedef struct sample_room {
    int64_t *score;            /* [places] in the order of the scores */
    int32_t *target;           /* [2 K] of the keys' draws, then of the values' */
    int16_t *repeated, *moved; /* [2 K] the latest earlier draw of place target[i] and of place i, or -1 */
    int32_t *pair_at;          /* [places] the pair a place asks for, or -1 */
    int32_t *filler;           /* [L - 2K] where filler is random */
    unsigned *asking;          /* [MQAR_PLACES_MOST / 32] a bit for each place that asks */
} sample_room;

static __device__ inline void wait_for_workers(void)
{
    barrier_named(1, WORKERS);
}

/* Draw number n, uniform in [0, range); whether its word was accepted. */
static __device__ inline bool draw(const mqar_args &a, uint64_t index, int64_t n, uint32_t range,
                                   int32_t *value)
{
    uint32_t word[4];
    rng_block(a.data_seed, a.purpose, index, (uint64_t)(n / 4), word);
    uint32_t own = n % 4 < 2 ? (n % 2 ? word[1] : word[0]) : (n % 2 ? word[3] : word[2]);
    uint64_t product = (uint64_t)own * range;
    *value = (int32_t)(product >> 32);
    return (uint32_t)product >= (0u - range) % range;
}

/* Finite numbers as integers of the same order. */
static __device__ inline int64_t ordered(double x)
{
    union {
        double value;
        int64_t bits;
    } u;
    u.value = x + 0.0; /* there is one zero */
    return u.bits < 0 ? u.bits ^ INT64_MAX : u.bits;
}

/* Of place i. Its two words lie in one block, for their number is even. */
static __device__ inline int64_t score_of(const mqar_args &a, uint64_t index, int i)
{
    uint32_t word[4];
    int64_t n = 2 * a.pairs + 2 * i;
    rng_block(a.data_seed, a.purpose, index, (uint64_t)(n / 4), word);
    uint64_t low = n % 4 ? word[2] : word[0], high = n % 4 ? word[3] : word[1];
    return ordered(a.log_weight[i] + -rng_log(-rng_log(rng_open(low | high << 32))));
}

/* All draws, each by the thread that has its word. Whether none was rejected. */
static __device__ inline bool draw_in_parallel(const mqar_args &a, uint64_t index, const sample_room &room)
{
    int K = (int)a.pairs, places = (int)a.places, half = (int)(a.vocab / 2), others = (int)a.vocab - half;
    int filler = a.random_filler ? 2 * places : 0;
    bool good = true;
    for (int n = threadIdx.x; n < 2 * K + places + filler; n += WORKERS) {
        int32_t value;
        if (n < 2 * K) {
            int i = n < K ? n : n - K;
            good = draw(a, index, n, (uint32_t)(n < K ? half - 1 - i : others - i), &value) && good;
            room.target[n] = i + value;
        } else if (n < 2 * K + places) {
            room.score[n - 2 * K] = score_of(a, index, n - 2 * K);
        } else {
            good = draw(a, index, (int64_t)n + places, (uint32_t)a.vocab, &value) && good;
            room.filler[n - 2 * K - places] = value;
        }
    }
    return good;
}

/* The same, one after another. */
static __device__ void draw_in_order(const mqar_args &a, uint64_t index, const sample_room &room)
{
    int64_t K = a.pairs, half = a.vocab / 2;
    rng r = rng_stream(a.data_seed, a.purpose, index);
    for (int64_t i = 0; i < K; i++)
        room.target[i] = (int32_t)(i + (int64_t)rng_below(&r, (uint64_t)(half - 1 - i)));
    for (int64_t i = 0; i < K; i++)
        room.target[K + i] = (int32_t)(i + (int64_t)rng_below(&r, (uint64_t)(a.vocab - half - i)));
    for (int64_t i = 0; i < a.places; i++) room.score[i] = ordered(a.log_weight[i] + rng_gumbel(&r));
    int64_t filler = a.random_filler ? a.length - 2 * K : 0;
    for (int64_t i = 0; i < filler; i++) room.filler[i] = (int32_t)rng_below(&r, (uint64_t)a.vocab);
}

/* How many of score[begin], score[begin + 2] .. before `end` are above `limit`. */
static __device__ inline int count_above(const int64_t *score, int begin, int end, int64_t limit)
{
    int count = 0;
#pragma unroll 8
    for (int j = begin; j < end; j += 2) count += score[j] > limit;
    return count;
}

/* The places with the K highest scores ask, the highest for pair 0; ties in the order of places. Two lanes
 * share a place, sixteen places a warp. */
static __device__ inline void rank_places(const mqar_args &a, const sample_room &room)
{
    int places = (int)a.places, odd = (int)threadIdx.x % 2;
    for (int first = (int)threadIdx.x / 32 * 16; first < places; first += WORKERS / 2) {
        int i = first + (int)threadIdx.x % 32 / 2, last = first + 16 < places ? first + 16 : places;
        int64_t own = i < places ? room.score[i] : 0;
        int rank = count_above(room.score, odd, first, own - 1); /* equal ones in front count too */
        for (int j = first + odd; j < last; j += 2) rank += room.score[j] > (j < i ? own - 1 : own);
        rank += count_above(room.score, first + 16 + odd, places, own);
        rank += __shfl_xor_sync(CUDA_FULL_WARP, rank, 1);
        if (odd || i >= places) continue;
        room.pair_at[i] = rank < a.pairs ? rank : -1;
        if (rank < a.pairs) atomicAdd(&room.asking[i / 32], 1u << i % 32);
    }
}

/* Who drew a place before. The last threads first: the first ones rank. */
static __device__ inline void link_draws(const mqar_args &a, const sample_room &room)
{
    int K = (int)a.pairs;
    for (int n = WORKERS - 1 - (int)threadIdx.x; n < 2 * K; n += WORKERS) {
        int i = n < K ? n : n - K, own = room.target[n], repeated = -1, moved = -1;
        const int32_t *target = room.target + (n - i);
#pragma unroll 8
        for (int t = 0; t < i; t++) {
            repeated = target[t] == own ? t : repeated;
            moved = target[t] == i ? t : moved;
        }
        room.repeated[n] = (int16_t)repeated, room.moved[n] = (int16_t)moved;
    }
}

/* What draw i of the keys (first 0) or of the values (first K) found at its place: what the latest earlier
 * draw of that place had moved there, or the place itself. */
static __device__ inline int32_t found_by(const sample_room &room, int first, int i)
{
    int place = room.target[first + i];
    for (int t = room.repeated[first + i]; t >= 0; t = room.moved[first + t]) place = t;
    return place;
}

static __device__ inline void write_sample(const mqar_args &a, int64_t b, const sample_room &room)
{
    int K = (int)a.pairs, half = (int)(a.vocab / 2);
    for (int n = threadIdx.x; n < K + (int)a.places; n += WORKERS) { /* tokens 2n and 2n + 1 */
        int i = n - K, pair = i < 0 ? n : room.pair_at[i];
        int32_t key = 0, value = 0, *at = a.ids + b * a.length + 2 * n;
        int64_t *place = a.place + b * a.length + 2 * n;
        place[0] = place[1] = -1;
        if (pair >= 0) key = found_by(room, 0, pair) + 1, value = found_by(room, K, pair) + half;
        if (i < 0) {
            at[0] = key, at[1] = value;
            continue;
        }
        at[0] = pair >= 0 ? key : a.random_filler ? room.filler[2 * i] : 0;
        at[1] = a.random_filler ? room.filler[2 * i + 1] : 0;
        if (pair < 0) continue;
        int before = __popc(room.asking[i / 32] & ((1u << i % 32) - 1));
        for (int w = 0; w < i / 32; w++) before += __popc(room.asking[w]);
        a.rows[b * K + before] = b * a.length + 2 * n;
        a.targets[b * K + before] = value;
        place[0] = b * K + before;
    }
}

/* Sample b of the coming step. */
static __device__ inline void look_ahead(const mqar_args &a, int64_t b)
{
    int64_t place = (int64_t)*a.first_place + a.step + b;
    mqar_ahead found = {place + 1, order_sample(a.order_seed, a.samples, place)};
    a.ahead[b] = found;
}

/* Thread: one sample. */
static __global__ void look_ahead_kernel(mqar_args a)
{
    int64_t b = (int64_t)blockIdx.x * 32 + threadIdx.x;
    if (b < a.batch) look_ahead(a, b);
}

static __global__ void __launch_bounds__(THREADS) mqar_kernel(mqar_args a)
{
    CUDA_DYNAMIC_SHARED(int64_t, memory);
    __shared__ unsigned asking[MQAR_PLACES_MOST / 32];
    __shared__ int rejected;
    int64_t b = blockIdx.x, place = (int64_t)*a.first_place + b;
    mqar_ahead found = a.ahead[b];
    if (threadIdx.x < MQAR_PLACES_MOST / 32) asking[threadIdx.x] = 0;
    if (threadIdx.x == 0) rejected = 0;
    __syncthreads(); /* all have read what the last warp will write */
    if (threadIdx.x == WORKERS) look_ahead(a, b);
    if (threadIdx.x >= WORKERS) return;
    sample_room room;
    room.score = memory;
    room.target = (int32_t *)(memory + a.places);
    room.repeated = (int16_t *)(room.target + 2 * a.pairs);
    room.moved = room.repeated + 2 * a.pairs;
    room.pair_at = (int32_t *)(room.moved + 2 * a.pairs);
    room.filler = room.pair_at + a.places;
    room.asking = asking;
    uint64_t index =
        (uint64_t)(found.end == place + 1 ? found.sample : order_sample(a.order_seed, a.samples, place));
    if (!draw_in_parallel(a, index, room)) rejected = 1;
    wait_for_workers();
    if (rejected) {
        if (threadIdx.x == 0) draw_in_order(a, index, room);
        wait_for_workers();
    }
    rank_places(a, room);
    link_draws(a, room);
    wait_for_workers();
    write_sample(a, b, room);
}

void mqar_cuda(const kernel_run *run, const mqar_args *a)
{
    int64_t filler = a->random_filler ? a->length - 2 * a->pairs : 0;
    size_t bytes = (size_t)a->places * (sizeof(int64_t) + sizeof(int32_t)) +
                   (size_t)(4 * a->pairs + filler) * sizeof(int32_t);
    cuda_launch(mqar_kernel, (unsigned)a->batch, run->side ? WORKERS : THREADS, bytes,
                (cudaStream_t)run->stream, *a);
    if (run->side)
        cuda_launch(look_ahead_kernel, (unsigned)kernel_blocks(a->batch, 32), 32, 0,
                    (cudaStream_t)side_run(run)->stream, *a);
}
