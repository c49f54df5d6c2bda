/* Hopper's own: bulk copies by the copy engine. Under tests/emulator the emulator has them. */
#ifndef BLURRY_KERNELS_CUDA_BULK_H
#define BLURRY_KERNELS_CUDA_BULK_H
#include "kernels/cuda.h"

#ifndef BLURRY_CUDA_EMULATOR

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CUDA_HOPPER(...) __trap()
#else
#define CUDA_HOPPER(...) asm volatile(__VA_ARGS__)
#endif

/* ---- bulk copies: whole arrays from global to shared memory, begun by one thread; both ends and the size
 * are multiples of 16 bytes. A barrier in shared memory tells when they are there: its phase ends when as
 * many bytes have landed as were announced. ---- */

/* The other threads may wait on it after a barrier of the block. */
static __device__ inline void bulk_barrier_init(uint64_t *barrier)
{
    CUDA_HOPPER("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.proxy.async.shared::cta;" ::"r"(
                    cuda_shared_address(barrier))
                : "memory");
}
/* Of the phase under way; before its copies. */
static __device__ inline void bulk_announce(uint64_t *barrier, uint32_t bytes)
{
    CUDA_HOPPER("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cuda_shared_address(barrier)),
                "r"(bytes)
                : "memory");
}
static __device__ inline void bulk_copy(void *shared, const void *global, uint32_t bytes, uint64_t *barrier)
{
    CUDA_HOPPER(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            cuda_shared_address(shared)),
        "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(cuda_shared_address(barrier))
        : "memory");
}
/* Waits for the end of the first phase (parity 0), the second (1), the third (0) ... */
static __device__ inline void bulk_wait(uint64_t *barrier, int parity)
{
    CUDA_HOPPER("{\n\t.reg .pred done;\n"
                "WAIT:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                "\t@!done bra WAIT;\n\t}" ::"r"(cuda_shared_address(barrier)),
                "r"(parity)
                : "memory");
}

/* A kernel launched early (cuda.h) comes onto the chip once all blocks of the one before have called this. */
static __device__ inline void cuda_admit_next(void)
{
    CUDA_HOPPER("griddepcontrol.launch_dependents;" ::: "memory");
}

#undef CUDA_HOPPER
#endif
#endif
