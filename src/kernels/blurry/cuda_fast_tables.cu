/* Which shapes the tensor-core kernels cover, and their tables. */
#include "kernels/blurry/cuda_fast.h"
#include "base/sizes.h"
#include "kernels/blurry/cuda_entry.cuh"

#include <math.h>
#include <stdlib.h>

enum { ENTRIES_BYTES_MOST = 256 << 20 };

/* ---- coverage ---- */

double fast_gates_range(int64_t S, double T, double least_gate)
{
    if (S >= 17 && T <= 16 * (double)S && least_gate >= 0x1p-30) /* the least found over such S and T */
        return least_gate >= 0x1p-16 ? -80 : -122;
    double least = 0;
    const double pi = 3.14159265358979323846;
    for (int phase = 0; phase < 16; phase++) {
        double window[CHUNK] = {0}, sum = 0;
        int reach = 3 * CHUNK;
        for (int i = -reach; i < reach; i++) {
            double x = fmod((double)i + phase / 16.0, T) * (double)S / T, sine = sin(pi * x / (double)S);
            double gate = 1 - (fabs(sine) < 1e-12 ? 1.0 : sin(pi * x) / ((double)S * sine));
            double bits = log2(fmax(gate, least_gate));
            int at = (i + reach) % CHUNK;
            sum += bits - window[at], window[at] = bits;
            if (sum < least) least = sum;
        }
    }
    return least;
}

const fast_kernels *fast_find_widths(const bla_shape *s)
{
    int64_t widest = s->Dk > s->Dv ? s->Dk : s->Dv;
    if (s->relative || !(s->scale > 0) || s->S > 128 || widest > 128 || s->Dk % 8 || s->Dv % 8) return NULL;
    int slots = s->S <= 32 ? 32 : s->S <= 64 ? 64 : 128;
    return widest <= 32   ? fast_kernels_32(slots, s->decay)
           : widest <= 64 ? fast_kernels_64(slots, s->decay)
                          : fast_kernels_128(slots, s->decay);
}

const fast_kernels *fast_find(const bla_shape *s)
{
    for (int64_t h = 0; s->decay && h < s->Hkv; h++) {
        bool same = h > 0 && s->period[h] == s->period[h - 1];
        if (!same && fast_gates_range(s->S, s->period[h], ENTRY_GATE_LEAST) < -1.8 * ENTRY_SCALE) return NULL;
    }
    return fast_find_widths(s);
}

/* ---- tables ---- */

/* Entries of one period: with decay one block per entry; without, entries overlap and one holds 64 rows. */
static __global__ void entries_kernel(int S, int SP, double T, int decay, const double *sines, char *entries,
                                      int64_t entry_stride)
{
    __shared__ entry_row room[CHUNK];
    int64_t row = decay ? blockIdx.x : (int64_t)blockIdx.x * CHUNK;
    entry_build(S, SP, T, row, decay, sines, room, entries + row * entry_stride, (int)blockDim.x);
}

/* Bytes of the tabulated entries of a period, 0 where they are made on the spot. */
static size_t entries_of(const fast_kernels *k, double T, int decay, int64_t *stride)
{
    *stride = decay ? entry_bytes(k->SP) : k->SP * 2;
    if (T != rint(T) || T > 1e6) return 0;
    size_t bytes = decay ? size_of((int64_t)T, (size_t)*stride)
                         : size_of(((int64_t)T + 2 * CHUNK - 1) / CHUNK * CHUNK, (size_t)*stride);
    return bytes > ENTRIES_BYTES_MOST ? 0 : bytes;
}

static cudaError_t upload_sines(int64_t S, double **sines)
{
    double *host = (double *)malloc(2 * (size_t)S * sizeof *host);
    if (!host) return cudaErrorMemoryAllocation;
    for (int64_t d = 0; d < S; d++) {
        host[d] = sin(BLA_PI * (double)d / (double)S);
        host[S + d] = cos(BLA_PI * (double)d / (double)S);
    }
    cudaError_t error = cuda_take((void **)sines, 2 * (size_t)S * sizeof *host);
    if (error == cudaSuccess)
        error = cudaMemcpy(*sines, host, 2 * (size_t)S * sizeof *host, cudaMemcpyHostToDevice);
    free(host);
    return error;
}

/* Index of the first head with the same period. */
static int64_t first_with(const bla_shape *s, int64_t h)
{
    int64_t i = 0;
    while (s->period[i] != s->period[h]) i++;
    return i;
}

/* Bytes of all tabulated entries; *loose counts the periods that are not among them. */
size_t fast_entries_total(const bla_shape *s, const fast_kernels *k, int *loose)
{
    size_t total = 0;
    *loose = 0;
    for (int64_t h = 0; h < s->Hkv; h++) {
        int64_t stride;
        if (first_with(s, h) != h) continue;
        size_t bytes = entries_of(k, s->period[h], s->decay, &stride);
        if (bytes > 0 && size_add(total, bytes) <= ENTRIES_BYTES_MOST)
            total += bytes;
        else
            ++*loose;
    }
    return total;
}

cudaError_t fast_prepare(const bla_shape *s, fast_tables *t, bla_period *periods)
{
    const fast_kernels *k = t->kernels;
    cudaFuncAttributes code;
    cudaError_t error = cudaFuncGetAttributes(&code, (const void *)entries_kernel);
    if (error == cudaSuccess) t->early = code.ptxVersion >= 90, error = upload_sines(s->S, &t->sines);
    int loose = 0;
    size_t total = fast_entries_total(s, k, &t->loose);
    int64_t stride;
    if (error == cudaSuccess && total > 0) error = cuda_take((void **)&t->entries, total);
    if (error != cudaSuccess) return error;
    size_t used = 0;
    for (int64_t h = 0; h < s->Hkv; h++) {
        int64_t same = first_with(s, h);
        size_t bytes = entries_of(k, s->period[h], s->decay, &stride);
        periods[h].entry_stride = stride;
        if (same != h) {
            periods[h].rows = periods[same].rows, periods[h].entries = periods[same].entries;
            periods[h].loose = periods[same].loose;
        } else if (bytes > 0 && used + bytes <= total) {
            periods[h].rows = (int64_t)s->period[h], periods[h].entries = t->entries + used;
            int64_t blocks = s->decay ? periods[h].rows : (int64_t)(bytes / (size_t)stride) / CHUNK;
            cuda_launch(entries_kernel, dim3((unsigned)blocks), dim3(128), 0, (cudaStream_t)0, (int)s->S,
                        k->SP, s->period[h], s->decay, (const double *)t->sines, t->entries + used, stride);
            used += bytes;
        } else {
            periods[h].loose = loose++;
        }
    }
    error = cudaGetLastError();
    return error == cudaSuccess ? cudaStreamSynchronize((cudaStream_t)0) : error;
}

void fast_release(fast_tables *t)
{
    cuda_give(t->sines);
    cuda_give(t->entries);
}
