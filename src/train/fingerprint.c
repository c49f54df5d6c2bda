/* A short name for a task's data: two runs with the same fingerprint train on the same samples. */
#include "base/file.h"
#include "base/sha256.h"
#include "train/checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES_PER_SPLIT = 64 };

static blurry_status add_samples(sha256 *hash, const blurry_task *task, const blurry_task_info *info)
{
    blurry_samples *samples = NULL;
    blurry_status status = blurry_samples_create(&samples, task, 1);
    for (int split = 0; split < BLURRY_SPLITS && status == BLURRY_OK; split++) {
        int64_t n = info->samples[split], count = n < SAMPLES_PER_SPLIT ? n : SAMPLES_PER_SPLIT;
        sha256_update(hash, &n, sizeof n);
        for (int64_t i = 0; i < count && status == BLURRY_OK; i++) {
            int64_t index = count > 1 ? (int64_t)((double)(n - 1) * (double)i / (double)(count - 1)) : 0;
            status = blurry_task_fill(task, (blurry_split)split, &index, 1, 0, samples);
            if (status != BLURRY_OK) break;
            sha256_update(hash, samples->tokens, (size_t)samples->length * sizeof *samples->tokens);
            sha256_update(hash, samples->rows, (size_t)samples->row_count * sizeof *samples->rows);
            sha256_update(hash, samples->labels, (size_t)samples->row_count * sizeof *samples->labels);
        }
    }
    blurry_samples_destroy(&samples);
    return status;
}

blurry_status checkpoint_fingerprint(const blurry_settings *settings, const blurry_task *task, char hex[65])
{
    const struct settings *s = settings_values(settings);
    blurry_task_info info;
    blurry_task_describe(task, &info);
    sha256 hash;
    sha256_init(&hash);
    sha256_update(&hash, info.name, strlen(info.name));
    STATUS_TRY(add_samples(&hash, task, &info));
    if (!strcmp(info.name, "text") && !*s->data) { /* the samples above are far from covering a text */
        void *bytes = NULL;
        size_t length;
        STATUS_TRY(file_read(s->file, SIZE_MAX / 2, &bytes, &length));
        sha256_update(&hash, bytes, length);
        free(bytes);
    }
    uint8_t digest[32];
    sha256_final(&hash, digest);
    sha256_hex(digest, hex);
    return BLURRY_OK;
}
