"""blurry.torch.attention: checks arguments by name, then calls the registered operator."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from .._plan import flag, grid_name, periods as periods_of, scale_of, thread_count, whole
from . import _ops

_FLOATS = (torch.float32, torch.float64, torch.bfloat16)


class State(NamedTuple):
    """What B sequences have seen: differentiable slots, and the tokens seen so far.

    k [B, Hkv, S, Dk], v [B, Hkv, S, Dv]: of q's type, on CUDA float32. position [B]: int64 on the CPU.
    """
    k: Tensor
    v: Tensor
    position: Tensor


def check_floats(name: str, value: Any, like: Optional[Tensor] = None) -> Tensor:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is of type {type(value).__name__}: give a torch.Tensor")
    if value.dtype not in _FLOATS:
        raise ValueError(f"{name} has dtype {str(value.dtype)[6:]}: give float32, float64 or (on CUDA) bfloat16")
    if like is not None and value.dtype != like.dtype:
        raise ValueError(f"{name} has dtype {str(value.dtype)[6:]}: it must be {str(like.dtype)[6:]} as q is")
    if like is not None and value.device != like.device:
        raise ValueError(f"{name} is on {value.device}: it must be on {like.device} as q is")
    return value


def check_qkv(q: Any, k: Any, v: Any, packed: bool) -> None:
    check_floats("q", q)
    check_floats("k", k, q)
    check_floats("v", v, q)
    ranks = (3, 4) if packed else (4,)
    if q.dim() not in ranks or (packed and q.dim() == 4 and q.shape[0] != 1):
        raise ValueError(f"q has shape {tuple(q.shape)}: it must be "
                         + ("[tokens, H, Dk] with offsets" if packed else "[B, L, H, Dk]"))
    for name, x in (("k", k), ("v", v)):
        if x.dim() != q.dim() or x.shape[:-2] != q.shape[:-2]:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: its tokens must be those of q, {tuple(q.shape[:-2])}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k has width {k.shape[-1]}: it must be that of q, {q.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"k has {k.shape[-2]} heads: it must have as many as v, {v.shape[-2]}")
    for name, size in (("q", q.shape[-2] * q.shape[-1]), ("v", v.shape[-2] * v.shape[-1])):
        if size == 0:
            raise ValueError(f"{name} has no heads or no width: neither may be 0")
    if q.shape[-2] % k.shape[-2]:
        raise ValueError(f"k has {k.shape[-2]} heads: their number must divide that of q, {q.shape[-2]}")
    if not packed and q.shape[0] == 0:
        raise ValueError(f"q has shape {tuple(q.shape)}: give at least one sequence")


def check_offsets(offsets: Any) -> Optional[Tensor]:
    """Shape and type; the library checks the values."""
    if offsets is None:
        return None
    if not isinstance(offsets, Tensor):
        offsets = torch.as_tensor(offsets)
    if offsets.dim() != 1 or offsets.shape[0] < 2 or offsets.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"offsets has shape {tuple(offsets.shape)} and dtype {str(offsets.dtype)[6:]}: give B+1 whole "
                         "numbers, ascending from 0 to the number of tokens")
    return offsets


def check_state(state: Any, q: Tensor, v: Tensor, batch: int, heads_kv: int, modes: int) -> State:
    if not isinstance(state, (tuple, list)) or len(state) != 3:
        raise ValueError(f"state is of type {type(state).__name__}: give a blurry.torch.State")
    k_slots, v_slots, position = state
    dtype = torch.float32 if q.device.type == "cuda" else q.dtype
    for name, x, width in (("state.k", k_slots, q.shape[-1]), ("state.v", v_slots, v.shape[-1])):
        shape = (batch, heads_kv, 2 * modes - 1, width)
        if not isinstance(x, Tensor) or tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(getattr(x, 'shape', ()))}: it must be [B, Hkv, S, D] = {shape}")
        if x.dtype != dtype or x.device != q.device:
            raise ValueError(f"{name} is {str(x.dtype)[6:]} on {x.device}: it must be {str(dtype)[6:]} on {q.device}")
    if not isinstance(position, Tensor) or tuple(position.shape) != (batch,) or position.dtype != torch.int64:
        raise ValueError(f"state.position must be {batch} whole numbers (int64)")
    return State(k_slots, v_slots, position.cpu())


def settings(period: Any, resolution: Any, modes: int, heads_kv: int, scale: Any, decay: Any, grid: Any, threads: Any
             ) -> Tuple[Optional[Tensor], Tuple[Any, ...]]:
    """A learned period, if any, and the arguments all operators share."""
    learned = None
    if isinstance(period, Tensor) and (period.requires_grad or period.dim() == 1):
        if resolution is not None:
            raise ValueError("period and resolution are both given: give one of them")
        if tuple(period.shape) != (heads_kv,) or not period.is_floating_point():
            raise ValueError(f"period has shape {tuple(period.shape)} and dtype {str(period.dtype)[6:]}: give one number "
                             f"for each of the {heads_kv} key/value heads")
        learned, listed = period, ()
    else:
        listed = periods_of(period, resolution, modes, heads_kv)
    return learned, (modes, list(listed), scale_of(scale), flag("decay", decay), grid_name(grid) == "relative",
                     thread_count(threads))


def attention(q: Tensor, k: Tensor, v: Tensor, *, modes: int, period: Any = None, resolution: Any = None,
              decay: bool = True, grid: str = "absolute", scale: Optional[float] = None, state: Optional[State] = None,
              return_state: bool = False, offsets: Any = None, threads: Optional[int] = None
              ) -> Union[Tensor, Tuple[Tensor, State]]:
    """Blurry window attention of q [B, L, H, Dk] over k [B, L, Hkv, Dk] and v [B, L, Hkv, Dv] -> o [B, L, H, Dv].

    The arguments are those of `blurry.attention`. Differentiable in q, k, v, in the slots of `state` and in `period`
    where that is a tensor [Hkv]. float32 and float64 on the CPU, float32 and bfloat16 on CUDA, there in order with the
    current stream; calls with a fixed period and without states may be captured in a CUDA graph.
    """
    offsets = check_offsets(offsets)
    check_qkv(q, k, v, offsets is not None)
    modes = whole("modes", modes, 1, 1 << 24)
    batch = q.shape[0] if offsets is None else offsets.shape[0] - 1
    learned, shared = settings(period, resolution, modes, k.shape[-2], scale, decay, grid, threads)
    return_state = flag("return_state", return_state)
    inputs = [q, k, v, learned]
    before = None
    if state is not None:
        before = check_state(state, q, v, batch, k.shape[-2], modes)
        inputs += [before.k, before.v]
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    o, k_out, v_out, _ = torch.ops.blurry.attention(
        q, k, v, learned, before.k if before else None, before.v if before else None,
        before.position if before else None, offsets, *shared, return_state, save)
    if not return_state:
        return o
    if offsets is None:
        seen = torch.full((batch,), q.shape[1], dtype=torch.int64)
    else:
        host = offsets.to(device="cpu", dtype=torch.int64)
        seen = host[1:] - host[:-1]
    return o, State(k_out, v_out, seen + before.position if before else seen)
