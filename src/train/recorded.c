/* Recorded training steps: see recorded.h. The first step runs as it is queued, so that every kernel and
 * product is loaded and planned; then one step is recorded and run again and again. With learned periods
 * every step is queued anew: each has plans of its own, whose tables are made by the host. */
#include "train/recorded.h"

#include "base/memory.h"
#include "base/order.h"
#include "blurry/ranks.h"
#include "model/model.h"
#include "tasks/task.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* What a step reads and writes beside tensors, in device memory. One upload sets all of it but bad_step. */
typedef struct step_scalars {
    network_scalars network;
    optimiser_scalars optimiser;
} step_scalars;

struct recorded {
    step_scalars *scalars;        /* in device memory */
    network_scalars *network_own; /* what the network and the optimiser had before */
    optimiser_scalars *optimiser_own;
    device_graph *graph;
    void *scratch;      /* the device's when the graph was recorded: the graph knows this address */
    int64_t labels;     /* rows of the loss, those without a label included */
    int64_t real;       /* labels of the latest step */
    int64_t tokens;     /* of the latest step's samples */
    int warm;           /* whether a step has run */
    int queues;         /* whether every step is queued anew */
    double *log_weight; /* mqar: in device memory; NULL: batches come from the host */
    mqar_ahead *ahead;
    mqar_args mqar;
    int64_t *rows; /* [labels] host batches, padded */
    int32_t *targets;
};

static int learns_periods(const blurry_model *model)
{
    for (int64_t i = 0; i < model->layers; i++)
        if (model->net.layers[i].mixer.config.learned_period &&
            model->net.layers[i].mixer.config.type == &mixer_blurry)
            return 1;
    return 0;
}

/* ---- batches ---- */
static blurry_status open_mqar(blurry_trainer *t, const double *log_weight, int64_t places)
{
    struct recorded *r = t->recorded;
    device *dev = t->model->dev;
    const struct settings *s = settings_values(t->settings);
    size_t bytes = (size_t)places * sizeof(double);
    void *memory;
    STATUS_TRY(device_alloc(dev, bytes, &memory));
    r->log_weight = memory;
    STATUS_TRY(device_upload(dev, memory, log_weight, bytes));
    STATUS_TRY(device_alloc(dev, (size_t)t->part_size * sizeof *r->ahead, &memory));
    r->ahead = memory;
    r->mqar = (mqar_args){.batch = t->part_size,
                          .length = s->length,
                          .pairs = s->pairs,
                          .vocab = s->vocab,
                          .places = places,
                          .samples = t->info.samples[BLURRY_TRAIN],
                          .data_seed = (uint64_t)s->data_seed,
                          .order_seed = (uint64_t)s->seed,
                          .purpose = RNG_MQAR + BLURRY_TRAIN,
                          .random_filler = s->filler == SETTINGS_filler_random,
                          .log_weight = r->log_weight,
                          .first_place = &r->scalars->network.key[1],
                          .step = s->batch,
                          .ahead = r->ahead,
                          .ids = t->model->net.ids,
                          .rows = t->model->net.rows,
                          .targets = t->model->net.targets,
                          .place = t->model->net.row_place};
    return BLURRY_OK;
}

static blurry_status open_batches(blurry_trainer *t)
{
    struct recorded *r = t->recorded;
    int64_t places = 0;
    void *memory;
    const double *log_weight = task_mqar_weights(t->task, &places);
    r->labels = t->part_size * t->info.max_labels;
    r->real = r->labels;
    r->tokens = t->part_size * t->model->net.length;
    if (log_weight && places > 0 && places <= MQAR_PLACES_MOST && device_makes_mqar(t->model->dev))
        return open_mqar(t, log_weight, places);
    STATUS_TRY(memory_alloc(&memory, (size_t)r->labels, sizeof *r->rows, "labelled rows"));
    r->rows = memory;
    STATUS_TRY(memory_alloc(&memory, (size_t)r->labels, sizeof *r->targets, "labels"));
    r->targets = memory;
    return BLURRY_OK;
}

/* The coming step's batch from the host, padded to the full length and with rows without a label. */
static blurry_status upload_batch(blurry_trainer *t)
{
    struct recorded *r = t->recorded;
    network *net = &t->model->net;
    const struct settings *s = settings_values(t->settings);
    blurry_samples *p = t->parts[0];
    for (int64_t i = 0; i < t->part_size; i++)
        t->indices[i] =
            order_sample((uint64_t)s->seed, t->info.samples[BLURRY_TRAIN], t->step * s->batch + i);
    STATUS_TRY(blurry_task_fill(t->task, BLURRY_TRAIN, t->indices, t->part_size, net->length, p));
    if (!p->row_count)
        return status_fail(BLURRY_E_INVALID, "step %lld: no sample has a label", (long long)t->step + 1);
    for (int64_t i = 0; i < r->labels; i++) {
        r->rows[i] = i < p->row_count ? p->rows[i] : 0;
        r->targets[i] = i < p->row_count ? p->labels[i] : -1;
    }
    r->real = p->row_count;
    r->tokens = trainer_count_tokens(p);
    size_t places = (size_t)(t->part_size * net->length);
    STATUS_TRY(device_upload(net->dev, net->ids, p->tokens, places * sizeof *net->ids));
    STATUS_TRY(device_upload(net->dev, net->rows, r->rows, (size_t)r->labels * sizeof *r->rows));
    return device_upload(net->dev, net->targets, r->targets, (size_t)r->labels * sizeof *r->targets);
}

/* ---- opening and closing ---- */
blurry_status recorded_open(blurry_trainer *t)
{
    device *dev = t->model->dev;
    void *memory;
    if (!device_records(dev) || t->part_count > 1 || blurry_ranks_size() > 1) return BLURRY_OK;
    STATUS_TRY(memory_alloc(&memory, 1, sizeof(struct recorded), "recorded steps"));
    struct recorded *r = t->recorded = memory;
    r->queues = learns_periods(t->model);
    STATUS_TRY(device_alloc(dev, sizeof *r->scalars, &memory));
    r->scalars = memory;
    r->network_own = t->model->net.scalars;
    r->optimiser_own = t->optimiser.scalars;
    return open_batches(t);
}

void recorded_close(blurry_trainer *t)
{
    struct recorded *r = t->recorded;
    if (!r) return;
    device *dev = t->model->dev;
    (void)device_sync(dev);
    device_graph_destroy(dev, &r->graph);
    if (r->scalars) device_free(dev, r->scalars);
    if (r->log_weight) device_free(dev, r->log_weight);
    if (r->ahead) device_free(dev, r->ahead);
    memory_free(r->rows);
    memory_free(r->targets);
    memory_free(r);
    t->recorded = NULL;
}

/* ---- steps ---- */
static blurry_status queue_work(blurry_trainer *t)
{
    struct recorded *r = t->recorded;
    network *net = &t->model->net;
    device_side_open(net->dev); /* for what mqar leaves to it; the network opens and closes it itself */
    if (r->log_weight) device_mqar(net->dev, &r->mqar);
    network_batch batch = {.B = t->part_size, .L = net->length, .labels = r->labels};
    /* Batches from the host are padded with rows that have no label and do not ascend. */
    if (r->log_weight) batch.wanted = network_wanted(net, batch.B * batch.L, batch.labels);
    STATUS_TRY(network_gradient(net, &batch));
    optimiser_queue_measure(&t->optimiser, &r->scalars->network.log_prob_sum);
    optimiser_queue_update(&t->optimiser, 1);
    return BLURRY_OK;
}

/* The whole step with the scalars it is recorded with; evaluations and plain steps use the network's own. */
static blurry_status queue_step(blurry_trainer *t)
{
    struct recorded *r = t->recorded;
    t->model->net.scalars = &r->scalars->network;
    t->optimiser.scalars = &r->scalars->optimiser;
    blurry_status status = queue_work(t);
    t->model->net.scalars = r->network_own;
    t->optimiser.scalars = r->optimiser_own;
    return status;
}

static blurry_status record(blurry_trainer *t)
{
    struct recorded *r = t->recorded;
    device *dev = t->model->dev;
    STATUS_TRY(device_capture_begin(dev));
    blurry_status queued = queue_step(t), ended = device_capture_end(dev, &r->graph);
    r->scratch = dev->run.scratch;
    return queued == BLURRY_OK ? ended : queued;
}

static blurry_status upload_scalars(blurry_trainer *t)
{
    struct recorded *r = t->recorded;
    const struct settings *s = settings_values(t->settings);
    double lr = schedule_rate(&t->schedule, t->step);
    step_scalars now = {.network = {.key = {(uint64_t)s->seed, (uint64_t)(t->step * s->batch)},
                                    .scale = 1.0 / (double)r->real},
                        .optimiser = {.adamw = optimiser_scalars_of(&t->optimiser, t->step + 1, lr)}};
    return device_upload(t->model->dev, r->scalars, &now, offsetof(step_scalars, optimiser.adamw.bad_step));
}

blurry_status recorded_step(blurry_trainer *t)
{
    struct recorded *r = t->recorded;
    device *dev = t->model->dev;
    if (!r->log_weight) STATUS_TRY(upload_batch(t));
    STATUS_TRY(upload_scalars(t));
    parameters_refresh(t->model);
    if (t->model->gradient_used) STATUS_TRY(blurry_model_zero_gradient(t->model));
    if (r->graph && r->scratch != dev->run.scratch) device_graph_destroy(dev, &r->graph);
    if (r->warm && !r->graph && !r->queues) STATUS_TRY(record(t));
    t->model->gradient_used = 1;
    STATUS_TRY(r->graph ? device_graph_run(dev, r->graph) : queue_step(t));
    t->model->gradient_used = 0; /* the update clears what it has read */
    if (!r->warm) STATUS_TRY(device_sync(dev));
    r->warm = 1;
    t->step++;
    t->tokens += r->tokens;
    return BLURRY_OK;
}

blurry_status recorded_read(blurry_trainer *t, blurry_step *report, int *bad)
{
    struct recorded *r = t->recorded;
    device *dev = t->model->dev;
    step_scalars now;
    *bad = 0;
    STATUS_TRY(device_download(dev, &now, r->scalars, sizeof now)); /* waits for the steps before it */
    STATUS_TRY(device_sync(dev));
    const adamw_scalars *a = &now.optimiser.adamw;
    if (a->bad_step != 0) {
        *bad = 1;
        t->step = (int64_t)a->bad_step - 1;
        device_zero(dev, r->scalars, sizeof *r->scalars);
        return BLURRY_OK;
    }
    *report = (blurry_step){.step = t->step,
                            .tokens = r->tokens,
                            .loss = -now.network.log_prob_sum / (double)r->real,
                            .lr = a->lr,
                            .grad_norm = now.optimiser.norm};
    return BLURRY_OK;
}
