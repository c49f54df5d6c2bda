/* Attention weights of one layer on one sequence, for figures. */
#include "model/model.h"

#include "base/status.h"
#include "mixers/attention_map.h"

blurry_status blurry_model_attention(blurry_model *model, const int32_t *tokens, int64_t length,
                                     int64_t layer, int64_t head, double *weights)
{
    if (!weights) return status_fail(BLURRY_E_INVALID, "weights is NULL");
    STATUS_TRY(model_check_batch(model, &(blurry_batch){.sequences = 1, .length = length, .tokens = tokens}));
    if (layer < 0 || layer >= model->layers)
        return status_fail(BLURRY_E_INVALID, "layer is %lld: give 0 to %lld", (long long)layer,
                           (long long)model->layers - 1);
    network *net = &model->net;
    mixer_pass pass;
    STATUS_TRY(device_upload(net->dev, net->ids, tokens, (size_t)length * sizeof *net->ids));
    STATUS_TRY(network_forward_to(net, 1, length, layer, &pass));
    STATUS_TRY(mixer_attention_map(&pass, head, weights));
    return device_sync(net->dev);
}
