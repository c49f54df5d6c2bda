"""NumPy arrays for the library: checked, contiguous, aligned."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np

from ._library import ffi, lib
from ._plan import Description, flag, grid_name, periods, scale_of, thread_count, whole

DTYPES = {np.dtype(np.float32): lib.BLURRY_F32, np.dtype(np.float64): lib.BLURRY_F64}
ALIGNMENT = 64


def aligned(size: int) -> np.ndarray:
    """`size` bytes that begin at a multiple of 64."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + size]


def pointer(array: Optional[np.ndarray]) -> Any:
    return ffi.NULL if array is None else ffi.cast("void *", array.ctypes.data)


def floats(name: str, value: Any, dtype: Optional[np.dtype] = None) -> np.ndarray:
    """A contiguous float32 or float64 array, of `dtype` where one is given. Nothing is converted silently."""
    try:
        array = np.asarray(value)
    except ValueError as problem:  # ragged lists
        raise ValueError(f"{name} is no array: {problem}") from None
    if array.dtype not in DTYPES:
        raise ValueError(f"{name} has dtype {array.dtype}: give float32 or float64")
    if dtype is not None and array.dtype != dtype:
        raise ValueError(f"{name} has dtype {array.dtype}: it must be {dtype} as q is")
    return np.require(array, requirements=["C", "A"])


def shaped(name: str, array: np.ndarray, shape: Tuple[int, ...], letters: str) -> np.ndarray:
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: it must be {letters} = {shape}")
    return array


def offsets_of(offsets: Any, tokens: int) -> Optional[np.ndarray]:
    """[B+1] int64, ascending from 0 to the number of tokens."""
    if offsets is None:
        return None
    array = np.asarray(offsets)
    if array.ndim != 1 or array.size < 2 or array.dtype.kind not in "iu":
        raise ValueError(f"offsets has shape {array.shape} and dtype {array.dtype}: give B+1 whole numbers, ascending "
                         "from 0 to the number of tokens")
    array = np.ascontiguousarray(array, np.int64)
    if array[0] != 0 or (np.diff(array) < 0).any() or array[-1] != tokens:
        raise ValueError(f"offsets is {array.tolist()[:8]}{'...' if array.size > 8 else ''}: it must ascend from 0 to the "
                         f"number of tokens, {tokens}")
    return array


class Call:
    """The arguments that forward and backward share, checked: q, k, v, offsets and the description."""

    def __init__(self, q: Any, k: Any, v: Any, *, modes: Any, period: Any, resolution: Any, decay: Any, grid: Any,
                 scale: Any, offsets: Any, threads: Any, fold: int = 0):
        self.q = floats("q", q)
        dtype = self.q.dtype
        self.k, self.v = floats("k", k, dtype), floats("v", v, dtype)
        packed = offsets is not None
        self.rank = self.q.ndim
        ranks, layout = ((3, 4), "[tokens, H, Dk]") if packed else ((4,), "[B, L, H, Dk]")
        if self.rank not in ranks or (packed and self.rank == 4 and self.q.shape[0] != 1):
            raise ValueError(f"q has shape {self.q.shape}: it must be {layout}" + (" with offsets" if packed else ""))
        lead = self.q.shape[:-2]
        for name, array in (("k", self.k), ("v", self.v)):
            if array.ndim != self.rank or array.shape[:-2] != lead:
                raise ValueError(f"{name} has shape {array.shape}: its tokens must be those of q, {lead}")
        H, Dk = self.q.shape[-2:]
        Hkv, Dv = self.v.shape[-2:]
        shaped("k", self.k, lead + (Hkv, Dk), "[..., Hkv, Dk]")
        for name, size in (("q", H), ("q", Dk), ("v", Hkv), ("v", Dv)):
            if size == 0:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}: heads and widths must not be 0")
        if H % Hkv:
            raise ValueError(f"k has {Hkv} heads: their number must divide that of q, {H}")
        self.offsets = offsets_of(offsets, lead[-1])
        batch, length = (lead if not packed else (len(self.offsets) - 1, -(-lead[-1] // (len(self.offsets) - 1))))
        if batch == 0:
            raise ValueError(f"q has shape {self.q.shape}: give at least one sequence")
        modes = whole("modes", modes, 1, 1 << 24)
        self.description = Description(
            batch=batch, length=length, heads=H, heads_kv=Hkv, dim_k=Dk, dim_v=Dv, modes=modes,
            period=periods(period, resolution, modes, Hkv), scale=scale_of(scale), decay=flag("decay", decay),
            grid=grid_name(grid), dtype=DTYPES[dtype], threads=thread_count(threads), fold=fold)

    @property
    def offsets_pointer(self) -> Any:
        return ffi.NULL if self.offsets is None else ffi.cast("int64_t *", self.offsets.ctypes.data)

    @property
    def output_shape(self) -> Tuple[int, ...]:
        return self.q.shape[:-1] + (self.description.dim_v,)

    def slot_shapes(self) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
        d = self.description
        return ((d.batch, d.heads_kv, d.slots, d.dim_k), (d.batch, d.heads_kv, d.slots, d.dim_v))
