/* One block makes one sample. The random words of a sample are numbered: K for the keys, K for the values,
 * two per place, one per filler token. A uniform draw rejects a word about once in a million; then word and
 * draw no longer go together, and one thread makes the draws of that sample one after another. */
#include "kernels/mqar/mqar.h"
#include "base/order.h"
#include "kernels/cuda.h"

enum { THREADS = 256 };

/* Shared memory of a block. */
typedef struct sample_room {
    double *score;    /* [places] */
    int32_t *drawn;   /* [2 K] what each draw of the keys, then of the values chose, as an offset */
    int32_t *pair_at; /* [places] the pair a place asks for, or -1 */
    int32_t *filler;  /* [L - 2K] where filler is random */
} sample_room;

static __device__ inline uint32_t word_at(const mqar_args &a, uint64_t index, int64_t n)
{
    uint32_t word[4];
    rng_block(a.data_seed, a.purpose, index, (uint64_t)(n / 4), word);
    return word[n % 4];
}

/* Draw number i of K: uniform in [0, range - i), whether the word was accepted. */
static __device__ inline bool draw_of(uint32_t word, uint64_t range, int32_t *value)
{
    uint32_t reject_below = (uint32_t)(0u - (uint32_t)range) % (uint32_t)range;
    uint64_t product = (uint64_t)word * range;
    *value = (int32_t)(product >> 32);
    return (uint32_t)product >= reject_below;
}

/* All draws, each by the thread that has its word. Whether none was rejected. */
static __device__ inline bool draw_in_parallel(const mqar_args &a, uint64_t index, const sample_room &room)
{
    int64_t K = a.pairs, half = a.vocab / 2;
    bool good = true;
    for (int64_t i = threadIdx.x; i < 2 * K; i += THREADS) {
        uint64_t range = i < K ? (uint64_t)(half - 1 - i) : (uint64_t)(a.vocab - half - (i - K));
        good = draw_of(word_at(a, index, i), range, &room.drawn[i]) && good;
    }
    for (int64_t i = threadIdx.x; i < a.places; i += THREADS) {
        uint64_t low = word_at(a, index, 2 * K + 2 * i), high = word_at(a, index, 2 * K + 2 * i + 1);
        double noise = -rng_log(-rng_log(rng_open(low | high << 32)));
        room.score[i] = a.log_weight[i] + noise;
    }
    int64_t filler = a.random_filler ? a.length - 2 * K : 0;
    for (int64_t i = threadIdx.x; i < filler; i += THREADS) {
        uint32_t word = word_at(a, index, 2 * K + 2 * a.places + i);
        good = draw_of(word, (uint64_t)a.vocab, &room.filler[i]) && good;
    }
    return good;
}

/* The same, one after another. */
static __device__ void draw_in_order(const mqar_args &a, uint64_t index, const sample_room &room)
{
    int64_t K = a.pairs, half = a.vocab / 2;
    rng r = rng_stream(a.data_seed, a.purpose, index);
    for (int64_t i = 0; i < K; i++) room.drawn[i] = (int32_t)rng_below(&r, (uint64_t)(half - 1 - i));
    for (int64_t i = 0; i < K; i++)
        room.drawn[K + i] = (int32_t)rng_below(&r, (uint64_t)(a.vocab - half - i));
    for (int64_t i = 0; i < a.places; i++) room.score[i] = a.log_weight[i] + rng_gumbel(&r);
    int64_t filler = a.random_filler ? a.length - 2 * K : 0;
    for (int64_t i = 0; i < filler; i++) room.filler[i] = (int32_t)rng_below(&r, (uint64_t)a.vocab);
}

/* Draw i of a shuffle without replacement took place i + drawn[i] and moved what lay at place i there. What
 * it found is what the latest earlier draw of that place had moved, or the place itself. */
static __device__ inline int32_t value_of(const int32_t *drawn, int i)
{
    int place = i + drawn[i];
    for (int t = i - 1; t >= 0; t--)
        if (t + drawn[t] == place) place = t;
    return place;
}

/* The places with the K highest scores ask, the highest for pair 0; ties in the order of places. */
static __device__ inline void rank_places(const mqar_args &a, const sample_room &room)
{
    for (int i = threadIdx.x; i < a.places; i += THREADS) {
        double own = room.score[i];
        int rank = 0;
        for (int j = 0; j < a.places; j++) rank += room.score[j] > own || (room.score[j] == own && j < i);
        room.pair_at[i] = rank < a.pairs ? rank : -1;
    }
}

static __device__ inline void write_sample(const mqar_args &a, int64_t b, const sample_room &room)
{
    int64_t K = a.pairs, half = a.vocab / 2;
    int32_t *ids = a.ids + b * a.length;
    for (int i = threadIdx.x; i < K; i += THREADS) {
        ids[2 * i] = value_of(room.drawn, i) + 1;
        ids[2 * i + 1] = value_of(room.drawn + K, i) + (int32_t)half;
    }
    for (int64_t i = threadIdx.x; i < a.length - 2 * K; i += THREADS)
        if (i % 2 || i / 2 >= a.places || room.pair_at[i / 2] < 0)
            ids[2 * K + i] = a.random_filler ? room.filler[i] : 0;
    for (int i = threadIdx.x; i < a.places; i += THREADS) {
        int pair = room.pair_at[i], before = 0;
        if (pair < 0) continue;
        for (int j = 0; j < i; j++) before += room.pair_at[j] >= 0;
        ids[2 * K + 2 * i] = value_of(room.drawn, pair) + 1;
        a.rows[b * K + before] = b * a.length + 2 * K + 2 * i;
        a.targets[b * K + before] = value_of(room.drawn + K, pair) + (int32_t)half;
    }
}

static __global__ void mqar_kernel(mqar_args a)
{
    CUDA_DYNAMIC_SHARED(double, memory);
    __shared__ int rejected;
    int64_t b = blockIdx.x;
    sample_room room;
    room.score = memory;
    room.drawn = (int32_t *)(memory + a.places);
    room.pair_at = room.drawn + 2 * a.pairs;
    room.filler = room.pair_at + a.places;
    uint64_t index = (uint64_t)order_sample(a.order_seed, a.samples, (int64_t)*a.first_place + b);
    if (threadIdx.x == 0) rejected = 0;
    __syncthreads();
    if (!draw_in_parallel(a, index, room)) rejected = 1;
    __syncthreads();
    if (rejected && threadIdx.x == 0) draw_in_order(a, index, room);
    __syncthreads();
    rank_places(a, room);
    __syncthreads();
    write_sample(a, b, room);
}

void mqar_cuda(const kernel_run *run, const mqar_args *a)
{
    int64_t filler = a->random_filler ? a->length - 2 * a->pairs : 0;
    size_t bytes = (size_t)a->places * (sizeof(double) + sizeof(int32_t)) +
                   (size_t)(2 * a->pairs + filler) * sizeof(int32_t);
    cuda_launch(mqar_kernel, (unsigned)a->batch, THREADS, bytes, (cudaStream_t)run->stream, *a);
}
