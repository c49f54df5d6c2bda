"""BlurryAttention: the operator as a layer, with projections, rotary positions and a cache for generation."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._plan import flag, grid_name, number, periods as periods_of, whole
from ._attention import attention
from ._cache import Cache, LayerCache
from ._rope import positions, rope

CONV_TAPS = 4


class ShortConvolution(nn.Module):
    """Depthwise causal convolution over the last four tokens, then SiLU. weight [channels, 4]."""

    def __init__(self, channels: int, device: Any = None, dtype: Any = None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, CONV_TAPS, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -0.5, 0.5)  # 1/sqrt(taps)

    def forward(self, x: Tensor, before: Optional[Tensor] = None) -> Tensor:
        """x [B, L, channels]; before [B, 3, channels]: the tokens in front of it, zeros where None."""
        length = x.shape[1]
        if before is None:
            before = x.new_zeros(x.shape[0], CONV_TAPS - 1, x.shape[2])
        padded = torch.cat([before.to(x.dtype), x], 1)
        total = padded[:, 0:length] * self.weight[:, 0]
        for tap in range(1, CONV_TAPS):
            total = total + padded[:, tap:tap + length] * self.weight[:, tap]
        return F.silu(total)


def keep_last(layer: LayerCache, name: str, x: Tensor) -> Optional[Tensor]:
    """The three tokens before x, and x's last three kept for the next call, in place."""
    before = layer.conv.get(name)
    if before is None:
        layer.conv[name] = before = x.new_zeros(x.shape[0], CONV_TAPS - 1, x.shape[2])
    earlier = before.clone()
    before.copy_(torch.cat([earlier, x], 1)[:, -(CONV_TAPS - 1):])
    return earlier


class Packing:
    """The tokens of a batch that count, one sequence after another."""

    def __init__(self, offsets: Tensor, position: Tensor, mask: Optional[Tensor] = None):
        self.offsets, self.position, self.mask = offsets, position, mask

    @classmethod
    def of_mask(cls, mask: Tensor, length: int, start: Optional[Tensor]) -> "Packing":
        """mask [B, at least L]: its last L columns say which tokens count."""
        chosen = mask[:, -length:].bool()
        inside = chosen.long().cumsum(1) - 1
        if start is not None:
            inside = inside + start[:, None]
        counts = chosen.sum(1).cpu()
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        return cls(offsets, inside[chosen].double(), chosen)

    @classmethod
    def of_offsets(cls, offsets: Tensor, tokens: int, start: Optional[Tensor]) -> "Packing":
        host = offsets.to("cpu", torch.int64)
        first = torch.repeat_interleave(host[:-1] if start is None else host[:-1] - start.cpu(), host[1:] - host[:-1])
        return cls(host, (torch.arange(tokens) - first).double())

    def pack(self, x: Tensor) -> Tensor:
        """[B, L, d] -> [1, tokens, d]."""
        return x if self.mask is None else x[self.mask][None]

    def unpack(self, x: Tensor, like: Tensor) -> Tensor:
        """[1, tokens, d] -> [B, L, d], zeros where nothing counts."""
        if self.mask is None:
            return x
        whole_batch = x.new_zeros(like.shape[0], like.shape[1], x.shape[-1])
        whole_batch[self.mask] = x[0]
        return whole_batch

    @property
    def counts(self) -> Tensor:
        return self.offsets[1:] - self.offsets[:-1]


class BlurryAttention(nn.Module):
    """Blurry window attention as a layer: y = Wo attention(rope(Wq x), rope(Wk x), Wv x).

    hidden_size, num_heads, num_kv_heads (as many as num_heads where None). modes: M, for 2M-1 slots. resolution: tokens
    per slot, one number or one per key/value head; or period, in tokens. decay, grid: of the operator. rope: rotary
    positions on queries and keys. learned_period: train the periods, as the parameter `period`. short_conv: a causal
    convolution over four tokens in front of queries, keys and values. head_dim, head_dim_v: widths per head,
    hidden_size / num_heads where None. layer_idx: this layer's place in a Cache.
    """

    def __init__(self, hidden_size: int, num_heads: int = 4, num_kv_heads: Optional[int] = None, modes: int = 32,
                 resolution: Any = None, decay: bool = True, rope: bool = True, learned_period: bool = False, *,
                 period: Any = None, grid: str = "absolute", short_conv: bool = False, head_dim: Optional[int] = None,
                 head_dim_v: Optional[int] = None, rope_base: float = 10000.0, layer_idx: int = 0, device: Any = None,
                 dtype: Any = None):
        super().__init__()
        self.hidden_size = whole("hidden_size", hidden_size, 1)
        self.num_heads = whole("num_heads", num_heads, 1)
        self.num_kv_heads = self.num_heads if num_kv_heads is None else whole("num_kv_heads", num_kv_heads, 1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads is {num_kv_heads}: give a divisor of num_heads, {num_heads}")
        if head_dim is None and self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads is {num_heads}: give a divisor of hidden_size, {hidden_size}, or head_dim")
        self.head_dim = self.hidden_size // self.num_heads if head_dim is None else whole("head_dim", head_dim, 1)
        self.head_dim_v = self.head_dim if head_dim_v is None else whole("head_dim_v", head_dim_v, 1)
        self.modes = whole("modes", modes, 1, 1 << 24)
        self.decay, self.grid, self.rope = flag("decay", decay), grid_name(grid), flag("rope", rope)
        if self.decay and self.grid == "relative":
            raise ValueError("decay is True with grid 'relative': the relative grid is defined without decay")
        self.rope_base, self.layer_idx = number("rope_base", rope_base), whole("layer_idx", layer_idx, 0)
        self.periods = periods_of(period, resolution, self.modes, self.num_kv_heads)
        if flag("learned_period", learned_period):
            self.period = nn.Parameter(torch.tensor(self.periods, device=device, dtype=dtype))
        else:
            self.register_parameter("period", None)
        kind = {"device": device, "dtype": dtype}
        widths = {"q": self.num_heads * self.head_dim, "k": self.num_kv_heads * self.head_dim,
                  "v": self.num_kv_heads * self.head_dim_v}
        for name, width in widths.items():
            setattr(self, name, nn.Linear(self.hidden_size, width, bias=False, **kind))
        self.short_conv = flag("short_conv", short_conv)
        for name, width in widths.items() if self.short_conv else ():
            setattr(self, f"conv_{name}", ShortConvolution(width, **kind))
        self.o = nn.Linear(self.num_heads * self.head_dim_v, self.hidden_size, bias=False, **kind)
        for linear in (self.q, self.k, self.v, self.o):
            nn.init.normal_(linear.weight, std=0.02)

    def extra_repr(self) -> str:
        return (f"heads={self.num_heads}/{self.num_kv_heads}, modes={self.modes}, decay={self.decay}, grid={self.grid}, "
                f"rope={self.rope}, learned_period={self.period is not None}")

    def _streams(self, x: Tensor, cache: Optional[LayerCache]) -> Tuple[Tensor, Tensor, Tensor]:
        streams = []
        for name in "qkv":
            y = getattr(self, name)(x)
            if self.short_conv:
                y = getattr(self, f"conv_{name}")(y, None if cache is None else keep_last(cache, name, y))
            width = self.head_dim_v if name == "v" else self.head_dim
            streams.append(y.view(y.shape[0], y.shape[1], -1, width))
        return streams[0], streams[1], streams[2]

    def _setting(self, periods: Any) -> Tuple[Any, ...]:
        return self.modes, list(periods), 0.0, self.decay, self.grid == "relative", 0

    def _remember(self, cache: Cache, batch: int) -> LayerCache:
        """This layer's part of the cache, made at its first use. A learned period is read then."""
        layer = cache.get(self.layer_idx)
        if layer is None:
            periods = list(self.periods) if self.period is None else [0.0 if T < 0 else T for T in self.period.tolist()]
            states = torch.ops.blurry.attention_states(
                self.q.weight.detach().to(self._compute_dtype()), batch, self.num_heads, self.num_kv_heads, self.head_dim,
                self.head_dim_v, *self._setting(periods))
            layer = cache.put(self.layer_idx, LayerCache(states, periods))
        elif layer.states.shape[0] != batch:
            raise ValueError(f"past_key_values is of {layer.states.shape[0]} sequences: hidden_states has {batch}")
        return layer

    def _compute_dtype(self) -> torch.dtype:
        """The type the operator will see: that of autocast where it is on."""
        device = self.q.weight.device.type
        if device == "cuda" and torch.is_autocast_enabled():
            return torch.get_autocast_gpu_dtype()
        return self.q.weight.dtype

    def _packing(self, x: Tensor, mask: Optional[Tensor], cu_seqlens: Optional[Tensor], start: Optional[Tensor]
                 ) -> Optional[Packing]:
        if mask is None and cu_seqlens is None:
            return None
        if self.short_conv:
            raise ValueError("short_conv is on: sequences of different lengths (attention_mask, cu_seqlens) need it off")
        if mask is not None:
            if cu_seqlens is not None:
                raise ValueError("attention_mask and cu_seqlens are both given: give one of them")
            if mask.dim() != 2 or mask.shape[0] != x.shape[0] or mask.shape[1] < x.shape[1]:
                raise ValueError(f"attention_mask has shape {tuple(mask.shape)}: it must be [B, L] = {tuple(x.shape[:2])}")
            return Packing.of_mask(mask, x.shape[1], start)
        if x.shape[0] != 1:
            raise ValueError(f"hidden_states has {x.shape[0]} sequences: with cu_seqlens they are packed into one")
        return Packing.of_offsets(cu_seqlens, x.shape[1], start)

    def forward(self, hidden_states: Tensor, attention_mask: Optional[Tensor] = None,
                past_key_values: Optional[Cache] = None, use_cache: bool = False, output_attentions: bool = False,
                cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, None, Optional[Cache]]:
        """hidden_states [B, L, hidden_size] -> (output of the same shape, None, the cache).

        attention_mask [B, L]: 1 for tokens that count, 0 for padding, on either side; the output at padding is 0.
        cu_seqlens [B+1]: sequences packed into one row, hidden_states [1, tokens, hidden_size]. past_key_values: a Cache,
        which is updated in place and gives no gradients: use it under torch.no_grad(). use_cache: make one if none is
        given. Attention weights are never formed, so output_attentions must stay False.
        """
        if output_attentions:
            raise ValueError("output_attentions is True: this layer never forms them")
        if hidden_states.dim() != 3 or hidden_states.shape[2] != self.hidden_size:
            raise ValueError(f"hidden_states has shape {tuple(hidden_states.shape)}: it must be [B, L, {self.hidden_size}]")
        cache = Cache() if use_cache and past_key_values is None else past_key_values
        layer = None
        if cache is not None:
            if torch.is_grad_enabled():
                raise ValueError("past_key_values and use_cache give no gradients: use them under torch.no_grad()")
            batch = hidden_states.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
            layer = self._remember(cache, batch)
        start = None if layer is None else layer.position
        packing = self._packing(hidden_states, attention_mask, cu_seqlens, start)
        x = hidden_states if packing is None else packing.pack(hidden_states)
        q, k, v = self._streams(x, layer)
        if self.rope:
            place = packing.position.to(x.device) if packing else positions(x.shape[1], 0 if start is None else start,
                                                                            x.device)
            q, k = rope(q, k, place, self.rope_base)
        offsets = None if packing is None else packing.offsets
        o = self._attend(q, k, v, offsets, layer)
        if layer is not None:
            layer.position += x.shape[1] if packing is None else packing.counts.to(layer.position.device)
            cache.advance(self.layer_idx, x.shape[1] if packing is None else int(packing.counts.max()))
        y = self.o(o.reshape(o.shape[0], o.shape[1], -1))
        return (y if packing is None else packing.unpack(y, hidden_states)), None, cache

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, offsets: Optional[Tensor], layer: Optional[LayerCache]) -> Tensor:
        if layer is not None:
            return torch.ops.blurry.attention_cached(q, k, v, layer.states, offsets, *self._setting(layer.periods))
        period = self.periods if self.period is None else self.period
        return attention(q, k, v, modes=self.modes, period=period, decay=self.decay, grid=self.grid, offsets=offsets)
