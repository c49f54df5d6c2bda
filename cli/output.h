/* Output files of the verbs: written whole under a temporary name, synced, then renamed, so that a file that
 * exists is replaced by a complete one or not at all. Each function prints its own message and returns CLI_OK
 * or CLI_FAILED. */
#ifndef BLURRY_CLI_OUTPUT_H
#define BLURRY_CLI_OUTPUT_H
#include <stddef.h>
#include <stdio.h>

int output_save(const char *path, const void *bytes, size_t size);

/* Creates the folder and those above it; one that exists is fine. */
int output_folder(const char *path);

/* A stream that collects text in memory; `text` and `size` are valid after output_close. */
typedef struct output_text {
    FILE *stream;
    char *text;
    size_t size;
} output_text;

int output_open(output_text *out);
int output_close(output_text *out); /* reports a failed write; call output_free afterwards in either case */
void output_free(output_text *out);

/* Closes `out`, saves it as `path` and frees it. */
int output_close_and_save(output_text *out, const char *path);

#endif
