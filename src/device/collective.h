/* Sums over the GPUs of several processes, by NCCL. The library is opened when it is first asked for, so
 * programs start where it is not installed. */
#ifndef BLURRY_DEVICE_COLLECTIVE_H
#define BLURRY_DEVICE_COLLECTIVE_H
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { COLLECTIVE_ID = 128 };
typedef struct collective collective;

/* Takes GPU number `place` of this machine, or one shared with others where there are fewer, for what this
 * thread makes. */
blurry_status collective_choose_gpu(int place);
/* Whether NCCL is there and this machine has a GPU for each of `processes`. */
int collective_available(int processes);
/* What the processes of a group recognise each other by; made by one of them. */
blurry_status collective_id(char id[COLLECTIVE_ID]);
/* Joins the group; returns when all have. */
blurry_status collective_open(collective **c, const char id[COLLECTIVE_ID], int rank, int size);
void collective_close(collective **c);
/* data [count] floats in the device's memory = their sum over the group, in order with the device's
 * operations. */
blurry_status collective_sum(collective *c, device *dev, void *data, size_t count);

#ifdef __cplusplus
}
#endif
#endif
