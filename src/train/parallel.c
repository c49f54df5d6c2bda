/* Data-parallel training: see parallel.h. */
#include "train/parallel.h"
#include "base/memory.h"
#include "device/collective.h"
#include "model/model.h"

#include <string.h>

blurry_status parallel_choose_gpu(const struct settings *s)
{
    if (blurry_ranks_size() < 2 || s->device != SETTINGS_device_cuda) return BLURRY_OK;
    return collective_choose_gpu(ranks_local());
}

blurry_status parallel_open(blurry_trainer *t)
{
    if (blurry_ranks_size() < 2) return BLURRY_OK;
    if (t->model->dev->kind == DEVICE_CUDA) {
        int64_t lacking = collective_available(ranks_local_count()) ? 0 : 1;
        char id[COLLECTIVE_ID] = {0};
        ranks_sum_i64(&lacking, 1);
        if (lacking == 0) {
            blurry_status status = blurry_ranks_rank() == 0 ? collective_id(id) : BLURRY_OK;
            ranks_broadcast(id, sizeof id);
            if (status == BLURRY_OK)
                status = collective_open(&t->collective, id, blurry_ranks_rank(), blurry_ranks_size());
            return parallel_agree(status);
        }
    }
    if (t->model->dev->kind == DEVICE_CPU) return BLURRY_OK; /* summed where they are */
    return memory_alloc(&t->exchange, t->model->parameter_bytes, 1, "gradients of all ranks");
}

void parallel_close(blurry_trainer *t)
{
    collective_close(&t->collective);
    memory_free(t->exchange);
    t->exchange = NULL;
}

static void sum(void *data, size_t bytes, size_t element)
{
    if (element == sizeof(float))
        ranks_sum_f32(data, bytes / element);
    else
        ranks_sum_f64(data, bytes / element);
}

blurry_status parallel_sum_gradients(blurry_trainer *t)
{
    if (blurry_ranks_size() < 2) return BLURRY_OK;
    device *dev = t->model->dev;
    size_t bytes = t->model->parameter_bytes;
    if (t->collective) return collective_sum(t->collective, dev, t->model->gradient, bytes / sizeof(float));
    if (dev->kind == DEVICE_CPU) {
        sum(t->model->gradient, bytes, dev->param_element);
        return BLURRY_OK;
    }
    STATUS_TRY(device_download(dev, t->exchange, t->model->gradient, bytes));
    STATUS_TRY(device_sync(dev));
    sum(t->exchange, bytes, dev->param_element);
    return device_upload(dev, t->model->gradient, t->exchange, bytes);
}

void parallel_sum_score(blurry_score *score)
{
    if (blurry_ranks_size() < 2) return;
    int64_t counts[] = {score->sequences, score->labels, score->exact, score->legal, score->l1_labels};
    double sums[] = {score->loss, score->sequence_share, score->l1};
    ranks_sum_i64(counts, 5);
    ranks_sum_f64(sums, 3);
    *score = (blurry_score){.sequences = counts[0],
                            .labels = counts[1],
                            .exact = counts[2],
                            .legal = counts[3],
                            .l1_labels = counts[4],
                            .loss = sums[0],
                            .sequence_share = sums[1],
                            .l1 = sums[2]};
}

blurry_status parallel_agree(blurry_status status)
{
    int64_t failed = status != BLURRY_OK;
    if (blurry_ranks_size() < 2) return status;
    ranks_sum_i64(&failed, 1);
    if (failed && status == BLURRY_OK) return status_fail(BLURRY_E_CANCELLED, "another rank could not begin");
    return status;
}

/* A block of device memory of rank 0 to all. */
static blurry_status share_block(blurry_trainer *t, void *block, size_t bytes)
{
    device *dev = t->model->dev;
    void *host = NULL;
    STATUS_TRY(memory_alloc(&host, bytes, 1, "state of all ranks"));
    blurry_status status = device_download(dev, host, block, bytes);
    if (status == BLURRY_OK) status = device_sync(dev);
    ranks_broadcast(host, bytes);
    if (status == BLURRY_OK) status = device_upload(dev, block, host, bytes);
    if (status == BLURRY_OK) status = device_sync(dev);
    memory_free(host);
    return status;
}

blurry_status parallel_share(blurry_trainer *t, run_state *state)
{
    if (blurry_ranks_size() < 2) return BLURRY_OK;
    size_t moments = (size_t)t->optimiser.elements * t->model->dev->param_element;
    ranks_broadcast(state, sizeof *state);
    ranks_broadcast(&t->step, sizeof t->step);
    STATUS_TRY(share_block(t, t->model->data, t->model->parameter_bytes));
    STATUS_TRY(share_block(t, t->optimiser.m, moments));
    return share_block(t, t->optimiser.v, moments);
}
