"""Reads and writes safetensors files with NumPy alone (types F64, F32, I64): what the goldens need of the format."""
import json
import os

import numpy as np

TYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
NAMES = {dtype: name for name, dtype in TYPES.items()}


def write(path, tensors, metadata):
    """tensors: name -> array; metadata: name -> text. The same input always gives the same bytes."""
    header = {"__metadata__": {key: str(value) for key, value in sorted(metadata.items())}}
    blobs, at = [], 0
    for name, array in tensors.items():
        array = np.asarray(array)
        # ascontiguousarray alone would turn a scalar into [1]
        array = np.ascontiguousarray(array).reshape(array.shape)
        blob = array.astype(array.dtype.newbyteorder("<")).tobytes()
        header[name] = {"dtype": NAMES[array.dtype.newbyteorder("<")], "shape": list(array.shape),
                        "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{path}.part"
    with open(temporary, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text + b"".join(blobs))
    os.replace(temporary, path)


def read(path):
    """-> (name -> array, metadata)."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
    return tensors, metadata
