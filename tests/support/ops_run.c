/* One run of a case: memory, inputs, the calls. */
#include "support/ops_run.h"

#include "base/rng.h"
#include "support/device_memory.h"
#include "support/test.h"

#include <math.h>
#include <string.h>

enum { GUARD = 64 };
static const unsigned char GUARD_BYTE = 0xA5;

int op_is_compared(const op_tensor *t)
{
    return t->role == OP_OUTPUT || t->role == OP_RESULT || t->role == OP_CARRIED;
}

int op_has_gradient(const op_tensor *t)
{
    return t->role == OP_INPUT || t->role == OP_PARAM || t->role == OP_WEIGHT || t->role == OP_OUTPUT;
}

int op_is_trained(const op_tensor *t)
{
    return t->role == OP_PARAM || t->role == OP_WEIGHT;
}

/* ---- types ---- */
static op_type type_of(const op_tensor *t)
{
    if (t->type != OP_BY_ROLE) return t->type;
    if (t->role == OP_PARAM) return OP_PARAMETER;
    return t->role == OP_RESULT || t->role == OP_CARRIED ? OP_STATISTIC : OP_ACTIVATION;
}

static op_type gradient_type(const op_tensor *t)
{
    return op_is_trained(t) ? OP_PARAMETER : type_of(t);
}

static size_t element_of(const device *dev, op_type type)
{
    return type == OP_ACTIVATION  ? dev->element
           : type == OP_PARAMETER ? dev->param_element
                                  : dev->stat_element;
}

static double get_element(const void *x, int64_t i, size_t element)
{
    if (element == 8) return ((const double *)x)[i];
    if (element == 4) return ((const float *)x)[i];
    union {
        uint32_t bits;
        float value;
    } wide = {.bits = (uint32_t)((const uint16_t *)x)[i] << 16};
    return wide.value;
}

/* To the nearest bf16, ties to even. */
static uint16_t bf16_of(float value)
{
    union {
        float value;
        uint32_t bits;
    } wide = {.value = value};
    if (isnan(value)) return 0x7fff;
    return (uint16_t)((wide.bits + 0x7fff + (wide.bits >> 16 & 1)) >> 16);
}

static void set_element(void *x, int64_t i, size_t element, double value)
{
    if (element == 8)
        ((double *)x)[i] = value;
    else if (element == 4)
        ((float *)x)[i] = (float)value;
    else
        ((uint16_t *)x)[i] = bf16_of((float)value);
}

double op_run_get(const op_run *r, int i, int64_t k)
{
    return get_element(r->x[i], k, element_of(r->dev, type_of(&r->c->tensor[i])));
}
void op_run_set(const op_run *r, int i, int64_t k, double value)
{
    set_element(r->x[i], k, element_of(r->dev, type_of(&r->c->tensor[i])), value);
}
double op_run_get_d(const op_run *r, int i, int64_t k)
{
    return get_element(r->d[i], k, element_of(r->dev, gradient_type(&r->c->tensor[i])));
}

size_t op_run_element(const op_run *r, const op_tensor *t)
{
    return element_of(r->dev, type_of(t));
}

double op_get(const op_call *call, int i, int64_t k)
{
    return get_element(call->x[i], k, op_bytes(call, i));
}

void op_set(const op_call *call, int i, int64_t k, double value)
{
    set_element(call->x[i], k, op_bytes(call, i), value);
}

size_t op_bytes(const op_call *call, int i)
{
    return element_of(call->dev, type_of(&call->c->tensor[i]));
}

/* ---- memory ---- */
static void *guarded(const device *dev, size_t bytes)
{
    unsigned char *memory = test_device_memory(dev, kernel_round64(bytes + 2 * GUARD));
    assert_non_null(memory);
    memset(memory, GUARD_BYTE, bytes + 2 * GUARD);
    return memory + GUARD;
}

static void check_guard(const op_case *c, const char *name, const void *memory, size_t bytes)
{
    const unsigned char *m = memory;
    for (int i = 1; i <= GUARD; i++)
        if (m[-i] != GUARD_BYTE || m[bytes + (size_t)i - 1] != GUARD_BYTE)
            fail_msg("%s %s: %s was written out of bounds", c->family, c->note, name);
}

/* What cases lend to a CUDA device lies in one piece that is used anew for every case. */
static char *lent;
static size_t lent_bytes;

void *op_lend(const op_call *call, const void *data, size_t bytes)
{
    enum { LEND_MOST = 1 << 24 };
    if (call->dev->kind == DEVICE_CPU) return (void *)data;
    if (!lent) lent = test_device_memory(call->dev, LEND_MOST);
    assert_true(lent_bytes + bytes + 64 <= LEND_MOST);
    char *to = lent + lent_bytes;
    lent_bytes += kernel_round64(bytes);
    memcpy(to, data, bytes);
    return to;
}

void op_lend_again(void)
{
    lent_bytes = 0;
}

void op_wait(const op_call *call)
{
    assert_ok(device_sync(call->dev));
}

/* Random values that are the same for all types: floats, or where asked bf16. */
static void fill(const op_run *r, void *x, op_type type, const op_tensor *t, int gradient, int stream)
{
    rng random = rng_stream(7, RNG_TEST, (uint64_t)stream);
    double low = gradient ? 0 : t->low, high = gradient ? 0 : t->high;
    if (low == 0 && high == 0) low = -1, high = 1;
    for (int64_t i = 0; i < t->count; i++) {
        float value = (float)(low + (high - low) * rng_double(&random));
        if (r->rounded && type == OP_ACTIVATION) {
            uint16_t rounded = bf16_of(value);
            value = (float)get_element(&rounded, 0, 2);
        }
        set_element(x, i, element_of(r->dev, type), (double)value);
    }
}

static void poison(const op_run *r, void *x, op_type type, int64_t count)
{
    for (int64_t i = 0; i < count; i++) set_element(x, i, element_of(r->dev, type), NAN);
}

void op_run_prepare(op_run *r)
{
    const op_case *c = r->c;
    assert_ok(device_sync(r->dev));
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        op_type type = type_of(t), d_type = gradient_type(t);
        void *x = r->x[i];
        if (t->role == OP_INT)
            memcpy(x, t->ints, r->bytes[i]);
        else if (t->role == OP_BYTES)
            memset(x, 0xff, r->bytes[i]);
        else if (t->role == OP_OUTPUT || t->role == OP_RESULT)
            poison(r, x, type, t->count);
        else if (t->role == OP_CARRIED)
            for (int64_t k = 0; k < t->count; k++) op_run_set(r, i, k, t->low);
        else
            fill(r, x, type, t, 0, i);
        if (t->role == OP_INPUT) poison(r, r->d[i], d_type, t->count);
        if (op_is_trained(t) || t->role == OP_OUTPUT) fill(r, r->d[i], d_type, t, 1, 100 + i);
    }
}

/* Devices of a GPU are kept from run to run: to make one takes long, and in a scratch memory with what others
 * left there nobody can rely on finding zeros. */
typedef struct kept_device {
    device *dev;
    const device_ops *ops;
    int busy;
} kept_device;
enum { KEPT_MOST = 8 };
static kept_device kept[KEPT_MOST];

static kept_device *keep_device(const device_options *options)
{
    for (kept_device *k = kept; k < kept + KEPT_MOST; k++) {
        if (k->busy || (k->dev && k->dev->dtype != options->dtype)) continue;
        if (!k->dev) {
            assert_ok(device_create(&k->dev, options));
            k->ops = k->dev->ops;
        }
        k->busy = 1;
        return k;
    }
    fail_msg("more than %d devices at once", KEPT_MOST);
    return NULL;
}

static void release_device(device *dev)
{
    kept_device *k = kept;
    while (k < kept + KEPT_MOST && k->dev != dev) k++;
    if (k < kept + KEPT_MOST)
        k->busy = 0;
    else
        device_destroy(&dev);
}

static void choose_table(op_run *r, blurry_dtype dtype, int isa, int threads)
{
    device_options options = {.kind = isa == OP_CUDA ? DEVICE_CUDA : DEVICE_CPU,
                              .dtype = dtype,
                              .threads = threads,
                              .reference = isa < 0};
    if (isa == OP_CUDA) {
        const kept_device *k = keep_device(&options);
        r->dev = k->dev;
        op_count_calls(r->dev, k->ops, isa);
    } else {
        assert_ok(device_create(&r->dev, &options));
        op_count_calls(r->dev, device_cpu_table(dtype, isa), isa);
    }
}

op_run op_run_start_rounded(const op_case *c, blurry_dtype dtype, int isa, int threads, int rounded)
{
    op_run r = {.c = c, .rounded = rounded};
    choose_table(&r, dtype, isa, threads);
    kernel_sizes sizes = {0};
    if (c->sizes) c->sizes(c, r.dev, &sizes);
    assert_ok(device_reserve(r.dev, sizes.scratch));
    if (isa != OP_CUDA) memset(r.dev->run.scratch, 0xff, r.dev->run.scratch_bytes);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        size_t element = t->role == OP_INT ? sizeof(int64_t) : element_of(r.dev, type_of(t));
        r.bytes[i] = t->role == OP_BYTES ? sizes.saved : (size_t)t->count * element;
        r.d_bytes[i] = (size_t)t->count * element_of(r.dev, gradient_type(t));
        r.x[i] = guarded(r.dev, r.bytes[i]);
        if (op_has_gradient(t)) r.d[i] = guarded(r.dev, r.d_bytes[i]);
    }
    op_run_prepare(&r);
    return r;
}

op_run op_run_start(const op_case *c, blurry_dtype dtype, int isa, int threads)
{
    return op_run_start_rounded(c, dtype, isa, threads, dtype == BLURRY_BF16);
}

void op_run_finish(op_run *r)
{
    const op_case *c = r->c;
    assert_ok(device_sync(r->dev));
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        check_guard(c, c->tensor[i].name, r->x[i], r->bytes[i]);
        test_device_free(r->dev, (char *)r->x[i] - GUARD);
        if (!r->d[i]) continue;
        check_guard(c, c->tensor[i].name, r->d[i], r->d_bytes[i]);
        test_device_free(r->dev, (char *)r->d[i] - GUARD);
    }
    release_device(r->dev);
}

void op_run_forward(op_run *r, int64_t first, int64_t count, int carry, int keep)
{
    op_call call = {r->c, r->dev, r->x, r->d, first, count, carry, keep};
    r->c->forward(&call);
    op_wait(&call);
}

void op_run_all(op_run *r)
{
    const op_case *c = r->c;
    op_run_forward(r, 0, c->L, 0, 1);
    if (c->backward) c->backward(&(op_call){c, r->dev, r->x, r->d, 0, c->L, 0, 1});
    assert_ok(device_sync(r->dev));
}

void *op_at(const op_call *call, int i)
{
    return (char *)call->x[i] + (size_t)(call->first * call->c->tensor[i].per_token) * op_bytes(call, i);
}

void *op_grad_at(const op_call *call, int i)
{
    size_t element = element_of(call->dev, gradient_type(&call->c->tensor[i]));
    return (char *)call->d[i] + (size_t)(call->first * call->c->tensor[i].per_token) * element;
}
