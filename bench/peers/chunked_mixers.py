"""Every mixer in its fast PyTorch form: mix(settings, params, x [B,L,d]) -> y, differentiated by autograd.

softmax is plain matrix-product attention; swa works on banded blocks; abc, gsa and gla use chunks with log gates, gdn
chunks in the WY form, s4d an FFT convolution, blurry the written-out operator of blurry_chunked.py. Settings and
parameters are those of the recurrent twin (tests/golden/twin/mixers.py), which these forms are checked against.

What depends on shapes alone (rotations, masks, frequencies) is made once by tables() and handed to the mixers.

Chunked tensors are [G, N, C, width] with G = B*H and N chunks of C tokens. Gates are undone by e^{-F} inside a chunk, so
a channel may lose at most e^-85 within one chunk in float32: far more than a trained gate does at these chunk sizes.
"""
import functools
import math

import torch
import torch.nn.functional as F

import blurry_chunked
from twin import mixers as twin

CHUNK = 64
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
DELTA_CHUNK = 32  # the triangular systems of gdn cost more than they save at 64


def rope_tables(L, half):
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(L, dtype=torch.float64)[:, None] * frequency
    return angle.cos()[:, None], angle.sin()[:, None]


def causal_bias(L):
    return torch.full((L, L), float("-inf")).triu(1)


def band_chunk(window):
    return min(max(32, window), 128)


def band_bias(window, L):
    """[N, C, back*C + C]: 0 where the key lies in the window of the query, else -inf."""
    C = band_chunk(window)
    N, back = -(-L // C), -(-(window - 1) // C)
    t = torch.arange(C)[:, None]
    u = torch.arange(-back * C, C)[None]
    inside = (u <= t) & (u > t - window)
    exists = (torch.arange(N)[:, None, None] * C + u) >= 0
    return torch.zeros(N, C, u.shape[1]).masked_fill(~(inside & exists), float("-inf"))


def s4d_tables(L, half):
    """The modes' exponents, and the powers l = 32 a + b of a kernel of length L by halves."""
    n = torch.arange(half, dtype=torch.float64)
    return {"A": torch.complex(torch.full_like(n, -0.5), math.pi * n), "fine": torch.arange(32, dtype=torch.float64),
            "coarse": 32 * torch.arange(-(-L // 32), dtype=torch.float64)}


def tables(settings, L, dtype):
    """What a mixer needs that depends on shapes alone: name -> tensor."""
    mixer = settings["mixer"]
    _, _, _, Dk, _ = twin.widths(settings)
    made = {}
    if mixer != "s4d" and twin.flag(settings, "rope"):
        made["cos"], made["sin"] = rope_tables(L, Dk // 2)
    if mixer == "softmax":
        made["bias"] = causal_bias(L)
    if mixer == "swa":
        made["bias"] = band_bias(min(int(settings["window"]), L), L)
    if mixer == "abc":
        made["valid"] = torch.arange(-(-L // CHUNK) * CHUNK).view(-1, CHUNK, 1) < L
    if mixer == "gdn":
        made["upper"] = torch.ones(DELTA_CHUNK, DELTA_CHUNK, dtype=torch.bool).triu(1)
        made["one"] = torch.eye(DELTA_CHUNK)
    if mixer == "s4d":
        made |= s4d_tables(L, int(settings["state"]) // 2)
    wide = torch.float32 if dtype == torch.bfloat16 and mixer in ("gdn", "s4d") else dtype
    return {name: x if x.dtype == torch.bool else x.to(COMPLEX[wide] if x.is_complex() else wide)
            for name, x in made.items()}


known_tables = {}


def cached_tables(settings, L, dtype):
    key = (*sorted(settings.items()), L, dtype)
    if key not in known_tables:
        known_tables[key] = tables(settings, L, dtype)
    return known_tables[key]


def rope(x, tables):
    half = x.shape[3] // 2
    cos, sin = tables["cos"], tables["sin"]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def projections(settings, params, x, tables):
    q, k, v = twin.projections(settings, params, x)
    if twin.flag(settings, "rope"):
        q, k = rope(q, tables), rope(k, tables)
    return q, k, v


def by_head(x):
    """[B,L,H,D] -> [B*H, L, D]."""
    return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])


def from_heads(x, H):
    """[B*H, L, D] -> [B,L,H,D]."""
    return x.view(-1, H, *x.shape[1:]).transpose(1, 2)


def chunks(x, C=CHUNK):
    """[B,L,H,D] -> [B*H, N, C, D], zeros after the end."""
    x = by_head(x)
    return F.pad(x, (0, 0, 0, -x.shape[1] % C)).view(x.shape[0], -1, C, x.shape[2])


def unchunk(x, L, H):
    return from_heads(x.reshape(x.shape[0], -1, x.shape[3])[:, :L], H)


def softmax(settings, params, x, tables):
    _, H, _, Dk, _ = twin.widths(settings)
    q, k, v = projections(settings, params, x, tables)
    k, v = twin.spread(k, H), twin.spread(v, H)
    if x.is_cuda:  # PyTorch's own fused kernel is its fastest form there
        o = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return twin.output(params, o.transpose(1, 2))
    q, k, v = by_head(q), by_head(k), by_head(v)
    p = torch.baddbmm(tables["bias"], q, k.transpose(1, 2), alpha=1 / math.sqrt(Dk)).softmax(-1)
    return twin.output(params, from_heads(torch.bmm(p, v), H))


def with_previous(x, back):
    """Each chunk preceded by the `back` chunks before it: [G,N,C,D] -> [G,N,(back+1)*C,D]."""
    padded = F.pad(x, (0, 0, 0, 0, back, 0))
    return torch.cat([padded[:, i:i + x.shape[1]] for i in range(back + 1)], 2)


def swa(settings, params, x, tables):
    _, H, _, Dk, _ = twin.widths(settings)
    window = min(int(settings["window"]), x.shape[1])
    C = band_chunk(window)
    q, k, v = projections(settings, params, x, tables)
    q, k, v = chunks(q, C), chunks(twin.spread(k, H), C), chunks(twin.spread(v, H), C)
    bias = tables["bias"]
    back = bias.shape[2] // C - 1
    k, v = with_previous(k, back), with_previous(v, back)
    p = (torch.matmul(q * (1 / math.sqrt(Dk)), k.transpose(2, 3)) + bias).softmax(-1)
    return twin.output(params, unchunk(torch.matmul(p, v), x.shape[1], H))


def carried(written, kept):
    """States before each chunk: state <- kept[n] * state + written[n]. [G,N,...] -> [G,N,...]."""
    # unbind, not indexing: the gradient of an index is a whole tensor of zeros per chunk
    written, kept = written.unbind(1), kept.unbind(1)
    states = [torch.zeros_like(written[0])]
    for n in range(len(written) - 1):
        states.append(torch.addcmul(written[n], states[n], kept[n]))
    return torch.stack(states, 1)


def gated_slots(q, k, v, forget, write, scale):
    """Slots with log gates. q, k, v chunked; forget [G,N,C,S]: the log of what remains, at t, of what the slots held at
    the chunk's start; write [G,N,C,S]: weight of token u relative to that same start (so W[t,u] = e^forget_t write_u)."""
    remains = forget.exp()
    end = remains[:, :, -1:]
    to_end = (write * end).transpose(2, 3)
    kept = end.transpose(2, 3)
    K, V = carried(torch.matmul(to_end, k), kept), carried(torch.matmul(to_end, v), kept)
    pairs = torch.matmul(q * scale, k.transpose(2, 3)).tril_()
    logits = remains * (torch.matmul(pairs, write) + torch.matmul(q * scale, K.transpose(2, 3)))
    p = logits.softmax(-1) * remains
    reads = torch.matmul(p, write.transpose(2, 3)).tril_()
    return torch.matmul(p, V) + torch.matmul(reads, v)


def abc(settings, params, x, tables):
    _, H, _, Dk, _ = twin.widths(settings)
    L, S = x.shape[1], int(settings["slots"])
    q, k, v = (chunks(stream) for stream in projections(settings, params, x, tables))
    s = torch.clamp(x @ params["s.weight"].T, -32, 32).to(x.dtype).view(*x.shape[:2], H, S)
    z = chunks(torch.logcumsumexp(s, 1))
    s = chunks(s)
    # W[t,u] = e^{s_u - z_t}, told from the running z before the chunk; slots start empty, so for the first chunk any
    # offset will do.
    border = torch.cat([z[:, :1, :1], z[:, :-1, -1:]], 1)
    if L % CHUNK:  # padded tokens write nothing and forget nothing
        valid = tables["valid"]
        z, s = torch.where(valid, z, border), s.masked_fill(~valid, float("-inf"))
    o = gated_slots(q, k, v, border - z, (s - border).exp(), 1 / math.sqrt(Dk))
    return twin.gated_output(params, x, unchunk(o, L, H))


def gsa(settings, params, x, tables):
    _, H, _, _, _ = twin.widths(settings)
    L, S = x.shape[1], int(settings["slots"])
    q, k, v = (chunks(F.silu(stream)) for stream in projections(settings, params, x, tables))
    f = chunks((F.logsigmoid(x @ params["f.weight"].T) / 8).view(*x.shape[:2], H, S))
    forget = f.cumsum(2)
    o = F.silu(unchunk(gated_slots(q, k, v, forget, -torch.expm1(f) * (-forget).exp(), 1.0), L, H))
    return twin.output(params, twin.rms_norm(o.reshape(*x.shape[:2], -1), params["norm.weight"]))


def gla(settings, params, x, tables):
    _, H, _, Dk, _ = twin.widths(settings)
    q, k, v = (chunks(stream) for stream in projections(settings, params, x, tables))
    gate = (x @ params["gk1.weight"].T) @ params["gk2.weight"].T + params["gk2.bias"]
    gate = chunks((F.logsigmoid(gate) / 16).view(*x.shape[:2], H, Dk)).cumsum(2)
    q = q * gate.exp() * (1 / math.sqrt(Dk))
    k = k * (-gate).exp()
    end = gate[:, :, -1:].exp()
    state = carried(torch.matmul((k * end).transpose(2, 3), v), end.transpose(2, 3))
    o = torch.matmul(torch.matmul(q, k.transpose(2, 3)).tril_(), v) + torch.matmul(q, state)
    return twin.gated_output(params, x, unchunk(o, x.shape[1], H))


def delta_chunks(q, k, v, log_alpha, beta, tables):
    """The gated delta rule in the WY form: q, k [G,N,C,Dk], v [G,N,C,Dv], log_alpha, beta [G,N,C,1] -> [G,N,C,Dv]."""
    Dv = v.shape[3]
    g = log_alpha.cumsum(2)
    ratio = (g - g.transpose(2, 3)).masked_fill(tables["upper"], float("-inf")).exp()  # decay from u to t, u <= t
    gamma = g.exp()
    system = (beta * ratio * torch.matmul(k, k.transpose(2, 3))).tril(-1) + tables["one"]
    right = torch.cat([beta * v, beta * gamma * k], 3)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    to_end = (k * (g[:, :, -1:] - g).exp()).transpose(2, 3)
    state, states, updates = q.new_zeros(q.shape[0], q.shape[3], Dv), [], []
    for chunk, end, write in zip(solved.unbind(1), gamma[:, :, -1:].unbind(1), to_end.unbind(1)):
        states.append(state)
        updates.append(torch.baddbmm(chunk[..., :Dv], chunk[..., Dv:], state, alpha=-1))
        state = torch.baddbmm(state * end, write, updates[-1])
    o = torch.matmul(q * gamma, torch.stack(states, 1))
    return o + torch.matmul(ratio * torch.matmul(q, k.transpose(2, 3)), torch.stack(updates, 1))


def gdn(settings, params, x, tables):
    _, H, _, Dk, _ = twin.widths(settings)
    q, k, v = twin.projections(settings, params, x)
    if not twin.flag(settings, "conv"):
        q, k, v = F.silu(q), F.silu(k), F.silu(v)
    q, k = twin.l2_normalised(q) * (1 / math.sqrt(Dk)), twin.l2_normalised(k)
    beta = torch.sigmoid(x @ params["b.weight"].T)[..., None]
    log_alpha = (-torch.exp(params["A"]) * F.softplus(x @ params["a.weight"].T + params["dt_bias"]))[..., None]
    o = delta_chunks(*(chunks(stream, DELTA_CHUNK) for stream in (q, k, v, log_alpha, beta)), tables)
    return twin.gated_output(params, x, unchunk(o, x.shape[1], H))


def s4d(settings, params, x, tables):
    L, A = x.shape[1], tables["A"]
    log_keep = params["log_step"].exp()[:, None] * A
    weight = 2 * torch.complex(params["C_re"], params["C_im"]) * (log_keep.exp() - 1) / A
    # Powers keep^l by halves: l = 32 a + b, so only 32 + L/32 exponentials per mode; then one product over the modes.
    fine = (log_keep[..., None] * tables["fine"]).exp()
    coarse = (log_keep[..., None] * tables["coarse"]).exp() * weight[..., None]
    kernel = torch.matmul(coarse.transpose(1, 2), fine).real.reshape(x.shape[2], -1)[:, :L]
    size = 2 * L
    spectrum = torch.fft.rfft(x.transpose(1, 2), size) * torch.fft.rfft(kernel, size)
    y = torch.fft.irfft(spectrum, size)[..., :L].transpose(1, 2) + params["D"] * x
    return F.gelu(y) @ params["o.weight"].T


blurry_style = "written"  # or "autograd": see blurry_chunked.py


@functools.lru_cache(maxsize=None)
def blurry_plan(B, L, H, S, T, decay, dtype):
    return blurry_chunked.make_plan(B, L, H, S, T, decay, min(CHUNK, L), dtype, style=blurry_style)


def blurry(settings, params, x, tables):
    """Absolute grid, one fixed period."""
    _, H, Hkv, Dk, _ = twin.widths(settings)
    periods = set(twin.fixed_periods(settings, Hkv))
    if settings.get("grid", "absolute") != "absolute" or "period" in params or len(periods) > 1:
        raise ValueError("the chunked peer knows the absolute grid with one fixed period only")
    q, k, v = projections(settings, params, x, tables)
    plan = blurry_plan(x.shape[0], x.shape[1], H, 2 * int(settings["modes"]) - 1, periods.pop(),
                       twin.flag(settings, "decay"), x.dtype)
    tensors, scale = (q, twin.spread(k, H), twin.spread(v, H)), 1 / math.sqrt(Dk)
    if blurry_style == "written":
        o = blurry_chunked.BlurryFunction.apply(*tensors, plan, scale)
    else:
        o = blurry_chunked.forward(plan, *tensors, scale)[0]
    return twin.output(params, o)


MIXERS = {"softmax": softmax, "swa": swa, "abc": abc, "gsa": gsa, "gla": gla, "gdn": gdn, "s4d": s4d,
          "blurry": blurry}


def mix(settings, params, x, own_tables=None):
    """own_tables: those of tables(), where the caller keeps them; else they are made once and remembered."""
    if own_tables is None:
        own_tables = cached_tables(settings, x.shape[1], x.dtype)
    return MIXERS[settings["mixer"]](settings, params, x, own_tables)
