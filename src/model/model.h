/* Inside of a language model: its parameters, and the networks (activation memory and plans) that run it.
 *
 * A model owns the parameters and one network for its batches; every generator owns another network over the
 * same parameters. Shapes: B sequences, L tokens, d width, V vocabulary, F hidden width of the MLP, rows = B
 * L. */
#ifndef BLURRY_MODEL_MODEL_H
#define BLURRY_MODEL_MODEL_H
#include "base/settings.h"
#include "blurry/model.h"
#include "mixers/mixer.h"

#include <stdbool.h>

#define MODEL_NORM_EPS 1e-5
enum { MODEL_NAME = 64, MODEL_NONE = -1 };

typedef struct model_parameter {
    char name[MODEL_NAME];
    int rank;
    int64_t shape[2], elements;
    mixer_init init;
    double *values; /* INIT_GIVEN */
    int decay;
    size_t offset; /* bytes into the blocks of parameters and gradients */
} model_parameter;

/* Places in the list of parameters, MODEL_NONE where there is none. */
typedef struct model_layer_places {
    int64_t norm1, norm1_bias, norm2, norm2_bias;
    int64_t mlp_gate, mlp_up, mlp_down; /* GELU: fc1 is mlp_up, fc2 is mlp_down */
    int64_t mixer[MIXER_PARAMETER_COUNT];
} model_layer_places;

typedef struct model_places {
    int64_t embed, position, norm, norm_bias, head;
    model_layer_places *layer;
} model_places;

/* One layer of a network. Pointers into the network's memory; without `keep` all layers share the same. */
typedef struct network_layer {
    mixer_layer mixer;
    void *mean1, *rstd1, *mean2, *rstd2; /* [rows] */
    void *saved;                         /* the mixer's */
    void *middle, *output;               /* [rows, d] the stream after the mixer, after the MLP */
    void *gate;                          /* SwiGLU: gate and up, [2, rows, F] for the rows of a pass */
    void *up;                            /* GELU: [rows, F] */
    void *normed1, *normed2, *activated; /* [rows, d] twice, [rows, F]: where keeps_more, else NULL */
    void *state;                         /* generators: the mixer's carried state */
} network_layer;

/* What a gradient pass reads and writes beside tensors. */
typedef struct network_scalars {
    uint64_t key[2];     /* of the dropout: the seed, and the draw */
    double scale;        /* of the gradient */
    double log_prob_sum; /* += the sum of the labels' log-probabilities */
} network_scalars;

/* What one branch of a layer, its mixer or its MLP, needs at a time; its mixer's and its MLP's share memory.
 */
typedef struct network_work {
    void *d_stream;  /* [rows, d] gradient of the stream behind the branch */
    void *mixer;     /* the mixer's */
    void *activated; /* [rows, F] */
    void *d_gate;    /* d_gate (GELU: unused) and d_activated, [2, rows, F] for the rows of a pass */
} network_work;

typedef struct network {
    struct blurry_model *model;
    device *dev;
    int64_t batch, length, capacity;
    int keep;       /* whether backward will follow */
    int keeps_more; /* whether what backward could make again is kept: on a GPU a launch costs more than
                       memory */
    int picks;      /* whether passes may compute only the wanted rows of the last layer: network_wanted */
    int folds;   /* whether equal tokens may share the maps of the first layer: its input then depends on the
                    token alone */
    int carries; /* whether layers carry a state */
    network_layer *layers;
    void *memory, *states;
    size_t saved_bytes, work_bytes, state_bytes;
    void *input, *mean, *rstd,
        *hidden;             /* [rows, d] embedded tokens, [rows] twice, [rows, d] after the final norm */
    void *normed, *d_normed; /* [rows, d] */
    network_work work[2];    /* of branches by turns in backward, as the side queue may still read the last
                                one's;     the same memory twice where a device has one queue */
    void *token_notes;       /* the embedding's, from forward to backward */
    int notes_tokens;        /* whether forward is to write them: backward follows */
    int64_t block;           /* rows whose logits are kept at once */
    void *logits;            /* [block, V] */
    void *log_prob;          /* [rows] */
    int32_t *argmax;         /* [rows] */
    int32_t *ids;            /* [rows] */
    int64_t *rows;           /* [rows] labelled rows */
    int64_t *row_position;   /* [rows] their places in their sequences */
    int64_t *row_place;      /* [rows] where in the list of labelled rows each row stands, -1: nowhere */
    int64_t *token_first;    /* [rows / 2] the first row with each of the different tokens */
    int64_t *token_index, *token_order, *token_group; /* [rows] mixer_pass.x_index and so on, by token */
    void *folded;                                     /* [rows / 2, d] the embedded different tokens */
    int32_t *targets;                                 /* [rows] */
    network_scalars *scalars;                         /* in device memory; see there */
    int64_t *position;                                /* [B] generators: tokens fed so far */
    int64_t *nonfinite;                               /* [1] */
    int64_t *fold_host;                               /* host memory of network_fold: [5 rows + vocab] */
    void *host; /* host memory for what comes back: [block, V] activations */
} network;

struct blurry_model {
    struct settings settings;
    device *dev;
    int64_t layers, width, vocab, hidden; /* hidden: F */
    int64_t parameter_count, parameter_capacity;
    model_parameter *parameter;
    model_places places;
    char *data, *gradient; /* gradient NULL: not for training */
    int gradient_used;     /* whether something was added to the gradient since it was 0 */
    char *copy;   /* the parameters in the activation type, for products; NULL where the types are the same */
    int copy_old; /* whether parameters were written since the copy was made */
    size_t parameter_bytes, decayed_bytes; /* of all, and of the weight-decayed ones, which come first */
    network net;
    char nonfinite[MODEL_NAME + 32];
};

/* ---- parameters.c ---- */
/* Lists the parameters the settings ask for. configs [layers] are the layers' resolved mixers. */
blurry_status parameters_list(blurry_model *model, const mixer_config *configs);
blurry_status parameters_allocate(blurry_model *model, int training);
blurry_status parameters_initialise(blurry_model *model, uint64_t seed);
void parameters_release(blurry_model *model);
/* Memory of parameter `place`, and of its gradient; NULL for MODEL_NONE. */
void *parameter_data(const blurry_model *model, int64_t place);
/* The same as linear maps and the head read it: in the activation type. */
const void *parameter_weight(const blurry_model *model, int64_t place);
void *parameter_gradient(const blurry_model *model, int64_t place);
/* To be called after parameters were written other than by the optimiser; brings the copy up to date. */
void parameters_changed(blurry_model *model);
void parameters_refresh(blurry_model *model);

/* ---- model.c: models on a given device, for tests and generators ---- */
blurry_status model_create_on(blurry_model **model, const struct settings *s, int training,
                              const device_options *options);

/* ---- network.c: memory of one network ---- */
/* Takes the configurations over. capacity: the tokens a carried state may hold; 0: nothing is carried. */
blurry_status network_create(network *net, blurry_model *model, mixer_config *configs, int64_t batch,
                             int64_t length, int keep, int64_t capacity);
void network_release(network *net);
/* The layers' mixers as the settings name them. *configs [layers] is freed with network_configs_free. */
blurry_status network_configs(const struct settings *s, mixer_config **configs);
void network_configs_free(mixer_config *configs, int64_t layers);

/* ---- block.c: passes over B sequences of L tokens, at most the network's ---- */
typedef struct network_pass {
    int64_t B, L;
    int64_t wanted; /* rows of hidden that are wanted: net->rows[0 .. wanted-1], ascending, none twice, with
                       row_position where the device picks queries (device_blurry_rows) and, for backward,
                       row_place; hidden is [wanted, d] then. 0: all rows */
    int64_t different; /* different tokens among ids, with token_first and so on; 0: not looked for */
    double dropout;    /* 0: none */
} network_pass;
/* ids are on the device already. Writes net->hidden [B L, d], or [wanted, d]. */
blurry_status network_forward(network *net, const network_pass *pass);
/* The same up to the input of one layer's mixer: `pass` is what its forward would be called with. */
blurry_status network_forward_to(network *net, int64_t B, int64_t L, int64_t layer, mixer_pass *pass);
/* From net->hidden's gradient in net->d_normed to all parameters' gradients, for the pass of the forward. */
void network_backward(network *net, const network_pass *pass);

/* ---- lm.c ---- */
/* A batch in device memory: ids, rows, targets (-1 is none) and what the fields ask for. */
typedef struct network_batch {
    int64_t B, L, labels;
    int64_t wanted;    /* labels where the pass computes their rows alone (network_pass), else 0 */
    int64_t different; /* different tokens among ids, with token_first and so on; 0: not looked for */
} network_batch;
/* The rule: how many rows a pass over `rows` rows is to single out whose labels are these many, at ascending
 * rows; 0: it computes all. */
int64_t network_wanted(const network *net, int64_t rows, int64_t labels);
/* Queues forward, loss and backward. May be recorded. */
blurry_status network_gradient(network *net, const network_batch *batch);
/* ---- tokens.c ---- */
/* Finds the different tokens among ids [rows] and uploads their lists; *different is 0 where there are too
 * many of them, or where the network does not fold. */
blurry_status network_fold(network *net, const int32_t *ids, int64_t rows, int64_t *different);
/* The weight of the output head: its own, or the embedding's. */
int64_t model_head(const blurry_model *model);
/* Refuses what the model cannot take, before anything is computed. */
blurry_status model_check_batch(const blurry_model *model, const blurry_batch *batch);

#endif
