"""Language models of the library: trained ones from checkpoints, or new ones from settings."""
from __future__ import annotations

import threading
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

import numpy as np

from . import _settings
from ._library import check, ffi, lib, owned
from ._plan import whole
from ._tensors import Path, path_bytes

Prompt = Union[str, bytes, Any]


def tokens_of(name: str, value: Any, vocabulary: int, ndim: Tuple[int, ...] = (1, 2)) -> np.ndarray:
    """Whole numbers within the vocabulary, as contiguous int32."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim not in ndim:
        raise ValueError(f"{name} has dtype {array.dtype} and shape {array.shape}: give whole numbers, "
                         + " or ".join({1: "[L]", 2: "[B, L]"}[n] for n in ndim))
    if array.size and (array.min() < 0 or array.max() >= vocabulary):
        raise ValueError(f"{name} holds {array.min()} .. {array.max()}: the model knows tokens 0 .. {vocabulary - 1}")
    return np.ascontiguousarray(array, np.int32)


class Model:
    """A language model. `blurry.load` opens a trained one; Model(settings) makes a new one with drawn parameters.

    One model does one thing at a time: calls from several threads wait for one another.
    """

    def __init__(self, settings: Optional[Mapping[str, Any]] = None, **more: Any):
        """`settings` are those of `blurry train --help`: Model(mixer="blurry", width=64, layers=2, vocab=256, length=512)."""
        handle = _settings.create()
        _settings.assign(handle, {**(settings or {}), **more})
        model = ffi.new("blurry_model **")
        check(lib.blurry_model_create(model, handle, 0))
        self._open(model[0], handle)

    def _open(self, pointer: Any, settings: Any) -> None:
        self._pointer = owned(pointer, "blurry_model", lib.blurry_model_destroy)
        self._handle = settings
        self._lock = threading.Lock()
        self.settings: Dict[str, str] = _settings.as_dict(settings)
        self.vocabulary: int = lib.blurry_model_vocabulary(self._pointer)
        self.length: int = lib.blurry_model_length(self._pointer)
        self.batch: int = lib.blurry_model_batch(self._pointer)
        self.dtype = np.dtype(np.float64 if lib.blurry_model_dtype(self._pointer) == lib.BLURRY_F64 else np.float32)
        self._specs = self._read_specs()

    # ---- parameters ----
    def _read_specs(self) -> List[Tuple[str, Tuple[int, ...]]]:
        spec, result = ffi.new("blurry_parameter *"), []
        for i in range(lib.blurry_model_parameter_count(self._pointer)):
            check(lib.blurry_model_parameter(self._pointer, i, spec))
            result.append((ffi.string(spec.name).decode(), tuple(spec.shape[0:spec.rank])))
        return result

    def parameters(self) -> Dict[str, np.ndarray]:
        """Copies of all parameters by name, for example "layers.0.mixer.q.weight" [out, in], as float64."""
        result = {}
        with self._lock:
            for i, (name, shape) in enumerate(self._specs):
                array = np.empty(shape, np.float64)
                check(lib.blurry_model_read_parameter(self._pointer, i, ffi.cast("double *", array.ctypes.data),
                                                      array.nbytes))
                result[name] = array
        return result

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Replaces parameters by name; those not named stay. All are checked before the first is written."""
        known = {name: (i, shape) for i, (name, shape) in enumerate(self._specs)}
        arrays = {}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"values has {name!r}: the model has no parameter of this name")
            array = np.ascontiguousarray(value, np.float64)
            if array.shape != known[name][1]:
                raise ValueError(f"values[{name!r}] has shape {array.shape}: it must be {known[name][1]}")
            arrays[name] = array
        with self._lock:
            for name, array in arrays.items():
                check(lib.blurry_model_write_parameter(self._pointer, known[name][0],
                                                       ffi.cast("double *", array.ctypes.data), array.nbytes))

    def save(self, path: Path) -> None:
        """Writes a model file that `blurry.load` and the command line take."""
        with self._lock:
            check(lib.blurry_checkpoint_save(path_bytes(path), self._pointer, self._handle))

    # ---- scores ----
    def _evaluate(self, tokens: np.ndarray, rows: np.ndarray, labels: Optional[np.ndarray],
                  logits: Optional[np.ndarray]) -> float:
        batch, outputs = ffi.new("blurry_batch *"), ffi.new("blurry_outputs *")
        batch.sequences, batch.length = tokens.shape
        batch.tokens = ffi.cast("int32_t *", tokens.ctypes.data)
        batch.row_count, batch.rows = rows.size, ffi.cast("int64_t *", rows.ctypes.data)
        if labels is not None:
            batch.labels = ffi.cast("int32_t *", labels.ctypes.data)
        if logits is not None:
            outputs.logits = ffi.cast("float *", logits.ctypes.data)
        with self._lock:
            check(lib.blurry_model_evaluate(self._pointer, batch, outputs))
        return outputs.loss

    def _sequences(self, tokens: Any) -> np.ndarray:
        array = np.atleast_2d(tokens_of("tokens", tokens, self.vocabulary))
        if array.shape[1] > self.length:
            raise ValueError(f"tokens has {array.shape[1]} positions: the model was opened for {self.length}; open it "
                             f"with length={array.shape[1]}")
        return array

    def logits(self, tokens: Any) -> np.ndarray:
        """tokens [B, L] (or [L]) -> the logits after every token, [B, L, vocabulary] (or [L, vocabulary]), float32."""
        array = self._sequences(tokens)
        result = np.empty(array.shape + (self.vocabulary,), np.float32)
        for first in range(0, len(array), self.batch):
            part = array[first:first + self.batch]
            self._evaluate(part, np.arange(part.size, dtype=np.int64), None, result[first:first + self.batch])
        return result if np.ndim(tokens) == 2 else result[0]

    def log_probs(self, tokens: Any) -> np.ndarray:
        """The log-probability, in nats, of every token but the first given those before it: [B, L-1] (or [L-1])."""
        logits = self.logits(tokens).astype(np.float64)[..., :-1, :]
        largest = logits.max(-1, keepdims=True)
        norms = largest[..., 0] + np.log(np.exp(logits - largest).sum(-1))
        following = np.asarray(tokens)[..., 1:]
        return np.take_along_axis(logits, following[..., None].astype(np.int64), -1)[..., 0] - norms

    def loss(self, tokens: Any, labels: Any = None) -> float:
        """Mean cross-entropy in nats. labels, of tokens' shape, says which token should follow each position; negative
        ones do not count. Without labels every token is predicted from those before it."""
        array = self._sequences(tokens)
        if labels is None:
            wanted = np.full(array.shape, -1, np.int32)
            wanted[:, :-1] = array[:, 1:]
        else:
            wanted = np.atleast_2d(np.asarray(labels))
            if wanted.shape != array.shape or wanted.dtype.kind not in "iu":
                raise ValueError(f"labels has shape {np.shape(labels)} and dtype {wanted.dtype}: give whole numbers, as "
                                 "many as tokens")
            if wanted.size and wanted.max() >= self.vocabulary:
                raise ValueError(f"labels holds {wanted.max()}: the model knows tokens 0 .. {self.vocabulary - 1}")
        count, total = int((wanted >= 0).sum()), 0.0
        if count == 0:
            raise ValueError("labels has no position that counts" if labels is not None else
                             f"tokens has shape {np.shape(tokens)}: give at least two per sequence")
        for first in range(0, len(array), self.batch):
            part, goal = array[first:first + self.batch], wanted[first:first + self.batch].reshape(-1)
            rows = np.flatnonzero(goal >= 0).astype(np.int64)
            total += self._evaluate(part, rows, np.ascontiguousarray(goal[rows], np.int32), None)
        return total / count

    # ---- generation ----
    def stream(self, prompt: Prompt, *, temperature: float = 1.0, top_p: float = 1.0, seed: int = 0,
               max_length: Optional[int] = None) -> Iterator[int]:
        """Endless tokens that continue the prompt, drawn one by one with constant memory (softmax layers and learned
        positions: up to max_length tokens, by default the length the model was opened for)."""
        if isinstance(prompt, str):
            prompt = prompt.encode()
        if isinstance(prompt, (bytes, bytearray)):
            prompt = np.frombuffer(bytes(prompt), np.uint8)
        fed = tokens_of("prompt", np.asarray(prompt, np.int32) if len(prompt) == 0 else prompt, self.vocabulary, (1,))
        if fed.size == 0:
            raise ValueError("prompt is empty: give at least one token")
        sampling = ffi.new("blurry_sampling *")
        for name, value in (("temperature", temperature), ("top_p", top_p)):
            try:
                setattr(sampling, name, float(value))
            except (TypeError, ValueError):
                raise ValueError(f"{name} is {value!r}: give a number") from None
        sampling.seed = whole("seed", seed, 0)
        handle = ffi.new("blurry_session **")
        limit = 0 if max_length is None else whole("max_length", max_length, 1)
        with self._lock:
            check(lib.blurry_session_create(handle, self._pointer, sampling, limit))
            session = owned(handle[0], "blurry_session", lib.blurry_session_destroy, self._pointer)
            check(lib.blurry_session_feed(session, ffi.cast("int32_t *", fed.ctypes.data), fed.size))
        return self._draw(session)

    def _draw(self, session: Any) -> Iterator[int]:
        token = ffi.new("int32_t *")
        while True:
            with self._lock:
                check(lib.blurry_session_next(session, token))
            yield token[0]

    def generate(self, prompt: Prompt, count: int = 200, *, temperature: float = 1.0, top_p: float = 1.0,
                 seed: int = 0, max_length: Optional[int] = None) -> Any:
        """`count` tokens that continue the prompt: a str for a str and bytes for bytes (models of text), else an int32
        array. temperature 0 always takes the most probable; top_p draws from the fewest tokens that hold this much."""
        count = whole("count", count, 0)
        tokens = self.stream(prompt, temperature=temperature, top_p=top_p, seed=seed, max_length=max_length)
        drawn = np.fromiter((next(tokens) for _ in range(count)), np.int32, count)
        if isinstance(prompt, (str, bytes, bytearray)):
            if drawn.size and drawn.max() > 255:
                raise ValueError(f"prompt is text, but the model drew token {drawn.max()}: give a list of tokens")
            raw = drawn.astype(np.uint8).tobytes()
            return raw.decode("utf-8", "replace") if isinstance(prompt, str) else raw
        return drawn

    def __repr__(self) -> str:
        s = self.settings
        return f"<blurry.Model {s['mixer']}: {s['layers']} layers of width {s['width']}, vocabulary {self.vocabulary}>"


def load(path: Path, *, batch: int = 8, **settings: Any) -> Model:
    """A trained model from a model file or a run directory (its best model).

    Up to `batch` sequences pass through it at once. Other settings replace the checkpoint's: length=2048 for longer
    sequences, threads=1, device="cuda" where the library was built with it.
    """
    handle = _settings.of_checkpoint(path)
    _settings.assign(handle, settings)
    model = ffi.new("blurry_model **")
    check(lib.blurry_checkpoint_load(path_bytes(path), handle, whole("batch", batch, 1), model))
    result = Model.__new__(Model)
    result._open(model[0], handle)
    return result


def evaluate(path: Path, split: str = "val", **settings: Any) -> Dict[str, float]:
    """What `blurry eval` prints: loss, accuracy and what else the checkpoint's task defines."""
    handle = _settings.of_checkpoint(path)
    _settings.assign(handle, settings)
    metrics = ffi.new("blurry_metrics *")
    check(lib.blurry_evaluate(path_bytes(path), str(split).encode(), handle, metrics))
    names = ("sequences", "labels", "loss", "accuracy", "exact_match", "l1", "bits_per_byte")
    return {name: getattr(metrics, name) for name in names if getattr(metrics, name) == getattr(metrics, name)}
