/* A slot: the place where one run at a time is trained. It serves a channel: it is told a run, trains it in a
 * folder of its own, sends progress and the result. A slot is a process on the CPU, so that a run that
 * crashes takes nothing with it, and a thread of one process on a GPU, so that all runs share the device. */
#ifndef BLURRY_SWEEP_SLOT_H
#define BLURRY_SWEEP_SLOT_H
#include "sweep/channel.h"

/* Messages. To the slot: {type: run, key, config, device, threads}, {type: stop}, {type: recorded, keep}.
 * From it: {type: hello, host, pid, token, error}, {type: progress, step, steps, accuracy, best}, {type:
 * result,
 * ...}. */

/* Serves until the other side closes the channel. `folder` holds the runs' folders; `token` shows that this
 * slot belongs here. With `cuda` the device is tried first; what is missing goes into the hello. */
void slot_serve(int fd, const char *folder, const char *token, bool cuda);

/* The folder of a run: the first digits of its key. Free it. */
char *slot_folder(const char *folder, const char *key);
/* Removes a run's folder with its files; not being there is fine. */
void slot_remove_folder(const char *path);

#endif
