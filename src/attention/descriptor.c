/* Descriptor: defaults and checks. Nothing behind this file meets a bad shape. */
#include "attention/plan.h"
#include "base/status.h"
#include "base/threads.h"

#include <math.h>
#include <string.h>

void blurry_attn_desc_init(blurry_attn_desc *desc)
{
    if (!desc) return;
    *desc = (blurry_attn_desc){
        .batch = 1, .heads = 1, .dim_k = 64, .modes = 16, .resolution = 2, .decay = 1, .dtype = BLURRY_F32};
}

typedef struct range_rule {
    const char *name;
    size_t offset; /* of an int64_t field */
    int64_t low, high;
} range_rule;

/* The upper limits keep every product of the layers below within 64 bits or make it saturate visibly. */
static const range_rule rules[] = {
    {"batch", offsetof(blurry_attn_desc, batch), 1, (int64_t)1 << 31},
    {"length", offsetof(blurry_attn_desc, length), 0, (int64_t)1 << 40},
    {"heads", offsetof(blurry_attn_desc, heads), 1, (int64_t)1 << 20},
    {"heads_kv", offsetof(blurry_attn_desc, heads_kv), 0, (int64_t)1 << 20},
    {"dim_k", offsetof(blurry_attn_desc, dim_k), 1, (int64_t)1 << 20},
    {"dim_v", offsetof(blurry_attn_desc, dim_v), 0, (int64_t)1 << 20},
    {"modes", offsetof(blurry_attn_desc, modes), 1, (int64_t)1 << 24},
    {"fold", offsetof(blurry_attn_desc, fold), 0, 1024},
};

static blurry_status check_flag(const char *name, int value)
{
    if (value == 0 || value == 1) return BLURRY_OK;
    return status_fail(BLURRY_E_INVALID, "%s is %d: give 0 or 1", name, value);
}

static blurry_status check_number(const char *name, int64_t index, double value)
{
    if (isfinite(value) && value >= 0) return BLURRY_OK;
    if (index < 0)
        return status_fail(BLURRY_E_INVALID, "%s is %g: give a finite number of at least 0", name, value);
    return status_fail(BLURRY_E_INVALID, "%s[%lld] is %g: give a finite number of at least 0", name,
                       (long long)index, value);
}

/* Which element types go with which device. The resolved state_dtype says what a state's slots are. */
static blurry_status check_types(blurry_attn_desc *d)
{
    if (d->device != BLURRY_DEVICE_CPU && d->device != BLURRY_DEVICE_CUDA)
        return status_fail(BLURRY_E_INVALID, "device is %d: give BLURRY_DEVICE_CPU or BLURRY_DEVICE_CUDA",
                           (int)d->device);
    int cuda = d->device == BLURRY_DEVICE_CUDA;
    if (d->dtype != BLURRY_F32 && d->dtype != (cuda ? BLURRY_BF16 : BLURRY_F64))
        return status_fail(BLURRY_E_INVALID, "dtype is %d: give BLURRY_F32 or %s on the %s", (int)d->dtype,
                           cuda ? "BLURRY_BF16" : "BLURRY_F64", cuda ? "cuda device" : "cpu");
    if (!cuda) {
        if (d->state_dtype != BLURRY_F32 && d->state_dtype != d->dtype)
            return status_fail(BLURRY_E_INVALID, "state_dtype is %d: on the cpu states have the plan's dtype",
                               (int)d->state_dtype);
        d->state_dtype = d->dtype;
        return BLURRY_OK;
    }
    if (d->state_dtype != BLURRY_F32 && d->state_dtype != BLURRY_BF16)
        return status_fail(BLURRY_E_INVALID, "state_dtype is %d: give BLURRY_F32 or BLURRY_BF16",
                           (int)d->state_dtype);
    if (d->reference)
        return status_fail(BLURRY_E_UNSUPPORTED,
                           "reference is 1 on the cuda device: the reference kernels run on the cpu");
    if (d->fold > BLA_STEP_CUDA_FOLD)
        return status_fail(BLURRY_E_INVALID, "fold is %lld: give 0 to %d on the cuda device",
                           (long long)d->fold, BLA_STEP_CUDA_FOLD);
    return BLURRY_OK;
}

static blurry_status check_choices(blurry_attn_desc *d)
{
    STATUS_TRY(check_flag("decay", d->decay));
    STATUS_TRY(check_flag("reference", d->reference));
    if (d->grid != BLURRY_GRID_ABSOLUTE && d->grid != BLURRY_GRID_RELATIVE)
        return status_fail(BLURRY_E_INVALID, "grid is %d: give BLURRY_GRID_ABSOLUTE or BLURRY_GRID_RELATIVE",
                           (int)d->grid);
    STATUS_TRY(check_types(d));
    if (d->threads < 0 || d->threads > THREADS_MAX)
        return status_fail(BLURRY_E_INVALID, "threads is %d: give 0 to %d", d->threads, THREADS_MAX);
    if (d->grid == BLURRY_GRID_RELATIVE && d->decay)
        return status_fail(
            BLURRY_E_UNSUPPORTED,
            "decay is 1 with grid relative: the relative grid is defined without decay, set decay = 0");
    return BLURRY_OK;
}

blurry_status attn_desc_resolve(const blurry_attn_desc *desc, blurry_attn_desc *d)
{
    if (!desc)
        return status_fail(BLURRY_E_INVALID,
                           "desc is NULL: give a descriptor set up by blurry_attn_desc_init");
    *d = *desc;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        int64_t value;
        memcpy(&value, (const char *)d + rules[i].offset, sizeof value);
        if (value < rules[i].low || value > rules[i].high)
            return status_fail(BLURRY_E_INVALID, "%s is %lld: give %lld to %lld", rules[i].name,
                               (long long)value, (long long)rules[i].low, (long long)rules[i].high);
    }
    if (d->heads_kv == 0) d->heads_kv = d->heads;
    if (d->dim_v == 0) d->dim_v = d->dim_k;
    if (d->heads % d->heads_kv != 0)
        return status_fail(BLURRY_E_INVALID, "heads is %lld, not a multiple of heads_kv, %lld",
                           (long long)d->heads, (long long)d->heads_kv);
    STATUS_TRY(check_choices(d));
    STATUS_TRY(check_number("scale", -1, d->scale));
    if (d->scale == 0) d->scale = 1.0 / sqrt((double)d->dim_k);
    if (d->period) {
        for (int64_t h = 0; h < d->heads_kv; h++) STATUS_TRY(check_number("period", h, d->period[h]));
    } else {
        STATUS_TRY(check_number("resolution", -1, d->resolution));
        double period = d->resolution * (double)(2 * d->modes - 1);
        if (!isfinite(period))
            return status_fail(BLURRY_E_INVALID, "resolution is %g: too large for a finite period",
                               d->resolution);
    }
    if (d->threads == 0) d->threads = threads_default();
    return BLURRY_OK;
}
