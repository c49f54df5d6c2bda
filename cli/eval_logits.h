/* The logits behind an evaluation, for comparison with another implementation of the same model. */
#ifndef BLURRY_CLI_EVAL_LOGITS_H
#define BLURRY_CLI_EVAL_LOGITS_H
#include "blurry/settings.h"

/* Writes `file`: tokens, rows, labels and logits of the first eval_samples (0: all) sequences of the split.
 * Prints its own message and returns a CLI_ code. */
int eval_save_logits(const char *path, const char *split, const blurry_settings *settings, const char *file);

#endif
