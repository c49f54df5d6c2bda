/* Diagonal state space on CUDA. A block takes 32 neighbouring channels of one sequence, its warps share the
 * modes; each thread scans up to MOST modes of one channel in registers, 32 tokens at a time, and the warps'
 * shares of the outputs are added in shared memory. With x = h / b the recurrence is x_t = a x_{t-1} + u_t
 * and y_t = Re(sum R x_t), R = 2 C b.
 *
 * Backward keeps no states: d_u comes from the scan back in time, and the parameters' gradients from the
 * derivative s of x with respect to a, s_t = a s_{t-1} + x_{t-1}, carried forward along with x. */
#ifndef BLURRY_KERNELS_SSM_CUDA_SCAN_CUH
#define BLURRY_KERNELS_SSM_CUDA_SCAN_CUH
#include "kernels/cuda.h"
#include "kernels/kernel.h"

enum { SSM_CHANNELS = 32, SSM_WARPS = 8, SSM_THREADS = 256, SSM_TOKENS = 32, SSM_MOST = 16 };
enum {
    SSM_A_RE,
    SSM_A_IM,
    SSM_R_RE,
    SSM_R_IM,
    SSM_B_RE,
    SSM_B_IM,
    SSM_COEFFICIENTS
};                                             /* rows [modes, channels] */
enum { SSM_R, SSM_S, SSM_P, SSM_Q, SSM_SUMS }; /* complex sums over tokens */

struct ssm_zoh { /* a = e^{A step}, b = (a - 1) / A and their derivatives with respect to log_step, in double
                  */
    double a_re, a_im, b_re, b_im, da_re, da_im, db_re, db_im;
};

static __device__ inline ssm_zoh ssm_hold(double log_step, int64_t n)
{
    double step = exp(log_step), re = -0.5, im = 3.14159265358979323846 * (double)n, size = re * re + im * im;
    double fade = exp(re * step), c = cos(im * step), s = sin(im * step), half = sin(im * step / 2);
    double x = expm1(re * step) * c - 2 * half * half; /* Re(a - 1) without cancellation */
    ssm_zoh m;
    m.a_re = fade * c, m.a_im = fade * s;
    m.b_re = (x * re + m.a_im * im) / size, m.b_im = (m.a_im * re - x * im) / size;
    m.da_re = step * (re * m.a_re - im * m.a_im), m.da_im = step * (re * m.a_im + im * m.a_re);
    m.db_re = step * m.a_re, m.db_im = step * m.a_im;
    return m;
}

/* table [SSM_COEFFICIENTS, modes, channels]; one thread per mode and channel. */
static __global__ void ssm_table(const float *log_step, const float *c_re, const float *c_im, float *table,
                                 int64_t channels, int64_t modes)
{
    int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, count = channels * modes;
    if (e >= count) return;
    int64_t n = e / channels, c = e % channels;
    ssm_zoh m = ssm_hold(log_step[c], n);
    double re = c_re[c * modes + n], im = c_im[c * modes + n];
    table[SSM_A_RE * count + e] = (float)m.a_re, table[SSM_A_IM * count + e] = (float)m.a_im;
    table[SSM_B_RE * count + e] = (float)m.b_re, table[SSM_B_IM * count + e] = (float)m.b_im;
    table[SSM_R_RE * count + e] = (float)(2 * (re * m.b_re - im * m.b_im));
    table[SSM_R_IM * count + e] = (float)(2 * (re * m.b_im + im * m.b_re));
}

/* What the scans share. Modes first_mode .. first_mode + modes - 1 are scanned by this launch. */
template <typename T> struct ssm_view {
    const T *u, *d_y;
    const float *table, *state_in, *skip;
    float *state_out;
    const float *sum_before; /* [batch, length, channels] outputs of earlier launches' modes; NULL: none */
    float *sum_after;        /* where to leave them for later launches; NULL: this is the last */
    float *sums;             /* [batch, modes in all, SSM_SUMS, 2, channels] */
    float *d_skip;           /* [batch, channels] */
    int64_t length, channels, all_modes;
    int first_mode, modes;
};

template <typename T>
static __device__ inline float ssm_coefficient(const ssm_view<T> &p, int row, int n, int64_t c)
{
    bool there = n < p.modes && c < p.channels;
    return there ? p.table[(row * p.all_modes + p.first_mode + n) * p.channels + c] : 0;
}

/* x = h / b of the carried state. */
template <typename T>
static __device__ inline void ssm_enter(const ssm_view<T> &p, int64_t b, int n, int64_t c, float &re,
                                        float &im)
{
    re = im = 0;
    if (!p.state_in || n >= p.modes || c >= p.channels) return;
    const float *h = p.state_in + (b * p.all_modes + p.first_mode + n) * 2 * p.channels + c;
    float b_re = ssm_coefficient(p, SSM_B_RE, n, c), b_im = ssm_coefficient(p, SSM_B_IM, n, c);
    float size = b_re * b_re + b_im * b_im, h_re = h[0], h_im = h[p.channels];
    re = (h_re * b_re + h_im * b_im) / size, im = (h_im * b_re - h_re * b_im) / size;
}

/* 32 tokens of 32 channels to shared memory, zero beyond the sequence. */
template <typename T>
static __device__ inline void ssm_load(float tile[SSM_TOKENS][SSM_CHANNELS], const ssm_view<T> &p,
                                       const T *from, int64_t b, int64_t t0, int64_t c)
{
    for (int t = (int)threadIdx.x / 32; t < SSM_TOKENS; t += SSM_WARPS)
        tile[t][threadIdx.x % 32] = t0 + t < p.length && c < p.channels
                                        ? cuda_load(from + (b * p.length + t0 + t) * p.channels + c)
                                        : 0;
}

/* The warps' shares added up, with the skip connection, to memory. */
template <typename T>
static __device__ inline void ssm_store(float (*part)[SSM_TOKENS][SSM_CHANNELS],
                                        float in[SSM_TOKENS][SSM_CHANNELS], const ssm_view<T> &p, T *to,
                                        int64_t b, int64_t t0, int64_t c)
{
    int lane = (int)threadIdx.x % 32;
    for (int t = (int)threadIdx.x / 32; t < SSM_TOKENS; t += SSM_WARPS) {
        if (t0 + t >= p.length || c >= p.channels) continue;
        int64_t e = (b * p.length + t0 + t) * p.channels + c;
        float sum = p.sum_before ? p.sum_before[e] : p.skip[c] * in[t][lane];
        for (int w = 0; w < SSM_WARPS; w++) sum += part[w][t][lane];
        if (p.sum_after)
            p.sum_after[e] = sum;
        else
            cuda_store(to + e, sum);
    }
}

/* y, or with REVERSE d_u: the same scan with conjugate a, from the end, over d_y, R conjugate too.
 * Grid: blocks of channels, batch. */
template <typename T, int MOST, bool REVERSE>
__global__ void __launch_bounds__(SSM_THREADS) ssm_scan(ssm_view<T> p, T *to)
{
    __shared__ float in[SSM_TOKENS][SSM_CHANNELS], part[SSM_WARPS][SSM_TOKENS][SSM_CHANNELS];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t c = (int64_t)blockIdx.x * SSM_CHANNELS + lane, b = blockIdx.y;
    float a_re[MOST], a_im[MOST], r_re[MOST], r_im[MOST], x_re[MOST], x_im[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int n = warp * MOST + i;
        a_re[i] = ssm_coefficient(p, SSM_A_RE, n, c), a_im[i] = ssm_coefficient(p, SSM_A_IM, n, c);
        r_re[i] = ssm_coefficient(p, SSM_R_RE, n, c), r_im[i] = ssm_coefficient(p, SSM_R_IM, n, c);
        x_re[i] = x_im[i] = 0;
        if (!REVERSE) ssm_enter(p, b, n, c, x_re[i], x_im[i]);
    }
    int64_t tiles = (p.length + SSM_TOKENS - 1) / SSM_TOKENS;
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t t0 = (REVERSE ? tiles - 1 - tile : tile) * SSM_TOKENS;
        int count = (int)min(p.length - t0, (int64_t)SSM_TOKENS);
        __syncthreads();
        ssm_load(in, p, REVERSE ? p.d_y : p.u, b, t0, c);
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            int t = REVERSE ? count - 1 - i : i;
            float u = in[t][lane], y = 0;
#pragma unroll
            for (int n = 0; n < MOST; n++) {
                /* y = Re(R x); conjugating both R and a leaves it Re(R conj(x')) with x' scanned by a */
                float before = x_re[n];
                x_re[n] = a_re[n] * before - a_im[n] * x_im[n] + u;
                x_im[n] = a_re[n] * x_im[n] + a_im[n] * before;
                y += r_re[n] * x_re[n] - r_im[n] * x_im[n];
            }
            part[warp][t][lane] = y;
        }
        __syncthreads();
        ssm_store(part, in, p, to, b, t0, c);
    }
    if constexpr (!REVERSE) {
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            int n = warp * MOST + i;
            if (n >= p.modes || !p.state_out || c >= p.channels) continue;
            float b_re = ssm_coefficient(p, SSM_B_RE, n, c), b_im = ssm_coefficient(p, SSM_B_IM, n, c);
            float *h = p.state_out + (b * p.all_modes + p.first_mode + n) * 2 * p.channels + c;
            h[0] = x_re[i] * b_re - x_im[i] * b_im;
            h[p.channels] = x_re[i] * b_im + x_im[i] * b_re;
        }
    }
}

/* One complex recurrence z = a z + in. */
static __device__ inline void ssm_turn(float a_re, float a_im, float &re, float &im, float in_re, float in_im)
{
    float before = re;
    re = a_re * before - a_im * im + in_re;
    im = a_re * im + a_im * before + in_im;
}

/* Sums over tokens of d_y times: r (x from rest), s = dr/da, and with STATE p = a^t h_in and q = dp/da.
 * Grid: blocks of channels, batch. */
template <typename T, int MOST, bool STATE>
__global__ void __launch_bounds__(SSM_THREADS) ssm_sensitivities(ssm_view<T> p)
{
    __shared__ float in[SSM_TOKENS][SSM_CHANNELS], by[SSM_TOKENS][SSM_CHANNELS];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t c = (int64_t)blockIdx.x * SSM_CHANNELS + lane, b = blockIdx.y;
    const int S = STATE ? SSM_SUMS : 2;
    float a_re[MOST], a_im[MOST], z[MOST][S][2], sum[MOST][S][2], d_skip = 0;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int n = warp * MOST + i;
        a_re[i] = ssm_coefficient(p, SSM_A_RE, n, c), a_im[i] = ssm_coefficient(p, SSM_A_IM, n, c);
#pragma unroll
        for (int k = 0; k < S; k++) z[i][k][0] = z[i][k][1] = sum[i][k][0] = sum[i][k][1] = 0;
        if (STATE && n < p.modes && c < p.channels) {
            const float *h = p.state_in + (b * p.all_modes + p.first_mode + n) * 2 * p.channels + c;
            z[i][S - 2][0] = h[0], z[i][S - 2][1] = h[p.channels];
        }
    }
    for (int64_t t0 = 0; t0 < p.length; t0 += SSM_TOKENS) {
        int count = (int)min(p.length - t0, (int64_t)SSM_TOKENS);
        __syncthreads();
        ssm_load(in, p, p.u, b, t0, c);
        ssm_load(by, p, p.d_y, b, t0, c);
        __syncthreads();
#pragma unroll 2
        for (int t = 0; t < count; t++) {
            float u = in[t][lane], d = by[t][lane];
            d_skip += u * d;
#pragma unroll
            for (int i = 0; i < MOST; i++)
#pragma unroll
                for (int k = 0; k < S; k += 2) {
                    float *x = z[i][k], *s = z[i][k + 1];
                    ssm_turn(a_re[i], a_im[i], s[0], s[1], x[0], x[1]);
                    ssm_turn(a_re[i], a_im[i], x[0], x[1], k ? 0 : u, 0);
                    sum[i][k][0] += d * x[0], sum[i][k][1] += d * x[1];
                    sum[i][k + 1][0] += d * s[0], sum[i][k + 1][1] += d * s[1];
                }
        }
    }
    if (c >= p.channels) return;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int n = warp * MOST + i;
        if (n >= p.modes) continue;
        float *to = p.sums + ((b * p.all_modes + p.first_mode + n) * SSM_SUMS) * 2 * p.channels + c;
#pragma unroll
        for (int k = 0; k < S; k++)
            for (int half = 0; half < 2; half++) to[(2 * k + half) * p.channels] = sum[i][k][half];
    }
    if (warp == 0 && p.first_mode == 0) p.d_skip[b * p.channels + c] = d_skip;
}

/* Parameter gradients of one mode of 32 channels: sums over the batch in a fixed order, in double. h = b r +
 * p, dh/da = b s + q, dh/db = r. steps [modes, channels] takes each mode's share of d_log_step. Grid: blocks
 * of channels, modes. */
static __global__ void __launch_bounds__(SSM_THREADS)
    ssm_mode_gradients(const float *sums, const float *log_step, const float *c_re, const float *c_im,
                       float *d_c_re, float *d_c_im, double *steps, int64_t batch, int64_t channels,
                       int64_t modes, int state)
{
    __shared__ double room[SSM_WARPS][SSM_CHANNELS];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t c = (int64_t)blockIdx.x * SSM_CHANNELS + lane, n = blockIdx.y;
    double z[SSM_SUMS][2] = {};
#pragma unroll
    for (int i = 0; i < 2 * SSM_SUMS; i++) {
        if (i >= 4 && !state) continue;
        double mine = 0;
        for (int64_t b = warp; b < batch && c < channels; b += SSM_WARPS)
            mine += sums[((b * modes + n) * 2 * SSM_SUMS + i) * channels + c];
        __syncthreads();
        room[warp][lane] = mine;
        __syncthreads();
        if (warp == 0)
            for (int w = 0; w < SSM_WARPS; w++) z[i / 2][i % 2] += room[w][lane];
    }
    if (warp || c >= channels) return;
    ssm_zoh m = ssm_hold(log_step[c], n);
    int64_t e = c * modes + n;
    double re = 2 * (double)c_re[e], im = 2 * (double)c_im[e], *r = z[SSM_R], *s = z[SSM_S];
    double h_re = m.b_re * r[0] - m.b_im * r[1] + z[SSM_P][0],
           h_im = m.b_re * r[1] + m.b_im * r[0] + z[SSM_P][1];
    double g_re = m.b_re * s[0] - m.b_im * s[1] + z[SSM_Q][0],
           g_im = m.b_re * s[1] + m.b_im * s[0] + z[SSM_Q][1];
    d_c_re[e] += (float)(2 * h_re);
    d_c_im[e] -= (float)(2 * h_im);
    /* gradients as d re + i d im: the conjugate of 2 C times the sum */
    steps[n * channels + c] = (re * g_re - im * g_im) * m.da_re - (re * g_im + im * g_re) * m.da_im +
                              (re * r[0] - im * r[1]) * m.db_re - (re * r[1] + im * r[0]) * m.db_im;
}

/* d_log_step and d_d; one thread per channel. */
static __global__ void ssm_channel_gradients(const double *steps, const float *d_skip, float *d_log_step,
                                             float *d_d, int64_t batch, int64_t channels, int64_t modes)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    double step = 0, skip = 0;
#pragma unroll 8
    for (int64_t n = 0; n < modes; n++) step += steps[n * channels + c];
#pragma unroll 8
    for (int64_t b = 0; b < batch; b++) skip += d_skip[b * channels + c];
    d_log_step[c] += (float)step;
    d_d[c] += (float)skip;
}

#endif
