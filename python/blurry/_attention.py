"""The operator on NumPy arrays: attention, its gradients and its write weights."""
from __future__ import annotations

import contextlib
from typing import Any, ContextManager, NamedTuple, Optional, Tuple, Union

import numpy as np

from ._arrays import Call, aligned, floats, pointer, shaped
from ._library import check, ffi, lib
from ._plan import Numbers, number, plan_for, whole
from ._state import State


class Gradients(NamedTuple):
    """What attention_grad returns. `period` is [Hkv]; `k_state` and `v_state` are those of the slots on entry."""
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    period: np.ndarray
    k_state: np.ndarray
    v_state: np.ndarray


def _fold(state: Any) -> int:
    if state is not None and not isinstance(state, State):
        raise ValueError(f"state is of type {type(state).__name__}: give a blurry.State")
    return 0 if state is None else state._description.fold


def _held(state: Optional[State]) -> ContextManager[Any]:
    """While a call reads a state no step may write it."""
    return contextlib.nullcontext() if state is None else state._lock


def attention(q: Any, k: Any, v: Any, *, modes: int, period: Numbers = None, resolution: Numbers = None,
              decay: bool = True, grid: str = "absolute", scale: Optional[float] = None,
              state: Optional[State] = None, return_state: bool = False, offsets: Any = None,
              threads: Optional[int] = None) -> Union[np.ndarray, Tuple[np.ndarray, State]]:
    """Blurry window attention of q [B, L, H, Dk] over k [B, L, Hkv, Dk] and v [B, L, Hkv, Dv] -> o [B, L, H, Dv].

    modes: M; the memory has S = 2M-1 slots. period: T in tokens, one number or one per key/value head; or resolution:
    T/S (2 where neither is given). decay: whether slots forget. grid: "absolute" or "relative" (without decay only).
    scale: of the logits, 1/sqrt(Dk) where None. state: continue after the tokens this state has seen; it is not
    changed. return_state: also return the state after the last token. offsets: [B+1], sequences packed one after
    another; then q is [tokens, H, Dk] (or [1, tokens, H, Dk]) and so on. threads: CPU threads, all cores where None.

    float32 and float64; arrays that are not contiguous are copied. Anything wrong is a ValueError naming the argument.
    """
    call = Call(q, k, v, modes=modes, period=period, resolution=resolution, decay=decay, grid=grid, scale=scale,
                offsets=offsets, threads=threads, fold=_fold(state))
    plan = plan_for(call.description)
    memory = None if state is None else state._matching(call.description)
    output = np.empty(call.output_shape, call.q.dtype)
    workspace = aligned(plan.forward_bytes)
    after = State._from_description(call.description) if return_state else None
    args = ffi.new("blurry_attn_forward_args *")
    args.q, args.k, args.v, args.o = (pointer(x) for x in (call.q, call.k, call.v, output))
    args.offsets = call.offsets_pointer
    args.state_in = pointer(memory)
    args.state_out = pointer(after._memory if after is not None else None)
    args.workspace, args.workspace_bytes = pointer(workspace), workspace.size
    with _held(state):
        check(lib.blurry_attn_forward(plan.pointer, args))
    return (output, after) if after is not None else output


def _slot_gradients(call: Call, d_state: Any) -> Tuple[Optional[np.ndarray], Optional[np.ndarray]]:
    if d_state is None:
        return None, None
    if not isinstance(d_state, (tuple, list)) or len(d_state) != 2:
        raise ValueError("d_state is no pair: give the gradients of the K slots and of the V slots")
    pairs = zip(("d_state[0]", "d_state[1]"), d_state, call.slot_shapes(), ("[B, Hkv, S, Dk]", "[B, Hkv, S, Dv]"))
    d_k, d_v = (shaped(name, floats(name, x, call.q.dtype), shape, letters) for name, x, shape, letters in pairs)
    return d_k, d_v


def attention_grad(q: Any, k: Any, v: Any, d_o: Any, *, modes: int, period: Numbers = None,
                   resolution: Numbers = None, decay: bool = True, grid: str = "absolute",
                   scale: Optional[float] = None, state: Optional[State] = None, d_state: Any = None,
                   offsets: Any = None, threads: Optional[int] = None) -> Gradients:
    """All gradients of sum(o * d_o), and with `d_state` = (d_k_slots, d_v_slots), each [B, Hkv, S, D], of that plus the
    same sum over the slots on exit. The other arguments are those of `attention`.

    The period's gradient is 0 where the period was raised to S.
    """
    call = Call(q, k, v, modes=modes, period=period, resolution=resolution, decay=decay, grid=grid, scale=scale,
                offsets=offsets, threads=threads, fold=_fold(state))
    d_o = shaped("d_o", floats("d_o", d_o, call.q.dtype), call.output_shape, "that of o")
    d_k_out, d_v_out = _slot_gradients(call, d_state)
    plan = plan_for(call.description)
    memory = None if state is None else state._matching(call.description)
    workspace = aligned(plan.backward_bytes)
    k_shape, v_shape = call.slot_shapes()
    result = Gradients(np.empty_like(call.q), np.empty_like(call.k), np.empty_like(call.v),
                       np.empty(call.description.heads_kv, np.float64), np.empty(k_shape, call.q.dtype),
                       np.empty(v_shape, call.q.dtype))
    args = ffi.new("blurry_attn_backward_args *")
    args.q, args.k, args.v, args.d_o = (pointer(x) for x in (call.q, call.k, call.v, d_o))
    args.offsets = call.offsets_pointer
    args.state_in = pointer(memory)
    args.d_k_state_out, args.d_v_state_out = pointer(d_k_out), pointer(d_v_out)
    args.d_q, args.d_k, args.d_v = (pointer(x) for x in result[:3])
    args.d_period = ffi.cast("double *", result.period.ctypes.data)
    args.d_k_state_in, args.d_v_state_in = pointer(result.k_state), pointer(result.v_state)
    args.workspace, args.workspace_bytes = pointer(workspace), workspace.size
    with _held(state):
        check(lib.blurry_attn_backward(plan.pointer, args))
    return result


def weights(modes: int, period: float, start: int = 0, count: int = 1) -> np.ndarray:
    """The weights phi with which the tokens at positions start .. start+count-1 are written: [count, S], float64."""
    modes = whole("modes", modes, 1, 1 << 24)
    count = whole("count", count, 0, 1 << 53)
    start = whole("start", start, 0, 1 << 53)
    result = np.empty((count, 2 * modes - 1), np.float64)
    check(lib.blurry_weights(modes, number("period", period), start, count, ffi.cast("double *", result.ctypes.data)))
    return result
