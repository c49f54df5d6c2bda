/* Several processes as one: ranks that mpirun or srun started. Without MPI in the build, or outside of
 * mpirun, there is one rank and every call does the obvious. */
#ifndef BLURRY_RANKS_H
#define BLURRY_RANKS_H
#include "blurry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Joins the ranks this process was started with, where it was. Call it once, first; then blurry_train is
 * data-parallel over all ranks and blurry_sweep_run hands its runs to them. BLURRY_E_UNSUPPORTED: started by
 * mpirun, but this build has no MPI. */
BLURRY_API blurry_status blurry_ranks_open(void);
/* Leaves them; every rank must. */
BLURRY_API void blurry_ranks_close(void);
/* Ends all ranks with this exit code, after a failure that the others cannot know of. Without other ranks it
 * does nothing. */
BLURRY_API void blurry_ranks_abort(int code);

BLURRY_API int blurry_ranks_rank(void); /* 0 .. size-1 */
BLURRY_API int blurry_ranks_size(void);

#ifdef __cplusplus
}
#endif
#endif
