"""The operator's memory between calls: positions and slots of a batch of sequences."""
from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import asdict, replace
from typing import Any, Optional, Tuple

import numpy as np

from ._arrays import DTYPES, aligned, floats, pointer, shaped
from ._library import FormatError, check, ffi, lib
from ._plan import (Description, Numbers, Plan, flag, grid_name, periods, plan_for, scale_of, thread_count, whole)

_MAGIC = b"BLURRY-PY-STATE1"
_POSITION_MAX = 1 << 53
_BY_CODE = {code: dtype for dtype, code in DTYPES.items()}
# Fields that decide what the bytes of a state mean; the others may differ between the calls that use it.
_MEANING = ("heads_kv", "dim_k", "dim_v", "modes", "decay", "grid", "dtype", "fold")


class State:
    """What `batch` sequences have seen so far, in constant memory: S * (Dk + Dv) numbers per key/value head.

    Made empty here, or by `attention(..., return_state=True)`. `step` feeds one token to every sequence; `attention(...,
    state=...)` continues from it with many. The arguments are those of `attention`; fold is how many tokens `step`
    collects before it writes the slots (the library's choice where None). A state may be pickled and shared by
    threads, whose steps then follow one another.
    """

    def __init__(self, batch: int = 1, *, heads: int, heads_kv: Optional[int] = None, dim_k: int,
                 dim_v: Optional[int] = None, modes: int, period: Numbers = None, resolution: Numbers = None,
                 decay: bool = True, grid: str = "absolute", scale: Optional[float] = None, dtype: Any = np.float32,
                 threads: Optional[int] = None, fold: Optional[int] = None):
        heads = whole("heads", heads, 1)
        heads_kv = heads if heads_kv is None else whole("heads_kv", heads_kv, 1)
        dim_k = whole("dim_k", dim_k, 1)
        modes = whole("modes", modes, 1, 1 << 24)
        try:
            code = DTYPES[np.dtype(dtype)]
        except (KeyError, TypeError):
            raise ValueError(f"dtype is {dtype!r}: give float32 or float64") from None
        self._open(Description(
            batch=whole("batch", batch, 1), length=0, heads=heads, heads_kv=heads_kv, dim_k=dim_k,
            dim_v=dim_k if dim_v is None else whole("dim_v", dim_v, 1), modes=modes,
            period=periods(period, resolution, modes, heads_kv), scale=scale_of(scale), decay=flag("decay", decay),
            grid=grid_name(grid), dtype=code, threads=thread_count(threads),
            fold=0 if fold is None else whole("fold", fold, 1, 1024)))

    def _open(self, description: Description) -> None:
        self._description = replace(description, length=0)
        self._plan: Plan = plan_for(self._description)
        self._lock = threading.Lock()
        self._memory = aligned(self._plan.state_bytes * description.batch)
        self.reset()

    @classmethod
    def _from_description(cls, description: Description) -> "State":
        state = cls.__new__(cls)
        state._open(description)
        return state

    def _at(self, index: int) -> Any:
        return ffi.cast("void *", self._memory.ctypes.data + index * self._plan.state_bytes)

    def _matching(self, wanted: Description) -> np.ndarray:
        """The memory, for a call of this description; a ValueError that says what does not fit."""
        own = self._description
        for name in _MEANING + ("batch",):
            if getattr(own, name) != getattr(wanted, name):
                shown = (str(_BY_CODE[own.dtype]), str(_BY_CODE[wanted.dtype])) if name == "dtype" else \
                    (getattr(own, name), getattr(wanted, name))
                raise ValueError(f"state has {name} {shown[0]}: this call has {shown[1]}")
        raised = [tuple(max(T, d.slots) for T in d.period) for d in (own, wanted)]
        if raised[0] != raised[1]:
            raise ValueError(f"state has period {own.period}: this call has {wanted.period}")
        return self._memory

    # ---- what it holds ----
    @property
    def batch(self) -> int:
        """Sequences."""
        return self._description.batch

    @property
    def slots(self) -> int:
        """S = 2 modes - 1."""
        return self._description.slots

    @property
    def dtype(self) -> np.dtype:
        return _BY_CODE[self._description.dtype]

    @property
    def position(self) -> np.ndarray:
        """Tokens seen by each sequence, [B]."""
        at = ffi.new("int64_t *")
        result = np.empty(self.batch, np.int64)
        with self._lock:
            for b in range(self.batch):
                check(lib.blurry_attn_state_get(self._plan.pointer, self._at(b), at, ffi.NULL, ffi.NULL))
                result[b] = at[0]
        return result

    @property
    def nbytes(self) -> int:
        """Bytes of memory, all sequences together; it does not grow."""
        return self._memory.size

    def get_slots(self) -> Tuple[np.ndarray, np.ndarray]:
        """Copies of the slots, [B, Hkv, S, Dk] and [B, Hkv, S, Dv], with every token folded in."""
        d = self._description
        k = np.empty((d.batch, d.heads_kv, d.slots, d.dim_k), self.dtype)
        v = np.empty((d.batch, d.heads_kv, d.slots, d.dim_v), self.dtype)
        with self._lock:
            for b in range(d.batch):
                check(lib.blurry_attn_state_get(self._plan.pointer, self._at(b), ffi.NULL, pointer(k[b]), pointer(v[b])))
        return k, v

    def set_slots(self, position: Any, k_slots: Any, v_slots: Any) -> None:
        """Replaces everything: position, one number or one per sequence, and slots as get_slots returns them."""
        d = self._description
        k = shaped("k_slots", floats("k_slots", k_slots, self.dtype), (d.batch, d.heads_kv, d.slots, d.dim_k),
                   "[B, Hkv, S, Dk]")
        v = shaped("v_slots", floats("v_slots", v_slots, self.dtype), (d.batch, d.heads_kv, d.slots, d.dim_v),
                   "[B, Hkv, S, Dv]")
        listed = list(position) if np.ndim(position) else [position] * d.batch
        if len(listed) != d.batch:
            raise ValueError(f"position has {len(listed)} numbers: give one, or one for each of {d.batch} sequences")
        places = [whole("position", place, 0, _POSITION_MAX) for place in listed]
        with self._lock:
            for b in range(d.batch):
                check(lib.blurry_attn_state_set(self._plan.pointer, self._at(b), places[b], pointer(k[b]), pointer(v[b])))

    def reset(self) -> None:
        """Forgets everything: position 0, empty slots."""
        with self._lock:
            check(lib.blurry_attn_states_init(self._plan.pointer, pointer(self._memory), self.batch, ffi.NULL))

    # ---- decoding ----
    def step(self, q: Any, k: Any, v: Any) -> np.ndarray:
        """One token for every sequence: q [B, H, Dk], k [B, Hkv, Dk], v [B, Hkv, Dv] -> o [B, H, Dv]."""
        d = self._description
        q = shaped("q", floats("q", q, self.dtype), (d.batch, d.heads, d.dim_k), "[B, H, Dk]")
        k = shaped("k", floats("k", k, self.dtype), (d.batch, d.heads_kv, d.dim_k), "[B, Hkv, Dk]")
        v = shaped("v", floats("v", v, self.dtype), (d.batch, d.heads_kv, d.dim_v), "[B, Hkv, Dv]")
        output = np.empty((d.batch, d.heads, d.dim_v), self.dtype)
        workspace = aligned(self._plan.step_bytes)
        args = ffi.new("blurry_attn_step_args *")
        args.count, args.state_batch = d.batch, pointer(self._memory)
        args.q, args.k, args.v, args.o = (pointer(x) for x in (q, k, v, output))
        args.workspace, args.workspace_bytes = pointer(workspace), workspace.size
        with self._lock:
            check(lib.blurry_attn_step(self._plan.pointer, args))
        return output

    # ---- copies ----
    def copy(self) -> "State":
        """An independent state with the same content: two continuations of one text."""
        other = State._from_description(self._description)
        with self._lock:
            other._memory[:] = self._memory
        return other

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> "State":
        return self.copy()

    def take(self, indices: Any) -> "State":
        """A state of the sequences with these numbers, in this order; a number may come twice (beams)."""
        chosen = [whole("indices", i, 0, self.batch - 1) for i in indices]
        other = State._from_description(replace(self._description, batch=whole("len(indices)", len(chosen), 1)))
        size = self._plan.state_bytes
        with self._lock:
            for to, at in enumerate(chosen):
                other._memory[to * size:(to + 1) * size] = self._memory[at * size:(at + 1) * size]
        return other

    def to_bytes(self) -> bytes:
        """Everything as bytes: description, slots and positions, with a checksum."""
        described = json.dumps(asdict(self._description), sort_keys=True).encode()
        with self._lock:
            body = len(described).to_bytes(8, "little") + described + self._memory.tobytes()
        return _MAGIC + hashlib.sha256(body).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes) -> "State":
        """What to_bytes wrote. Bytes that are cut, altered or of something else are a blurry.FormatError."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ValueError(f"data is of type {type(data).__name__}: give bytes")
        data = bytes(data)
        head = len(_MAGIC) + 32
        if len(data) < head + 8 or data[:len(_MAGIC)] != _MAGIC:
            raise FormatError("data is no saved State: it does not begin like one")
        if hashlib.sha256(data[head:]).digest() != data[len(_MAGIC):head]:
            raise FormatError("data is cut or altered: its checksum is wrong")
        size = int.from_bytes(data[head:head + 8], "little")
        try:
            fields = json.loads(data[head + 8:head + 8 + size])
            fields["period"] = tuple(fields["period"])
            state = cls._from_description(Description(**fields))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as problem:
            raise FormatError(f"data describes no State: {problem}") from None
        memory = data[head + 8 + size:]
        if len(memory) != state.nbytes:
            raise FormatError(f"data holds {len(memory)} bytes of slots: its description asks for {state.nbytes}")
        state._memory[:] = np.frombuffer(memory, np.uint8)
        state.position  # the library checks every header
        return state

    def __reduce__(self) -> Tuple[Any, Tuple[bytes]]:
        return State.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        d = self._description
        return (f"<blurry.State of {d.batch} sequences at {self.position.tolist()[:4]}: {d.heads_kv} heads x {d.slots} "
                f"slots x ({d.dim_k} + {d.dim_v}), {self.dtype}>")
