/* Language models over any of the library's sequence mixers.
 *
 * A model is made from settings (blurry/settings.h): embedding, `layers` blocks x += mixer(norm x); x +=
 * mlp(norm x), a final norm and a tied or untied head. Every layer may have its own mixer (`mixer:
 * blurry,blurry,softmax,blurry`). All memory is planned at creation: one block each for parameters, gradients
 * and activations; the passes allocate nothing. Logits are made only at the rows (positions) that carry a
 * label.
 *
 * One model serves one thread at a time. Generators share the model's parameters and keep their own state. */
#ifndef BLURRY_MODEL_H
#define BLURRY_MODEL_H
#include "blurry/attention.h"
#include "blurry/settings.h"
#include "blurry/status.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- mixers and their state sizes -------------------------------------------------------------------------
 */

/* The mixers' names as the setting `mixer` takes them; NULL outside [0, blurry_mixer_count()). */
BLURRY_API int blurry_mixer_count(void);
BLURRY_API const char *blurry_mixer_name(int index);
BLURRY_API const char *blurry_mixer_summary(int index); /* one line of help */

/* Elements of the state that one layer of `mixer` carries after `length` tokens, with the widths, heads,
 * modes, slots, window, expansions and short convolution of `settings`: the paper's Table 1. Everything that
 * prints or plots a state size uses this function. */
BLURRY_API blurry_status blurry_state_size(const blurry_settings *settings, const char *mixer, int64_t length,
                                           int64_t *elements);
/* The same, summed over the layers named by the setting `mixer`. */
BLURRY_API blurry_status blurry_state_size_model(const blurry_settings *settings, int64_t length,
                                                 int64_t *elements);

/* ---- models -----------------------------------------------------------------------------------------------
 */

typedef struct blurry_model blurry_model;

/* Checks the settings, plans memory for `batch` sequences of up to `length` tokens and draws the initial
 * parameters from `seed` (the same for every thread count). With `training` 0 there are no gradients and no
 * memory for backward. */
BLURRY_API blurry_status blurry_model_create(blurry_model **model, const blurry_settings *settings,
                                             int training);
BLURRY_API void blurry_model_destroy(blurry_model **model);

/* A parameter: linear weights are [out, in]. `data` and `gradient` (NULL without training) are of the model's
 * type, in the device's memory; read and write them with the two functions below, which work for every
 * device. */
typedef struct blurry_parameter {
    const char *name; /* for example "layers.0.mixer.q.weight" */
    int rank;
    int64_t shape[2];
    int64_t elements;
    void *data, *gradient;
    int decay; /* whether weight decay applies: to linear and embedding weights only */
} blurry_parameter;

BLURRY_API int64_t blurry_model_parameter_count(const blurry_model *model); /* tensors */
BLURRY_API int64_t blurry_model_parameter_elements(const blurry_model *model);
BLURRY_API blurry_status blurry_model_parameter(const blurry_model *model, int64_t index,
                                                blurry_parameter *parameter);
BLURRY_API int64_t blurry_model_find_parameter(const blurry_model *model, const char *name); /* -1: none */
/* Copy a parameter's elements to or from host memory as double; `bytes` must be elements * sizeof(double). */
BLURRY_API blurry_status blurry_model_read_parameter(const blurry_model *model, int64_t index, double *values,
                                                     size_t bytes);
BLURRY_API blurry_status blurry_model_write_parameter(blurry_model *model, int64_t index,
                                                      const double *values, size_t bytes);
BLURRY_API blurry_status blurry_model_read_gradient(const blurry_model *model, int64_t index, double *values,
                                                    size_t bytes);

BLURRY_API blurry_dtype blurry_model_dtype(const blurry_model *model);
BLURRY_API int64_t blurry_model_vocabulary(const blurry_model *model);
BLURRY_API int64_t blurry_model_length(const blurry_model *model); /* the longest sequence of one pass */
BLURRY_API int64_t blurry_model_batch(const blurry_model *model);  /* the most sequences of one pass */

typedef struct blurry_model_memory {
    size_t parameters, gradients; /* bytes */
    size_t activations;           /* kept between forward and backward */
    size_t workspace;             /* scratch of one layer, and the logits of one block of rows */
} blurry_model_memory;
BLURRY_API void blurry_model_memory_use(const blurry_model *model, blurry_model_memory *memory);

/* A batch in host memory. `rows` lists the labelled positions, each b*length + t; it may be empty. */
typedef struct blurry_batch {
    int64_t sequences, length; /* at most the model's batch and length */
    const int32_t *tokens;     /* [sequences, length], each in [0, vocabulary) */
    int64_t row_count;
    const int64_t *rows;   /* [row_count], strictly ascending */
    const int32_t *labels; /* [row_count], each in [0, vocabulary) */
} blurry_batch;

/* What a pass reports; each pointer may be NULL. */
typedef struct blurry_outputs {
    double loss;          /* sum over the rows of the cross-entropy, in nats (not the mean) */
    int32_t *argmax;      /* [row_count] the most probable token (the lowest on ties) */
    float *probabilities; /* [row_count, vocabulary] */
    float *logits;        /* [row_count, vocabulary] */
} blurry_outputs;

/* Forward without dropout. `labels` may be NULL: then loss is 0. */
BLURRY_API blurry_status blurry_model_evaluate(blurry_model *model, const blurry_batch *batch,
                                               blurry_outputs *outputs);

/* Forward with dropout and backward: adds to every parameter's gradient that of `scale` * loss (scale = 1 /
 * the rows of a whole step gives the mean, also over several batches: gradient accumulation). The dropout
 * mask depends on the seed, `draw` (for example the number of sequences seen so far) and the element alone.
 * `probabilities` and `logits` are not available here. */
BLURRY_API blurry_status blurry_model_gradient(blurry_model *model, const blurry_batch *batch, double scale,
                                               uint64_t draw, blurry_outputs *outputs);
BLURRY_API blurry_status blurry_model_zero_gradient(blurry_model *model);

/* Name of the first tensor that holds a NaN or an infinity, in the order parameters, layer outputs of the
 * latest pass, gradients; NULL where all are finite. Valid until the next call for this model. */
BLURRY_API const char *blurry_model_first_nonfinite(const blurry_model *model);

/* How much of token u's value enters the output of one head of one layer at token t: weights [length,
 * length], row t, for one sequence of tokens [length]. Mixers softmax, swa and blurry; BLURRY_E_UNSUPPORTED
 * for the others. */
BLURRY_API blurry_status blurry_model_attention(blurry_model *model, const int32_t *tokens, int64_t length,
                                                int64_t layer, int64_t head, double *weights);

/* ---- generation -------------------------------------------------------------------------------------------
 */

/* `batch` sequences decoded side by side, all at the same position. Memory is constant in the number of
 * tokens; with a softmax layer (or learned absolute positions) at most `max_length` tokens can be fed (0: the
 * setting `length`). */
typedef struct blurry_generator blurry_generator;

BLURRY_API blurry_status blurry_generator_create(blurry_generator **generator, const blurry_model *model,
                                                 int64_t batch, int64_t max_length);
BLURRY_API void blurry_generator_destroy(blurry_generator **generator);
/* Feeds tokens [batch, count] in order (count 1: one step) and, where logits is not NULL, writes the logits
 * after the last one, [batch, vocabulary]. The generator uses the model's parameters as they are now. */
BLURRY_API blurry_status blurry_generator_feed(blurry_generator *generator, const int32_t *tokens,
                                               int64_t count, float *logits);
BLURRY_API int64_t blurry_generator_position(const blurry_generator *generator); /* tokens fed so far */
BLURRY_API blurry_status blurry_generator_reset(blurry_generator *generator);

/* The state as plain bytes: version, fingerprint of the model (shape and parameters), position, all layers,
 * checksum. Restoring refuses bytes that are cut, altered, of another version, batch, maximum length or
 * model. */
BLURRY_API size_t blurry_generator_state_bytes(const blurry_generator *generator);
BLURRY_API blurry_status blurry_generator_save(const blurry_generator *generator, void *bytes, size_t size);
BLURRY_API blurry_status blurry_generator_restore(blurry_generator *generator, const void *bytes,
                                                  size_t size);

#ifdef __cplusplus
}
#endif
#endif
