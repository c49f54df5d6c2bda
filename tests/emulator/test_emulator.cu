/* The emulator itself, and on a GPU the same program: products by tensor cores, transposed loads, copies,
 * shuffles and reductions against plain loops. */
#include "kernels/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum { M = 16, N = 8, K = 32, THREADS = 64 };

/* c [16, 8] = a [16, 32] b [32, 8] by each of two warps: one with b transposed on load, one with b given
 * transposed. */
__global__ void products(const bf16 *a, const bf16 *b, const bf16 *bt, float *c, float *sums)
{
    CUDA_DYNAMIC_SHARED(bf16, room);
    bf16 *sa = room, *sb = sa + M * K, *sbt = sb + K * N;
    int i = (int)threadIdx.x, lane = i % 32, warp = i / 32;
    copy_async16(sa + 8 * i, a + 8 * i, true);
    copy_async16(i < 32 ? sb + 8 * i : sbt + 8 * (i - 32), i < 32 ? b + 8 * i : bt + 8 * (i - 32), true);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    float d[4] = {0, 0, 0, 0};
    for (int k = 0; k < K; k += 16) {
        uint32_t fa[4], fb[2];
        ldmatrix_x4(fa, sa + (lane % 16) * K + k + lane / 16 * 8);
        if (warp == 0)
            ldmatrix_x2_trans(fb, sb + (k + lane % 16) * N);
        else
            ldmatrix_x2(fb, sbt + (lane % 8) * K + k + lane / 8 % 2 * 8);
        mma_bf16(d, fa, fb);
    }
    for (int e = 0; e < 4; e++) c[warp * M * N + (lane / 4 + e / 2 * 8) * N + lane % 4 * 2 + e % 2] = d[e];
    __shared__ float spare[32];
    float total = block_sum((float)i, spare), most = block_max(-(float)i, spare);
    if (i == 5) sums[0] = total, sums[1] = most;
}

int main(void)
{
    std::vector<bf16> a(M * K), b(K * N), bt(K * N);
    srand(1);
    for (bf16 &x : a) x = to_bf16((float)(rand() % 33 - 16) / 8);
    for (int k = 0; k < K; k++)
        for (int n = 0; n < N; n++) bt[n * K + k] = b[k * N + n] = to_bf16((float)(rand() % 33 - 16) / 8);
    bf16 *da, *db, *dbt;
    float *dc;
    if (cudaMalloc((void **)&da, sizeof(bf16) * M * K) != cudaSuccess) return puts("no CUDA device"), 1;
    cudaMalloc((void **)&db, sizeof(bf16) * K * N), cudaMalloc((void **)&dbt, sizeof(bf16) * K * N);
    cudaMalloc((void **)&dc, sizeof(float) * (2 * M * N + 2));
    cudaMemcpy(da, a.data(), sizeof(bf16) * M * K, cudaMemcpyHostToDevice);
    cudaMemcpy(db, b.data(), sizeof(bf16) * K * N, cudaMemcpyHostToDevice);
    cudaMemcpy(dbt, bt.data(), sizeof(bf16) * K * N, cudaMemcpyHostToDevice);
    cuda_launch(products, dim3(1), dim3(THREADS), sizeof(bf16) * (M * K + 2 * K * N), nullptr, da, db, dbt,
                dc, dc + 2 * M * N);
    std::vector<float> c(2 * M * N + 2);
    cudaMemcpy(c.data(), dc, sizeof(float) * c.size(), cudaMemcpyDeviceToHost);
    int wrong = c[2 * M * N] != THREADS * (THREADS - 1) / 2 || c[2 * M * N + 1] != 0;
    for (int w = 0; w < 2; w++)
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) {
                float sum = 0;
                for (int k = 0; k < K; k++) sum += from_bf16(a[m * K + k]) * from_bf16(b[k * N + n]);
                wrong += sum != c[w * M * N + m * N + n];
            }
    cudaFree(da), cudaFree(db), cudaFree(dbt), cudaFree(dc);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
