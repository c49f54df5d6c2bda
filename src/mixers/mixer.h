/* Sequence mixers: x [B, L, d] -> y [B, L, d], one layer each.
 *
 * A mixer is a table of functions (struct mixer); its bodies call the device table alone, so one body serves
 * every device and element type. All memory is given by the caller: `sizes` says how much, and forward and
 * backward lay out the same tensors in it by the same function. Symbols: B sequences, L tokens, H query
 * heads, Hkv key/value heads, Dk and Dv widths per head, d model width.
 *
 * Adding a mixer: one file that defines `const mixer mixer_<name>`, one line in mixers.def, one golden. */
#ifndef BLURRY_MIXERS_MIXER_H
#define BLURRY_MIXERS_MIXER_H
#include "base/settings.h"
#include "device/device.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mixer mixer;

/* The options of one layer, checked and resolved. */
typedef struct mixer_config {
    const mixer *type;
    int64_t width, heads, heads_kv, dim_k, dim_v;
    int64_t modes, window, slots, state;
    double *period; /* [heads_kv] blurry: the periods, or the initial ones where learned */
    int learned_period, decay, relative;
    int rope, conv;
    double rope_base;
} mixer_config;

/* The parameters any mixer may have: where a layer keeps their pointers. */
typedef enum mixer_parameter {
    MIXER_Q,
    MIXER_K,
    MIXER_V,
    MIXER_O,
    MIXER_CONV_Q,
    MIXER_CONV_K,
    MIXER_CONV_V, /* short convolution; s4d has one, in front of its input */
    MIXER_GATE,
    MIXER_NORM, /* output gate and norm */
    MIXER_SLOT, /* abc: write scores, gsa: forget gate */
    MIXER_GK1,
    MIXER_GK2,
    MIXER_GK2_BIAS, /* gla: low-rank gate */
    MIXER_BETA,
    MIXER_ALPHA,
    MIXER_A,
    MIXER_DT_BIAS, /* gdn */
    MIXER_PERIOD,  /* blurry */
    MIXER_LOG_STEP,
    MIXER_C_RE,
    MIXER_C_IM,
    MIXER_D, /* s4d */
    MIXER_PARAMETER_COUNT
} mixer_parameter;

/* How a parameter starts. Every element is a function of the seed, the parameter's name and its index alone.
 */
typedef enum mixer_init {
    INIT_ZERO,
    INIT_ONE,
    INIT_NORMAL,   /* N(0, 0.02): linear maps and embeddings */
    INIT_CONV,     /* U(-1/2, 1/2), the usual start of a depthwise kernel of 4 */
    INIT_GDN_A,    /* log U(0, 16) */
    INIT_GDN_DT,   /* dt + log(1 - e^-dt), dt log-uniform in [1e-3, 0.1] */
    INIT_LOG_STEP, /* uniform in [log 1e-3, log 0.1] */
    INIT_UNIT,     /* N(0, 1) */
    INIT_HALF,     /* N(0, 1/2): real and imaginary part of a standard complex normal number */
    INIT_GIVEN     /* `values` */
} mixer_init;

typedef struct mixer_parameter_spec {
    mixer_parameter slot;
    const char *name; /* without the layer's prefix, for example "q.weight" */
    int rank;
    int64_t shape[2];
    mixer_init init;
    const double *values; /* INIT_GIVEN */
} mixer_parameter_spec;

typedef struct mixer_parameter_list {
    int count;
    mixer_parameter_spec spec[MIXER_PARAMETER_COUNT];
} mixer_parameter_list;

/* One layer's mixer on a device. */
typedef struct mixer_layer {
    mixer_config config;
    device *dev;
    int64_t batch, length; /* most sequences of a pass, most tokens of a sequence in one pass */
    int64_t capacity;      /* softmax, swa: tokens that a carried state can hold */
    void *parameter[MIXER_PARAMETER_COUNT]; /* NULL: this mixer has none */
    const void
        *weight[MIXER_PARAMETER_COUNT]; /* the same as linear maps read it, in the type of activations */
    void *gradient[MIXER_PARAMETER_COUNT];
    void *rope_table;       /* for passes that start at position 0 */
    int threads;            /* for its plans; 0: the device's */
    blurry_attn_plan *plan; /* blurry; made anew when a learned period has moved */
    int64_t *offsets;       /* blurry: [batch + 1] in host memory */
    double *host_values;    /* blurry: [heads_kv] */
} mixer_layer;

/* Bytes. `state` is for all B sequences, `scratch` is what the device's own scratch memory must hold. */
typedef struct mixer_sizes {
    size_t saved; /* lives from forward to backward */
    size_t work;  /* needed during one call only */
    size_t state, scratch;
} mixer_sizes;

/* One call. */
typedef struct mixer_pass {
    mixer_layer *layer;
    int64_t B, L;
    int keep;                /* whether backward will follow */
    const int64_t *position; /* [B] in device memory: tokens seen before this call; NULL: all 0 */
    void *state; /* carried state, read and brought up to date; NULL: starts empty and is not kept */
    void *saved, *work;
    const void *x;        /* [B, L, d], or [x_rows, d] */
    void *y;              /* [B, L, d], or [row_count, d] */
    const void *residual; /* [B, L, d] added to y; NULL: none */
    const void *d_y;      /* as y */
    void *d_x;            /* as x; overwritten */
    /* Where y is wanted at some rows only: y and d_y have these rows, and what leads from the core to y alone
     * is computed for them alone. Not with a state. */
    int64_t row_count;           /* 0: y is wanted at all B L rows */
    const int64_t *rows;         /* [row_count] in device memory, ascending below B L */
    const int64_t *row_position; /* [row_count] their places in their sequences, rows[i] mod L */
    const int64_t *row_place;    /* [B L] where in `rows` each row stands, -1: nowhere */
    /* Where many rows of x are equal (mixers that fold): x and d_x have each of them once, and the maps of x
     * are computed once for all. Not together with row_count. */
    int64_t x_rows;         /* 0: x has all B L rows */
    const int64_t *x_index; /* [B L] in device memory: the row of x that stands at each token */
    const int64_t *x_order; /* [B L] the tokens, those with row 0 of x first, then those with row 1 .. */
    const int64_t *x_group; /* [B L] x_index[x_order[i]], ascending */
} mixer_pass;

struct mixer {
    const char *name, *summary;
    double expand_k, expand_v; /* defaults of the options of the same name */
    int value_from_key;        /* whether expand_v multiplies the key width, not the model width */
    int headless;              /* no heads: heads, expand_k and expand_v do not apply */
    int grouped;               /* whether kv_heads may be smaller than heads */
    int rotary;                /* whether the option rope applies */
    int folds; /* whether it reads x by its streams alone, so that equal rows may be given once */
    blurry_status (*check)(mixer_config *c,
                           const struct settings *s); /* what only this mixer knows; may be NULL */
    void (*parameters)(const mixer_config *c, mixer_parameter_list *list);
    int64_t (*state_elements)(const mixer_config *c,
                              int64_t length);       /* Table 1, short convolution not counted */
    int64_t (*conv_channels)(const mixer_config *c); /* of all streams that it would pass */
    blurry_status (*prepare)(mixer_layer *layer); /* plans, after the parameters are in place; may be NULL */
    blurry_status (*refresh)(
        mixer_layer *layer); /* before a forward: parameters may have changed; may be NULL */
    void (*sizes)(const mixer_pass *p, mixer_sizes *sizes); /* for p->layer, B, L, keep */
    blurry_status (*state_init)(const mixer_pass *p);       /* beyond zeros; may be NULL */
    void (*forward)(const mixer_pass *p);
    void (*backward)(const mixer_pass *p); /* of a forward with keep and without state */
};

#define MIXER(name) extern const mixer mixer_##name;
#include "mixers/mixers.def"

/* Most rows that a pass may single out, as wanted or as different from each other: with more it computes all.
 */
static inline int64_t mixer_rows_most(int64_t rows)
{
    return rows / 2;
}

/* ---- registry.c: all mixers ---- */
int mixer_count(void);
const mixer *mixer_at(int index);
const mixer *mixer_find(const char *name); /* NULL: unknown */

/* ---- config.c: options of one layer ---- */
enum { MIXER_CONV_TAPS = 4 };
blurry_status mixer_config_init(mixer_config *c, const struct settings *s, const char *name);
void mixer_config_release(mixer_config *c);
/* Every parameter, the short convolution's included. */
void mixer_parameters(const mixer_config *c, mixer_parameter_list *list);
/* Elements of the state after `length` tokens, the short convolution's included: the paper's Table 1. */
int64_t mixer_state_elements(const mixer_config *c, int64_t length);

/* ---- layer.c: one layer on a device ---- */
/* Takes the configuration over (the caller's becomes empty). Parameters are set by the caller before
 * mixer_layer_prepare. */
void mixer_layer_init(mixer_layer *layer, mixer_config *c, device *dev, int64_t batch, int64_t length,
                      int64_t capacity);
blurry_status mixer_layer_prepare(mixer_layer *layer);
void mixer_layer_release(mixer_layer *layer);
blurry_status mixer_layer_refresh(mixer_layer *layer);
void mixer_layer_sizes(mixer_layer *layer, int keep, mixer_sizes *sizes); /* the most any pass needs */
blurry_status mixer_state_init(mixer_layer *layer, void *state);          /* for layer->batch sequences */

#endif
