/* Sums over labelled positions, and the metrics they amount to under each task's definition. */
#include "tasks/task.h"

#include <math.h>

/* sum over tokens of |p - uniform over the legal ones| */
static double l1_distance(const float *p, int64_t vocabulary, uint32_t legal)
{
    double share = 1.0 / __builtin_popcount(legal), sum = 0;
    for (int64_t v = 0; v < vocabulary; v++) sum += fabs(p[v] - (legal >> v & 1 ? share : 0));
    return sum;
}

blurry_status blurry_task_score(const blurry_task *task, const blurry_samples *s, const int32_t *argmax,
                                const float *probabilities, double loss, blurry_score *score)
{
    if (!task || !s || !score || (!argmax && s->row_count))
        return status_fail(BLURRY_E_INVALID, "%s is NULL",
                           !task    ? "task"
                           : !s     ? "samples"
                           : !score ? "score"
                                    : "argmax");
    int64_t V = task->info.vocabulary;
    for (int64_t r = 0; r < s->row_count; r++)
        if (argmax[r] < 0 || argmax[r] >= V)
            return status_fail(BLURRY_E_INVALID, "argmax[%lld] is %d: the vocabulary has %lld tokens",
                               (long long)r, argmax[r], (long long)V);
    for (int64_t b = 0; b < s->count; b++) {
        int64_t first = s->row_offsets[b], end = s->row_offsets[b + 1], exact = 0;
        for (int64_t r = first; r < end; r++) {
            exact += argmax[r] == s->labels[r];
            if (!s->legal) continue;
            score->legal += s->legal[r] >> argmax[r] & 1;
            if (probabilities) score->l1 += l1_distance(probabilities + r * V, V, s->legal[r]);
        }
        score->exact += exact;
        if (s->legal && probabilities) score->l1_labels += end - first;
        if (end > first) score->sequence_share += (double)exact / (double)(end - first);
    }
    score->sequences += s->count;
    score->labels += s->row_count;
    score->loss += loss;
    return BLURRY_OK;
}

static double ratio(double sum, int64_t count)
{
    return count ? sum / (double)count : NAN;
}

void blurry_task_metrics(const blurry_task *task, const blurry_score *score, blurry_metrics *m)
{
    if (!task || !score || !m) return;
    m->sequences = score->sequences;
    m->labels = score->labels;
    m->loss = ratio(score->loss, score->labels);
    m->exact_match = ratio((double)score->exact, score->labels);
    switch (task->kind->accuracy) {
    case TASK_ACCURACY_SEQUENCES:
        m->accuracy = ratio(score->sequence_share, score->sequences);
        break;
    case TASK_ACCURACY_LEGAL:
        m->accuracy = ratio((double)score->legal, score->labels);
        break;
    case TASK_ACCURACY_LABELS:
        m->accuracy = m->exact_match;
        break;
    }
    m->l1 = task->info.has_legal ? ratio(score->l1, score->l1_labels) : NAN;
    m->bits_per_byte = task->kind->counts_bytes ? m->loss / 0.69314718055994530942 : NAN;
}
