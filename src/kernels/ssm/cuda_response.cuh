/* The convolution's kernel k_l = Re sum_n R_n a_n^l, R = 2 C b, and from the gradient of k those of the
 * parameters: d_k gives sums over l of d_k a^l and l d_k a^{l-1}, as the sensitivities of the scan give them.
 * Powers start from phases reduced in double and go on by products. */
#ifndef BLURRY_KERNELS_SSM_CUDA_RESPONSE_CUH
#define BLURRY_KERNELS_SSM_CUDA_RESPONSE_CUH
#include "kernels/ssm/cuda_convolve.cuh"
#include "kernels/ssm/cuda_scan.cuh"

enum {
    RESPONSE_RUN = 16,   /* consecutive l of a thread */
    RESPONSE_SHARES = 8, /* threads that share the modes, or the l, of one sum */
    RESPONSE_THREADS = 256,
    RESPONSE_MODES = RESPONSE_THREADS / RESPONSE_SHARES
};

struct complex_number {
    float re, im;
};

/* a_n^l with A = -1/2 + i pi n. */
static __device__ inline complex_number response_power(double step, int64_t n, int64_t l)
{
    double turns = (double)n * step * (double)l / 2;
    float angle = 6.28318530717958648f * (float)(turns - rint(turns)),
          fade = expf((float)(-0.5 * step * (double)l));
    complex_number z = {fade * cosf(angle), fade * sinf(angle)};
    return z;
}

/* 2 C b, b = (a - 1) / A without cancellation. */
static __device__ inline complex_number response_weight(double step, int64_t n, float c_re, float c_im)
{
    double turns = (double)n * step / 2, half_turns = turns / 2;
    float angle = 6.28318530717958648f * (float)(turns - rint(turns)),
          half = sinf(6.28318530717958648f * (float)(half_turns - rint(half_turns)));
    float fade = expm1f((float)(-0.5 * step)), re = fade * cosf(angle) - 2 * half * half,
          im = (1 + fade) * sinf(angle);
    float A_re = -0.5f, A_im = 3.14159265358979324f * (float)n, size = A_re * A_re + A_im * A_im;
    float b_re = (re * A_re + im * A_im) / size, b_im = (im * A_re - re * A_im) / size;
    complex_number r = {2 * (c_re * b_re - c_im * b_im), 2 * (c_re * b_im + c_im * b_re)};
    return r;
}

/* The table of ssm_convolve: a thread sums every eighth mode for 16 l, eight threads together all modes.
 * Grid: channels; 256 threads are 32 runs of 16 l. */
static __global__ void __launch_bounds__(RESPONSE_THREADS)
    ssm_response(const float *log_step, const float *c_re, const float *c_im, uint32_t *table, int64_t modes)
{
    __shared__ float k[CONVOLVE_TOKENS + 16]; /* k_l from l = -9 on */
    int share = (int)threadIdx.x % RESPONSE_SHARES, run = (int)threadIdx.x / RESPONSE_SHARES;
    int64_t c = blockIdx.x;
    cuda_wait_previous();
    double step = exp((double)log_step[c]);
    float sum[RESPONSE_RUN] = {};
    for (int64_t n = share; n < modes; n += RESPONSE_SHARES) {
        complex_number a = response_power(step, n, 1), z = response_power(step, n, run * RESPONSE_RUN),
                       w = response_weight(step, n, c_re[c * modes + n], c_im[c * modes + n]);
        complex_number x = {w.re * z.re - w.im * z.im, w.re * z.im + w.im * z.re};
#pragma unroll
        for (int i = 0; i < RESPONSE_RUN; i++) {
            sum[i] += x.re;
            ssm_turn(a.re, a.im, x.re, x.im, 0, 0);
        }
    }
#pragma unroll
    for (int i = 0; i < RESPONSE_RUN; i++) {
        float total = sum[i];
        for (int away = 1; away < RESPONSE_SHARES; away *= 2)
            total += __shfl_xor_sync(CUDA_FULL_WARP, total, away);
        if (i % RESPONSE_SHARES == share) k[9 + run * RESPONSE_RUN + i] = total;
    }
    if (threadIdx.x < 9) k[threadIdx.x] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < CONVOLVE_TABLE; i += RESPONSE_THREADS)
        table[c * CONVOLVE_TABLE + i] = pack_bf16(k[i + 1], k[i]);
}

/* All parameters' gradients of one channel: first the parts of d_k are added up, then eight threads share the
 * l of each mode. Grid: channels. */
static __global__ void __launch_bounds__(RESPONSE_THREADS)
    ssm_response_gradients(const float *parts, int64_t count, const float *log_step, const float *c_re,
                           const float *c_im, float *d_log_step, float *d_c_re, float *d_c_im, float *d_d,
                           int64_t channels, int64_t modes)
{
    __shared__ float d_k[CONVOLVE_TOKENS];
    __shared__ double room[32];
    int share = (int)threadIdx.x % RESPONSE_SHARES;
    int64_t c = blockIdx.x;
    cuda_wait_previous();
    for (int l = (int)threadIdx.x; l < CONVOLVE_TOKENS; l += RESPONSE_THREADS) {
        float sum = 0;
#pragma unroll 8
        for (int64_t i = 0; i < count; i++) sum += parts[(i * channels + c) * CONVOLVE_TOKENS + l];
        d_k[l] = sum;
    }
    __syncthreads();
    double step = exp((double)log_step[c]), d_step = 0;
    for (int64_t first = 0; first < modes; first += RESPONSE_MODES) {
        int64_t n = first + threadIdx.x / RESPONSE_SHARES, e = c * modes + n;
        complex_number z = response_power(step, n, share), a = response_power(step, n, RESPONSE_SHARES);
        float r_re = 0, r_im = 0, s_re = 0, s_im = 0;
#pragma unroll 8
        for (int l = share; l < CONVOLVE_TOKENS; l += RESPONSE_SHARES) {
            float d = d_k[l], by = d * (float)l;
            r_re += d * z.re, r_im += d * z.im, s_re += by * z.re, s_im += by * z.im;
            ssm_turn(a.re, a.im, z.re, z.im, 0, 0);
        }
        double r[2] = {r_re, r_im}, s[2] = {s_re, s_im};
        for (int away = 1; away < RESPONSE_SHARES; away *= 2)
            for (int i = 0; i < 2; i++) {
                r[i] += __shfl_xor_sync(CUDA_FULL_WARP, r[i], away);
                s[i] += __shfl_xor_sync(CUDA_FULL_WARP, s[i], away);
            }
        if (share || n >= modes) continue;
        /* s is a times the sum's derivative by a */
        ssm_zoh m = ssm_hold(log_step[c], n);
        double re = 2 * (double)c_re[e], im = 2 * (double)c_im[e], size = m.a_re * m.a_re + m.a_im * m.a_im;
        double q_re = (s[0] * m.a_re + s[1] * m.a_im) / size, q_im = (s[1] * m.a_re - s[0] * m.a_im) / size;
        double g_re = m.b_re * q_re - m.b_im * q_im, g_im = m.b_re * q_im + m.b_im * q_re;
        d_c_re[e] += (float)(2 * (m.b_re * r[0] - m.b_im * r[1]));
        d_c_im[e] -= (float)(2 * (m.b_re * r[1] + m.b_im * r[0]));
        d_step += (re * g_re - im * g_im) * m.da_re - (re * g_im + im * g_re) * m.da_im +
                  (re * r[0] - im * r[1]) * m.db_re - (re * r[1] + im * r[0]) * m.db_im;
    }
    d_step = block_sum(d_step, room);
    if (threadIdx.x) return;
    d_log_step[c] += (float)d_step;
    d_d[c] += d_k[0];
}

#endif
