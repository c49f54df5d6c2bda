/* What the files of the emulated runtime share. */
#ifndef BLURRY_EMULATOR_STREAMS_H
#define BLURRY_EMULATOR_STREAMS_H
#include "emulator.h"

/* Queues an action: it runs at once, later, or with the graph that is being recorded. */
void emulator_record(cudaStream_t stream, std::function<void()> action);
/* Runs everything that is queued. */
void emulator_drain(void);
/* Remembers a failure for cudaGetLastError. */
cudaError_t emulator_keep(cudaError_t error);
/* What a call answers that does nothing wrong itself: a kernel may have gone wrong before. */
cudaError_t emulator_outcome(void);
/* Whether a launch is refused, or its kernel of so many blocks goes wrong: EMULATOR_... ask for it. */
bool emulator_refuses(void);
bool emulator_goes_wrong(unsigned blocks);

#endif
