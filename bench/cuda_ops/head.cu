/* The output head: logits, log probabilities and their gradient without storing the logits. */
#include "cases.h"

#include "kernels/xent/xent.h"

DECLARE(xent_forward, xent_args)
DECLARE(xent_backward, xent_args)

extern "C" void xent_sizes_cuda_bf16(const kernel_run *, const xent_args *, kernel_sizes *);
extern "C" void xent_sizes_cuda_f32(const kernel_run *, const xent_args *, kernel_sizes *);

static double label_row_at(int64_t i)
{
    return (double)(i * (ROWS / LABELS) + i % 7);
}
static double target_at(int64_t i)
{
    return (double)(i * 37 % V);
}
static double zero_at(int64_t)
{
    return 0;
}

static xent_args xent_of(void **x, int64_t checked)
{
    xent_args a = {};
    a.labels = LABELS, a.n_hidden = ROWS, a.width = D, a.vocab = V, a.hidden = x[0], a.weight = x[1];
    a.row = (const int64_t *)x[2], a.target = (const int32_t *)x[3], a.log_prob = x[4],
    a.argmax = (int32_t *)x[5];
    a.grad_scale = (const double *)x[6], a.d_hidden = x[7], a.d_weight = x[8];
    if (checked) a.count = (const int64_t *)x[9];
    return a;
}

void head_cases(case_list &to)
{
    const double N = (double)(ROWS * D);
    tensor weight = {COPIED, V * D, 0, 0, 0, {}}, scale = {DOUBLE, 1, 0.5, 0.5, 0, {}},
           count = ints(INT64, 1, zero_at);
    const int64_t checked = 130;
    count.values[0] = (double)checked;
    double product = 2.0 * LABELS * V * D;
    tensor argmax = ints(INT32, LABELS, zero_at);
    argmax.written = 1;
    std::vector<tensor> head = {act(ROWS * D),
                                weight,
                                ints(INT64, LABELS, label_row_at),
                                ints(INT32, LABELS, target_at),
                                stat_out(LABELS),
                                argmax,
                                scale,
                                act_out(ROWS * D),
                                par_sum(V * D),
                                count};
    std::vector<tensor> head_forward = head;
    head_forward[7].written = head_forward[8].written = 0;
    add_case(
        to, "xent_forward",
        [](type t, const kernel_run *r, void **x, int64_t n) { call_xent_forward(t, r, xent_of(x, n)); },
        head_forward, moves(LABELS * D + V * D, LABELS), product, checked);
    add_case(
        to, "xent_backward",
        [](type t, const kernel_run *r, void **x, int64_t n) { call_xent_backward(t, r, xent_of(x, n)); },
        head, moves(LABELS * D + 2 * V * D + N, 2 * V * D), 3 * product, checked);
}

size_t head_scratch(const kernel_run *run)
{
    xent_args head = {};
    head.labels = LABELS, head.n_hidden = ROWS, head.width = D, head.vocab = V;
    kernel_sizes one, two;
    xent_sizes_cuda_bf16(run, &head, &one);
    xent_sizes_cuda_f32(run, &head, &two);
    return one.scratch > two.scratch ? one.scratch : two.scratch;
}
