/* See operator_case.h. */
#include "operator_case.h"

#include <algorithm>
#include <chrono>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* Uniform in [-1.7, 1.7]: variance near 1. */
struct noise {
    uint64_t s;
    double next()
    {
        s += 0x9e3779b97f4a7c15u;
        uint64_t z = s;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u, z = (z ^ z >> 27) * 0x94d049bb133111ebu, z ^= z >> 31;
        return ((double)(z >> 11) / 9007199254740992.0 - 0.5) * 3.4;
    }
};

/* A tensor in both places: `host` holds exactly the values the device has. */
struct tensor {
    std::vector<double> host;
    void *device = NULL;
    blurry_dtype type;
    size_t bytes() const
    {
        return std::max<size_t>(1, host.size()) * (type == BLURRY_BF16 ? 2 : type == BLURRY_F32 ? 4 : 8);
    }
    tensor(blurry_dtype t, int64_t n) : host((size_t)n), type(t)
    {
        must(cudaMalloc(&device, bytes()), "cudaMalloc");
        must(cudaMemset(device, 0xff, bytes()), "cudaMemset");
    }
    tensor(const tensor &) = delete;
    ~tensor() { (void)cudaFree(device); }
    void fill(noise &r, double size)
    {
        std::vector<float> f(host.size());
        std::vector<bf16> b(host.size());
        for (size_t i = 0; i < host.size(); i++) {
            f[i] = (float)(r.next() * size), b[i] = to_bf16(f[i]);
            host[i] = type == BLURRY_BF16 ? from_bf16(b[i]) : f[i];
        }
        const void *from = type == BLURRY_BF16 ? (const void *)b.data() : (const void *)f.data();
        if (!host.empty()) must(cudaMemcpy(device, from, bytes(), cudaMemcpyHostToDevice), "copy in");
    }
    std::vector<double> fetch() const
    {
        std::vector<unsigned char> raw(bytes());
        must(cudaMemcpy(raw.data(), device, bytes(), cudaMemcpyDeviceToHost), "copy out");
        std::vector<double> got(host.size());
        for (size_t i = 0; i < got.size(); i++)
            got[i] = type == BLURRY_BF16  ? from_bf16(((const bf16 *)raw.data())[i])
                     : type == BLURRY_F32 ? ((const float *)raw.data())[i]
                                          : ((const double *)raw.data())[i];
        return got;
    }
};

/* Everything one case needs. */
struct scene {
    operator_case c;
    int64_t S, tokens;
    std::vector<double> period;
    std::vector<uint8_t> raised;
    std::vector<int64_t> offsets, starts;
    std::vector<bla_sequence> sequences;
    bla_shape shape, reference;
    tensor q, k, v, o, d_o, d_q, d_k, d_v;
    tensor in_k, in_v, out_k, out_v, d_in_k, d_in_v, d_out_k, d_out_v, d_period, d_period_abs;
    int64_t *positions = NULL;

    scene(const operator_case &k_)
        : c(k_), S(2 * c.M - 1), tokens(c.B * c.L), q(c.dtype, tokens * c.H * c.Dk),
          k(c.dtype, tokens * c.Hkv * c.Dk), v(c.dtype, tokens * c.Hkv * c.Dv),
          o(c.dtype, tokens * c.H * c.Dv), d_o(c.dtype, tokens * c.H * c.Dv),
          d_q(c.dtype, tokens * c.H * c.Dk), d_k(c.dtype, tokens * c.Hkv * c.Dk),
          d_v(c.dtype, tokens * c.Hkv * c.Dv), in_k(BLURRY_F32, c.B * c.Hkv * S * c.Dk),
          in_v(BLURRY_F32, c.B * c.Hkv * S * c.Dv), out_k(BLURRY_F32, c.B * c.Hkv * S * c.Dk),
          out_v(BLURRY_F32, c.B * c.Hkv * S * c.Dv), d_in_k(BLURRY_F32, c.B * c.Hkv * S * c.Dk),
          d_in_v(BLURRY_F32, c.B * c.Hkv * S * c.Dv), d_out_k(BLURRY_F32, c.B * c.Hkv * S * c.Dk),
          d_out_v(BLURRY_F32, c.B * c.Hkv * S * c.Dv), d_period(BLURRY_F64, c.Hkv),
          d_period_abs(BLURRY_F64, c.Hkv)
    {
        noise r = {c.seed};
        q.fill(r, 1), k.fill(r, 1), v.fill(r, 1), d_o.fill(r, 1);
        in_k.fill(r, 0.7), in_v.fill(r, 0.7), d_out_k.fill(r, 0.5), d_out_v.fill(r, 0.5);
        for (int64_t h = 0; h < c.Hkv; h++) {
            double T = c.T + c.T_step * (double)h;
            raised.push_back(T < (double)S), period.push_back(std::max(T, (double)S));
        }
        place();
        shape = bla_shape{c.B,
                          tokens,
                          c.H,
                          c.Hkv,
                          c.Dk,
                          c.Dv,
                          c.M,
                          S,
                          period.data(),
                          raised.data(),
                          1 / sqrt((double)c.Dk),
                          c.decay,
                          c.relative,
                          1};
        reference = shape;
        const char *wish = getenv("REFERENCE_THREADS");
        reference.threads = wish ? atoi(wish) : 1;
    }
    ~scene() { (void)cudaFree(positions); }
    void place()
    {
        offsets.push_back(0);
        for (int64_t b = 0; b < c.B; b++) {
            int64_t n = !c.packed ? c.L : b == c.B - 1 ? tokens - offsets.back() : b == 0 ? c.L / 2 : b % 3;
            sequences.push_back(bla_sequence{offsets.back(), n, c.position + 3 * b});
            starts.push_back(c.position + 3 * b);
            offsets.push_back(offsets.back() + n);
        }
        must(cudaMalloc((void **)&positions, sizeof(int64_t) * starts.size()), "cudaMalloc");
        must(cudaMemcpy(positions, starts.data(), sizeof(int64_t) * starts.size(), cudaMemcpyHostToDevice),
             "copy");
    }
    bla_slots slots(const tensor &a, const tensor &b, bool host) const
    {
        if (!c.states) return bla_slots{};
        return bla_slots{host ? (void *)a.host.data() : a.device, host ? (void *)b.host.data() : b.device,
                         c.Hkv * S * c.Dk, c.Hkv * S * c.Dv};
    }
    const void *at(const tensor &t, bool host) const { return host ? (const void *)t.host.data() : t.device; }
    void *to(tensor &t, bool host) { return host ? (void *)t.host.data() : t.device; }
    bla_forward forward(bool host, void *saved, void *workspace)
    {
        bla_forward a = {};
        a.sequences = host ? sequences.data() : NULL, a.n_sequences = c.B;
        a.q = at(q, host), a.k = at(k, host), a.v = at(v, host), a.o = to(o, host);
        a.in = slots(in_k, in_v, host), a.out = slots(out_k, out_v, host);
        a.saved = saved, a.workspace = workspace;
        if (host) return a;
        a.offsets = c.packed ? offsets.data() : NULL;
        a.positions = positions, a.position_stride = sizeof(int64_t);
        return a;
    }
    bla_backward backward(bool host, const void *saved, void *workspace)
    {
        bla_backward a = {};
        a.sequences = host ? sequences.data() : NULL, a.n_sequences = c.B;
        a.q = at(q, host), a.k = at(k, host), a.v = at(v, host), a.d_o = at(d_o, host);
        a.in = slots(in_k, in_v, host), a.d_out = slots(d_out_k, d_out_v, host),
        a.d_in = slots(d_in_k, d_in_v, host);
        a.d_q = to(d_q, host), a.d_k = to(d_k, host), a.d_v = to(d_v, host);
        if (c.period)
            a.d_period = (double *)to(d_period, host), a.d_period_abs = (double *)to(d_period_abs, host);
        a.saved = saved, a.workspace = workspace;
        if (host) return a;
        a.offsets = c.packed ? offsets.data() : NULL;
        a.positions = positions, a.position_stride = sizeof(int64_t);
        return a;
    }
};

static void compare(const tensor &t, const char *name, operator_errors *e)
{
    std::vector<double> got = t.fetch();
    double wrong = 0, size = 0;
    for (size_t i = 0; i < got.size(); i++) wrong += pow(got[i] - t.host[i], 2), size += pow(t.host[i], 2);
    double error = size > 0 ? sqrt(wrong / size) : sqrt(wrong);
    if (getenv("OPERATOR_VERBOSE")) printf("   %-10s %.3e\n", name, error);
    if (!(error <= e->worst)) e->worst = isfinite(error) ? error : 1e30, e->which = name;
}

/* d_period is a sum of terms of both signs: its error counts against the sum of their sizes. */
static void compare_period(const scene &s, operator_errors *e)
{
    std::vector<double> got = s.d_period.fetch(), size = s.d_period_abs.fetch();
    for (size_t h = 0; h < got.size(); h++) {
        double scale = s.d_period_abs.host[h];
        double error = fabs(got[h] - s.d_period.host[h]) / (scale > 0 ? scale : 1);
        double size_error = fabs(size[h] - scale) / (scale > 0 ? scale : 1);
        if (getenv("OPERATOR_VERBOSE")) printf("   d_period   %.3e, abs %.3e\n", error, size_error);
        error = std::max(error, size_error);
        if (!(error <= e->worst)) e->worst = isfinite(error) ? error : 1e30, e->which = "d_period";
    }
}

operator_errors operator_case_run(const operator_case &c)
{
    scene s(c);
    const bla_kernel *ours = bla_kernel_cuda(c.dtype), *ref = bla_kernel_reference(BLURRY_F64);
    operator_errors e = {0, "-"};
    void *tables;
    if (ours->prepare(&s.shape, &tables) != BLURRY_OK) {
        printf("prepare: %s\n", blurry_last_error());
        return operator_errors{-1, "prepare"};
    }
    size_t need_f = ours->forward_workspace(&s.shape), need_b = ours->backward_workspace(&s.shape);
    size_t need_saved = ours->saved_bytes(&s.shape);
    char *workspace, *saved;
    must(cudaMalloc((void **)&workspace, std::max(need_f, need_b) + 64), "workspace");
    must(cudaMalloc((void **)&saved, need_saved + 64), "saved");
    must(cudaMemset(workspace, 0xff, std::max(need_f, need_b)), "poison");
    must(cudaMemset(saved, 0xff, need_saved), "poison");
    bool with_saved = c.seed % 2 == 0;
    bla_forward f = s.forward(false, with_saved ? saved : NULL, workspace);
    ours->forward(&s.shape, tables, &f);
    must(cudaDeviceSynchronize(), "forward");
    must(cudaMemset(workspace, 0xff, std::max(need_f, need_b)), "poison");
    bla_backward b = s.backward(false, with_saved ? saved : NULL, workspace);
    ours->backward(&s.shape, tables, &b);
    must(cudaGetLastError(), "launch");
    must(cudaDeviceSynchronize(), "backward");
    ours->release(tables);
    std::vector<double> room(
        std::max(ref->forward_workspace(&s.reference), ref->backward_workspace(&s.reference)) / 8 + 8);
    bla_forward rf = s.forward(true, NULL, room.data());
    ref->forward(&s.reference, NULL, &rf);
    bla_backward rb = s.backward(true, NULL, room.data());
    ref->backward(&s.reference, NULL, &rb);
    const struct {
        const tensor *t;
        const char *name;
        int wanted;
    } all[] = {{&s.o, "o", 1},
               {&s.out_k, "out k", c.states},
               {&s.out_v, "out v", c.states},
               {&s.d_q, "d_q", 1},
               {&s.d_k, "d_k", 1},
               {&s.d_v, "d_v", 1},
               {&s.d_in_k, "d_in k", c.states},
               {&s.d_in_v, "d_in v", c.states}};
    for (const auto &one : all)
        if (one.wanted) compare(*one.t, one.name, &e);
    if (c.period) compare_period(s, &e);
    (void)cudaFree(workspace), (void)cudaFree(saved);
    return e;
}

void operator_case_print(const operator_case &c, const operator_errors &e, double tolerance)
{
    printf("%s %s B=%lld L=%lld H=%lld/%lld D=%lld/%lld S=%lld T=%g+%g decay=%d rel=%d pos=%lld states=%d "
           "packed=%d "
           "period=%d: %.2e (%s)\n",
           e.worst >= 0 && e.worst <= tolerance ? "ok  " : "FAIL", c.dtype == BLURRY_BF16 ? "bf16" : "f32",
           (long long)c.B, (long long)c.L, (long long)c.H, (long long)c.Hkv, (long long)c.Dk, (long long)c.Dv,
           (long long)(2 * c.M - 1), c.T, c.T_step, c.decay, c.relative, (long long)c.position, c.states,
           c.packed, c.period, e.worst, e.which);
}
