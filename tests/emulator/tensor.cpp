/* Tensor-core instructions and number formats. Fragment layouts: PTX manual, mma.m16n8k16 and m16n8k8. */
#include "emulator.h"

#include <stdio.h>

uint16_t emulator_round_bf16(float x)
{
    uint32_t bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

uint32_t to_tf32(float x)
{
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
    return (bits + 0x1000u) & 0xffffe000u; /* 10 bits of fraction, ties away from zero */
}

static float half_of(uint32_t pair, int high)
{
    return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}

/* What one lane hands in, and gets back: d is overwritten. */
struct operands {
    uint32_t a[4], b[2];
    float d[4];
};

/* d += a b for a warp: lane l holds rows l/4 and l/4 + 8, columns 2 (l%4) and one more of d [16, 8]. */
template <int K> static void product(unsigned char *area, const float (&a)[16][K], const float (&b)[K][8])
{
    for (int row = 0; row < 16; row++) {
        float sum[8];
        for (int j = 0; j < 8; j += 2)
            memcpy(sum + j, ((operands *)(area + EMULATOR_EXCHANGE * (row % 8 * 4 + j / 2)))->d + row / 8 * 2,
                   8);
        for (int k = 0; k < K; k++)
            for (int j = 0; j < 8; j++) sum[j] += a[row][k] * b[k][j];
        for (int j = 0; j < 8; j += 2)
            memcpy(((operands *)(area + EMULATOR_EXCHANGE * (row % 8 * 4 + j / 2)))->d + row / 8 * 2, sum + j,
                   8);
    }
}

static void product_bf16(unsigned char *area)
{
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const operands *x = (const operands *)(area + EMULATOR_EXCHANGE * lane);
        for (int i = 0; i < 8; i++)
            a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i / 4 * 8 + i % 2] = half_of(x->a[i / 2], i % 2);
        for (int i = 0; i < 4; i++)
            b[lane % 4 * 2 + i / 2 * 8 + i % 2][lane / 4] = half_of(x->b[i / 2], i % 2);
    }
    product(area, a, b);
}

static void product_tf32(unsigned char *area)
{
    const uint32_t kept = 0xffffe000u; /* the hardware ignores the lower bits */
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; lane++) {
        const operands *x = (const operands *)(area + EMULATOR_EXCHANGE * lane);
        for (int i = 0; i < 4; i++)
            a[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = __uint_as_float(x->a[i] & kept);
        for (int i = 0; i < 2; i++) b[lane % 4 + i * 4][lane / 4] = __uint_as_float(x->b[i] & kept);
    }
    product(area, a, b);
}

static void multiply(float d[4], const uint32_t a[4], const uint32_t b[2], void (*product)(unsigned char *))
{
    operands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
    const unsigned char *all = emulator_exchange(0xffffffffu, &mine, sizeof mine, product);
    memcpy(d, ((const operands *)(all + EMULATOR_EXCHANGE * emulator_self->lane))->d, sizeof mine.d);
}

void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    multiply(d, a, b, product_bf16);
}

void mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    multiply(d, a, b, product_tf32);
}

struct matrix_load {
    const uint16_t *row; /* lane 8 m + y: row y of matrix m */
    int matrices;
    bool transposed;
    uint32_t r[4];
};

static void load_matrices(unsigned char *area)
{
    auto of = [&](int lane) { return (matrix_load *)(area + EMULATOR_EXCHANGE * lane); };
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < of(0)->matrices; m++) {
            uint32_t pair[2];
            for (int i = 0; i < 2; i++) {
                int y = lane / 4, x = lane % 4 * 2 + i;
                if (of(0)->transposed) std::swap(x, y);
                pair[i] = of(8 * m + y)->row[x];
            }
            of(lane)->r[m] = pair[0] | pair[1] << 16;
        }
}

void emulator_ldmatrix(uint32_t *r, const void *row, int matrices, bool transposed)
{
    if ((uintptr_t)row % 16) abort(); /* rows are 16 bytes, aligned */
    matrix_load mine = {(const uint16_t *)row, matrices, transposed, {}};
    const unsigned char *all = emulator_exchange(0xffffffffu, &mine, sizeof mine, load_matrices);
    memcpy(r, ((const matrix_load *)(all + EMULATOR_EXCHANGE * emulator_self->lane))->r,
           (size_t)matrices * sizeof *r);
}

/* Where the operand's descriptor has element (depth, column), in bytes: PTX manual, matrix descriptors of
 * wgmma with the swizzle of 128 bytes. */
static size_t place_of(uint64_t b, int depth, int column, bool by_rows)
{
    size_t start = (b & 0x3fff) * 16, leading = (b >> 16 & 0x3fff) * 16, stride = (b >> 32 & 0x3fff) * 16;
    size_t at = by_rows ? start + (size_t)(column / 64) * leading + (size_t)(depth / 8) * stride +
                              (size_t)(depth % 8 * 128 + column % 64 * 2)
                        : start + (size_t)(column / 8) * stride + (size_t)(column % 8 * 128 + depth * 2);
    return at ^ (at >> 7 & 7) << 4;
}

/* Each warp finds its 16 rows by itself. */
void emulator_group_multiply(float *d, int columns, const uint32_t *a, uint64_t b, bool by_rows, bool add)
{
    if (b >> 62 != 1 || (b & 0x3fff) * 16 % 1024 >= 128) {
        fprintf(stderr, "emulator: operand %llx of a warp group: not swizzled or not aligned\n",
                (unsigned long long)b);
        abort();
    }
    const unsigned char *all = emulator_exchange(0xffffffffu, a, 4 * sizeof *a);
    const char *shared = (const char *)emulator_dynamic_shared();
    int group = emulator_self->lane / 4, place = emulator_self->lane % 4;
    float row[2][16]; /* of a */
    for (int k = 0; k < 16; k++) {
        uint32_t his[4];
        memcpy(his, all + EMULATOR_EXCHANGE * (group * 4 + k % 8 / 2), sizeof his);
        for (int half = 0; half < 2; half++) row[half][k] = half_of(his[half + k / 8 * 2], k % 2);
    }
    for (int n = 0; n < columns / 8; n++)
        for (int i = 0; i < 2; i++) {
            float sum[2] = {add ? d[4 * n + i] : 0, add ? d[4 * n + 2 + i] : 0};
            for (int k = 0; k < 16; k++) {
                __nv_bfloat16 x;
                memcpy(&x, shared + place_of(b, k, 8 * n + 2 * place + i, by_rows), sizeof x);
                for (int half = 0; half < 2; half++) sum[half] += row[half][k] * __bfloat162float(x);
            }
            d[4 * n + i] = sum[0], d[4 * n + 2 + i] = sum[1];
        }
    emulator_warp_barrier(0xffffffffu); /* nobody overwrites what another still reads */
}
