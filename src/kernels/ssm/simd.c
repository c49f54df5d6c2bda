/* Diagonal state space, neighbouring channels side by side in vectors, T tokens at a time, GROUP modes at a
 * time so that their recurrences overlap. With x = h / b the recurrence is x_t = a x_{t-1} + u_t and the
 * output y_t = Re(sum 2 C b x_t): b appears only in the readout and where states enter and leave. States x
 * are saved every T tokens for backward. */
#include "kernels/ssm/coefficients.h"
#include "kernels/ssm/ssm.h"
#include "kernels/chunk.h"

#include "base/threads.h"

enum { T = 64, GROUP = 4 };
/* Rows of the coefficient table, each [modes, channels padded]. */
enum { A_RE, A_IM, R_RE, R_IM, B_RE, B_IM, COEFFICIENTS }; /* R = 2 C b */

typedef struct job {
    const ssm_args *a;
    int64_t Cp;    /* channels, padded */
    real *table;   /* [COEFFICIENTS, modes, Cp] */
    char *scratch; /* of the workers */
    size_t per_worker;
} job;

V_INLINE real *row_of(const job *j, int coefficient, int64_t n)
{
    return j->table + (coefficient * j->a->modes + n) * j->Cp;
}

static void table_task(void *context, int64_t n, int worker)
{
    (void)worker;
    const job *j = context;
    const ssm_args *a = j->a;
    for (int64_t c = 0; c < j->Cp; c++) {
        real value[COEFFICIENTS] = {0, 0, 0, 0, 1, 0}; /* padding: nothing, and no division by 0 */
        if (c < a->channels) {
            ssm_mode m = ssm_mode_of(((const real *)a->log_step)[c], n);
            double c_re = ((const real *)a->c_re)[c * a->modes + n],
                   c_im = ((const real *)a->c_im)[c * a->modes + n];
            value[A_RE] = (real)m.a_re, value[A_IM] = (real)m.a_im;
            value[B_RE] = (real)m.b_re, value[B_IM] = (real)m.b_im;
            value[R_RE] = (real)(2 * (c_re * m.b_re - c_im * m.b_im));
            value[R_IM] = (real)(2 * (c_re * m.b_im + c_im * m.b_re));
        }
        for (int i = 0; i < COEFFICIENTS; i++) row_of(j, i, n)[c] = value[i];
    }
}

typedef struct worker_scratch {
    real *u, *y, *d_u;     /* [T, VL] */
    real *x;               /* [modes, 2, VL] states */
    real *v;               /* [modes, 2, VL] gradient states, without R */
    real *track;           /* [T + 1, GROUP, 2, VL] states of a group along a block */
    real *d_r, *d_a, *d_b; /* [modes, 2, VL] */
} worker_scratch;

static size_t layout(const ssm_args *a, char *base, worker_scratch *s)
{
    chunk_arena next = {base, 0};
    s->u = chunk_take(&next, T * VL);
    s->y = chunk_take(&next, T * VL);
    s->d_u = chunk_take(&next, T * VL);
    s->track = chunk_take(&next, (T + 1) * GROUP * 2 * VL);
    real **by_mode[] = {&s->x, &s->v, &s->d_r, &s->d_a, &s->d_b};
    for (int i = 0; i < 5; i++) *by_mode[i] = chunk_take(&next, a->modes * 2 * VL);
    return next.used;
}

static size_t table_bytes(const ssm_args *a)
{
    return kernel_round64((size_t)(COEFFICIENTS * a->modes * chunk_pad(a->channels)) * sizeof(real));
}

static job prepare(const kernel_run *run, const ssm_args *a)
{
    worker_scratch s;
    job j = {a, chunk_pad(a->channels), run->scratch, (char *)run->scratch + table_bytes(a),
             layout(a, NULL, &s)};
    threads_run(run->threads, a->modes, table_task, &j);
    return j;
}

KERNEL_SIZES(ssm_sizes, ssm_args)
{
    worker_scratch s;
    size_t states = (size_t)(a->batch * a->modes * 2) * sizeof(real);
    *sizes = (kernel_sizes){
        .state = kernel_round64(states * (size_t)a->channels),
        .saved = kernel_round64(states * (size_t)(kernel_blocks(a->length, T) * chunk_pad(a->channels))),
        .scratch = table_bytes(a) + (size_t)run->threads * layout(a, NULL, &s)};
}

/* `count` rows of one block of channels between memory and [T, VL]. */
static void load_block(const job *j, const void *from, int64_t token, int64_t c, int64_t count, real *to)
{
    int64_t C = j->a->channels;
    const real *at = (const real *)from + token * C + c;
    for (int64_t t = 0; t < count; t++) v_store(to + t * VL, v_load_up_to(at + t * C, C - c));
}

static void store_block(const job *j, const real *from, int64_t token, int64_t c, int64_t count, void *to)
{
    int64_t C = j->a->channels;
    real *at = (real *)to + token * C + c;
    for (int64_t t = 0; t < count; t++) v_store_up_to(at + t * C, v_load(from + t * VL), C - c);
}

/* x = h / b from the carried state of sequence b. */
static void enter(const job *j, int64_t b, int64_t c, real *x)
{
    const ssm_args *a = j->a;
    for (int64_t n = 0; n < a->modes; n++) {
        vreal re = v_zero(), im = v_zero();
        if (a->state_in) {
            const real *h = (const real *)a->state_in + (b * a->modes + n) * 2 * a->channels + c;
            vreal h_re = v_load_up_to(h, a->channels - c),
                  h_im = v_load_up_to(h + a->channels, a->channels - c);
            vreal b_re = v_load(row_of(j, B_RE, n) + c), b_im = v_load(row_of(j, B_IM, n) + c);
            vreal size = b_re * b_re + b_im * b_im;
            re = (h_re * b_re + h_im * b_im) / size;
            im = (h_im * b_re - h_re * b_im) / size;
        }
        v_store(x + 2 * n * VL, re);
        v_store(x + (2 * n + 1) * VL, im);
    }
}

static void leave(const job *j, int64_t b, int64_t c, const real *x)
{
    const ssm_args *a = j->a;
    for (int64_t n = 0; n < a->modes; n++) {
        real *h = (real *)a->state_out + (b * a->modes + n) * 2 * a->channels + c;
        vreal re = v_load(x + 2 * n * VL), im = v_load(x + (2 * n + 1) * VL);
        vreal b_re = v_load(row_of(j, B_RE, n) + c), b_im = v_load(row_of(j, B_IM, n) + c);
        v_store_up_to(h, re * b_re - im * b_im, a->channels - c);
        v_store_up_to(h + a->channels, re * b_im + im * b_re, a->channels - c);
    }
}

/* `modes` (a constant, up to GROUP) modes from n over `count` tokens: y += Re(R x). */
V_INLINE void scan_group(const int modes, const job *j, int64_t n, int64_t c, int64_t count,
                         const worker_scratch *s)
{
    vreal re[GROUP], im[GROUP], a_re[GROUP], a_im[GROUP], r_re[GROUP], r_im[GROUP];
    for (int i = 0; i < modes; i++) {
        re[i] = v_load(s->x + 2 * (n + i) * VL), im[i] = v_load(s->x + (2 * (n + i) + 1) * VL);
        a_re[i] = v_load(row_of(j, A_RE, n + i) + c), a_im[i] = v_load(row_of(j, A_IM, n + i) + c);
        r_re[i] = v_load(row_of(j, R_RE, n + i) + c), r_im[i] = v_load(row_of(j, R_IM, n + i) + c);
    }
    for (int64_t t = 0; t < count; t++) {
        vreal u = v_load(s->u + t * VL), y = v_load(s->y + t * VL);
        for (int i = 0; i < modes; i++) {
            vreal before = re[i];
            re[i] = a_re[i] * before - a_im[i] * im[i] + u;
            im[i] = a_re[i] * im[i] + a_im[i] * before;
            y += r_re[i] * re[i] - r_im[i] * im[i];
        }
        v_store(s->y + t * VL, y);
    }
    for (int i = 0; i < modes; i++) {
        v_store(s->x + 2 * (n + i) * VL, re[i]);
        v_store(s->x + (2 * (n + i) + 1) * VL, im[i]);
    }
}

/* Where the states of sequence b at block `block` are saved, for the channels from c: [modes, 2, VL]. */
static real *saved_at(const job *j, int64_t b, int64_t block, int64_t c)
{
    int64_t blocks = kernel_blocks(j->a->length, T), size = j->a->modes * 2 * j->Cp;
    return (real *)j->a->saved + (b * blocks + block) * size + c * j->a->modes * 2;
}

static void forward_task(void *context, int64_t task, int worker)
{
    const job *j = context;
    const ssm_args *a = j->a;
    worker_scratch s;
    layout(a, j->scratch + (size_t)worker * j->per_worker, &s);
    int64_t vectors = j->Cp / VL, b = task / vectors, c = task % vectors * VL;
    vreal skip = v_load_up_to((const real *)a->d + c, a->channels - c);
    enter(j, b, c, s.x);
    for (int64_t t0 = 0; t0 < a->length; t0 += T) {
        int64_t count = kernel_min(T, a->length - t0), n = 0;
        if (a->saved) memcpy(saved_at(j, b, t0 / T, c), s.x, (size_t)(a->modes * 2 * VL) * sizeof(real));
        load_block(j, a->u, b * a->length + t0, c, count, s.u);
        for (int64_t t = 0; t < count; t++) v_store(s.y + t * VL, skip * v_load(s.u + t * VL));
        for (; n + GROUP <= a->modes; n += GROUP) scan_group(GROUP, j, n, c, count, &s);
        for (; n < a->modes; n++) scan_group(1, j, n, c, count, &s);
        store_block(j, s.y, b * a->length + t0, c, count, a->y);
    }
    if (a->state_out) leave(j, b, c, s.x);
}

KERNEL(ssm_forward, ssm_args)
{
    job j = prepare(run, a);
    threads_run(run->threads, a->batch * (j.Cp / VL), forward_task, &j);
}

/* ---- backward: v_t = d_y_t + conj(a) v_{t+1}, so that the gradient of x_t is conj(R) v_t ---- */

/* The group's states again, into track; d_r += d_y conj(x). */
V_INLINE void replay_group(const int modes, const job *j, int64_t n, int64_t c, int64_t count,
                           const worker_scratch *s)
{
    vreal re[GROUP], im[GROUP], a_re[GROUP], a_im[GROUP], d_re[GROUP], d_im[GROUP];
    for (int i = 0; i < modes; i++) {
        re[i] = v_load(s->x + 2 * (n + i) * VL), im[i] = v_load(s->x + (2 * (n + i) + 1) * VL);
        a_re[i] = v_load(row_of(j, A_RE, n + i) + c), a_im[i] = v_load(row_of(j, A_IM, n + i) + c);
        d_re[i] = v_load(s->d_r + 2 * (n + i) * VL), d_im[i] = v_load(s->d_r + (2 * (n + i) + 1) * VL);
        v_store(s->track + 2 * i * VL, re[i]);
        v_store(s->track + (2 * i + 1) * VL, im[i]);
    }
    for (int64_t t = 0; t < count; t++) {
        vreal u = v_load(s->u + t * VL), d_y = v_load(s->y + t * VL);
        real *track = s->track + (t + 1) * GROUP * 2 * VL;
        for (int i = 0; i < modes; i++) {
            vreal before = re[i];
            re[i] = a_re[i] * before - a_im[i] * im[i] + u;
            im[i] = a_re[i] * im[i] + a_im[i] * before;
            d_re[i] += d_y * re[i];
            d_im[i] -= d_y * im[i];
            v_store(track + 2 * i * VL, re[i]);
            v_store(track + (2 * i + 1) * VL, im[i]);
        }
    }
    for (int i = 0; i < modes; i++) {
        v_store(s->d_r + 2 * (n + i) * VL, d_re[i]);
        v_store(s->d_r + (2 * (n + i) + 1) * VL, d_im[i]);
    }
}

/* Back along the block: d_u += Re(conj(R) v), d_a += v conj(x_{t-1}) (times conj(R) at the end). */
V_INLINE void back_group(const int modes, const job *j, int64_t n, int64_t c, int64_t count,
                         const worker_scratch *s)
{
    vreal re[GROUP], im[GROUP], a_re[GROUP], a_im[GROUP], d_re[GROUP], d_im[GROUP];
    for (int i = 0; i < modes; i++) {
        re[i] = v_load(s->v + 2 * (n + i) * VL), im[i] = v_load(s->v + (2 * (n + i) + 1) * VL);
        a_re[i] = v_load(row_of(j, A_RE, n + i) + c), a_im[i] = v_load(row_of(j, A_IM, n + i) + c);
        d_re[i] = v_load(s->d_a + 2 * (n + i) * VL), d_im[i] = v_load(s->d_a + (2 * (n + i) + 1) * VL);
    }
    for (int64_t t = count - 1; t >= 0; t--) {
        vreal d_y = v_load(s->y + t * VL), d_u = v_load(s->d_u + t * VL);
        const real *track = s->track + t * GROUP * 2 * VL;
        for (int i = 0; i < modes; i++) {
            vreal x_re = v_load(track + 2 * i * VL), x_im = v_load(track + (2 * i + 1) * VL);
            re[i] += d_y;
            d_u += v_load(row_of(j, R_RE, n + i) + c) * re[i] + v_load(row_of(j, R_IM, n + i) + c) * im[i];
            d_re[i] += re[i] * x_re + im[i] * x_im;
            d_im[i] += im[i] * x_re - re[i] * x_im;
            vreal before = re[i];
            re[i] = a_re[i] * before + a_im[i] * im[i];
            im[i] = a_re[i] * im[i] - a_im[i] * before;
        }
        v_store(s->d_u + t * VL, d_u);
    }
    for (int i = 0; i < modes; i++) {
        v_store(s->v + 2 * (n + i) * VL, re[i]);
        v_store(s->v + (2 * (n + i) + 1) * VL, im[i]);
        v_store(s->d_a + 2 * (n + i) * VL, d_re[i]);
        v_store(s->d_a + (2 * (n + i) + 1) * VL, d_im[i]);
    }
}

/* A carried state entered as x = h / b: d_b -= conj(x / b) (conj(R) v), v being the gradient left at the very
 * start. */
static void enter_backward(const job *j, int64_t c, const worker_scratch *s)
{
    for (int64_t n = 0; n < j->a->modes; n++) {
        vreal r_re = v_load(row_of(j, R_RE, n) + c), r_im = v_load(row_of(j, R_IM, n) + c);
        vreal b_re = v_load(row_of(j, B_RE, n) + c), b_im = v_load(row_of(j, B_IM, n) + c);
        vreal v_re = v_load(s->v + 2 * n * VL), v_im = v_load(s->v + (2 * n + 1) * VL);
        vreal x_re = v_load(s->x + 2 * n * VL), x_im = v_load(s->x + (2 * n + 1) * VL);
        vreal g_re = r_re * v_re + r_im * v_im, g_im = r_re * v_im - r_im * v_re,
              size = b_re * b_re + b_im * b_im;
        vreal z_re = (x_re * b_re + x_im * b_im) / size, z_im = (x_im * b_re - x_re * b_im) / size;
        real *d_b = s->d_b + 2 * n * VL;
        v_store(d_b, v_load(d_b) - (z_re * g_re + z_im * g_im));
        v_store(d_b + VL, v_load(d_b + VL) - (z_re * g_im - z_im * g_re));
    }
}

/* Parameter gradients of the channels from c, in double: R = 2 C b, and a, b as functions of log_step. */
static void parameters_backward(const job *j, int64_t c, const worker_scratch *s)
{
    const ssm_args *a = j->a;
    for (int64_t i = 0; i < VL && c + i < a->channels; i++) {
        double d_log_step = 0;
        for (int64_t n = 0; n < a->modes; n++) {
            int64_t e = (c + i) * a->modes + n, at = 2 * n * VL + i;
            ssm_mode m = ssm_mode_of(((const real *)a->log_step)[c + i], n);
            double c_re = ((const real *)a->c_re)[e], c_im = ((const real *)a->c_im)[e];
            double r_re = row_of(j, R_RE, n)[c + i], r_im = row_of(j, R_IM, n)[c + i];
            double dr_re = s->d_r[at], dr_im = s->d_r[at + VL], da_re = s->d_a[at], da_im = s->d_a[at + VL];
            double g_re = r_re * da_re + r_im * da_im, g_im = r_re * da_im - r_im * da_re;
            double db_re = 2 * (c_re * dr_re + c_im * dr_im) + s->d_b[at];
            double db_im = 2 * (c_re * dr_im - c_im * dr_re) + s->d_b[at + VL];
            ((real *)a->d_c_re)[e] += (real)(2 * (m.b_re * dr_re + m.b_im * dr_im));
            ((real *)a->d_c_im)[e] += (real)(2 * (m.b_re * dr_im - m.b_im * dr_re));
            d_log_step += g_re * m.da_re + g_im * m.da_im + db_re * m.db_re + db_im * m.db_im;
        }
        ((real *)a->d_log_step)[c + i] += (real)d_log_step;
    }
}

/* One sequence; returns its share of d_d. */
static vreal sequence_backward(const job *j, int64_t b, int64_t c, const worker_scratch *s)
{
    const ssm_args *a = j->a;
    vreal skip = v_load_up_to((const real *)a->d + c, a->channels - c), d_skip = v_zero();
    chunk_zero(s->v, a->modes * 2 * VL);
    for (int64_t t0 = (kernel_blocks(a->length, T) - 1) * T; t0 >= 0; t0 -= T) {
        int64_t count = kernel_min(T, a->length - t0), n = 0;
        memcpy(s->x, saved_at(j, b, t0 / T, c), (size_t)(a->modes * 2 * VL) * sizeof(real));
        load_block(j, a->u, b * a->length + t0, c, count, s->u);
        load_block(j, a->d_y, b * a->length + t0, c, count, s->y);
        for (int64_t t = 0; t < count; t++) {
            vreal d_y = v_load(s->y + t * VL);
            d_skip += d_y * v_load(s->u + t * VL);
            v_store(s->d_u + t * VL, skip * d_y);
        }
        for (; n + GROUP <= a->modes; n += GROUP) {
            replay_group(GROUP, j, n, c, count, s);
            back_group(GROUP, j, n, c, count, s);
        }
        for (; n < a->modes; n++) {
            replay_group(1, j, n, c, count, s);
            back_group(1, j, n, c, count, s);
        }
        store_block(j, s->d_u, b * a->length + t0, c, count, a->d_u);
    }
    if (a->state_in && a->length > 0) enter_backward(j, c, s);
    return d_skip;
}

/* One block of channels, all sequences in order: parameter gradients are sums over them. */
static void backward_task(void *context, int64_t task, int worker)
{
    const job *j = context;
    const ssm_args *a = j->a;
    worker_scratch s;
    layout(a, j->scratch + (size_t)worker * j->per_worker, &s);
    int64_t c = task * VL, size = a->modes * 2 * VL;
    vreal d_skip = v_zero();
    chunk_zero(s.d_r, size);
    chunk_zero(s.d_a, size);
    chunk_zero(s.d_b, size);
    for (int64_t b = 0; b < a->batch; b++) d_skip += sequence_backward(j, b, c, &s);
    parameters_backward(j, c, &s);
    real *d = (real *)a->d_d + c;
    v_store_up_to(d, v_load_up_to(d, a->channels - c) + d_skip, a->channels - c);
}

KERNEL(ssm_backward, ssm_args)
{
    job j = prepare(run, a);
    threads_run(run->threads, j.Cp / VL, backward_task, &j);
}
