"""The operators registered with PyTorch: blurry::attention, blurry::attention_backward, blurry::attention_cached and
blurry::attention_states. They work on the memory of the tensors, on CUDA in order with the current stream.

Schemas and kernels are the same for every version of PyTorch; so is the gradient, an autograd.Function behind the
dispatcher's Autograd key. torch.compile (from 2.4 on) keeps the operators in its graph.
"""
from __future__ import annotations

import contextlib
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import Tensor

from .._library import check, ffi, lib
from .._plan import Description, Plan, plan_for

_CPU_TYPES = {torch.float32: lib.BLURRY_F32, torch.float64: lib.BLURRY_F64}
_CUDA_TYPES = {torch.float32: lib.BLURRY_F32, torch.bfloat16: lib.BLURRY_BF16}

# Arguments that all operators share, after their tensors: what `Setting` below unpacks.
_SETTING = "int modes, float[] periods, float scale, bool decay, bool relative, int threads"
_SCHEMAS = (
    "attention(Tensor q, Tensor k, Tensor v, Tensor? period, Tensor? k_state, Tensor? v_state, Tensor? position, "
    f"Tensor? offsets, {_SETTING}, bool return_state, bool save) -> (Tensor, Tensor, Tensor, Tensor)",
    "attention_backward(Tensor? d_o, Tensor? d_k_state, Tensor? d_v_state, Tensor q, Tensor k, Tensor v, "
    "Tensor? period, Tensor? k_state, Tensor? v_state, Tensor? position, Tensor? offsets, Tensor saved, "
    f"{_SETTING}, bool with_states, bool with_period) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    f"attention_states(Tensor like, int batch, int heads, int heads_kv, int dim_k, int dim_v, {_SETTING}) -> Tensor",
    f"attention_cached(Tensor q, Tensor k, Tensor v, Tensor(a!) states, Tensor? offsets, {_SETTING}) -> Tensor",
)


class Setting:
    """The shared arguments of a call, and the plan they lead to."""

    def __init__(self, modes: int, periods: List[float], scale: float, decay: bool, relative: bool, threads: int):
        self.modes, self.periods, self.scale, self.threads = int(modes), periods, float(scale), int(threads)
        self.decay, self.grid = bool(decay), "relative" if relative else "absolute"

    def plan(self, like: Tensor, shape: Tuple[int, ...], period: Optional[Tensor], fold: int) -> Plan:
        """shape: B, L, H, Hkv, Dk, Dv. `period`, where given, is read here: on CUDA that waits for the device."""
        cuda = like.device.type == "cuda"
        kinds = _CUDA_TYPES if cuda else _CPU_TYPES
        if like.dtype not in kinds:
            known = " or ".join(str(kind).replace("torch.", "") for kind in kinds)
            raise ValueError(f"q has dtype {str(like.dtype).replace('torch.', '')}: on {like.device.type} give {known}")
        batch, length, heads, heads_kv, dim_k, dim_v = (int(size) for size in shape)
        listed = tuple(self.periods) if period is None else tuple(0.0 if T < 0 else T for T in period.detach().double().tolist())
        description = Description(batch, length, heads, heads_kv, dim_k, dim_v, self.modes,
                                  listed * heads_kv if len(listed) == 1 else listed, self.scale, self.decay, self.grid,
                                  kinds[like.dtype], lib.BLURRY_DEVICE_CUDA if cuda else lib.BLURRY_DEVICE_CPU,
                                  (like.device.index or 0) if cuda else 0, self.threads, fold)
        return plan_for(description, keep=cuda and torch.cuda.is_current_stream_capturing())

    def fake_periods(self, period: Optional[Tensor]) -> "Setting":
        """For sizes only: they do not depend on the periods' values, which a fake tensor does not have."""
        if period is not None:
            self.periods = [2.0 * (2 * self.modes - 1)]
        return self


def _pointer(tensor: Optional[Tensor]) -> Any:
    return ffi.NULL if tensor is None or tensor.numel() == 0 else ffi.cast("void *", tensor.data_ptr())


def _dense(tensor: Optional[Tensor]) -> Optional[Tensor]:
    return None if tensor is None else tensor.contiguous()


def _bytes(like: Tensor, count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device=like.device)


def _stream(tensor: Tensor) -> Any:
    if tensor.device.type != "cuda":
        return ffi.NULL
    return ffi.cast("blurry_stream", torch.cuda.current_stream(tensor.device).cuda_stream)


def _on_device(tensor: Tensor) -> Any:
    """Makes the tensor's GPU the current one of this thread."""
    if tensor.device.type != "cuda" or torch.cuda.current_device() == tensor.device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)


def _slot_dtype(q: Tensor) -> torch.dtype:
    return torch.float32 if q.device.type == "cuda" else q.dtype


def _shape(q: Tensor, v: Tensor, offsets: Optional[Tensor]) -> Tuple[int, ...]:
    """B, L, H, Hkv, Dk, Dv; packed tokens [N, H, D] or [1, N, H, D] count as B sequences of the mean length."""
    H, Dk = q.shape[-2:]
    Hkv, Dv = v.shape[-2:]
    if offsets is None:
        return q.shape[0], q.shape[1], H, Hkv, Dk, Dv
    B = offsets.shape[0] - 1
    return B, -(-q.shape[-3] // B), H, Hkv, Dk, Dv


def _host_offsets(offsets: Optional[Tensor]) -> Tuple[Optional[Tensor], Any]:
    if offsets is None:
        return None, ffi.NULL
    host = offsets.to(device="cpu", dtype=torch.int64).contiguous()
    return host, ffi.cast("int64_t *", host.data_ptr())


def _pack_states(plan: Plan, k_state: Tensor, v_state: Tensor, position: Tensor) -> Tensor:
    """Slots [B, Hkv, S, D] and positions [B] as the library's states."""
    states = _bytes(k_state, plan.state_bytes * plan.description.batch)
    k, v = k_state.contiguous(), v_state.contiguous()
    for b, place in enumerate(position.tolist()):
        check(lib.blurry_attn_state_set(plan.pointer, ffi.cast("void *", states.data_ptr() + b * plan.state_bytes),
                                        place, _pointer(k[b]), _pointer(v[b])))
    return states


def _unpack_states(plan: Plan, states: Tensor, k: Tensor, v: Tensor) -> None:
    for b in range(plan.description.batch):
        at = ffi.cast("void *", states.data_ptr() + b * plan.state_bytes)
        check(lib.blurry_attn_state_get(plan.pointer, at, ffi.NULL, _pointer(k[b]), _pointer(v[b])))


def _slots_like(q: Tensor, shape: Tuple[int, ...], modes: int, wanted: bool) -> Tuple[Tensor, Tensor]:
    """Room for slots, [B, Hkv, S, Dk] and [B, Hkv, S, Dv], or two empty tensors."""
    B, _, _, Hkv, Dk, Dv = shape
    if not wanted:
        return q.new_empty(0), q.new_empty(0)
    make = lambda D: torch.empty((B, Hkv, 2 * modes - 1, D), dtype=_slot_dtype(q), device=q.device)  # noqa: E731
    return make(Dk), make(Dv)


def _attention(q: Tensor, k: Tensor, v: Tensor, period: Optional[Tensor], k_state: Optional[Tensor],
               v_state: Optional[Tensor], position: Optional[Tensor], offsets: Optional[Tensor], *rest: Any
               ) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    *setting, return_state, save = rest
    setting = Setting(*setting)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    shape = _shape(q, v, offsets)
    host, offsets_at = _host_offsets(offsets)
    with _on_device(q):
        plan = setting.plan(q, shape, period, fold=1)
        o = q.new_empty(q.shape[:-1] + (shape[5],))
        saved = _bytes(q, plan.saved_bytes if save else 0)
        workspace = _bytes(q, plan.forward_bytes)
        states = None if k_state is None else _pack_states(plan, k_state, v_state, position)
        if return_state and states is None:
            states = _bytes(q, plan.state_bytes * plan.description.batch)
        args = ffi.new("blurry_attn_forward_args *")
        args.q, args.k, args.v, args.o = _pointer(q), _pointer(k), _pointer(v), _pointer(o)
        args.offsets = offsets_at
        args.state_in = ffi.NULL if k_state is None else _pointer(states)
        args.state_out = _pointer(states) if return_state else ffi.NULL
        args.saved = _pointer(saved)
        args.workspace, args.workspace_bytes = _pointer(workspace), plan.forward_bytes
        args.stream = _stream(q)
        check(lib.blurry_attn_forward(plan.pointer, args))
        k_out, v_out = _slots_like(q, shape, setting.modes, return_state)
        if return_state:
            _unpack_states(plan, states, k_out, v_out)
    return o, k_out, v_out, saved


def _attention_fake(q: Tensor, k: Tensor, v: Tensor, period: Optional[Tensor], k_state: Optional[Tensor],
                    v_state: Optional[Tensor], position: Optional[Tensor], offsets: Optional[Tensor], *rest: Any
                    ) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    *setting, return_state, save = rest
    shape = _shape(q, v, offsets)
    o = q.new_empty(tuple(q.shape[:-1]) + (v.shape[-1],))
    k_out, v_out = _slots_like(q, shape, setting[0], return_state)
    size = Setting(*setting).fake_periods(period).plan(q, shape, None, fold=1).saved_bytes if save else 0
    return o, k_out, v_out, torch.empty(size, dtype=torch.uint8, device=q.device)


def _attention_backward(d_o: Optional[Tensor], d_k_state: Optional[Tensor], d_v_state: Optional[Tensor], q: Tensor,
                        k: Tensor, v: Tensor, period: Optional[Tensor], k_state: Optional[Tensor],
                        v_state: Optional[Tensor], position: Optional[Tensor], offsets: Optional[Tensor],
                        saved: Tensor, *rest: Any) -> Tuple[Tensor, ...]:
    *setting, with_states, with_period = rest
    setting = Setting(*setting)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    shape = _shape(q, v, offsets)
    host, offsets_at = _host_offsets(offsets)
    d_o = q.new_zeros(q.shape[:-1] + (shape[5],)) if d_o is None else d_o.to(q.dtype).contiguous()
    if (d_k_state is None) != (d_v_state is None):
        zeros = _slots_like(q, shape, setting.modes, True)
        d_k_state = zeros[0].zero_() if d_k_state is None else d_k_state
        d_v_state = zeros[1].zero_() if d_v_state is None else d_v_state
    d_k_state, d_v_state = _dense(d_k_state), _dense(d_v_state)
    with _on_device(q):
        plan = setting.plan(q, shape, period, fold=1)
        d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        d_k_in, d_v_in = _slots_like(q, shape, setting.modes, with_states)
        d_period = torch.empty(shape[3] if with_period else 0, dtype=torch.float64, device=q.device)
        workspace = _bytes(q, plan.backward_bytes)
        states = None if k_state is None else _pack_states(plan, k_state, v_state, position)
        args = ffi.new("blurry_attn_backward_args *")
        args.q, args.k, args.v, args.d_o = _pointer(q), _pointer(k), _pointer(v), _pointer(d_o)
        args.offsets = offsets_at
        args.state_in, args.saved = _pointer(states), _pointer(saved)
        args.d_k_state_out, args.d_v_state_out = _pointer(d_k_state), _pointer(d_v_state)
        args.d_q, args.d_k, args.d_v = _pointer(d_q), _pointer(d_k), _pointer(d_v)
        args.d_k_state_in, args.d_v_state_in = _pointer(d_k_in), _pointer(d_v_in)
        args.d_period = ffi.cast("double *", _pointer(d_period))
        args.workspace, args.workspace_bytes = _pointer(workspace), plan.backward_bytes
        args.stream = _stream(q)
        check(lib.blurry_attn_backward(plan.pointer, args))
    if with_period and period is not None:
        d_period = d_period.to(device=period.device, dtype=period.dtype)
    return d_q, d_k, d_v, d_k_in, d_v_in, d_period


def _attention_backward_fake(d_o: Optional[Tensor], d_k_state: Optional[Tensor], d_v_state: Optional[Tensor],
                             q: Tensor, k: Tensor, v: Tensor, period: Optional[Tensor], k_state: Optional[Tensor],
                             v_state: Optional[Tensor], position: Optional[Tensor], offsets: Optional[Tensor],
                             saved: Tensor, *rest: Any) -> Tuple[Tensor, ...]:
    *setting, with_states, with_period = rest
    d_k_in, d_v_in = _slots_like(q, _shape(q, v, offsets), setting[0], with_states)
    dtype, device = (torch.float64, q.device) if period is None else (period.dtype, period.device)
    d_period = torch.empty(v.shape[-2] if with_period else 0, dtype=dtype, device=device)
    like = lambda x: x.new_empty(x.shape)  # noqa: E731 (contiguous, whatever x is)
    return like(q), like(k), like(v), d_k_in, d_v_in, d_period


def _attention_states(like: Tensor, batch: int, heads: int, heads_kv: int, dim_k: int, dim_v: int, *setting: Any
                      ) -> Tensor:
    with _on_device(like):
        plan = Setting(*setting).plan(like, (batch, 0, heads, heads_kv, dim_k, dim_v), None, fold=0)
        states = torch.empty((batch, plan.state_bytes), dtype=torch.uint8, device=like.device)
        check(lib.blurry_attn_states_init(plan.pointer, _pointer(states), batch, _stream(like)))
    return states


def _attention_states_fake(like: Tensor, batch: int, heads: int, heads_kv: int, dim_k: int, dim_v: int,
                           *setting: Any) -> Tensor:
    plan = Setting(*setting).plan(like, (batch, 0, heads, heads_kv, dim_k, dim_v), None, fold=0)
    return torch.empty((batch, plan.state_bytes), dtype=torch.uint8, device=like.device)


def _step(plan: Plan, q: Tensor, k: Tensor, v: Tensor, o: Tensor, states: Tensor) -> None:
    workspace = _bytes(q, plan.step_bytes)
    args = ffi.new("blurry_attn_step_args *")
    args.count, args.state_batch = plan.description.batch, _pointer(states)
    args.q, args.k, args.v, args.o = _pointer(q), _pointer(k), _pointer(v), _pointer(o)
    args.workspace, args.workspace_bytes = _pointer(workspace), plan.step_bytes
    args.stream = _stream(q)
    check(lib.blurry_attn_step(plan.pointer, args))


def _attention_cached(q: Tensor, k: Tensor, v: Tensor, states: Tensor, offsets: Optional[Tensor], *setting: Any
                      ) -> Tensor:
    if not states.is_contiguous():
        raise ValueError("states is not contiguous: they are updated in place")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    shape = _shape(q, v, offsets)
    host, offsets_at = _host_offsets(offsets)
    o = q.new_empty(q.shape[:-1] + (shape[5],))
    one = offsets is None and q.shape[1] == 1
    with _on_device(q):
        plan = Setting(*setting).plan(q, (shape[0], 0) + tuple(shape[2:]) if one else shape, None, fold=0)
        if states.shape != (plan.description.batch, plan.state_bytes) or states.dtype != torch.uint8:
            raise ValueError(f"states has shape {tuple(states.shape)}: it must be {plan.description.batch} states of "
                             f"{plan.state_bytes} bytes")
        if one:
            _step(plan, q, k, v, o, states)
            return o
        workspace = _bytes(q, plan.forward_bytes)
        args = ffi.new("blurry_attn_forward_args *")
        args.q, args.k, args.v, args.o = _pointer(q), _pointer(k), _pointer(v), _pointer(o)
        args.offsets = offsets_at
        args.state_in = args.state_out = _pointer(states)
        args.workspace, args.workspace_bytes = _pointer(workspace), plan.forward_bytes
        args.stream = _stream(q)
        check(lib.blurry_attn_forward(plan.pointer, args))
    return o


def _attention_cached_fake(q: Tensor, k: Tensor, v: Tensor, states: Tensor, offsets: Optional[Tensor], *setting: Any
                           ) -> Tensor:
    return q.new_empty(tuple(q.shape[:-1]) + (v.shape[-1],))


# ---- the gradient ----
_TENSORS, _ARGUMENTS = 8, 16  # of `attention`: inputs that are tensors, inputs in all


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_TENSORS], output[3])
    ctx.setting = inputs[_TENSORS:_ARGUMENTS - 2]
    ctx.states = inputs[4] is not None
    ctx.empty_states = not inputs[_ARGUMENTS - 2]


def _backward(ctx: Any, d_o: Optional[Tensor], d_k_state: Optional[Tensor], d_v_state: Optional[Tensor],
              d_saved: Optional[Tensor]) -> Tuple[Any, ...]:
    *inputs, saved = ctx.saved_tensors
    if ctx.empty_states:
        d_k_state = d_v_state = None
    with_states = ctx.states and (ctx.needs_input_grad[4] or ctx.needs_input_grad[5])
    with_period = inputs[3] is not None and ctx.needs_input_grad[3]
    d_q, d_k, d_v, d_k_in, d_v_in, d_period = torch.ops.blurry.attention_backward(
        d_o, d_k_state, d_v_state, *inputs, saved, *ctx.setting, with_states, with_period)
    states = (d_k_in, d_v_in) if with_states else (None, None)
    rest = (None,) * (_ARGUMENTS - 6)
    return (d_q, d_k, d_v, d_period if with_period else None) + states + rest


def _below_autograd(operator: Any, inputs: Tuple[Any, ...]) -> Any:
    guard = torch._C._AutoDispatchBelowAutograd()  # in 1.13 no context manager: it ends with the object
    try:
        return operator(*inputs)
    finally:
        del guard


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _below_autograd(torch.ops.blurry.attention, inputs)
        _setup(ctx, inputs, output)
        ctx.mark_non_differentiable(output[3])
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _backward(ctx, *gradients)


class _AttentionBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        return _below_autograd(torch.ops.blurry.attention_backward, inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("blurry::attention_backward is not differentiable: blurry attention has first derivatives only")


def _with_gradient(function: Any, operator: Any) -> Callable[..., Any]:
    """The kernel behind the Autograd key: through the function, or past it where no gradient is wanted."""
    return lambda *inputs: function.apply(*inputs) if torch.is_grad_enabled() else _below_autograd(operator, inputs)


def _register() -> torch.library.Library:
    library = torch.library.Library("blurry", "DEF")
    kernels = {"attention": (_attention, _attention_fake),
               "attention_backward": (_attention_backward, _attention_backward_fake),
               "attention_states": (_attention_states, _attention_states_fake),
               "attention_cached": (_attention_cached, _attention_cached_fake)}
    for schema in _SCHEMAS:
        library.define(schema)
    for name, (kernel, fake) in kernels.items():
        library.impl(name, kernel, "CPU")
        library.impl(name, kernel, "CUDA")
        if hasattr(torch.library, "register_fake"):
            torch.library.register_fake(f"blurry::{name}", fake, lib=library)
        else:
            library.impl(name, fake, "Meta")
    library.impl("attention", _with_gradient(_Attention, torch.ops.blurry.attention), "Autograd")
    library.impl("attention_backward", _with_gradient(_AttentionBackward, torch.ops.blurry.attention_backward), "Autograd")
    return library


library = _register()
