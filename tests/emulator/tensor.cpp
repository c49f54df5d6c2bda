/* Tensor-core instructions and number formats. Fragment layouts: PTX manual, mma.m16n8k16 and m16n8k8. */
#include "emulator.h"

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

struct operands {
    uint32_t a[4], b[2];
};

static operands operands_of(const unsigned char *all, int lane)
{
    operands x;
    memcpy(&x, all + 64 * lane, sizeof x);
    return x;
}

static const unsigned char *hand_in(const uint32_t a[4], const uint32_t b[2])
{
    operands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    return emulator_exchange(0xffffffffu, &mine, sizeof mine);
}

/* This lane's d: rows lane/4 and lane/4 + 8, columns 2 (lane%4) and one more. */
void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    const unsigned char *all = hand_in(a, b);
    int group = emulator_self->lane / 4, place = emulator_self->lane % 4;
    for (int k = 0; k < 16; k++) {
        int upper = k / 8, pair = k % 8 / 2, high = k % 2;
        operands row = operands_of(all, group * 4 + pair);
        for (int i = 0; i < 4; i++) {
            int column = 2 * place + i % 2;
            operands his = operands_of(all, column * 4 + pair);
            d[i] += half_of(row.a[i / 2 + 2 * upper], high) * half_of(his.b[upper], high);
        }
    }
}

void mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    const unsigned char *all = hand_in(a, b);
    int group = emulator_self->lane / 4, place = emulator_self->lane % 4;
    const uint32_t kept = 0xffffe000u; /* the hardware ignores the lower bits */
    for (int k = 0; k < 8; k++) {
        int upper = k / 4, lane = k % 4;
        operands row = operands_of(all, group * 4 + lane);
        for (int i = 0; i < 4; i++) {
            operands his = operands_of(all, (2 * place + i % 2) * 4 + lane);
            d[i] += __uint_as_float(row.a[i / 2 + 2 * upper] & kept) * __uint_as_float(his.b[upper] & kept);
        }
    }
}

void emulator_ldmatrix(uint32_t *r, const void *row, int matrices, bool transposed)
{
    if ((uintptr_t)row % 16) abort(); /* rows are 16 bytes, aligned */
    const unsigned char *all = emulator_exchange(0xffffffffu, &row, sizeof row);
    int lane = emulator_self->lane;
    for (int m = 0; m < matrices; m++) {
        uint16_t pair[2];
        for (int i = 0; i < 2; i++) {
            int y = transposed ? lane % 4 * 2 + i : lane / 4, x = transposed ? lane / 4 : lane % 4 * 2 + i;
            const uint16_t *from;
            memcpy(&from, all + 64 * (8 * m + y), sizeof from);
            pair[i] = from[x];
        }
        r[m] = pair[0] | (uint32_t)pair[1] << 16;
    }
    emulator_warp_barrier(0xffffffffu); /* nobody overwrites what another still reads */
}
