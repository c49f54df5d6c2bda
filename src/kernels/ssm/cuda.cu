/* Diagonal state space on CUDA: memory and launches. */
#include "kernels/cuda_side.h"
#include "kernels/ssm/cuda_response.cuh"
#include "kernels/ssm/ssm.h"

struct ssm_room { /* bytes */
    size_t table, sums, skip, steps, outputs;
    size_t response, parts; /* of the convolution */
};

enum { SSM_AT_ONCE = SSM_WARPS * SSM_MOST }; /* modes of one launch */

/* Sequences of a block of the convolution, and of d_k: enough blocks for the chip. */
enum { CONVOLVE_EACH = 2, CORRELATE_EACH = 8 };

/* Whether the convolution serves this shape, where the sequence starts from rest and hands on no state. */
template <typename T> static bool ssm_fits(const ssm_args *a)
{
    return sizeof(T) == 2 && a->length <= CONVOLVE_TOKENS && a->channels % CONVOLVE_CHANNELS == 0;
}

static ssm_room ssm_bytes(const ssm_args *a)
{
    size_t per_mode = (size_t)(a->channels * a->modes) * sizeof(float);
    ssm_room r;
    r.table = kernel_round64(SSM_COEFFICIENTS * per_mode);
    r.sums = kernel_round64((size_t)a->batch * SSM_SUMS * 2 * per_mode);
    r.skip = kernel_round64((size_t)(a->batch * a->channels) * sizeof(float));
    r.steps = kernel_round64((size_t)(a->channels * a->modes) * sizeof(double));
    r.outputs = a->modes > SSM_AT_ONCE
                    ? kernel_round64((size_t)(a->batch * a->length * a->channels) * sizeof(float))
                    : 0;
    r.response = kernel_round64((size_t)a->channels * CONVOLVE_TABLE * sizeof(uint32_t));
    r.parts = kernel_round64((size_t)(kernel_blocks(a->batch, CORRELATE_EACH) * 2 * a->channels) *
                             CONVOLVE_TOKENS * sizeof(float));
    return r;
}

template <typename T> static void ssm_sizes(const ssm_args *a, kernel_sizes *sizes)
{
    ssm_room r = ssm_bytes(a);
    *sizes = kernel_sizes();
    sizes->state = kernel_round64((size_t)(a->batch * a->channels * a->modes * 2) * sizeof(float));
    sizes->scratch = r.table + r.sums + r.skip + r.steps + r.outputs;
    if (!ssm_fits<T>(a)) return;
    size_t convolution = r.response + r.parts;
    sizes->saved = r.response;
    if (sizes->scratch < convolution) sizes->scratch = convolution;
}

/* ---- as a convolution ---- */
static convolve_view convolve_pass(const ssm_args *a, const void *in, void *out, const uint32_t *table)
{
    convolve_view p = {};
    p.in = (const bf16 *)in, p.out = (bf16 *)out, p.table = table, p.skip = (const float *)a->d;
    p.batch = a->batch, p.length = a->length, p.channels = a->channels;
    return p;
}

static unsigned convolve_groups(const ssm_args *a)
{
    return (unsigned)(a->channels / CONVOLVE_CHANNELS);
}

static void run_response(const kernel_run *run, const ssm_args *a, uint32_t *table)
{
    cuda_launch_early(run->early, ssm_response, dim3((unsigned)a->channels), dim3(RESPONSE_THREADS), 0,
                      (cudaStream_t)run->stream, (const float *)a->log_step, (const float *)a->c_re,
                      (const float *)a->c_im, table, a->modes);
}

template <bool REVERSE> static void run_convolution(const kernel_run *run, convolve_view p, const ssm_args *a)
{
    p.each = CONVOLVE_EACH;
    cuda_launch_early(run->early, ssm_convolve<REVERSE>,
                      dim3(convolve_groups(a), (unsigned)kernel_blocks(a->batch, p.each)),
                      dim3(CONVOLVE_THREADS), CONVOLVE_CHANNELS * CONVOLVE_AREA, (cudaStream_t)run->stream,
                      p);
}

/* The gradients of the parameters; nothing else of the step reads them. */
static void run_correlation(const kernel_run *run, const ssm_args *a)
{
    convolve_view p = convolve_pass(a, a->u, nullptr, nullptr);
    float *beside = (float *)side_memory(run, ssm_bytes(a).parts);
    unsigned groups = (unsigned)kernel_blocks(a->batch, CORRELATE_EACH);
    p.by = (const bf16 *)a->d_y, p.each = CORRELATE_EACH;
    p.parts = beside ? beside : (float *)((char *)run->scratch + ssm_bytes(a).response);
    int early = beside ? 0 : run->early;
    if (beside) run = side_run(run);
    cuda_launch_early(early, ssm_correlate, dim3(convolve_groups(a), groups, 2), dim3(CONVOLVE_THREADS),
                      2 * CONVOLVE_CHANNELS * CONVOLVE_AREA, (cudaStream_t)run->stream, p);
    cuda_launch_early(early, ssm_response_gradients, dim3((unsigned)a->channels), dim3(RESPONSE_THREADS), 0,
                      (cudaStream_t)run->stream, (const float *)p.parts, (int64_t)groups * 2,
                      (const float *)a->log_step, (const float *)a->c_re, (const float *)a->c_im,
                      (float *)a->d_log_step, (float *)a->d_c_re, (float *)a->d_c_im, (float *)a->d_d,
                      a->channels, a->modes);
}

/* ---- as a scan ---- */

template <typename T> static ssm_view<T> ssm_begin(const kernel_run *run, const ssm_args *a)
{
    ssm_room r = ssm_bytes(a);
    char *memory = (char *)run->scratch;
    ssm_view<T> p = {};
    float *table = (float *)memory;
    p.u = (const T *)a->u, p.d_y = (const T *)a->d_y;
    p.table = table;
    p.sums = (float *)(memory + r.table), p.d_skip = (float *)(memory + r.table + r.sums);
    p.skip = (const float *)a->d;
    p.length = a->length, p.channels = a->channels, p.all_modes = a->modes;
    int64_t count = a->channels * a->modes;
    cuda_launch(ssm_table, dim3((unsigned)kernel_blocks(count, 128)), dim3(128), 0, (cudaStream_t)run->stream,
                (const float *)a->log_step, (const float *)a->c_re, (const float *)a->c_im, table,
                a->channels, a->modes);
    return p;
}

static dim3 ssm_grid(const ssm_args *a)
{
    return dim3((unsigned)kernel_blocks(a->channels, SSM_CHANNELS), (unsigned)a->batch);
}

template <typename T, bool REVERSE> static auto ssm_scan_for(int modes) -> void (*)(ssm_view<T>, T *)
{
    int each = (int)kernel_blocks(modes, SSM_WARPS);
    return each <= 1   ? ssm_scan<T, 1, REVERSE>
           : each <= 2 ? ssm_scan<T, 2, REVERSE>
           : each <= 4 ? ssm_scan<T, 4, REVERSE>
           : each <= 8 ? ssm_scan<T, 8, REVERSE>
                       : ssm_scan<T, SSM_MOST, REVERSE>;
}

/* All modes, as many at once as registers hold; sums of earlier ones wait in scratch as floats. */
template <typename T, bool REVERSE>
static void run_scans(const kernel_run *run, const ssm_args *a, ssm_view<T> p, T *to)
{
    ssm_room r = ssm_bytes(a);
    float *outputs = (float *)((char *)p.d_skip + r.skip + r.steps);
    for (int64_t first = 0; first < a->modes; first += SSM_AT_ONCE) {
        p.first_mode = (int)first;
        p.modes = (int)kernel_min(SSM_AT_ONCE, a->modes - first);
        p.sum_before = first ? outputs : nullptr;
        p.sum_after = first + SSM_AT_ONCE < a->modes ? outputs : nullptr;
        cuda_launch(ssm_scan_for<T, REVERSE>(p.modes), ssm_grid(a), dim3(SSM_THREADS), 0,
                    (cudaStream_t)run->stream, p, to);
    }
}

template <typename T> static void ssm_forward(const kernel_run *run, const ssm_args *a)
{
    if (a->batch * a->channels == 0) return;
    bool rest = ssm_fits<T>(a) && !a->state_in;
    uint32_t *table = (uint32_t *)(a->saved ? a->saved : run->scratch);
    if (rest && (a->saved || !a->state_out)) run_response(run, a, table); /* backward reads it too */
    if (rest && !a->state_out) return run_convolution<false>(run, convolve_pass(a, a->u, a->y, table), a);
    ssm_view<T> p = ssm_begin<T>(run, a);
    p.state_in = (const float *)a->state_in, p.state_out = (float *)a->state_out;
    run_scans<T, false>(run, a, p, (T *)a->y);
}

template <typename T, bool STATE> static auto ssm_sensitivities_for(int modes) -> void (*)(ssm_view<T>)
{
    int each = (int)kernel_blocks(modes, SSM_WARPS);
    return each <= 1   ? ssm_sensitivities<T, 1, STATE>
           : each <= 2 ? ssm_sensitivities<T, 2, STATE>
                       : ssm_sensitivities<T, 4, STATE>;
}

template <typename T> static void ssm_backward(const kernel_run *run, const ssm_args *a)
{
    if (a->batch * a->channels * a->length == 0) return;
    if (ssm_fits<T>(a) && !a->state_in) {
        run_convolution<true>(run, convolve_pass(a, a->d_y, a->d_u, (const uint32_t *)a->saved), a);
        return run_correlation(run, a);
    }
    ssm_view<T> p = ssm_begin<T>(run, a);
    run_scans<T, true>(run, a, p, (T *)a->d_u);
    p.state_in = (const float *)a->state_in;
    const int64_t at_once = SSM_WARPS * 4;
    for (int64_t first = 0; first < a->modes; first += at_once) {
        p.first_mode = (int)first;
        p.modes = (int)kernel_min(at_once, a->modes - first);
        auto kernel =
            a->state_in ? ssm_sensitivities_for<T, true>(p.modes) : ssm_sensitivities_for<T, false>(p.modes);
        cuda_launch(kernel, ssm_grid(a), dim3(SSM_THREADS), 0, (cudaStream_t)run->stream, p);
    }
    double *steps = (double *)((char *)p.d_skip + ssm_bytes(a).skip);
    cuda_launch(ssm_mode_gradients, dim3(ssm_grid(a).x, (unsigned)a->modes), dim3(SSM_THREADS), 0,
                (cudaStream_t)run->stream, (const float *)p.sums, (const float *)a->log_step,
                (const float *)a->c_re, (const float *)a->c_im, (float *)a->d_c_re, (float *)a->d_c_im, steps,
                a->batch, a->channels, a->modes, (int)(a->state_in != nullptr));
    cuda_launch(ssm_channel_gradients, dim3((unsigned)kernel_blocks(a->channels, 64)), dim3(64), 0,
                (cudaStream_t)run->stream, (const double *)steps, (const float *)p.d_skip,
                (float *)a->d_log_step, (float *)a->d_d, a->batch, a->channels, a->modes);
}

#define SSM_ENTRIES(type, T)                                                                                 \
    extern "C" void ssm_sizes_cuda_##type(const kernel_run *, const ssm_args *a, kernel_sizes *sizes)        \
    {                                                                                                        \
        ssm_sizes<T>(a, sizes);                                                                              \
    }                                                                                                        \
    extern "C" void ssm_forward_cuda_##type(const kernel_run *run, const ssm_args *a)                        \
    {                                                                                                        \
        ssm_forward<T>(run, a);                                                                              \
    }                                                                                                        \
    extern "C" void ssm_backward_cuda_##type(const kernel_run *run, const ssm_args *a)                       \
    {                                                                                                        \
        ssm_backward<T>(run, a);                                                                             \
    }
SSM_ENTRIES(f32, float)
SSM_ENTRIES(bf16, bf16)
