/* What several mixers share: laying tensors out in given memory, linear maps, the streams q, k, v with short
 * convolution, SiLU and RoPE, and the gated output Wo(RMSNorm per head(o) * SiLU(Wg x)). */
#ifndef BLURRY_MIXERS_PARTS_H
#define BLURRY_MIXERS_PARTS_H
#include "mixers/mixer.h"

/* ---- memory: the same layout function measures (base NULL) and hands out pointers ---- */
typedef struct mixer_cursor {
    char *base;
    size_t used;
} mixer_cursor;

typedef struct mixer_layout {
    mixer_cursor saved, work, state;
    size_t scratch;
} mixer_layout;

mixer_layout mixer_layout_begin(const mixer_pass *p);
void mixer_layout_sizes(const mixer_layout *m, mixer_sizes *sizes);
/* rows * width activations, or statistics, aligned to 64 bytes; sizes that overflow become SIZE_MAX. */
void *mixer_take(const mixer_pass *p, mixer_cursor *cursor, int64_t rows, int64_t width);
void *mixer_take_statistics(const mixer_pass *p, mixer_cursor *cursor, int64_t rows, int64_t width);
void *mixer_take_bytes(mixer_cursor *cursor, size_t bytes);
/* What a core operation asked for: its notes for backward (NULL unless p->keep), and its scratch. */
void *mixer_take_kernel(const mixer_pass *p, mixer_layout *m, const kernel_sizes *need);
/* Whether what backward could make again is kept, as on a GPU, where a launch costs more than the memory; and
 * where such tensors go. */
int mixer_kept(const mixer_pass *p);
mixer_cursor *mixer_again(const mixer_pass *p, mixer_layout *m);

static inline int64_t mixer_rows(const mixer_pass *p)
{
    return p->B * p->L;
}
/* Rows of y: those that are wanted. */
static inline int64_t mixer_wanted(const mixer_pass *p)
{
    return p->row_count ? p->row_count : mixer_rows(p);
}
static inline const device_ops *mixer_ops(const mixer_pass *p)
{
    return p->layer->dev->ops;
}
static inline const kernel_run *mixer_run(const mixer_pass *p)
{
    return &p->layer->dev->run;
}

/* ---- rows: a tensor at all rows, and at those where y is wanted; one memory where that is all of them ----
 */
typedef struct mixer_picked {
    void *all, *wanted;
} mixer_picked;

/* Both of them lie where `all` points to. */
mixer_picked mixer_take_picked(const mixer_pass *p, mixer_cursor *all, int64_t width);
/* Forward: wanted = those rows of all, y = those rows of the residual. */
void mixer_pick(const mixer_pass *p, const mixer_picked *t, int64_t width);
void mixer_put(const mixer_pass *p, const mixer_picked *t, int64_t width); /* back, the other rows 0 */
/* x at the wanted rows: p->x, or memory for them that mixer_pick_x fills in forward. */
const void *mixer_take_x(const mixer_pass *p, mixer_layout *m);
void mixer_pick_x(const mixer_pass *p, const void *x);
/* Adds d_x [row_count, d] to those rows of p->d_x, which is 0 before where `clear` is set. Nothing to do
 * where all rows are wanted: the gradient is there already. */
void mixer_add_wanted_x(const mixer_pass *p, const void *d_x, int clear);

/* ---- parameters ---- */
void mixer_add_parameter(mixer_parameter_list *list, mixer_parameter slot, const char *name, mixer_init init,
                         int64_t rows, int64_t columns); /* columns 0: rank 1 */

/* ---- linear maps: weight slot [out, in] ---- */
void mixer_linear(const mixer_pass *p, mixer_parameter weight, const void *x, int64_t in, int64_t out,
                  void *y);
/* Adds to the weight's gradient; writes d_x, or adds to it. */
void mixer_linear_backward(const mixer_pass *p, mixer_parameter weight, const void *x, const void *d_y,
                           int64_t in, int64_t out, void *d_x, int add);
/* The same for x and y of another number of rows. */
void mixer_linear_rows(const mixer_pass *p, int64_t rows, mixer_parameter weight, const void *x, int64_t in,
                       int64_t out, void *y);
void mixer_linear_rows_backward(const mixer_pass *p, int64_t rows, mixer_parameter weight, const void *x,
                                const void *d_y, int64_t in, int64_t out, void *d_x, int add);
/* Whether `next` lies directly behind the `elements` numbers at `first`. */
int mixer_follows(const mixer_pass *p, const void *first, const void *next, int64_t elements);
/* Several maps of the same x: neighbours in one call where they have one shape and their tensors lie one
 * after another. */
typedef struct mixer_maps {
    int count;
    int64_t rows;                  /* of x */
    const mixer_parameter *weight; /* [count] */
    int64_t in;
    const int64_t *out;     /* [count] */
    void *const *y;         /* [count] */
    const void *const *d_y; /* [count] */
} mixer_maps;
/* Whether one call serves all maps, forward or backward. */
int mixer_maps_together(const mixer_pass *p, const mixer_maps *maps, int backward);
void mixer_maps_forward(const mixer_pass *p, const mixer_maps *maps, const void *x);
void mixer_maps_backward(const mixer_pass *p, const mixer_maps *maps, const void *x, void *d_x, int add);
/* y (+)= Wo o, the end of every forward; d_o and Wo's gradient from d_y, the start of every backward. o and
 * d_o have the wanted rows. */
void mixer_output(const mixer_pass *p, const void *o, int64_t in);
void mixer_output_backward(const mixer_pass *p, const void *o, int64_t in, void *d_o);

/* ---- streams q [B,L,H,Dk], k [B,L,Hkv,Dk], v [B,L,Hkv,Dv]: W x, short convolution, SiLU, RoPE ---- */
enum { STREAM_Q, STREAM_K, STREAM_V, STREAMS };
typedef struct mixer_streams {
    int silu;      /* whether the mixer puts a SiLU of its own after W x or after the convolution */
    int picks;     /* whether q has the wanted rows only: q, d_q [row_count, H, Dk] */
    const void *x; /* [row_count, d] where it picks */
    void *d_x;
    void *folded[STREAMS];  /* [x_rows, ..] W x, then its gradient, where x has equal rows once */
    void *raw[STREAMS];     /* W x */
    void *mid[STREAMS];     /* after the convolution */
    void *out[STREAMS];     /* what the mixer's core reads */
    void *carried[STREAMS]; /* the convolution's state, in and out; NULL: none */
    void *d_out[STREAMS];   /* backward: the core writes them */
    void *d_raw[STREAMS];
    void *
        d_joined; /* [rows, STREAMS, width]: d_raw side by side, so that their maps are one; NULL: not used */
} mixer_streams;

int64_t mixer_stream_width(const mixer_config *c, int stream);
int64_t mixer_stream_channels(const mixer_config *c); /* all three */
void mixer_stream_parameters(const mixer_config *c, mixer_parameter_list *list);
/* picks: whether the mixer's core takes queries at the wanted rows only. */
void mixer_streams_layout(const mixer_pass *p, mixer_layout *m, int silu, int picks, mixer_streams *s);
void mixer_streams_forward(const mixer_pass *p, const mixer_streams *s);
/* From d_out to the parameters' gradients and d_x, which is overwritten or, where `add` is set, added to. */
void mixer_streams_backward(const mixer_pass *p, const mixer_streams *s, int add);

/* ---- gated output of abc, gla and gdn ---- */
typedef struct mixer_gated {
    mixer_picked o, d_o; /* [rows, H, Dv]; o.all is written by the core, d_o.all read by its backward */
    void *gate, *rstd, *normed, *d_normed, *d_gate; /* at the wanted rows */
    const void *x;                                  /* at the wanted rows */
    void *d_x;
} mixer_gated;

void mixer_gated_parameters(const mixer_config *c, mixer_parameter_list *list);
void mixer_gated_layout(const mixer_pass *p, mixer_layout *m, mixer_gated *g);
void mixer_gated_forward(const mixer_pass *p, const mixer_gated *g);
void mixer_gated_backward(const mixer_pass *p, const mixer_gated *g); /* overwrites d_x */

#define MIXER_NORM_EPS 1e-5

#endif
