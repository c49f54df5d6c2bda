/* Samples kept in a safetensors file.
 *
 * Tensors per split that has samples (N of them, the longest L tokens, R labelled positions in all):
 *     train.row_offsets I64 [N+1]   the rows of sample i are row_offsets[i] .. row_offsets[i+1]-1
 *     train.lengths     I64 [N]     tokens of each sample
 *     train.tokens      I32 [N, L]  padded with 0
 *     train.positions   I32 [R]     labelled positions within their sample, ascending
 *     train.labels      I32 [R]
 *     train.legal       U32 [R]     bit v: token v is legal there       (tasks with masks only)
 *     train.states      I32 [R]     the automaton's state               (tasks with masks only)
 * and the same for val and test. Metadata: format "blurry-data", version "1", task, vocabulary, settings
 * (YAML) and sha256, the hash of blurry_task_hash. */
#ifndef BLURRY_TASKS_DATAFILE_H
#define BLURRY_TASKS_DATAFILE_H
#include "tasks/task.h"

typedef struct datafile_split {
    int64_t samples, length, rows; /* N, L, R */
    int64_t *row_offsets, *lengths;
    int32_t *tokens, *positions, *labels, *states;
    uint32_t *legal;
} datafile_split;

enum { DATAFILE_TENSORS = 7 };

/* One entry per tensor of a split, in file order. */
typedef struct datafile_field {
    const char *name;
    int dtype;    /* safetensors_dtype */
    size_t size;  /* bytes per element */
    bool masks;   /* exists only for tasks with masks */
    size_t place; /* offset of the pointer in datafile_split */
} datafile_field;
extern const datafile_field datafile_fields[DATAFILE_TENSORS];

/* Elements of a tensor and its shape [2]; rank is returned. */
int datafile_shape(const datafile_split *split, int field, int64_t shape[2]);

void datafile_release(datafile_split *split);

/* Checks that the arrays are what a task of this vocabulary may contain; `states` bounds the automaton
 * states. */
blurry_status datafile_check(const datafile_split *split, int64_t vocabulary, int64_t states);

#endif
