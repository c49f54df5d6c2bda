/* Reference diagonal state space: token by token, one channel after another. Backward walks chunks from the
 * end, computes the chunk's states again from the one saved at its start and keeps only those. */
#include "kernels/ssm/coefficients.h"
#include "kernels/ssm/ssm.h"
#include "kernels/variant.h"

enum { CHUNK = 32 };

KERNEL_SIZES(ssm_sizes, ssm_args)
{
    size_t state = (size_t)(a->batch * a->channels * a->modes * 2) * sizeof(real);
    sizes->state = kernel_round64(state);
    sizes->saved = kernel_round64(state * (size_t)kernel_blocks(a->length, CHUNK));
    sizes->scratch = kernel_round64((CHUNK + 1) * 2 * sizeof(real));
}

/* The index of h (re; im is `channels` further) in a state. */
static int64_t state_index(const ssm_args *a, int64_t b, int64_t n, int64_t c)
{
    return (b * a->modes + n) * 2 * a->channels + c;
}

static void mode_forward(const ssm_args *a, int64_t b, int64_t c, int64_t n)
{
    int64_t C = a->channels, at = state_index(a, b, n, c), state = a->batch * C * a->modes * 2;
    const real *in = a->state_in;
    ssm_mode m = ssm_mode_of(((const real *)a->log_step)[c], n);
    real a_re = (real)m.a_re, a_im = (real)m.a_im, b_re = (real)m.b_re, b_im = (real)m.b_im;
    real c_re = ((const real *)a->c_re)[c * a->modes + n], c_im = ((const real *)a->c_im)[c * a->modes + n];
    real re = in ? in[at] : 0, im = in ? in[at + C] : 0;
    for (int64_t t = 0; t < a->length; t++) {
        if (a->saved && t % CHUNK == 0) {
            ((real *)a->saved)[t / CHUNK * state + at] = re;
            ((real *)a->saved)[t / CHUNK * state + at + C] = im;
        }
        real u = ((const real *)a->u)[(b * a->length + t) * C + c], before = re;
        re = a_re * before - a_im * im + b_re * u;
        im = a_re * im + a_im * before + b_im * u;
        ((real *)a->y)[(b * a->length + t) * C + c] += 2 * (c_re * re - c_im * im);
    }
    if (a->state_out) {
        ((real *)a->state_out)[at] = re;
        ((real *)a->state_out)[at + C] = im;
    }
}

KERNEL(ssm_forward, ssm_args)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t c = 0; c < a->channels; c++) {
            for (int64_t t = 0; t < a->length; t++) {
                int64_t e = (b * a->length + t) * a->channels + c;
                ((real *)a->y)[e] = ((const real *)a->d)[c] * ((const real *)a->u)[e];
            }
            for (int64_t n = 0; n < a->modes; n++) mode_forward(a, b, c, n);
        }
}

/* Gradients of complex numbers are kept as d re + i d im. */
static void mode_backward(const ssm_args *a, int64_t b, int64_t c, int64_t n, real *h)
{
    int64_t C = a->channels, at = state_index(a, b, n, c), state = a->batch * C * a->modes * 2;
    ssm_mode m = ssm_mode_of(((const real *)a->log_step)[c], n);
    real a_re = (real)m.a_re, a_im = (real)m.a_im, b_re = (real)m.b_re, b_im = (real)m.b_im;
    int64_t e = c * a->modes + n;
    real c_re = ((const real *)a->c_re)[e], c_im = ((const real *)a->c_im)[e];
    real D_re = 0, D_im = 0, da_re = 0, da_im = 0, db_re = 0, db_im = 0, dc_re = 0, dc_im = 0;
    for (int64_t chunk = kernel_blocks(a->length, CHUNK) - 1; chunk >= 0; chunk--) {
        int64_t start = chunk * CHUNK, count = kernel_min(CHUNK, a->length - start);
        h[0] = ((const real *)a->saved)[chunk * state + at];
        h[1] = ((const real *)a->saved)[chunk * state + at + C];
        for (int64_t i = 0; i < count; i++) {
            real u = ((const real *)a->u)[(b * a->length + start + i) * C + c];
            h[2 * i + 2] = a_re * h[2 * i] - a_im * h[2 * i + 1] + b_re * u;
            h[2 * i + 3] = a_re * h[2 * i + 1] + a_im * h[2 * i] + b_im * u;
        }
        for (int64_t i = count - 1; i >= 0; i--) {
            int64_t token = (b * a->length + start + i) * C + c;
            real u = ((const real *)a->u)[token], d_y = 2 * ((const real *)a->d_y)[token];
            D_re += d_y * c_re;
            D_im -= d_y * c_im;
            dc_re += d_y * h[2 * i + 2];
            dc_im -= d_y * h[2 * i + 3];
            ((real *)a->d_u)[token] += b_re * D_re + b_im * D_im;
            db_re += D_re * u;
            db_im += D_im * u;
            da_re += D_re * h[2 * i] + D_im * h[2 * i + 1];
            da_im += D_im * h[2 * i] - D_re * h[2 * i + 1];
            real D = D_re;
            D_re = a_re * D + a_im * D_im;
            D_im = a_re * D_im - a_im * D;
        }
    }
    ((real *)a->d_c_re)[e] += dc_re;
    ((real *)a->d_c_im)[e] += dc_im;
    ((real *)a->d_log_step)[c] +=
        (real)(da_re * m.da_re + da_im * m.da_im + db_re * m.db_re + db_im * m.db_im);
}

KERNEL(ssm_backward, ssm_args)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t c = 0; c < a->channels; c++) {
            for (int64_t t = 0; t < a->length; t++) {
                int64_t e = (b * a->length + t) * a->channels + c;
                real d_y = ((const real *)a->d_y)[e];
                ((real *)a->d_u)[e] = ((const real *)a->d)[c] * d_y;
                ((real *)a->d_d)[c] += ((const real *)a->u)[e] * d_y;
            }
            for (int64_t n = 0; n < a->modes; n++) mode_backward(a, b, c, n, run->scratch);
        }
}
