"""Descriptions of an operator call, and the library's plans for them, kept for the next call of the same kind.

A plan never changes and serves any number of threads, so one cache serves the process. After fork() the child starts
with the plans it inherited and a lock of its own.
"""
from __future__ import annotations

import collections
import math
import operator
import os
import threading
from dataclasses import dataclass
from typing import Any, Iterable, Optional, Sequence, Tuple, Union

from ._library import check, ffi, lib, owned

Numbers = Union[float, Sequence[float], None]
GRIDS = {"absolute": lib.BLURRY_GRID_ABSOLUTE, "relative": lib.BLURRY_GRID_RELATIVE}
_INT64 = 2 ** 63 - 1


@dataclass(frozen=True)
class Description:
    """Everything that decides a plan; the fields of blurry_attn_desc."""
    batch: int
    length: int
    heads: int
    heads_kv: int
    dim_k: int
    dim_v: int
    modes: int
    period: Tuple[float, ...]
    scale: float
    decay: bool
    grid: str
    dtype: int
    device: int = lib.BLURRY_DEVICE_CPU
    ordinal: int = 0  # which GPU; it must be current in this thread when the plan is made and used
    threads: int = 0
    fold: int = 0

    @property
    def slots(self) -> int:
        return 2 * self.modes - 1


def whole(name: str, value: Any, low: int, high: int = _INT64) -> int:
    """`value` as an int within low .. high, or a ValueError that names the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}: give a whole number") from None
    if isinstance(value, bool) or not low <= number <= high:
        raise ValueError(f"{name} is {value!r}: give a whole number of at least {low}"
                         + (f", at most {high}" if high < _INT64 else ""))
    return number


def number(name: str, value: Any) -> float:
    """`value` as a finite float of at least 0."""
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}: give a number") from None
    if not (math.isfinite(result) and result >= 0):
        raise ValueError(f"{name} is {value!r}: give a finite number of at least 0")
    return result


def flag(name: str, value: Any) -> bool:
    if value is True or value is False or (hasattr(value, "dtype") and str(value.dtype) == "bool" and not value.shape):
        return bool(value)
    raise ValueError(f"{name} is {value!r}: give True or False")


def grid_name(value: Any) -> str:
    if not isinstance(value, str) or value not in GRIDS:
        raise ValueError(f"grid is {value!r}: give 'absolute' or 'relative'")
    return value


def _per_head(name: str, values: Any, heads_kv: int) -> Tuple[float, ...]:
    if isinstance(values, (str, bytes)):
        raise ValueError(f"{name} is {values!r}: give a number, or one per key/value head")
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, Iterable):
        return (number(name, values),) * heads_kv
    listed = tuple(number(f"{name}[{i}]", value) for i, value in enumerate(values))
    if len(listed) == 1:
        return listed * heads_kv
    if len(listed) != heads_kv:
        raise ValueError(f"{name} has {len(listed)} numbers: give one, or one for each of the {heads_kv} key/value heads")
    return listed


def periods(period: Numbers, resolution: Numbers, modes: int, heads_kv: int) -> Tuple[float, ...]:
    """T per key/value head, from `period` in tokens or `resolution` in tokens per slot (2 where neither is given)."""
    if period is not None and resolution is not None:
        raise ValueError("period and resolution are both given: give one of them")
    if period is not None:
        return _per_head("period", period, heads_kv)
    listed = _per_head("resolution", 2.0 if resolution is None else resolution, heads_kv)
    return tuple(value * (2 * modes - 1) for value in listed)


def thread_count(threads: Optional[int]) -> int:
    return 0 if threads is None else whole("threads", threads, 1, 256)


def scale_of(scale: Optional[float]) -> float:
    """0 stands for 1/sqrt(Dk), as in the C library."""
    if scale is None:
        return 0.0
    value = number("scale", scale)
    if value == 0:
        raise ValueError("scale is 0: give a number above 0, or None for 1/sqrt(Dk)")
    return value


class Plan:
    """One blurry_attn_plan and its sizes in bytes."""

    def __init__(self, description: Description):
        desc = ffi.new("blurry_attn_desc *")
        lib.blurry_attn_desc_init(desc)
        self.description = description
        period = ffi.new("double[]", description.period)
        desc.period = period
        desc.grid = GRIDS[description.grid]
        desc.decay = int(description.decay)
        for name in ("batch", "length", "heads", "heads_kv", "dim_k", "dim_v", "modes", "scale", "dtype", "device",
                     "threads", "fold"):
            setattr(desc, name, getattr(description, name))
        handle = ffi.new("blurry_attn_plan **")
        check(lib.blurry_attn_plan_create(handle, desc))
        self.pointer = owned(handle[0], "blurry_attn_plan", lib.blurry_attn_plan_destroy)
        self.state_bytes: int = lib.blurry_attn_state_bytes(self.pointer)
        self.saved_bytes: int = lib.blurry_attn_saved_bytes(self.pointer)
        self.forward_bytes: int = lib.blurry_attn_forward_workspace(self.pointer)
        self.backward_bytes: int = lib.blurry_attn_backward_workspace(self.pointer)
        self.step_bytes: int = lib.blurry_attn_step_workspace(self.pointer)

    @property
    def kernel(self) -> str:
        return ffi.string(lib.blurry_attn_plan_kernel(self.pointer)).decode()


_CAPACITY = 64
_plans: "collections.OrderedDict[Description, Plan]" = collections.OrderedDict()
_kept: set = set()
_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def plan_for(description: Description, keep: bool = False) -> Plan:
    """The plan for this description, made now or kept from an earlier call. `keep`: never dropped, for calls that are
    recorded now and repeated later."""
    with _lock:
        plan = _plans.get(description)
        if plan is not None:
            _plans.move_to_end(description)
    if plan is None:
        plan = Plan(description)
        with _lock:
            _plans[description] = plan
            while len(_plans) > _CAPACITY:
                _plans.popitem(last=False)
    if keep:
        _kept.add(plan)
    return plan
