/* What every CUDA kernel builds on: launches, bf16, reductions, and the few instructions that need inline
 * assembly. A .cu file includes this and no CUDA header of its own, launches through cuda_launch and takes
 * dynamic shared memory through CUDA_DYNAMIC_SHARED, so that the same source also runs on a CPU under
 * tests/emulator, where the tests check it on machines without a GPU. */
#ifndef BLURRY_KERNELS_CUDA_H
#define BLURRY_KERNELS_CUDA_H
#include <cuda_runtime.h> /* the emulator's folder has its own */
#include <stddef.h>
#include <stdint.h>

#ifdef BLURRY_CUDA_EMULATOR
#include "emulator.h"
#else
#include <cuda_bf16.h>

#define CUDA_DYNAMIC_SHARED(type, name)                                                                      \
    extern __shared__ __align__(128) unsigned char cuda_dynamic_shared[];                                    \
    type *name = reinterpret_cast<type *>(cuda_dynamic_shared)

/* kernel<<<grid, block, shared_bytes, stream>>>(arguments...). A failure shows in cudaGetLastError. */
template <typename... P, typename... A>
static inline void cuda_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                               cudaStream_t stream, A... arguments)
{
    if (shared_bytes > 32 * 1024) /* 48 KiB without asking, static shared memory included */
        (void)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)shared_bytes);
    kernel<<<grid, block, shared_bytes, stream>>>(static_cast<P>(arguments)...);
}

/* The same for a kernel that begins with cuda_wait_previous. With `early` (kernel_run) it is brought onto the
 * chip while the kernel in front of it in the stream ends, and waits there. */
template <typename... P, typename... A>
static inline void cuda_launch_early(int early, void (*kernel)(P...), dim3 grid, dim3 block,
                                     size_t shared_bytes, cudaStream_t stream, A... arguments)
{
    if (!early) return cuda_launch(kernel, grid, block, shared_bytes, stream, arguments...);
    if (shared_bytes > 32 * 1024)
        (void)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)shared_bytes);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared_bytes;
    config.stream = stream, config.attrs = &attribute, config.numAttrs = 1;
    (void)cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}

/* Waits until all kernels in front have ended and what they wrote is visible. All threads call it, before
 * they write any memory or read what the kernel directly in front writes: that one waited in its turn, so
 * what was written before it is there already. */
static __device__ inline void cuda_wait_previous(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel come onto the chip as soon as all blocks of this one have called it, for what it can
 * do before it waits. After cuda_wait_previous. */
static __device__ inline void cuda_start_next(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- tensor cores: D += A B with fragments as the PTX manual lays them out ---- */
static __device__ inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ inline void mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ inline uint32_t to_tf32(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

/* ---- 8x8 matrices of 16-bit elements from shared memory: lane i gives the address of row i of the matrices
 * ---- */
static __device__ inline uint32_t cuda_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ inline void ldmatrix_x4(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cuda_shared_address(row))
                 : "memory");
}
static __device__ inline void ldmatrix_x4_trans(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cuda_shared_address(row))
                 : "memory");
}
static __device__ inline void ldmatrix_x2(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(cuda_shared_address(row))
                 : "memory");
}
static __device__ inline void ldmatrix_x2_trans(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(cuda_shared_address(row))
                 : "memory");
}

/* 2^x to some two units in the last place, results below 2^-126 as 0. */
static __device__ inline float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Square root to some two units in the last place. */
static __device__ inline float sqrt_fast(float x)
{
    float r;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* ---- asynchronous copies from global to shared memory, 16 bytes each, both ends aligned to 16 ---- */
static __device__ inline void copy_async16(void *shared, const void *global, bool valid)
{
    int bytes = valid ? 16 : 0; /* the rest is filled with zeros */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(cuda_shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}
static __device__ inline void copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most N of this thread's groups are under way. Other threads' copies need a barrier after it.
 */
template <int N> static __device__ inline void copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Barrier among `threads` threads (whole warps) of a block; id 1 .. 15. */
static __device__ inline void barrier_named(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
#endif

/* ---- memory of plans, on the default stream ----
 * From the GPU's pool: cudaFree would hold up all threads of the process until the GPU has nothing to do. */
static inline cudaError_t cuda_take(void **memory, size_t bytes)
{
    *memory = NULL;
    cudaError_t error = cudaMallocAsync(memory, bytes, (cudaStream_t)0);
    return error == cudaSuccess ? cudaStreamSynchronize((cudaStream_t)0) : error;
}
/* When whatever reads it has ended, as cudaFree does. */
static inline void cuda_give(void *memory)
{
    if (!memory) return;
    (void)cudaDeviceSynchronize();
    (void)cudaFreeAsync(memory, (cudaStream_t)0);
}

/* ---- bf16 ---- */
typedef __nv_bfloat16 bf16;

static __device__ __host__ inline bf16 to_bf16(float x)
{
    return __float2bfloat16(x);
}
static __device__ __host__ inline float from_bf16(bf16 x)
{
    return __bfloat162float(x);
}
static __device__ __host__ inline float from_bf16(float x) /* for templates over the element type */
{
    return x;
}
/* Two neighbouring elements in one register, `lo` at the lower address. */
static __device__ inline uint32_t pack_bf16(float lo, float hi)
{
#ifdef BLURRY_CUDA_EMULATOR
    return emulator_pack_bf16(lo, hi);
#else
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#endif
}
static __device__ inline float2 unpack_bf16(uint32_t x)
{
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

/* Both products of two pairs. */
static __device__ inline uint32_t multiply_bf16(uint32_t x, uint32_t y)
{
#ifdef BLURRY_CUDA_EMULATOR
    float2 a = unpack_bf16(x), b = unpack_bf16(y);
    return pack_bf16(a.x * b.x, a.y * b.y);
#else
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
    return r;
#endif
}

/* One element of either type. */
template <typename E> static __device__ inline E cuda_element(float x);
template <> __device__ inline float cuda_element<float>(float x)
{
    return x;
}
template <> __device__ inline bf16 cuda_element<bf16>(float x)
{
    return to_bf16(x);
}
template <typename E> static __device__ inline float cuda_load(const E *p)
{
    return from_bf16(*p);
}
template <typename E> static __device__ inline void cuda_store(E *p, float x)
{
    *p = cuda_element<E>(x);
}

/* ---- reductions in a fixed order; every lane or thread gets the result ---- */
#define CUDA_FULL_WARP 0xffffffffu

template <typename T> static __device__ inline T warp_sum(T x)
{
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(CUDA_FULL_WARP, x, step);
    return x;
}
static __device__ inline float warp_max(float x)
{
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(CUDA_FULL_WARP, x, step));
    return x;
}
/* Over a one-dimensional block of whole warps; `room` is shared memory for 32 values. Ends with a barrier, so
 * room may be used again at once. */
template <typename T> static __device__ inline T block_sum(T x, T *room)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    x = warp_sum(x);
    if (lane == 0) room[warp] = x;
    __syncthreads();
    T total = room[0];
    for (int i = 1; i < warps; i++) total += room[i];
    __syncthreads();
    return total;
}
static __device__ inline float block_max(float x, float *room)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    x = warp_max(x);
    if (lane == 0) room[warp] = x;
    __syncthreads();
    float most = room[0];
    for (int i = 1; i < warps; i++) most = fmaxf(most, room[i]);
    __syncthreads();
    return most;
}

#endif
