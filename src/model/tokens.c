/* Which tokens of a batch are equal: what the first layer's maps make of a token depends on the token alone
 * where it has neither a position of its own nor dropout, so a pass computes them once for each different
 * token. */
#include "model/model.h"

#include "base/status.h"

/* The lists of model.h in host memory, and per token of the vocabulary its number among the different ones.
 */
typedef struct fold_lists {
    int64_t *first, *index, *order, *group, *start, *number;
} fold_lists;

static fold_lists lists_of(const network *net)
{
    int64_t rows = net->batch * net->length, *at = net->fold_host;
    return (fold_lists){at, at + rows, at + 2 * rows, at + 3 * rows, at + 4 * rows, at + 5 * rows};
}

/* Numbers the different tokens in the order of their first rows. Their count, or 0: more than `most`. */
static int64_t number_tokens(const fold_lists *l, const int32_t *ids, int64_t rows, int64_t vocab,
                             int64_t most)
{
    int64_t different = 0;
    for (int64_t v = 0; v < vocab; v++) l->number[v] = -1;
    for (int64_t r = 0; r < rows; r++) {
        int64_t *number = &l->number[ids[r]];
        if (*number < 0) {
            if (different == most) return 0;
            l->first[different] = r;
            l->start[different] = 0;
            *number = different++;
        }
        l->index[r] = *number;
        l->start[*number]++;
    }
    return different;
}

/* Rows sorted by their token's number, in order among equal ones; start [different] holds how many each has.
 */
static void sort_rows(const fold_lists *l, int64_t rows, int64_t different)
{
    for (int64_t i = 0, sum = 0; i < different; i++) {
        int64_t count = l->start[i];
        l->start[i] = sum;
        sum += count;
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = l->start[l->index[r]]++;
        l->order[at] = r;
        l->group[at] = l->index[r];
    }
}

blurry_status network_fold(network *net, const int32_t *ids, int64_t rows, int64_t *different)
{
    *different = 0;
    if (!net->folds) return BLURRY_OK;
    fold_lists l = lists_of(net);
    *different = number_tokens(&l, ids, rows, net->model->vocab, mixer_rows_most(rows));
    if (!*different) return BLURRY_OK;
    sort_rows(&l, rows, *different);
    size_t bytes = (size_t)rows * sizeof(int64_t);
    STATUS_TRY(device_upload(net->dev, net->token_first, l.first, (size_t)*different * sizeof(int64_t)));
    STATUS_TRY(device_upload(net->dev, net->token_index, l.index, bytes));
    STATUS_TRY(device_upload(net->dev, net->token_order, l.order, bytes));
    return device_upload(net->dev, net->token_group, l.group, bytes);
}
