"""The other sequence mixers as PyTorch modules, so that whole models can be converted: the same parameters under the
same names as in the C library. softmax and swa use PyTorch's own attention; abc, gsa, gla and gdn are the plain
recurrences over tokens, s4d a convolution: right, and meant for checking and for small models rather than for speed."""
from __future__ import annotations

import math
from typing import Any, Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._layer import BlurryAttention, ShortConvolution
from ._rope import positions, rope

GATE_RANK = 16
# Key and value width divided by the model width, where the setting is 0.
_EXPAND = {"abc": (0.5, 1.0), "gla": (0.5, 1.0)}


def flag(settings: Dict[str, str], name: str) -> bool:
    return settings[name] == "true"


def numbers(settings: Dict[str, str], name: str) -> List[float]:
    return [float(part) for part in settings[name].split(",") if part]


class Widths:
    """d, H, Hkv and the widths per head, Dk and Dv, that the settings of a layer lead to."""

    def __init__(self, settings: Dict[str, str], mixer: str):
        self.d, self.H = int(settings["width"]), int(settings["heads"])
        grouped = mixer in ("softmax", "swa", "blurry")
        self.Hkv = (int(settings["kv_heads"]) if grouped else 0) or self.H
        expand_k, expand_v = _EXPAND.get(mixer, (1.0, 1.0))
        key = round(self.d * (float(settings["expand_k"]) or expand_k))
        value = round((key if mixer == "gdn" else self.d) * (float(settings["expand_v"]) or expand_v))
        self.Dk, self.Dv = key // self.H, value // self.H


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight)


def linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Mixer(nn.Module):
    """Queries, keys and values in front, an output map behind."""

    def __init__(self, settings: Dict[str, str], name: str):
        super().__init__()
        self.name, self.w = name, Widths(settings, name)
        w = self.w
        self.rope, self.rope_base = flag(settings, "rope"), float(settings["rope_base"])
        for stream, width in (("q", w.H * w.Dk), ("k", w.Hkv * w.Dk), ("v", w.Hkv * w.Dv)):
            setattr(self, stream, linear(w.d, width))
            if flag(settings, "conv"):
                setattr(self, f"conv_{stream}", ShortConvolution(width))
        self.o = linear(w.H * w.Dv, w.d)

    def streams(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """q [B, L, H, Dk], k [B, L, Hkv, Dk], v [B, L, Hkv, Dv] after the short convolution where it is on."""
        result = []
        for name in "qkv":
            y = getattr(self, name)(x)
            if hasattr(self, f"conv_{name}"):
                y = getattr(self, f"conv_{name}")(y)
            result.append(y.view(*y.shape[:2], -1, self.w.Dv if name == "v" else self.w.Dk))
        return result[0], result[1], result[2]

    def rotated(self, q: Tensor, k: Tensor) -> Tuple[Tensor, Tensor]:
        return rope(q, k, positions(q.shape[1], 0, q.device), self.rope_base) if self.rope else (q, k)

    def output(self, o: Tensor) -> Tensor:
        return self.o(o.reshape(*o.shape[:2], -1))


class Softmax(Mixer):
    """Causal softmax attention; swa: over the last `window` keys."""

    def __init__(self, settings: Dict[str, str], name: str):
        super().__init__(settings, name)
        self.window = int(settings["window"]) if name == "swa" else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.streams(x)
        q, k = self.rotated(q, k)
        groups = self.w.H // self.w.Hkv
        q, k, v = (y.transpose(1, 2) for y in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)))
        t = torch.arange(x.shape[1], device=x.device)
        seen = t[None] <= t[:, None]
        if self.window is not None:
            seen &= t[None] > t[:, None] - self.window
        logits = (q @ k.transpose(2, 3)) / math.sqrt(self.w.Dk)
        return self.output((logits.masked_fill(~seen, float("-inf")).softmax(-1) @ v).transpose(1, 2))


class Gated(Mixer):
    """Wo(RMSNorm per head(o) * SiLU(Wg x)) behind the core."""

    def __init__(self, settings: Dict[str, str], name: str):
        super().__init__(settings, name)
        self.g = linear(self.w.d, self.w.H * self.w.Dv)
        self.norm = RMSNorm(self.w.Dv)

    def gated(self, x: Tensor, o: Tensor) -> Tensor:
        return self.output(self.norm(o) * F.silu(self.g(x)).view(o.shape))


def read_slots(q: Tensor, K: Tensor, V: Tensor, scale: float) -> Tensor:
    """q [B, H, Dk], K [B, H, S, Dk], V [B, H, S, Dv] -> [B, H, Dv]."""
    p = (scale * torch.einsum("bhd,bhsd->bhs", q, K)).softmax(-1)
    return torch.einsum("bhs,bhsd->bhd", p, V)


def through_slots(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, write: Tensor, scale: float) -> Tensor:
    """Slots K, V <- keep * (K, V) + write (x) (k, v), then read; keep and write [B, L, H, S]."""
    B, L, H, Dk = q.shape
    K, V = q.new_zeros(B, H, keep.shape[3], Dk), q.new_zeros(B, H, keep.shape[3], v.shape[3])
    outputs = []
    for t in range(L):
        stay, enter = keep[:, t, :, :, None], write[:, t, :, :, None]
        K = stay * K + enter * k[:, t, :, None]
        V = stay * V + enter * v[:, t, :, None]
        outputs.append(read_slots(q[:, t], K, V, scale))
    return torch.stack(outputs, 1)


class Abc(Gated):
    def __init__(self, settings: Dict[str, str], name: str):
        super().__init__(settings, name)
        self.slots = int(settings["slots"])
        self.s = linear(self.w.d, self.w.H * self.slots)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.streams(x)
        q, k = self.rotated(q, k)
        s = self.s(x).clamp(-32, 32).view(*x.shape[:2], self.w.H, self.slots)
        z = torch.logcumsumexp(s, 1)
        keep = torch.cat([torch.zeros_like(z[:, :1]), (z[:, :-1] - z[:, 1:]).exp()], 1)
        return self.gated(x, through_slots(q, k, v, keep, (s - z).exp(), 1 / math.sqrt(self.w.Dk)))


class Gsa(Mixer):
    def __init__(self, settings: Dict[str, str], name: str):
        super().__init__(settings, name)
        self.slots = int(settings["slots"])
        self.f = linear(self.w.d, self.w.H * self.slots)
        self.norm = RMSNorm(self.w.H * self.w.Dv)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (F.silu(stream) for stream in self.streams(x))
        keep = (F.logsigmoid(self.f(x)) / 8).exp().view(*x.shape[:2], self.w.H, self.slots)
        o = F.silu(through_slots(q, k, v, keep, 1 - keep, 1.0))
        return self.o(self.norm(o.reshape(*o.shape[:2], -1)))


class Gla(Gated):
    def __init__(self, settings: Dict[str, str], name: str):
        super().__init__(settings, name)
        self.gk1 = linear(self.w.d, GATE_RANK)
        self.gk2 = linear(GATE_RANK, self.w.H * self.w.Dk, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.streams(x)
        keep = (F.logsigmoid(self.gk2(self.gk1(x))) / 16).exp().view(q.shape)
        h = x.new_zeros(x.shape[0], self.w.H, self.w.Dk, self.w.Dv)
        outputs = []
        for t in range(x.shape[1]):
            h = keep[:, t, :, :, None] * h + k[:, t, :, :, None] * v[:, t, :, None]
            outputs.append(torch.einsum("bhkv,bhk->bhv", h, q[:, t]) / math.sqrt(self.w.Dk))
        return self.gated(x, torch.stack(outputs, 1))


class Gdn(Gated):
    def __init__(self, settings: Dict[str, str], name: str):
        super().__init__(settings, name)
        H = self.w.H
        self.b, self.a = linear(self.w.d, H), linear(self.w.d, H)
        self.A = nn.Parameter(torch.log(torch.empty(H).uniform_(1e-3, 16)))
        step = torch.empty(H).uniform_(math.log(1e-3), math.log(0.1)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.streams(x)
        if not hasattr(self, "conv_q"):
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        q, k = (y / torch.sqrt((y * y).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        beta = torch.sigmoid(self.b(x))
        alpha = torch.exp(-self.A.exp() * F.softplus(self.a(x) + self.dt_bias))
        state = x.new_zeros(x.shape[0], self.w.H, self.w.Dk, self.w.Dv)
        outputs = []
        for t in range(x.shape[1]):
            state = alpha[:, t, :, None, None] * state
            u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
            state = state + k[:, t, :, :, None] * u[:, :, None]
            outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) / math.sqrt(self.w.Dk))
        return self.gated(x, torch.stack(outputs, 1))


class S4d(nn.Module):
    """y = Wo GELU(x convolved with 2 Re(C gain e^{step A l}) + D x), A = -1/2 + i pi n."""

    def __init__(self, settings: Dict[str, str], name: str):
        super().__init__()
        d, half = int(settings["width"]), int(settings["state"]) // 2
        self.log_step = nn.Parameter(torch.empty(d).uniform_(math.log(1e-3), math.log(0.1)))
        self.C_re, self.C_im = nn.Parameter(torch.randn(d, half)), nn.Parameter(torch.randn(d, half))
        self.D = nn.Parameter(torch.randn(d))
        if flag(settings, "conv"):
            self.conv_x = ShortConvolution(d)
        self.o = linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "conv_x"):
            x = self.conv_x(x)
        L, n = x.shape[1], torch.arange(self.C_re.shape[1], dtype=x.dtype, device=x.device)
        A = torch.complex(torch.full_like(n, -0.5), math.pi * n)
        step = self.log_step.exp()[:, None] * A
        gain = torch.complex(self.C_re, self.C_im) * ((step.exp() - 1) / A)
        t = torch.arange(L, dtype=x.dtype, device=x.device)
        taps = 2 * torch.einsum("dn,dnl->dl", gain, torch.exp(step[..., None] * t)).real
        spectrum = torch.fft.rfft(taps, 2 * L) * torch.fft.rfft(x.transpose(1, 2), 2 * L)
        y = torch.fft.irfft(spectrum, 2 * L)[..., :L].transpose(1, 2) + self.D * x
        return self.o(F.gelu(y))


class Blurry(BlurryAttention):
    """BlurryAttention from the library's settings; x -> y."""

    def __init__(self, settings: Dict[str, str], layer_idx: int):
        w = Widths(settings, "blurry")
        super().__init__(
            w.d, w.H, w.Hkv, int(settings["modes"]), None if settings["period"] else numbers(settings, "resolution"),
            flag(settings, "decay"), flag(settings, "rope"), flag(settings, "learned_period"),
            period=numbers(settings, "period") or None, grid=settings["grid"], short_conv=flag(settings, "conv"),
            head_dim=w.Dk, head_dim_v=w.Dv, rope_base=float(settings["rope_base"]), layer_idx=layer_idx)


_KINDS: Dict[str, Any] = {"softmax": Softmax, "swa": Softmax, "abc": Abc, "gsa": Gsa, "gla": Gla, "gdn": Gdn, "s4d": S4d}


def make_mixer(settings: Dict[str, str], name: str, layer_idx: int) -> nn.Module:
    if name == "blurry":
        return Blurry(settings, layer_idx)
    if name not in _KINDS:
        raise ValueError(f"mixer is {name!r}: give blurry, {', '.join(_KINDS)}")
    return _KINDS[name](settings, name)
