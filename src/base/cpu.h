/* Which instruction sets this machine has and which one the kernels shall use. */
#ifndef BLURRY_BASE_CPU_H
#define BLURRY_BASE_CPU_H

typedef enum cpu_isa { CPU_ISA_BASE, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_COUNT } cpu_isa;

/* The widest set the machine supports, lowered to BLURRY_ISA=base|avx2|avx512 where that is set. Read at
 * every call, so a test can change it between plans; an unknown or unsupported wish falls back to what is
 * supported. */
cpu_isa cpu_isa_select(void);

/* Whether this machine can run code for `isa`. */
int cpu_isa_supported(cpu_isa isa);

/* "base", "avx2", "avx512". */
const char *cpu_isa_name(cpu_isa isa);

#endif
