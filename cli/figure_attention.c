#include "cli/figure_attention.h"
#include "cli/cli.h"
#include "blurry/attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A plan for one sequence of the case with `length` tokens and value width `dim_v`, and the memory its calls
 * need. */
typedef struct session {
    blurry_attn_plan *plan;
    void *state, *workspace;
    size_t workspace_bytes;
} session;

static void close_session(session *s)
{
    blurry_attn_plan_destroy(&s->plan);
    free(s->state);
    free(s->workspace);
}

static blurry_status open_session(session *s, const attention_case *c, int64_t length, int64_t dim_v,
                                  int decay)
{
    memset(s, 0, sizeof *s);
    blurry_attn_desc desc;
    blurry_attn_desc_init(&desc);
    desc.length = length;
    desc.dim_k = c->dim;
    desc.dim_v = dim_v;
    desc.modes = c->modes;
    desc.period = &c->period;
    desc.decay = decay;
    desc.dtype = BLURRY_F64;
    desc.threads = 1;
    blurry_status status = blurry_attn_plan_create(&s->plan, &desc);
    if (status != BLURRY_OK) return status;
    s->workspace_bytes = blurry_attn_forward_workspace(s->plan);
    s->state = aligned_alloc(64, blurry_attn_state_bytes(s->plan));
    s->workspace = aligned_alloc(64, s->workspace_bytes ? s->workspace_bytes : 64);
    return s->state && s->workspace ? blurry_attn_state_init(s->plan, s->state) : BLURRY_E_MEMORY;
}

static blurry_status forward(session *s, const double *q, const double *k, const double *v, double *o)
{
    blurry_attn_forward_args args = {.q = q,
                                     .k = k,
                                     .v = v,
                                     .o = o,
                                     .state_in = s->state,
                                     .state_out = s->state,
                                     .workspace = s->workspace,
                                     .workspace_bytes = s->workspace_bytes};
    return blurry_attn_forward(s->plan, &args);
}

static double *zeros(int64_t rows, int64_t columns)
{
    return calloc((size_t)(rows > 0 ? rows : 1) * (size_t)(columns > 0 ? columns : 1), sizeof(double));
}

static void set_identity(double *matrix, int64_t n)
{
    for (int64_t i = 0; i < n; i++) matrix[i * n + i] = 1.0;
}

static int finish(blurry_status status, session *s)
{
    if (s) close_session(s);
    if (status == BLURRY_E_MEMORY) {
        fprintf(stderr, "blurry: out of memory\n");
        return CLI_FAILED;
    }
    return cli_report(status, "attention");
}

int attention_of_tokens(const attention_case *c, double *weights)
{
    session s;
    double *one_hot = zeros(c->length, c->length);
    blurry_status status = open_session(&s, c, c->length, c->length, c->decay);
    if (status == BLURRY_OK && !one_hot) status = BLURRY_E_MEMORY;
    if (status == BLURRY_OK) {
        set_identity(one_hot, c->length);
        status = forward(&s, c->q, c->k, one_hot, weights);
    }
    free(one_hot);
    return finish(status, &s);
}

/* `reader` has no decay, so that an empty token changes nothing: its output is the softmax over the slots
 * given. */
static blurry_status slot_rows(const attention_case *c, session *writer, session *reader, double *slots,
                               const double *one_hot, const double *nothing, double *weights)
{
    int64_t S = 2 * c->modes - 1;
    blurry_status status = BLURRY_OK;
    for (int64_t t = 0; t < c->length && status == BLURRY_OK; t++) {
        const double *q = c->q + t * c->dim, *k = c->k + t * c->dim;
        double unused;
        status = forward(writer, q, k, nothing, &unused);
        if (status == BLURRY_OK)
            status = blurry_attn_state_get(writer->plan, writer->state, NULL, slots, NULL);
        if (status == BLURRY_OK)
            status = blurry_attn_state_set(reader->plan, reader->state, t, slots, one_hot);
        if (status == BLURRY_OK) status = forward(reader, q, nothing, nothing, weights + t * S);
    }
    return status;
}

int attention_of_slots(const attention_case *c, double *weights)
{
    int64_t S = 2 * c->modes - 1;
    session writer, reader;
    blurry_status status = open_session(&writer, c, 1, 1, c->decay);
    if (status != BLURRY_OK) return finish(status, &writer);
    status = open_session(&reader, c, 1, S, 0);
    double *slots = zeros(S, c->dim), *one_hot = zeros(S, S), *nothing = zeros(1, c->dim > S ? c->dim : S);
    if (status == BLURRY_OK && !(slots && one_hot && nothing)) status = BLURRY_E_MEMORY;
    if (status == BLURRY_OK) {
        set_identity(one_hot, S);
        status = slot_rows(c, &writer, &reader, slots, one_hot, nothing, weights);
    }
    free(slots);
    free(one_hot);
    free(nothing);
    close_session(&writer);
    return finish(status, &reader);
}

int attention_key_slots(const attention_case *c, double *slots)
{
    session s;
    double *v = zeros(c->length, 1), *o = zeros(c->length, 1);
    blurry_status status = open_session(&s, c, c->length, 1, c->decay);
    if (status == BLURRY_OK && !(v && o)) status = BLURRY_E_MEMORY;
    if (status == BLURRY_OK) status = forward(&s, c->q, c->k, v, o);
    if (status == BLURRY_OK) status = blurry_attn_state_get(s.plan, s.state, NULL, slots, NULL);
    free(v);
    free(o);
    return finish(status, &s);
}
