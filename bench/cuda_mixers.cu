/* The CUDA kernels of the sequence operations, alone: checked against the double reference, then timed.
 *   cuda_mixers check [family]     the case table below, both types: forward, backward, splits with state
 *   cuda_mixers time [family]      shapes of the MQAR step and long sequences, milliseconds per call
 * Runs on a GPU, and its checks also under tests/emulator. */
#include "kernels/attention/attention.h"
#include "kernels/cuda.h"
#include "kernels/gdn/gdn.h"
#include "kernels/gla/gla.h"
#include "kernels/slots/slots.h"
#include "kernels/ssm/ssm.h"

#include <algorithm>
#include <functional>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

enum type { REF, F32, BF16 };
static const char *const type_names[] = {"f64", "f32", "bf16"};

#define DECLARE(op, args)                                                                                    \
    extern "C" {                                                                                             \
    void op##_sizes_ref_f64(const kernel_run *, const args *, kernel_sizes *);                               \
    void op##_forward_ref_f64(const kernel_run *, const args *);                                             \
    void op##_backward_ref_f64(const kernel_run *, const args *);                                            \
    void op##_sizes_cuda_f32(const kernel_run *, const args *, kernel_sizes *);                              \
    void op##_forward_cuda_f32(const kernel_run *, const args *);                                            \
    void op##_backward_cuda_f32(const kernel_run *, const args *);                                           \
    void op##_sizes_cuda_bf16(const kernel_run *, const args *, kernel_sizes *);                             \
    void op##_forward_cuda_bf16(const kernel_run *, const args *);                                           \
    void op##_backward_cuda_bf16(const kernel_run *, const args *);                                          \
    }                                                                                                        \
    static void call(type t, int what, const kernel_run *run, const args *a, kernel_sizes *s)                \
    {                                                                                                        \
        if (what == 0)                                                                                       \
            (t == REF   ? op##_sizes_ref_f64                                                                 \
             : t == F32 ? op##_sizes_cuda_f32                                                                \
                        : op##_sizes_cuda_bf16)(run, a, s);                                                  \
        else if (what == 1)                                                                                  \
            (t == REF   ? op##_forward_ref_f64                                                               \
             : t == F32 ? op##_forward_cuda_f32                                                              \
                        : op##_forward_cuda_bf16)(run, a);                                                   \
        else                                                                                                 \
            (t == REF   ? op##_backward_ref_f64                                                              \
             : t == F32 ? op##_backward_cuda_f32                                                             \
                        : op##_backward_cuda_bf16)(run, a);                                                  \
    }
DECLARE(attention, attention_args)
DECLARE(gla, gla_args)
DECLARE(slots, slots_args)
DECLARE(gdn, gdn_args)
DECLARE(ssm, ssm_args)

enum role { INPUT, OUTPUT, PARAM, STATE, NOTE, STATISTIC, POSITION };
struct tensor {
    const char *name;
    role as;
    int64_t count, per_token;
    double low, high;
};

/* One shape of one operation: its tensors, and how they make the arguments. */
struct shape {
    std::string family;
    int64_t B, L, H, G, K, V, S, window;
    double scale, lowest;
    std::vector<tensor> t;
};

struct buffers {
    type of;
    std::vector<void *> x, d; /* values and gradients; host memory for REF, device memory else */
    std::vector<size_t> bytes;
    void *scratch;
    size_t scratch_bytes;
    kernel_run run;
};

static size_t element(type of, role as)
{
    if (as == POSITION) return 8;
    if (of == REF) return 8;
    return of == F32 || as == STATE || as == PARAM || as == STATISTIC ? 4 : 2;
}

static void *at(const buffers &b, const shape &s, const std::vector<void *> &from, int i, int64_t token)
{
    return from[i] ? (char *)from[i] + (size_t)(token * s.t[i].per_token) * element(b.of, s.t[i].as)
                   : nullptr;
}

static bool failed(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e)), exit(1);
    return false;
}

/* Which tokens a call processes, and with what state. */
struct span {
    int64_t first, count;
    bool carry, keep;
};

/* what: 0 sizes, 1 forward, 2 backward. State tensors: [0] carried, [1] given. */
static void invoke(const shape &s, buffers &b, int what, span n, kernel_sizes *sizes)
{
    auto X = [&](int i) { return at(b, s, b.x, i, n.first); };
    auto D = [&](int i) { return at(b, s, b.d, i, n.first); };
    if (s.family == "attention") {
        attention_args a = {};
        a.batch = s.B, a.length = n.count, a.heads = s.H, a.heads_kv = s.G, a.dim_k = s.K, a.dim_v = s.V;
        a.window = s.window, a.scale = s.scale, a.q = X(0), a.k = X(1), a.v = X(2), a.o = X(3);
        a.lse = n.keep ? b.x[4] : nullptr, a.capacity = s.S;
        a.d_o = D(3), a.d_q = D(0), a.d_k = D(1), a.d_v = D(2);
        if (n.carry) a.cache_k = b.x[5], a.cache_v = b.x[6], a.position = (const int64_t *)b.x[7];
        call(b.of, what, &b.run, &a, sizes);
    } else if (s.family == "gla") {
        gla_args a = {};
        a.batch = s.B, a.length = n.count, a.heads = s.H, a.dim_k = s.K, a.dim_v = s.V, a.scale = s.scale;
        a.q = X(0), a.k = X(1), a.v = X(2), a.g = X(3), a.o = X(4), a.saved = n.keep ? b.x[5] : nullptr;
        a.state_in = n.carry ? b.x[6] : s.window ? b.x[7] : nullptr, a.state_out = n.carry ? b.x[6] : nullptr;
        a.d_o = D(4), a.d_q = D(0), a.d_k = D(1), a.d_v = D(2), a.d_g = D(3);
        call(b.of, what, &b.run, &a, sizes);
    } else if (s.family == "slots") {
        slots_args a = {};
        a.batch = s.B, a.length = n.count, a.heads = s.H, a.dim_k = s.K, a.dim_v = s.V, a.slots = s.S;
        a.scale = s.scale, a.q = X(0), a.k = X(1), a.v = X(2), a.g = X(3), a.o = X(4);
        a.saved = n.keep ? b.x[5] : nullptr;
        a.state_in = n.carry ? b.x[6] : s.window ? b.x[7] : nullptr, a.state_out = n.carry ? b.x[6] : nullptr;
        a.d_o = D(4), a.d_q = D(0), a.d_k = D(1), a.d_v = D(2), a.d_g = D(3);
        call(b.of, what, &b.run, &a, sizes);
    } else if (s.family == "gdn") {
        gdn_args a = {};
        a.batch = s.B, a.length = n.count, a.heads = s.H, a.dim_k = s.K, a.dim_v = s.V, a.scale = s.scale;
        a.q = X(0), a.k = X(1), a.v = X(2), a.g = X(3), a.o = X(4), a.saved = n.keep ? b.x[5] : nullptr;
        a.state_in = n.carry ? b.x[6] : s.window ? b.x[7] : nullptr, a.state_out = n.carry ? b.x[6] : nullptr;
        a.beta = X(8), a.d_beta = D(8);
        a.d_o = D(4), a.d_q = D(0), a.d_k = D(1), a.d_v = D(2), a.d_g = D(3);
        call(b.of, what, &b.run, &a, sizes);
    } else {
        ssm_args a = {};
        a.batch = s.B, a.length = n.count, a.channels = s.K, a.modes = s.S, a.u = X(0), a.y = X(1);
        a.log_step = b.x[2], a.c_re = b.x[3], a.c_im = b.x[4], a.d = b.x[5],
        a.saved = n.keep ? b.x[6] : nullptr;
        a.state_in = n.carry ? b.x[7] : s.window ? b.x[8] : nullptr, a.state_out = n.carry ? b.x[7] : nullptr;
        a.d_y = D(1), a.d_u = D(0), a.d_log_step = b.d[2], a.d_c_re = b.d[3], a.d_c_im = b.d[4],
        a.d_d = b.d[5];
        call(b.of, what, &b.run, &a, sizes);
    }
}

/* ---- shapes ---- */
static shape attention_shape(int64_t B, int64_t L, int64_t window, int64_t H, int64_t G, int64_t K, int64_t V)
{
    int64_t capacity = window ? window : L + 1;
    shape s = {"attention", B, L, H, G, K, V, capacity, window, 1 / sqrt((double)K), 0, {}};
    s.t = {{"q", INPUT, B * L * H * K, H * K, -2, 2},
           {"k", INPUT, B * L * G * K, G * K, -2, 2},
           {"v", INPUT, B * L * G * V, G * V, -1, 1},
           {"o", OUTPUT, B * L * H * V, H * V, -1, 1},
           {"lse", STATISTIC, B * H * L, 0, 0, 0},
           {"cache_k", STATE, B * capacity * G * K, 0, 0, 0},
           {"cache_v", STATE, B * capacity * G * V, 0, 0, 0},
           {"position", POSITION, B, 0, 0, 0}};
    return s;
}

static shape scan_shape(const char *family, int64_t B, int64_t L, int64_t H, int64_t K, int64_t V, int64_t S,
                        double lowest)
{
    bool slots = !strcmp(family, "slots"), gdn = !strcmp(family, "gdn");
    int64_t N = B * L * H, gates = slots ? S : gdn ? 1 : K, size = B * H * (slots ? S * (K + V) : K * V);
    double reach = gdn ? 1.7 / sqrt((double)K) : 1;
    shape s = {family, B, L, H, H, K, V, S, B > 1, slots ? 0.9 : 0.4, lowest, {}};
    s.t = {{"q", INPUT, N * K, H * K, -1, 1},  {"k", INPUT, N * K, H * K, -reach, reach},
           {"v", INPUT, N * V, H * V, -1, 1},  {"g", INPUT, N * gates, H * gates, lowest, -1e-3},
           {"o", OUTPUT, N * V, H * V, -1, 1}, {"saved", NOTE, 0, 0, 0, 0},
           {"state", STATE, size, 0, 0, 0},    {"state_in", STATE, size, 0, -1, 1}};
    if (gdn) s.t.push_back({"beta", INPUT, N, H, 0.01, 0.99});
    return s;
}

static shape ssm_shape(int64_t B, int64_t L, int64_t C, int64_t modes, bool state)
{
    int64_t n = B * L * C, size = B * C * modes * 2;
    shape s = {"ssm", B, L, 1, 1, C, C, modes, state, 1, 0, {}};
    s.t = {{"u", INPUT, n, C, -1, 1},
           {"y", OUTPUT, n, C, -1, 1},
           {"log_step", PARAM, C, 0, -6.9, -2.3},
           {"c_re", PARAM, C * modes, 0, -1, 1},
           {"c_im", PARAM, C * modes, 0, -1, 1},
           {"d", PARAM, C, 0, -1, 1},
           {"saved", NOTE, 0, 0, 0, 0},
           {"state", STATE, size, 0, 0, 0},
           {"state_in", STATE, size, 0, -1, 1}};
    return s;
}

/* ---- values ---- */
static uint64_t random_state;
static double uniform(double low, double high)
{
    random_state += 0x9E3779B97F4A7C15ull;
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull, z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return low + (high - low) * (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static void write_value(void *to, size_t size, int64_t i, double x)
{
    if (size == 8)
        ((double *)to)[i] = x;
    else if (size == 4)
        ((float *)to)[i] = (float)x;
    else
        ((bf16 *)to)[i] = to_bf16((float)x);
}
static double read_value(const void *from, size_t size, int64_t i)
{
    return size == 8   ? ((const double *)from)[i]
           : size == 4 ? ((const float *)from)[i]
                       : from_bf16(((const bf16 *)from)[i]);
}

enum { GUARD = 256 };
static void *make(buffers &b, size_t bytes)
{
    void *p = nullptr;
    if (b.of == REF) {
        p = malloc(bytes + GUARD);
        memset(p, 0xff, bytes + GUARD);
        return p;
    }
    failed(cudaMalloc(&p, bytes + GUARD), "cudaMalloc");
    failed(cudaMemset(p, 0xff, bytes + GUARD), "cudaMemset");
    return p;
}

static void put(const buffers &b, void *to, const void *from, size_t bytes)
{
    if (b.of == REF)
        memcpy(to, from, bytes);
    else
        failed(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "upload");
}
static std::vector<char> get(const buffers &b, const void *from, size_t bytes)
{
    std::vector<char> r(bytes + 1);
    if (b.of == REF)
        memcpy(r.data(), from, bytes);
    else
        failed(cudaMemcpy(r.data(), from, bytes, cudaMemcpyDeviceToHost), "download");
    return r;
}

/* The same numbers for every type, those of `rounded`. */
static void fill(const buffers &b, void *to, const tensor &t, int64_t count, double low, double high,
                 int stream, type rounded)
{
    size_t to_size = element(b.of, t.as), as_size = element(rounded, t.as);
    std::vector<char> host((size_t)count * to_size + 1), one(8);
    random_state = 77 + (uint64_t)stream * 1000003;
    const int64_t fresh = std::min(count, (int64_t)1000003); /* then the same again: timing needs no more */
    for (int64_t i = 0; i < fresh; i++) {
        write_value(one.data(), as_size, 0, uniform(low, high));
        write_value(host.data(), to_size, i, read_value(one.data(), as_size, 0));
    }
    for (int64_t i = fresh; i < count; i += fresh)
        memcpy(host.data() + (size_t)i * to_size, host.data(), (size_t)std::min(fresh, count - i) * to_size);
    put(b, to, host.data(), (size_t)count * to_size);
}

static void reset(const shape &s, buffers &b, type rounded)
{
    for (size_t i = 0; i < s.t.size(); i++) {
        const tensor &t = s.t[i];
        if (t.as == INPUT || t.as == PARAM || (t.as == STATE && t.low != t.high))
            fill(b, b.x[i], t, t.count, t.low, t.high, (int)i, rounded);
        if (t.as == OUTPUT || t.as == PARAM) fill(b, b.d[i], t, t.count, -1, 1, 100 + (int)i, rounded);
        if ((t.as == STATE && t.low == t.high) || t.as == POSITION) {
            std::vector<char> zero(b.bytes[i] + 1);
            put(b, b.x[i], zero.data(), b.bytes[i]);
        }
    }
}

static buffers start(const shape &s, type of, type rounded)
{
    buffers b = {};
    b.of = of;
    kernel_sizes need = {};
    b.run.threads = 1, b.run.element = element(of, INPUT);
    b.x.resize(s.t.size()), b.d.resize(s.t.size()), b.bytes.resize(s.t.size());
    invoke(s, b, 0, {0, s.L, false, true}, &need);
    for (size_t i = 0; i < s.t.size(); i++) {
        const tensor &t = s.t[i];
        b.bytes[i] = t.as == NOTE ? need.saved : (size_t)t.count * element(of, t.as);
        b.x[i] = make(b, b.bytes[i]);
        if (t.as == INPUT || t.as == OUTPUT || t.as == PARAM) b.d[i] = make(b, b.bytes[i]);
    }
    b.scratch = b.run.scratch = make(b, need.scratch);
    b.scratch_bytes = b.run.scratch_bytes = need.scratch;
    reset(s, b, rounded);
    return b;
}

static int guards_broken(const buffers &b)
{
    int broken = 0;
    auto look = [&](const void *p, size_t bytes) {
        if (!p) return;
        std::vector<char> g = get(b, (const char *)p + bytes, GUARD);
        for (int i = 0; i < GUARD; i++) broken += (unsigned char)g[i] != 0xff;
    };
    for (size_t i = 0; i < b.x.size(); i++) look(b.x[i], b.bytes[i]), look(b.d[i], b.bytes[i]);
    look(b.scratch, b.scratch_bytes);
    return broken;
}

static void finish(buffers &b)
{
    for (size_t i = 0; i < b.x.size(); i++)
        for (void *p : {b.x[i], b.d[i]})
            if (b.of == REF)
                free(p);
            else if (p)
                cudaFree(p);
    if (b.of == REF)
        free(b.scratch);
    else
        cudaFree(b.scratch);
}

/* ---- checks ---- */
static int cases, failures;
static double worst_ratio[3];
static const double tolerance[] = {0, 1e-4, 2e-2};

static void compare(const shape &s, const buffers &b, const buffers &truth, const void *x, const void *y,
                    size_t i, const char *kind, const char *part)
{
    const tensor &t = s.t[i];
    std::vector<char> got = get(b, x, b.bytes[i]), want = get(truth, y, truth.bytes[i]);
    double worst = 0, size = 1e-2; /* gradients that cancel are compared in absolute terms */
    for (int64_t k = 0; k < t.count; k++) {
        double g = read_value(got.data(), element(b.of, t.as), k), w = read_value(want.data(), 8, k);
        double e = fabs(g - w);
        worst = e > worst || isnan(e) ? e : worst, size = fmax(size, fabs(w));
        if (isnan(worst)) break;
    }
    cases++;
    double ratio = worst / size / tolerance[b.of];
    if (ratio <= 1) {
        worst_ratio[b.of] = fmax(worst_ratio[b.of], ratio);
        if (!getenv("VERBOSE")) return;
    } else
        failures++;
    printf("%s %s B%ld L%ld H%ld G%ld K%ld V%ld S%ld w%ld g%g [%s] %s: %s%s off by %.2e of %.2e\n",
           ratio <= 1 ? "ok  " : "FAIL", s.family.c_str(), (long)s.B, (long)s.L, (long)s.H, (long)s.G,
           (long)s.K, (long)s.V, (long)s.S, (long)s.window, s.lowest, type_names[b.of], part, kind, t.name,
           worst, size);
}

static void compare_all(const shape &s, const buffers &b, const buffers &truth, bool gradients, bool states,
                        const char *part)
{
    for (size_t i = 0; i < s.t.size(); i++) {
        role as = s.t[i].as;
        if (as == OUTPUT || (as == STATE && states && s.t[i].low == s.t[i].high) ||
            (as == STATISTIC && gradients))
            compare(s, b, truth, b.x[i], truth.x[i], i, "", part);
        if (gradients && (as == INPUT || as == PARAM))
            compare(s, b, truth, b.d[i], truth.d[i], i, "d_", part);
    }
}

static void run_split(const shape &s, buffers &b)
{
    static const int64_t pieces[] = {3, 1, 70, 2, 20, 1, 1000000};
    int64_t done = 0;
    for (int i = 0; done < s.L; i++) {
        int64_t n = std::min(pieces[i], s.L - done);
        for (size_t k = 0; k < s.t.size(); k++)
            if (s.t[k].as == POSITION) {
                std::vector<int64_t> p((size_t)s.B, done);
                put(b, b.x[k], p.data(), b.bytes[k]);
            }
        invoke(s, b, 1, {done, n, true, false}, nullptr);
        done += n;
    }
}

static void check(const shape &s)
{
    for (int of = F32; of <= BF16; of++) {
        buffers truth = start(s, REF, (type)of), b = start(s, (type)of, (type)of);
        for (buffers *r : {&truth, &b}) {
            invoke(s, *r, 1, {0, s.L, false, true}, nullptr);
            invoke(s, *r, 2, {0, s.L, false, true}, nullptr);
        }
        if (of != REF) failed(cudaDeviceSynchronize(), s.family.c_str());
        compare_all(s, b, truth, true, false, "pass");
        if (s.B == 1) {
            reset(s, truth, (type)of), reset(s, b, (type)of);
            run_split(s, truth), run_split(s, b);
            compare_all(s, b, truth, false, true, "split");
        }
        if (guards_broken(b))
            failures++, printf("FAIL %s L%ld: wrote out of bounds\n", s.family.c_str(), (long)s.L);
        finish(truth), finish(b);
    }
}

static bool wanted(int argc, char **argv, const char *family)
{
    return argc < 3 || !strcmp(argv[2], family);
}

static int check_all(int argc, char **argv)
{
    static const int64_t lengths[] = {0, 1, 5, 16, 33, 70, 131};
    for (int i = 0; i < 7; i++) {
        int64_t L = lengths[i];
        if (wanted(argc, argv, "attention")) {
            check(attention_shape(1, L, 0, 4, 2, 19, 8));
            check(attention_shape(1, L, 6, 2, 1, 8, 11));
            check(attention_shape(2, L, i % 2 ? 64 : 33, 2, 2, 16, 16));
        }
        for (const char *family : {"gla", "slots", "gdn"})
            if (wanted(argc, argv, family)) {
                check(scan_shape(family, 1, L, 2, 8, 16, 7, -0.3));
                check(scan_shape(family, 3, L, 1, 19, 11, 16, -0.05));
            }
        if (wanted(argc, argv, "ssm"))
            check(ssm_shape(1, L, i % 2 ? 11 : 16, i % 2 ? 5 : 8, false)),
                check(ssm_shape(2, L, 24, i % 2 ? 5 : 8, true));
    }
    if (wanted(argc, argv, "attention")) {
        check(attention_shape(1, 40, 1, 1, 1, 5, 3));
        check(attention_shape(1, 150, 65, 1, 1, 24, 40));
        check(attention_shape(2, 150, 0, 1, 1, 32, 17));
        check(attention_shape(1, 200, 0, 1, 1, 128, 128));
        check(attention_shape(1, 100, 0, 2, 1, 64, 64));
        check(attention_shape(1, 90, 0, 1, 1, 160, 200));
    }
    for (const char *family : {"gla", "slots", "gdn"})
        if (wanted(argc, argv, family)) {
            check(scan_shape(family, 1, 70, 1, 8, 8, 9, -60));
            check(scan_shape(family, 2, 50, 2, 16, 24, 33, -3));
            check(scan_shape(family, 1, 90, 1, 64, 33, 64, -8));
            check(scan_shape(family, 1, 200, 1, 64, 64, 64, -0.1));
            check(scan_shape(family, 2, 130, 1, 80, 72, 100, -0.1));
            check(scan_shape(family, 1, 80, 1, 128, 128, 130, -0.5));
            check(scan_shape(family, 2, 130, 1, 160, 40, 20, -0.2));
            check(scan_shape(family, 1, 140, 1, 150, 70, 20, -0.2));
        }
    if (wanted(argc, argv, "ssm"))
        check(ssm_shape(2, 300, 40, 32, true)), check(ssm_shape(1, 100, 70, 3, false)),
            check(ssm_shape(2, 50, 8, 150, true)), check(ssm_shape(9, 300, 8, 40, false)),
            check(ssm_shape(3, 512, 16, 32, false));
    printf("%d comparisons, %d failures; worst f32 %.2e of 1e-4, bf16 %.2e of 2e-2\n", cases, failures,
           worst_ratio[F32] * 1e-4, worst_ratio[BF16] * 2e-2);
    return failures != 0;
}

/* ---- times ---- */
/* Milliseconds per call of a graph of calls, the median of several replays. */
static float milliseconds(buffers &b, const std::function<void()> &body)
{
    const int calls = 20;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaEvent_t from, to;
    failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    cudaEventCreate(&from), cudaEventCreate(&to);
    b.run.stream = stream, b.run.early = 1;
    failed(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; i++) body();
    failed(cudaStreamEndCapture(stream, &graph), "end of capture");
    failed(cudaGraphInstantiate(&replay, graph, 0), "graph");
    failed(cudaGraphLaunch(replay, stream), "warm-up");
    std::vector<float> times;
    for (int i = 0; i < 9; i++) {
        float ms;
        cudaEventRecord(from, stream);
        cudaGraphLaunch(replay, stream);
        cudaEventRecord(to, stream);
        failed(cudaEventSynchronize(to), "timing");
        cudaEventElapsedTime(&ms, from, to);
        times.push_back(ms / calls);
    }
    cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
    cudaEventDestroy(from), cudaEventDestroy(to), cudaStreamDestroy(stream);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/* Forward and backward with early starts of kernels must give the bits they give without. */
static void check_early(const shape &s, buffers &b)
{
    std::vector<std::vector<char>> plain;
    cudaStream_t stream;
    failed(cudaStreamCreate(&stream), "stream");
    b.run.stream = stream;
    for (int run = 0; run < 6; run++) {
        b.run.early = run > 0;
        for (int what = 1; what <= 2; what++) invoke(s, b, what, {0, s.L, false, true}, nullptr);
        failed(cudaDeviceSynchronize(), s.family.c_str());
        size_t at = 0;
        for (size_t i = 0; i < s.t.size(); i++) {
            if (s.t[i].as != INPUT && s.t[i].as != OUTPUT) continue;
            std::vector<char> got = get(b, s.t[i].as == INPUT ? b.d[i] : b.x[i], b.bytes[i]);
            if (run == 0) plain.push_back(got);
            if (got != plain[at++])
                failures++, printf("FAIL %s L%ld: %s differs with early starts\n", s.family.c_str(),
                                   (long)s.L, s.t[i].name);
        }
    }
    cudaStreamDestroy(stream);
}

static void time_shape(const shape &s, type of)
{
    buffers b = start(s, of, of);
    check_early(s, b);
    float inference = milliseconds(b, [&] { invoke(s, b, 1, {0, s.L, false, false}, nullptr); });
    float forward = milliseconds(b, [&] { invoke(s, b, 1, {0, s.L, false, true}, nullptr); });
    float backward = milliseconds(b, [&] { invoke(s, b, 2, {0, s.L, false, true}, nullptr); });
    printf("%-9s %-4s B%-3ld L%-6ld H%-2ld K%-3ld V%-3ld S%-3ld w%-4ld inference %8.4f forward %8.4f "
           "backward %8.4f "
           "both %8.4f\n",
           s.family.c_str(), type_names[of], (long)s.B, (long)s.L, (long)s.H, (long)s.K, (long)s.V, (long)s.S,
           (long)s.window, inference, forward, backward, forward + backward);
    fflush(stdout);
    finish(b);
}

static void time_step(const shape &s, type of)
{
    buffers b = start(s, of, of);
    for (size_t i = 0; i < s.t.size(); i++)
        if (s.t[i].as == POSITION) { /* a ring that is nearly full */
            std::vector<int64_t> seen((size_t)s.B, s.L - 1);
            put(b, b.x[i], seen.data(), b.bytes[i]);
        }
    float ms = milliseconds(b, [&] { invoke(s, b, 1, {0, 1, true, false}, nullptr); });
    printf("%-9s %-4s B%-3ld decode, H%ld K%ld V%ld S%ld: %.4f ms a token\n", s.family.c_str(),
           type_names[of], (long)s.B, (long)s.H, (long)s.K, (long)s.V, (long)s.S, ms);
    finish(b);
}

static int time_all(int argc, char **argv)
{
    for (type of : {BF16, F32}) {
        for (int64_t H : {1, 4}) { /* the MQAR step: width 128, batch 32 of 512 tokens */
            int64_t D = 128 / H;
            if (wanted(argc, argv, "attention")) time_shape(attention_shape(32, 512, 0, H, H, D, D), of);
            if (wanted(argc, argv, "attention")) time_shape(attention_shape(32, 512, 64, H, H, D, D), of);
            if (wanted(argc, argv, "gla")) time_shape(scan_shape("gla", 32, 512, H, D / 2, D, 0, -0.1), of);
            if (wanted(argc, argv, "slots")) { /* abc, gsa */
                time_shape(scan_shape("slots", 32, 512, H, D / 2, D, 64, -0.1), of);
                time_shape(scan_shape("slots", 32, 512, H, D, D, 64, -0.1), of);
            }
            if (wanted(argc, argv, "gdn")) time_shape(scan_shape("gdn", 32, 512, H, D, D, 0, -0.1), of);
        }
        if (wanted(argc, argv, "ssm")) time_shape(ssm_shape(32, 512, 128, 32, false), of);
        if (wanted(argc, argv, "attention")) time_shape(attention_shape(4, 4096, 0, 16, 16, 64, 64), of);
        if (wanted(argc, argv, "attention")) time_shape(attention_shape(4, 4096, 127, 16, 16, 64, 64), of);
        for (const char *family : {"gla", "slots", "gdn"})
            if (wanted(argc, argv, family)) time_shape(scan_shape(family, 4, 4096, 16, 64, 64, 64, -0.1), of);
        if (wanted(argc, argv, "ssm")) time_shape(ssm_shape(4, 4096, 1024, 32, false), of);
    }
    for (int64_t B : {1, 32}) {
        if (wanted(argc, argv, "attention")) time_step(attention_shape(B, 4096, 0, 16, 16, 64, 64), BF16);
        for (const char *family : {"gla", "slots", "gdn"})
            if (wanted(argc, argv, family)) time_step(scan_shape(family, B, 8, 16, 64, 64, 64, -0.1), BF16);
        if (wanted(argc, argv, "ssm")) time_step(ssm_shape(B, 8, 1024, 32, false), BF16);
    }
    return failures != 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "check")) return check_all(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "time")) return time_all(argc, argv);
    fprintf(stderr, "usage: cuda_mixers check|time [attention|gla|slots|gdn|ssm]\n");
    return 2;
}
