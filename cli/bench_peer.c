/* Runs the PyTorch form of the operator on our inputs and reads back its times and results. The two sides
 * exchange tensors as safetensors files in a temporary folder. */
#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct tensor {
    const char *name;
    float *data;
    int64_t heads, dim;
} tensor;

static int64_t elements(const bench_problem *p, const tensor *t)
{
    return p->desc.batch * p->desc.length * t->heads * t->dim;
}

static int write_tensors(const char *path, const bench_problem *p, const tensor *list, int count)
{
    json_t *header = json_object();
    int64_t offset = 0;
    for (int i = 0; i < count; i++) {
        json_int_t end = (json_int_t)(offset + elements(p, &list[i]) * 4);
        json_object_set_new(header, list[i].name,
                            json_pack("{s:s, s:[I,I,I,I], s:[I,I]}", "dtype", "F32", "shape",
                                      (json_int_t)p->desc.batch, (json_int_t)p->desc.length,
                                      (json_int_t)list[i].heads, (json_int_t)list[i].dim, "data_offsets",
                                      (json_int_t)offset, end));
        offset = end;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    FILE *file = text ? fopen(path, "wb") : NULL;
    int good = file != NULL;
    uint64_t length = good ? strlen(text) : 0;
    good = good && fwrite(&length, 8, 1, file) == 1 && fwrite(text, length, 1, file) == 1;
    for (int i = 0; good && i < count; i++)
        good = fwrite(list[i].data, 4, (size_t)elements(p, &list[i]), file) == (size_t)elements(p, &list[i]);
    if (file && fclose(file)) good = 0;
    free(text);
    return good;
}

/* The largest relative difference between our tensors and the peer's of the same names; NaN when unreadable.
 */
static double compare(const char *path, const bench_problem *p, const tensor *list, int count)
{
    FILE *file = fopen(path, "rb");
    uint64_t length = 0;
    double worst = NAN;
    char *text = NULL;
    json_t *header = NULL;
    if (file && fread(&length, 8, 1, file) == 1 && length < 1 << 20 && (text = malloc(length)) != NULL &&
        fread(text, length, 1, file) == 1)
        header = json_loadb(text, length, 0, NULL);
    for (int i = 0; header && i < count; i++) {
        int64_t n = elements(p, &list[i]);
        json_t *offsets = json_object_get(json_object_get(header, list[i].name), "data_offsets");
        int64_t from = json_integer_value(json_array_get(offsets, 0)),
                to = json_integer_value(json_array_get(offsets, 1));
        float *theirs = malloc((size_t)n * 4);
        double *ours = malloc((size_t)n * 8);
        if (!offsets || to - from != n * 4 || !theirs || !ours ||
            fseek(file, (long)(8 + length) + from, SEEK_SET) ||
            fread(theirs, 4, (size_t)n, file) != (size_t)n) {
            worst = NAN;
            free(theirs);
            free(ours);
            break;
        }
        for (int64_t j = 0; j < n; j++) ours[j] = list[i].data[j];
        double error = bench_error(theirs, ours, n);
        worst = i == 0 ? error : fmax(worst, error);
        free(theirs);
        free(ours);
    }
    json_decref(header);
    free(text);
    if (file) fclose(file);
    return worst;
}

static json_t *run_script(const bench_problem *p, const char *script, const char *style, const char *folder)
{
    const char *python = getenv("BLURRY_PYTHON"); /* another interpreter than python3 */
    char command[2048];
    snprintf(command, sizeof command,
             "'%s' '%s' --json --no-check --style %s --threads %d --batch %lld --length %lld --heads %lld "
             "--dim %lld --slots %lld --period %.17g --decay %s --inputs '%s/in' --outputs '%s/out'",
             python ? python : "python3", script, style, p->desc.threads, (long long)p->desc.batch,
             (long long)p->desc.length, (long long)p->desc.heads, (long long)p->desc.dim_k,
             (long long)(2 * p->desc.modes - 1), p->desc.period[0], p->desc.decay ? "on" : "off", folder,
             folder);
    FILE *pipe = popen(command, "r");
    if (!pipe) return NULL;
    json_t *answer = json_loadf(pipe, 0, NULL);
    if (pclose(pipe) != 0) {
        json_decref(answer);
        return NULL;
    }
    return answer;
}

int bench_peer_operator(const bench_problem *p, const char *script, const char *style,
                        bench_peer_result *result)
{
    if (access(script, R_OK) != 0) {
        fprintf(stderr,
                "blurry: bench: no peer script at %s: run from the source tree or give --peer-script\n",
                script);
        return 0;
    }
    char folder[] = "/tmp/blurry-peer-XXXXXX", in[64], out[64];
    if (!mkdtemp(folder)) {
        perror("blurry: bench: cannot make a temporary folder");
        return 0;
    }
    snprintf(in, sizeof in, "%s/in", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    const blurry_attn_desc *d = &p->desc;
    const tensor inputs[] = {{"q", p->q, d->heads, d->dim_k},
                             {"k", p->k, d->heads_kv, d->dim_k},
                             {"v", p->v, d->heads_kv, d->dim_v},
                             {"d_o", p->d_o, d->heads, d->dim_v}};
    const tensor outputs[] = {{"o", p->o, d->heads, d->dim_v},
                              {"d_q", p->d_q, d->heads, d->dim_k},
                              {"d_k", p->d_k, d->heads_kv, d->dim_k},
                              {"d_v", p->d_v, d->heads_kv, d->dim_v}};
    json_t *answer = write_tensors(in, p, inputs, 4) ? run_script(p, script, style, folder) : NULL;
    json_t *first = json_array_get(json_object_get(answer, "rows"), 0);
    if (first) {
        result->forward = 1e-3 * json_number_value(json_object_get(first, "forward_ms"));
        result->both = 1e-3 * json_number_value(json_object_get(first, "forward_backward_ms"));
        result->difference = compare(out, p, outputs, 4);
    } else {
        fprintf(
            stderr,
            "blurry: bench: %s did not run: it needs python3 with numpy and torch (Debian: python3-torch); "
            "BLURRY_PYTHON chooses the interpreter\n",
            script);
    }
    json_decref(answer);
    unlink(in);
    unlink(out);
    rmdir(folder);
    return first != NULL;
}
