/* Gates in vectors: abc's along time with channels side by side, the delta rule's over blocks of tokens. */
#include "kernels/gates/first.h"
#include "kernels/gates/gates.h"
#include "kernels/vector_functions.h"

#include "base/threads.h"

/* 1 - e^g for g <= 0, without cancellation near 0. */
V_INLINE vreal write_weight(vreal g)
{
    vreal series =
        -g * (1 + g * ((real)0.5 + g * ((real)(1. / 6) + g * ((real)(1. / 24) + g * (real)(1. / 120)))));
    return v_select((vint)(g > (REAL_IS_FLOAT ? (real)-0.04 : (real)-0.001)), series, 1 - v_exp(g));
}

typedef struct lanes {
    int64_t b, first, left; /* sequence, first channel, channels that remain */
} lanes;

static lanes lanes_of(const slots_gate_args *a, int64_t task)
{
    int64_t blocks = kernel_blocks(a->channels, VL), first = task % blocks * VL;
    return (lanes){task / blocks, first, kernel_min(VL, a->channels - first)};
}

static void slots_forward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const slots_gate_args *a = context;
    lanes k = lanes_of(a, task);
    const real *s_at = (const real *)a->s + k.b * a->length * a->channels + k.first;
    real *g_at = (real *)a->g + k.b * a->length * a->channels + k.first;
    int64_t state = k.b * a->channels + k.first;
    const real never = -(real)INFINITY;
    vreal z = a->state_in ? v_load_part((const real *)a->state_in + state, k.left, 0) : v_set1(never);
    for (int64_t t = 0; t < a->length; t++) {
        vreal s = v_load_up_to(s_at + t * a->channels, k.left);
        vint fresh = (vint)(z == never);
        vreal g = -v_softplus(s - v_select(fresh, s, z));
        v_store_up_to(g_at + t * a->channels, v_select(fresh, v_set1(SLOTS_FIRST_GATE), g), k.left);
        z = v_select(fresh, s, z - g);
    }
    if (a->state_out) v_store_up_to((real *)a->state_out + state, z, k.left);
}

KERNEL(slots_gate_forward, slots_gate_args)
{
    threads_run(run->threads, a->batch * kernel_blocks(a->channels, VL), slots_forward_task, (void *)a);
}

static void slots_backward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const slots_gate_args *a = context;
    lanes k = lanes_of(a, task);
    int64_t at = k.b * a->length * a->channels + k.first;
    const real *g_at = (const real *)a->g + at, *d_g_at = (const real *)a->d_g + at;
    real *d_s_at = (real *)a->d_s + at;
    const real never = -(real)INFINITY;
    vreal before = a->state_in
                       ? v_load_part((const real *)a->state_in + k.b * a->channels + k.first, k.left, 0)
                       : v_set1(never);
    vreal from_later = v_zero();
    for (int64_t t = a->length - 1; t >= 0; t--) {
        vreal g = v_load_up_to(g_at + t * a->channels, k.left),
              d_g = v_load_up_to(d_g_at + t * a->channels, k.left);
        if (t == 0) d_g = v_select((vint)(before == never), v_zero(), d_g);
        vreal D = from_later - d_g;
        v_store_up_to(d_s_at + t * a->channels, write_weight(g) * D, k.left);
        from_later = d_g + v_exp(g) * D;
    }
}

KERNEL(slots_gate_backward, slots_gate_args)
{
    threads_run(run->threads, a->batch * kernel_blocks(a->channels, VL), slots_backward_task, (void *)a);
}

/* ---- the delta rule's gate: few channels, many rows, so one channel at a time over the rows ---- */
enum { ROWS = 512 };

static void gdn_forward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const gdn_gate_args *a = context;
    int64_t end = kernel_min(a->rows, (task + 1) * ROWS), H = a->heads;
    for (int64_t h = 0; h < H; h++) {
        real rate = -(real)exp(((const real *)a->A)[h]), bias = ((const real *)a->dt_bias)[h];
        for (int64_t r = task * ROWS; r < end; r += VL) {
            int64_t n = kernel_min(VL, end - r);
            vreal x = v_zero();
            for (int64_t i = 0; i < n; i++) x[i] = ((const real *)a->x)[(r + i) * H + h];
            x = rate * v_softplus(x + bias);
            for (int64_t i = 0; i < n; i++) ((real *)a->g)[(r + i) * H + h] = x[i];
        }
    }
}

KERNEL(gdn_gate_forward, gdn_gate_args)
{
    threads_run(run->threads, kernel_blocks(a->rows, ROWS), gdn_forward_task, (void *)a);
}

/* One head over all rows in order: its parameters' gradients are sums over them. */
static void gdn_backward_task(void *context, int64_t h, int worker)
{
    (void)worker;
    const gdn_gate_args *a = context;
    int64_t H = a->heads;
    real rate = -(real)exp(((const real *)a->A)[h]), bias = ((const real *)a->dt_bias)[h];
    vreal d_A = v_zero(), d_bias = v_zero();
    for (int64_t r = 0; r < a->rows; r += VL) {
        int64_t n = kernel_min(VL, a->rows - r);
        vreal x = v_zero(), d = v_zero();
        for (int64_t i = 0; i < n; i++) {
            x[i] = ((const real *)a->x)[(r + i) * H + h];
            d[i] = ((const real *)a->d_g)[(r + i) * H + h];
        }
        vreal z = x + bias, d_x = rate * d * v_sigmoid(z);
        d_A += rate * d * v_softplus(z);
        d_bias += d_x;
        for (int64_t i = 0; i < n; i++) ((real *)a->d_x)[(r + i) * H + h] = d_x[i];
    }
    ((real *)a->d_A)[h] += v_sum(d_A);
    ((real *)a->d_dt_bias)[h] += v_sum(d_bias);
}

KERNEL(gdn_gate_backward, gdn_gate_args)
{
    threads_run(run->threads, a->heads, gdn_backward_task, (void *)a);
}
