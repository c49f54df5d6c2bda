/* Attention of the trained models on a validation sample: computed by the library from the checkpoint, drawn
 * as in fig2, with the places of the right answers marked. */
#include "cli/report.h"
#include "cli/cli.h"
#include "blurry/model.h"
#include "blurry/task.h"
#include "blurry/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CELLS = 128, MOST_GROUPS = 6, MOST_LAYERS = 4 };

void report_masks_free(report_mask *masks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(masks[i].weights);
        free(masks[i].open);
        free(masks[i].query);
        free(masks[i].value);
    }
    free(masks);
}

/* A trained model and one sample of its task. */
typedef struct subject {
    blurry_settings *settings;
    blurry_model *model;
    blurry_task *task;
    blurry_samples *samples;
} subject;

static void close_subject(subject *s)
{
    blurry_model_destroy(&s->model);
    blurry_samples_destroy(&s->samples);
    blurry_task_destroy(&s->task);
    blurry_settings_destroy(&s->settings);
}

static blurry_status open_subject(subject *s, const run *r)
{
    memset(s, 0, sizeof *s);
    const int64_t first = 0;
    blurry_status status = blurry_checkpoint_settings(r->path, &s->settings);
    if (status == BLURRY_OK) status = blurry_task_create(&s->task, s->settings);
    if (status == BLURRY_OK) status = blurry_samples_create(&s->samples, s->task, 1);
    if (status == BLURRY_OK) status = blurry_task_fill(s->task, BLURRY_VAL, &first, 1, 0, s->samples);
    if (status == BLURRY_OK) status = blurry_checkpoint_load(r->path, s->settings, 1, &s->model);
    return status;
}

/* The latest place before t that holds the label behind a repetition of the queried key: the answer in plain
 * sight. */
static int64_t answer_place(const int32_t *tokens, int64_t t, int32_t label)
{
    for (int64_t u = t - 1; u > 0; u--)
        if (tokens[u] == label && tokens[u - 1] == tokens[t]) return u;
    return -1;
}

static int mark_answers(report_mask *m, const blurry_samples *s)
{
    m->query = malloc((size_t)(s->row_count + 1) * sizeof *m->query);
    m->value = malloc((size_t)(s->row_count + 1) * sizeof *m->value);
    if (!m->query || !m->value) return 0;
    for (int64_t i = 0; i < s->row_count; i++) {
        int64_t place = answer_place(s->tokens, s->rows[i], s->labels[i]);
        if (place < 0) continue;
        m->query[m->queries] = s->rows[i];
        m->value[m->queries++] = place;
    }
    return 1;
}

/* Weights [L, L] into blocks [cells, cells] of `side` tokens: the strongest of each block. */
static void pool(double *weights, int64_t length, int64_t side)
{
    int64_t cells = (length + side - 1) / side;
    for (int64_t i = 0; i < cells; i++)
        for (int64_t j = 0; j < cells; j++) {
            double strongest = 0;
            for (int64_t t = i * side; t < (i + 1) * side && t < length; t++)
                for (int64_t u = j * side; u < (j + 1) * side && u < length; u++)
                    if (fabs(weights[t * length + u]) > fabs(strongest)) strongest = weights[t * length + u];
            weights[i * cells + j] = strongest; /* never past what is still to be read */
        }
}

static blurry_status look(report_mask *m, const subject *s, int layer, int64_t window)
{
    int64_t L = s->samples->lengths[0];
    size_t n = (size_t)L * (size_t)L;
    m->layer = layer;
    m->length = L;
    m->weights = malloc(n * sizeof *m->weights);
    m->open = malloc(n);
    if (!m->weights || !m->open || !mark_answers(m, s->samples)) return BLURRY_E_MEMORY;
    for (int64_t t = 0; t < L; t++)
        for (int64_t u = 0; u < L; u++) m->open[t * L + u] = u <= t && u > t - window;
    return blurry_model_attention(s->model, s->samples->tokens, L, layer, 0, m->weights);
}

static int has_checkpoint(const run *r)
{
    static const char *const names[] = {"best.safetensors", "model.safetensors"};
    int found = 0;
    for (int i = 0; i < 2 && !found; i++) {
        char *path = NULL;
        if (asprintf(&path, "%s/%s", r->path, names[i]) < 0) return 0;
        found = access(path, F_OK) == 0;
        free(path);
    }
    return found;
}

/* All layers of one group's first run. A mixer without such a map is no failure. */
static int group_masks(const report *r, size_t group, report_mask *masks, size_t *count)
{
    const report_group *g = &r->groups[group];
    const run *first = &r->runs[g->runs[0]];
    int64_t window = !strcmp(g->mixer, "swa") ? run_integer(first, "window") : INT64_MAX / 2;
    int64_t layers = run_integer(first, "layers");
    if (!has_checkpoint(first)) {
        fprintf(stderr, "blurry report: %s has no checkpoint: its attention is left out\n", first->path);
        return CLI_OK;
    }
    subject s;
    blurry_status status = open_subject(&s, first);
    for (int layer = 0; status == BLURRY_OK && layer < layers && layer < MOST_LAYERS; layer++) {
        report_mask *m = &masks[*count];
        m->group = group;
        status = look(m, &s, layer, window);
        if (status == BLURRY_OK) {
            ++*count;
            continue;
        }
        free(m->weights);
        free(m->open);
        free(m->query);
        free(m->value);
        memset(m, 0, sizeof *m);
        if (status == BLURRY_E_UNSUPPORTED) status = BLURRY_OK;
    }
    close_subject(&s);
    if (status == BLURRY_E_MEMORY) fprintf(stderr, "blurry: out of memory\n");
    return status == BLURRY_E_MEMORY ? CLI_FAILED : cli_report(status, first->path);
}

int report_masks(const report *r, report_mask **masks, size_t *count)
{
    *count = 0;
    *masks = calloc(MOST_GROUPS * MOST_LAYERS, sizeof **masks);
    if (!*masks) return CLI_FAILED;
    int rc = CLI_OK;
    for (size_t i = 0; rc == CLI_OK && i < r->group_count && i < MOST_GROUPS; i++)
        rc = group_masks(r, i, *masks, count);
    return rc;
}

int report_plot_mask(const report_mask *m, plot *p)
{
    int rc = plot_open(p, 346, 346);
    if (rc != CLI_OK) return rc;
    FILE *to = p->script.stream;
    int64_t L = m->length, side = (L + MOST_CELLS - 1) / MOST_CELLS, cells = (L + side - 1) / side;
    double *weights = malloc((size_t)(L * L) * sizeof *weights);
    unsigned char *open = malloc((size_t)(cells * cells));
    if (!weights || !open) {
        free(weights);
        free(open);
        return CLI_FAILED;
    }
    for (int64_t i = 0; i < L * L; i++)
        weights[i] = fabs(m->weights[i]) < REPORT_MASK_LEAST ? 0 : m->weights[i];
    for (int64_t i = 0; i < cells * cells; i++) open[i] = m->open[(i / cells * side) * L + i % cells * side];
    if (side > 1) pool(weights, L, side);
    plot_panel(p, 46, 8, 286, 286);
    double s = (double)side;
    fprintf(
        to,
        "unset grid\nset border 0\nset tics scale 0\nset xlabel \"token\" offset 0,0.6 textcolor rgb ink\n"
        "set ylabel \"query\" offset 1.6,0 textcolor rgb ink\nset xtics offset 0,0.4 (");
    int64_t step = L > 256 ? 128 : L > 96 ? 32 : L > 40 ? 16 : 5;
    for (int64_t t = 0; t <= L; t += step)
        fprintf(to, "%s\"%lld\" %.4f", t ? ", " : "", (long long)t, (double)t / s);
    fprintf(to, ")\nset ytics offset 0.5,0 (");
    for (int64_t t = 0; t <= L; t += step)
        fprintf(to, "%s\"%lld\" %.4f", t ? ", " : "", (long long)t, (double)t / s);
    fprintf(to, ")\n");
    fprintf(to, "$answers << EOD\n");
    for (int64_t i = 0; i < m->queries && m->queries <= 256; i++)
        fprintf(to, "%.3f %.3f\n", ((double)m->value[i] + 0.5) / s, ((double)m->query[i] + 0.5) / s);
    fprintf(to, "-9 -9\nEOD\n");
    plot_cells_with(p, weights, open, cells, cells,
                    "$answers using 1:2 with points pt 6 ps 0.6 lw 1.5 lc rgb vermilion notitle");
    free(weights);
    free(open);
    return CLI_OK;
}
