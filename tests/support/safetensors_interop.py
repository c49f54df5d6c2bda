"""Opens here.safetensors with the Python package `safetensors`, checks it, and writes there.safetensors with it.

usage: safetensors_interop.py FOLDER; exit code 77 when the package (or numpy) is not installed.
"""
import pathlib
import sys

try:
    import numpy as np
    import safetensors
    import safetensors.numpy
except ImportError as missing:
    print(f"not installed: {missing.name}")
    sys.exit(77)

folder = pathlib.Path(sys.argv[1])
content = (folder / "here.safetensors").read_bytes()
tensors = dict(safetensors.deserialize(content))

sizes = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
for name, tensor in tensors.items():
    assert name == "tensor \u20ac " + tensor["dtype"], name
    assert tensor["shape"] == [2, 1, 3], tensor["shape"]
    expected = bytes((i * 7 + len(tensor["dtype"])) % 2 for i in range(6 * sizes.get(tensor["dtype"], 1)))
    assert bytes(tensor["data"]) == expected, name
assert len(tensors) == int(sys.argv[2]), len(tensors)
with safetensors.safe_open(folder / "here.safetensors", framework="np") as opened:
    assert opened.metadata() == {"mixer": "blurry,softmax", "note": 'two\nlines "\u20ac"'}, opened.metadata()
    assert opened.get_tensor("tensor \u20ac F64").dtype == np.float64

arrays = {f"{kind}.{shape}": (np.arange(np.prod(shape)) % 2).reshape(shape).astype(kind)
          for kind in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32",
                       "uint16", "uint8", "bool")
          for shape in ((), (0,), (5,), (2, 3, 4))}
safetensors.numpy.save_file(arrays, folder / "there.safetensors", metadata={"from": "python \u20ac"})
print(f"safetensors {safetensors.__version__}: {len(tensors)} tensors read, {len(arrays)} written")
