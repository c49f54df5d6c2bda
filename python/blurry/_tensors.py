"""safetensors files through the library, which checks every byte of their structure."""
from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional, Tuple, Union

import numpy as np

from ._library import check, ffi, lib

Path = Union[str, "os.PathLike[str]"]
_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
          "I8": np.int8, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_}
_NAMES = {np.dtype(dtype): name for name, dtype in _TYPES.items()}


def path_bytes(path: Any) -> bytes:
    """A path for the library: a ValueError where it is none."""
    try:
        encoded = os.fsencode(path)
    except TypeError:
        raise ValueError(f"path is {path!r}: give a string or a pathlib.Path") from None
    if not encoded or b"\0" in encoded:
        raise ValueError(f"path is {path!r}: give the name of a file or folder")
    return encoded


def _array(tensor: Any) -> np.ndarray:
    name, dtype = ffi.string(tensor.name).decode(), ffi.string(tensor.dtype).decode()
    shape = tuple(tensor.shape[0:tensor.rank])
    raw = bytes(ffi.buffer(tensor.data, tensor.bytes)) if tensor.bytes else b""
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if dtype not in _TYPES:
        raise ValueError(f"tensor {name} has type {dtype}: NumPy has none like it")
    return np.frombuffer(raw, _TYPES[dtype]).reshape(shape).copy()


def load_tensors(path: Path) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """The tensors and the metadata of a safetensors file. BF16 becomes float32."""
    handle = ffi.new("blurry_checkpoint **")
    check(lib.blurry_checkpoint_open(handle, path_bytes(path)))
    try:
        tensor, key, value = ffi.new("blurry_tensor *"), ffi.new("const char **"), ffi.new("const char **")
        tensors, metadata = {}, {}
        for i in range(lib.blurry_checkpoint_tensor_count(handle[0])):
            check(lib.blurry_checkpoint_tensor(handle[0], i, tensor))
            tensors[ffi.string(tensor.name).decode()] = _array(tensor)
        for i in range(lib.blurry_checkpoint_metadata_count(handle[0])):
            check(lib.blurry_checkpoint_metadata_at(handle[0], i, key, value))
            metadata[ffi.string(key[0]).decode()] = ffi.string(value[0]).decode()
    finally:
        lib.blurry_checkpoint_close(handle)
    return tensors, metadata


def save_tensors(path: Path, tensors: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes arrays and texts as a safetensors file: complete, or not at all."""
    arrays = {str(name): np.asarray(value) for name, value in tensors.items()}
    kept = []
    listed = ffi.new("blurry_tensor[]", len(arrays))
    for at, (name, array) in zip(listed, arrays.items()):
        if array.dtype not in _NAMES or array.ndim > lib.BLURRY_TENSOR_RANK_MAX:
            raise ValueError(f"tensors[{name!r}] has dtype {array.dtype} and {array.ndim} axes: not for safetensors")
        array = np.ascontiguousarray(array).reshape(array.shape)
        name_text, type_text = ffi.new("char[]", name.encode()), ffi.new("char[]", _NAMES[array.dtype].encode())
        kept += [array, name_text, type_text]
        at.name, at.dtype, at.rank, at.data = name_text, type_text, array.ndim, ffi.cast("void *", array.ctypes.data)
        at.shape[0:array.ndim] = array.shape
    texts = {str(key): str(value) for key, value in (metadata or {}).items()}
    keys = [ffi.new("char[]", key.encode()) for key in texts]
    values = [ffi.new("char[]", value.encode()) for value in texts.values()]
    check(lib.blurry_tensors_save(path_bytes(path), listed, len(arrays), ffi.new("char *[]", keys),
                                  ffi.new("char *[]", values), len(texts)))
