#include "base/cpu.h"

#include <stdlib.h>
#include <string.h>

static const char *const isa_names[CPU_ISA_COUNT] = {"base", "avx2", "avx512"};

int cpu_isa_supported(cpu_isa isa)
{
    if (isa == CPU_ISA_BASE) return 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* The variants are compiled for x86-64-v3 and -v4: every feature those levels allow the compiler must be
     * there. */
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
             __builtin_cpu_supports("popcnt");
    if (isa == CPU_ISA_AVX2) return v3;
    if (isa == CPU_ISA_AVX512)
        return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
#endif
    return 0;
}

const char *cpu_isa_name(cpu_isa isa)
{
    return isa >= 0 && isa < CPU_ISA_COUNT ? isa_names[isa] : "unknown";
}

cpu_isa cpu_isa_select(void)
{
    cpu_isa best = CPU_ISA_BASE;
    for (cpu_isa isa = CPU_ISA_BASE; isa < CPU_ISA_COUNT; isa++)
        if (cpu_isa_supported(isa)) best = isa;
    const char *wish = getenv("BLURRY_ISA");
    if (!wish) return best;
    for (cpu_isa isa = CPU_ISA_BASE; isa < CPU_ISA_COUNT; isa++)
        if (strcmp(wish, isa_names[isa]) == 0) return cpu_isa_supported(isa) ? isa : best;
    return best;
}
