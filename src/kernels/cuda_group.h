/* Hopper's own: products of a warp group, four warps in a row from a multiple of four on. Only for files
 * *_hopper.cu, which are compiled for that GPU alone (sm_90a). Under tests/emulator the emulator has them.
 *
 * The right operand lies in shared memory as PANELS of 64 columns, ROWS rows of 128 bytes each, aligned to
 * 1024 bytes; the sixteen bytes number i of row r are at place i ^ r % 8 of their row (group_place). It is
 * read either way: as [columns of the product, depth] or as [depth, columns of the product]. Sums and the
 * left operand are in registers: each warp has 16 rows, laid out as for m16n8k16 (cuda.h).
 *
 * A product runs beside what follows it: what it reads and writes is not touched before group_wait. */
#ifndef BLURRY_KERNELS_CUDA_GROUP_H
#define BLURRY_KERNELS_CUDA_GROUP_H
#include "kernels/cuda.h"

enum { GROUP_THREADS = 128, GROUP_PANEL = 64 /* columns */ };

/* Where the eight columns from `column` (a multiple of 8) of `row` are, in elements. */
template <int ROWS> static __device__ inline int group_place(int row, int column)
{
    return column / GROUP_PANEL * ROWS * GROUP_PANEL + row * GROUP_PANEL +
           (column % GROUP_PANEL / 8 ^ row % 8) * 8;
}

/* An operand for the products below: rows of it are columns of the product (BY_ROWS false), depth being 16
 * columns from `first` on; or rows are depth, 16 from row `first` on. */
template <int ROWS, bool BY_ROWS>
static __device__ inline uint64_t group_operand(const bf16 *panels, int first)
{
    enum { EIGHT_ROWS = 8 * 128, PANEL = ROWS * 128 }; /* bytes */
    uint32_t start = (cuda_shared_address(panels) & 0x3ffff) / 16 | (uint32_t)(BY_ROWS ? PANEL / 16 : 1)
                                                                        << 16;
    start += (uint32_t)(BY_ROWS ? first * 128 : first / GROUP_PANEL * PANEL + first % GROUP_PANEL * 2) / 16;
    return (uint64_t)(1u << 30 | EIGHT_ROWS / 16) << 32 | start;
}

#ifndef BLURRY_CUDA_EMULATOR
#define GROUP_SUMS(d, n)                                                                                     \
    "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3]), "+f"(d[n + 1][0]), "+f"(d[n + 1][1]),        \
        "+f"(d[n + 1][2]), "+f"(d[n + 1][3]), "+f"(d[n + 2][0]), "+f"(d[n + 2][1]), "+f"(d[n + 2][2]),       \
        "+f"(d[n + 2][3]), "+f"(d[n + 3][0]), "+f"(d[n + 3][1]), "+f"(d[n + 3][2]), "+f"(d[n + 3][3])

/* d [64, 8 N] = (add: +=) a [64, 16] b [16, 8 N] */
template <bool BY_ROWS>
static __device__ inline void group_multiply(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %37, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, add, 1, 1, %38;\n\t}"
                 : GROUP_SUMS(d, 0), GROUP_SUMS(d, 4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)BY_ROWS));
}
template <bool BY_ROWS>
static __device__ inline void group_multiply(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %69, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, add, 1, 1, %70;\n\t}"
                 : GROUP_SUMS(d, 0), GROUP_SUMS(d, 4), GROUP_SUMS(d, 8), GROUP_SUMS(d, 12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)BY_ROWS));
}
#undef GROUP_SUMS

/* Before the first product after registers it uses or shared memory it reads were written; for memory each
 * thread that wrote calls group_publish, and a barrier follows. */
static __device__ inline void group_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ inline void group_publish(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ inline void group_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most N of the groups of products committed are under way. */
template <int N> static __device__ inline void group_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from using registers of a product before this, or changing them after it. */
template <int N> static __device__ inline void group_hold(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}
template <int N> static __device__ inline void group_hold(uint32_t (&a)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
}
/* Keeps the compiler from moving what x is made of behind a wait that follows: the instruction is there for
 * its condition, which only NaN meets. */
static __device__ inline void group_known(float x)
{
    asm volatile("{\n\t.reg .pred odd;\n\tsetp.nan.f32 odd, %0, %0;\n\t@odd nanosleep.u32 0;\n\t}" ::"f"(x)
                 : "memory");
}
#endif
#endif
