"""Every mixer as a literal recurrence over tokens: mix(settings, params, x [B,L,d]) -> y [B,L,d].

Nothing is chunked, fused or rearranged: this file exists to be compared against, so it follows the definitions line by
line and lets autograd do the gradients. `settings` holds the options as the user types them (all strings);
`parameter_shapes(settings)` lists the parameters a mixer owns. Linear weights are [out, in].

Symbols: B batch, L length, H query heads, Hkv key/value heads, Dk and Dv head widths, S slots, M modes, T period.
"""
import math

import torch
import torch.nn.functional as F

DEFAULTS = {"heads": "1", "kv_heads": "0", "rope": "false", "conv": "false", "decay": "true", "grid": "absolute",
            "learned_period": "false", "expand_k": "1", "expand_v": "1"}
CONV_TAPS = 4
GATE_RANK = 16


def flag(settings, name):
    return settings.get(name, DEFAULTS.get(name)) == "true"


def widths(settings):
    """-> d, H, Hkv, Dk, Dv. Key width d*expand_k; value width d*expand_v, for gdn key width * expand_v."""
    d, H = int(settings["width"]), int(settings.get("heads", "1"))
    Hkv = int(settings.get("kv_heads", "0")) or H
    key = round(d * float(settings.get("expand_k", "1")))
    value = round((key if settings["mixer"] == "gdn" else d) * float(settings.get("expand_v", "1")))
    return d, H, Hkv, key // H, value // H


def parameter_shapes(settings):
    """-> name -> shape, in a fixed order."""
    name = settings["mixer"]
    d, H, Hkv, Dk, Dv = widths(settings)
    if name == "s4d":
        half = int(settings["state"]) // 2
        return {"log_step": (d,), "C_re": (d, half), "C_im": (d, half), "D": (d,), "o.weight": (d, d)}
    shapes = {"q.weight": (H * Dk, d), "k.weight": (Hkv * Dk, d), "v.weight": (Hkv * Dv, d)}
    if flag(settings, "conv"):
        for stream in "qkv":
            shapes[f"conv_{stream}.weight"] = (shapes[f"{stream}.weight"][0], CONV_TAPS)
    if name == "blurry" and flag(settings, "learned_period"):
        shapes["period"] = (Hkv,)
    if name == "abc":
        shapes["s.weight"] = (H * int(settings["slots"]), d)
    if name == "gsa":
        shapes["f.weight"] = (H * int(settings["slots"]), d)
        shapes["norm.weight"] = (H * Dv,)
    if name == "gla":
        shapes |= {"gk1.weight": (GATE_RANK, d), "gk2.weight": (H * Dk, GATE_RANK), "gk2.bias": (H * Dk,)}
    if name == "gdn":
        shapes |= {"b.weight": (H, d), "a.weight": (H, d), "A": (H,), "dt_bias": (H,)}
    if name in ("abc", "gla", "gdn"):
        shapes |= {"g.weight": (H * Dv, d), "norm.weight": (Dv,)}
    shapes["o.weight"] = (d, H * Dv)
    return shapes


def rms_norm(x, weight):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def rope(x):
    """Half-rotation, base 10000, over x [B,L,H,D] at positions 0..L-1: element i pairs with i + D/2."""
    L, half = x.shape[1], x.shape[3] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = (torch.arange(L, dtype=x.dtype)[:, None] * frequency)[None, :, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def short_conv(x, weight):
    """x [B,L,C], weight [C,4]: y_t = SiLU(sum_i weight[i] x_{t-3+i}), zeros before the first token."""
    L = x.shape[1]
    padded = F.pad(x, (0, 0, CONV_TAPS - 1, 0))
    return F.silu(sum(padded[:, i:i + L] * weight[:, i] for i in range(CONV_TAPS)))


def projections(settings, params, x):
    """q [B,L,H,Dk], k [B,L,Hkv,Dk], v [B,L,Hkv,Dv] after the short convolution where it is on."""
    _, H, Hkv, Dk, Dv = widths(settings)
    streams = []
    for stream, heads, width in (("q", H, Dk), ("k", Hkv, Dk), ("v", Hkv, Dv)):
        y = x @ params[f"{stream}.weight"].T
        if flag(settings, "conv"):
            y = short_conv(y, params[f"conv_{stream}.weight"])
        streams.append(y.reshape(*y.shape[:2], heads, width))
    return streams


def rotated(settings, q, k):
    return (rope(q), rope(k)) if flag(settings, "rope") else (q, k)


def spread(x, H):
    """Key/value heads repeated so that query head h reads head h / (H/Hkv): [B,L,Hkv,D] -> [B,L,H,D]."""
    return x.repeat_interleave(H // x.shape[2], dim=2)


def output(params, o):
    return o.reshape(*o.shape[:2], -1) @ params["o.weight"].T


def gated_output(params, x, o):
    """Wo(RMSNorm per head(o) * SiLU(Wg x))."""
    gate = F.silu(x @ params["g.weight"].T).reshape(o.shape)
    return output(params, rms_norm(o, params["norm.weight"]) * gate)


def attention(settings, params, x):
    """softmax over all keys so far, or for swa over the last `window` keys, self included."""
    H, Dk = widths(settings)[1], widths(settings)[3]
    q, k, v = projections(settings, params, x)
    q, k = rotated(settings, q, k)
    k, v = spread(k, H), spread(v, H)
    window = int(settings["window"]) if settings["mixer"] == "swa" else x.shape[1]
    outputs = []
    for t in range(x.shape[1]):
        first = max(0, t - window + 1)
        logits = torch.einsum("bhd,buhd->bhu", q[:, t], k[:, first:t + 1]) / math.sqrt(Dk)
        outputs.append(torch.einsum("bhu,buhd->bhd", logits.softmax(-1), v[:, first:t + 1]))
    return output(params, torch.stack(outputs, 1))


def read_slots(q, K, V, scale, visible=None):
    """q [B,H,Dk], K [B,H,S,Dk], V [B,H,S,Dv] -> [B,H,Dv]; visible: [H,S] or none."""
    logits = scale * torch.einsum("bhd,bhsd->bhs", q, K)
    if visible is not None:
        logits = logits.masked_fill(~visible, float("-inf"))
    return torch.einsum("bhs,bhsd->bhd", logits.softmax(-1), V)


def slot_states(q, v, S):
    """Empty slots K [B,H,S,Dk], V [B,H,S,Dv]."""
    B, _, H, Dk = q.shape
    return q.new_zeros(B, H, S, Dk), q.new_zeros(B, H, S, v.shape[3])


def abc(settings, params, x):
    _, H, _, Dk, _ = widths(settings)
    S = int(settings["slots"])
    q, k, v = projections(settings, params, x)
    q, k = rotated(settings, q, k)
    s = (x @ params["s.weight"].T).clamp(-32, 32).reshape(*x.shape[:2], H, S)
    K, V = slot_states(q, v, S)
    z, outputs = None, []
    for t in range(x.shape[1]):
        z_next = s[:, t] if z is None else torch.logaddexp(z, s[:, t])
        write = torch.exp(s[:, t] - z_next)[..., None]
        keep = torch.zeros_like(write) if z is None else torch.exp(z - z_next)[..., None]
        K = keep * K + write * k[:, t, :, None]
        V = keep * V + write * v[:, t, :, None]
        z = z_next
        outputs.append(read_slots(q[:, t], K, V, 1 / math.sqrt(Dk)))
    return gated_output(params, x, torch.stack(outputs, 1))


def gsa(settings, params, x):
    _, H, _, _, _ = widths(settings)
    S = int(settings["slots"])
    # SiLU belongs to the mixer: with the short convolution on, its own SiLU comes first and this one follows.
    q, k, v = (F.silu(stream) for stream in projections(settings, params, x))
    f = (F.logsigmoid(x @ params["f.weight"].T) / 8).reshape(*x.shape[:2], H, S)
    K, V = slot_states(q, v, S)
    outputs = []
    for t in range(x.shape[1]):
        keep = torch.exp(f[:, t])[..., None]
        K = keep * K + (1 - keep) * k[:, t, :, None]
        V = keep * V + (1 - keep) * v[:, t, :, None]
        outputs.append(read_slots(q[:, t], K, V, 1.0))
    o = F.silu(torch.stack(outputs, 1))
    return output(params, rms_norm(o.reshape(*o.shape[:2], -1), params["norm.weight"]))


def gla(settings, params, x):
    _, H, _, Dk, Dv = widths(settings)
    q, k, v = projections(settings, params, x)
    gate = (x @ params["gk1.weight"].T) @ params["gk2.weight"].T + params["gk2.bias"]
    gate = (F.logsigmoid(gate) / 16).reshape(*x.shape[:2], H, Dk)
    h, outputs = x.new_zeros(x.shape[0], H, Dk, Dv), []
    for t in range(x.shape[1]):
        h = torch.exp(gate[:, t])[..., None] * h + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", h, q[:, t]) / math.sqrt(Dk))
    return gated_output(params, x, torch.stack(outputs, 1))


def l2_normalised(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def gdn(settings, params, x):
    _, H, _, Dk, Dv = widths(settings)
    q, k, v = projections(settings, params, x)
    if not flag(settings, "conv"):
        q, k, v = F.silu(q), F.silu(k), F.silu(v)
    q, k = l2_normalised(q), l2_normalised(k)
    beta = torch.sigmoid(x @ params["b.weight"].T)
    alpha = torch.exp(-torch.exp(params["A"]) * F.softplus(x @ params["a.weight"].T + params["dt_bias"]))
    state, outputs = x.new_zeros(x.shape[0], H, Dk, Dv), []
    for t in range(x.shape[1]):
        state = alpha[:, t, :, None, None] * state
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * u[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) / math.sqrt(Dk))
    return gated_output(params, x, torch.stack(outputs, 1))


def s4d(settings, params, x):
    """Per channel: h <- e^{step A} h + (e^{step A} - 1)/A x; y = 2 Re(C . h) + D x, A = -1/2 + i pi n."""
    half = int(settings["state"]) // 2
    n = torch.arange(half, dtype=x.dtype)
    A = torch.complex(torch.full_like(n, -0.5), math.pi * n)
    keep = torch.exp(params["log_step"].exp()[:, None] * A)
    gain, C = (keep - 1) / A, torch.complex(params["C_re"], params["C_im"])
    h, outputs = torch.zeros(x.shape[0], x.shape[2], half, dtype=C.dtype), []
    for t in range(x.shape[1]):
        h = keep * h + gain * x[:, t, :, None]
        outputs.append(2 * (C * h).sum(-1).real + params["D"] * x[:, t])
    return F.gelu(torch.stack(outputs, 1)) @ params["o.weight"].T


def dirichlet(x, M):
    """1/S + (2/S) sum_{m=1}^{M-1} cos(2 pi m x / S)."""
    S = 2 * M - 1
    y = torch.full_like(x, 1 / S)
    for m in range(1, M):
        y = y + (2 / S) * torch.cos(2 * math.pi * m / S * x)
    return y


def fixed_periods(settings, Hkv):
    """T per key/value head from `period` or `resolution`, each one number or one per head."""
    S = 2 * int(settings["modes"]) - 1
    if "period" in settings:
        values = [float(part) for part in settings["period"].split(",")]
    else:
        values = [float(part) * S for part in settings.get("resolution", "2").split(",")]
    return values * Hkv if len(values) == 1 else values


def blurry_operator(q, k, v, T, M, decay, grid, scale):
    """The operator itself: q [B,L,H,Dk], k [B,L,Hkv,Dk], v [B,L,Hkv,Dv], T [Hkv] a tensor -> o [B,L,H,Dv]."""
    H, Hkv, S = q.shape[2], k.shape[2], 2 * M - 1
    T = T.clamp(min=S)[:, None]
    slots = torch.arange(S, dtype=q.dtype)
    # This order of operations decides ties such as 27.5 the way the operator goldens do.
    first_visible = torch.round(slots / S * T.detach())
    K, V = slot_states(k, v, S)
    outputs = []
    for t in range(q.shape[1]):
        if grid == "absolute":
            phi = dirichlet(t * S / T - slots, M)[None, :, :, None]
            keep = 1 - phi if decay else 1
            K = keep * K + phi * k[:, t, :, None]
            V = keep * V + phi * v[:, t, :, None]
        else:
            age = torch.arange(t, -1, -1, dtype=q.dtype)[:, None, None]
            phi = dirichlet(age * S / T - slots, M)
            K = torch.einsum("uhs,buhd->bhsd", phi, k[:, :t + 1])
            V = torch.einsum("uhs,buhd->bhsd", phi, v[:, :t + 1])
        group = H // Hkv
        outputs.append(read_slots(q[:, t], K.repeat_interleave(group, 1), V.repeat_interleave(group, 1), scale,
                                  (t >= first_visible).repeat_interleave(group, 0)))
    return torch.stack(outputs, 1)


def blurry(settings, params, x):
    _, _, Hkv, Dk, _ = widths(settings)
    q, k, v = projections(settings, params, x)
    q, k = rotated(settings, q, k)
    T = params["period"] if "period" in params else x.new_tensor(fixed_periods(settings, Hkv))
    grid = settings.get("grid", "absolute")
    o = blurry_operator(q, k, v, T, int(settings["modes"]), flag(settings, "decay"), grid, 1 / math.sqrt(Dk))
    return output(params, o)


MIXERS = {"softmax": attention, "swa": attention, "abc": abc, "gsa": gsa, "gla": gla, "gdn": gdn, "s4d": s4d,
          "blurry": blurry}


def mix(settings, params, x):
    return MIXERS[settings["mixer"]](settings, params, x)
