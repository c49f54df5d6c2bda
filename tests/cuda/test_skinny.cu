/* Every tile of the products with short sides (kernels/gemm/cuda_skinny*.cuh) against plain loops, at sizes
 * that fill tiles partly, in one and several rounds of columns. The numbers are such that sums are exact:
 * results have to agree to the bit. */
#include "kernels/gemm/cuda_skinny.cuh"
#include "kernels/gemm/cuda_skinny_weight.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum { GUARD = 64 };
static int failures;

static std::vector<float> numbers(int64_t count)
{
    std::vector<float> x((size_t)count);
    for (float &v : x) v = (float)(rand() % 33 - 16) / 8;
    return x;
}

static bf16 rounded(float x, bf16)
{
    return to_bf16(x);
}
static float rounded(float x, float)
{
    return x;
}

template <typename E> static E *upload(const std::vector<float> &x)
{
    std::vector<E> copy(x.size() + GUARD);
    for (size_t i = 0; i < copy.size(); i++) copy[i] = rounded(i < x.size() ? x[i] : -7.0f, E());
    E *memory = NULL;
    if (cudaMalloc((void **)&memory, copy.size() * sizeof(E)) != cudaSuccess) puts("no CUDA device"), exit(1);
    cudaMemcpy(memory, copy.data(), copy.size() * sizeof(E), cudaMemcpyHostToDevice);
    return memory;
}

template <typename E> static void compare(const char *what, E *memory, const std::vector<float> &want)
{
    std::vector<E> got(want.size() + GUARD);
    cudaMemcpy(got.data(), memory, got.size() * sizeof(E), cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (size_t i = 0; i < got.size(); i++)
        wrong += from_bf16(got[i]) != from_bf16(rounded(i < want.size() ? want[i] : -7.0f, E()));
    if (wrong) printf("%s: %d of %zu elements are wrong\n", what, wrong, want.size()), failures++;
    cudaFree(memory);
}

/* out, in: those of the map; a pass with `extra` begins with a residual and a bias, or adds to d_x. */
template <class T, bool GRADIENT>
static void product(int64_t rows, int in, int out, int maps, int spread, bool extra)
{
    int k = GRADIENT ? out : in, n = GRADIENT ? in : maps * out, segments = GRADIENT ? maps : 1;
    int width = GRADIENT ? in : out, matrices = n / width;
    std::vector<float> a = numbers(segments * rows * k), w = numbers((int64_t)maps * out * in);
    std::vector<float> start = numbers(rows * n), bias = numbers(n), want((size_t)(rows * n));
    for (int m = 0; m < matrices; m++)
        for (int64_t r = 0; r < rows; r++)
            for (int j = 0; j < width; j++) {
                size_t at = (size_t)((m * rows + r) * width + j);
                float sum = extra ? start[at] + (GRADIENT ? 0 : bias[(size_t)j]) : 0;
                for (int s = 0; s < segments; s++)
                    for (int i = 0; i < k; i++)
                        sum += a[(size_t)((s * rows + r) * k + i)] *
                               w[(size_t)(GRADIENT ? (s * k + i) * n + j : (m * width + j) * k + i)];
                want[at] = sum;
            }
    skinny_product p = {};
    bf16 *shared_a = upload<bf16>(a), *shared_b = upload<bf16>(w), *shared_bias = upload<bf16>(bias);
    p.a = shared_a, p.b = shared_b, p.c = upload<bf16>(start);
    if (extra) p.start = p.c, p.bias = GRADIENT ? NULL : shared_bias;
    p.rows = rows, p.k = k, p.n = n, p.width = width, p.segments = segments;
    kernel_run run = {};
    run.early = 1;
    skinny_launch<T, GRADIENT>(&run, &p, spread);
    char what[160];
    snprintf(what, sizeof what, "%s by %d x %d: %lld rows, in %d, out %d, maps %d, spread %d, extra %d",
             GRADIENT ? "d_x" : "y", (int)T::M, (int)T::N, (long long)rows, in, out, maps, spread, extra);
    compare(what, p.c, want);
    cudaFree(shared_a), cudaFree(shared_b), cudaFree(shared_bias);
}

template <class T> static void products(void)
{
    product<T, false>(1, 8, 8, 1, 1, true);
    product<T, false>(150, 72, 72, 3, 1, false);
    product<T, false>(131, 264, 136, 1, 2, true); /* more depths than slabs */
    product<T, true>(1, 8, 8, 1, 1, false);
    product<T, true>(150, 136, 72, 3, 1, true);
    product<T, true>(129, 136, 24, 2, 2, false);
}

template <class T> static void gradient(int64_t rows, int in, int out, int maps, int64_t blocks)
{
    std::vector<float> d_y = numbers(maps * rows * out), x = numbers(rows * in);
    std::vector<float> want = numbers((int64_t)maps * out * in);
    skinny_gradient p = {};
    bf16 *shared_y = upload<bf16>(d_y), *shared_x = upload<bf16>(x);
    float *d_weight = upload<float>(want);
    for (int m = 0; m < maps; m++)
        for (int64_t r = 0; r < rows; r++)
            for (int o = 0; o < out; o++)
                for (int i = 0; i < in; i++)
                    want[(size_t)((m * out + o) * in + i)] +=
                        d_y[(size_t)((m * rows + r) * out + o)] * x[(size_t)(r * in + i)];
    kernel_run run = {};
    run.scratch_bytes = sizeof(float) * 9 * (size_t)(maps * out * in); /* at most nine parts */
    run.early = 1;
    cudaMalloc(&run.scratch, run.scratch_bytes);
    p.d_y = shared_y, p.x = shared_x, p.rows = rows, p.in = in, p.out = out, p.maps = maps;
    gradient_launch<T>(&run, p, d_weight, blocks);
    char what[160];
    snprintf(what, sizeof what, "d_weight by %d x %d: %lld rows, in %d, out %d, maps %d, blocks %lld",
             (int)T::O, (int)T::I, (long long)rows, in, out, maps, (long long)blocks);
    compare(what, d_weight, want);
    cudaFree(shared_y), cudaFree(shared_x), cudaFree(run.scratch);
}

template <class T> static void gradients(void)
{
    gradient<T>(1, 8, 8, 1, 10);
    gradient<T>(300, 72, 72, 3, 100);
    gradient<T>(1500, 136, 16, 1, 1000);
}

int main(void)
{
    srand(1);
    products<skinny_tile<64, 64, 2, 2, 3>>();
    products<skinny_tile<64, 128, 2, 2, 2>>();
    gradients<gradient_tile<64, 64, 2, 2, 64, 3>>();
    if (!failures) puts("all products agree");
    return failures != 0;
}
