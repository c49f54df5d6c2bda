"""Finds libblurry, declares its functions to cffi and turns its status codes into exceptions.

The declarations are read from the C headers themselves (cffi's ABI mode), so no compiler is needed and nothing is
written twice. A library built from other headers is refused: its structs might have another layout.
"""
from __future__ import annotations

import hashlib
import os
import pathlib
import re
from typing import Any, Callable, List

import cffi

_HERE = pathlib.Path(__file__).resolve().parent
_ROOTS = ("abi", "attention", "checkpoint", "generate", "model", "train")


class FormatError(ValueError):
    """A file or a byte string breaks the rules of its format."""


class UnsupportedError(ValueError):
    """Valid, but not available in this build, on this device or in this combination."""


class NumericError(ArithmeticError):
    """A number that must be finite is not."""


class DeviceError(RuntimeError):
    """An accelerator is missing or failed."""


def _header_folder() -> pathlib.Path:
    """The headers beside an installed package, or those of the source tree this file lies in."""
    for folder in (_HERE / "include" / "blurry", _HERE.parents[1] / "include" / "blurry"):
        if (folder / "attention.h").is_file():
            return folder
    raise ImportError(f"the C headers of blurry are not beside {_HERE}: install the package again")


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def _abi_of(folder: pathlib.Path) -> str:
    """What blurry_abi() says of a library built from these headers (blurry/abi.h)."""
    together = "".join(re.sub(r"[ \t\r\n]+", "", _without_comments(path.read_text("utf-8")))
                       for path in sorted(folder.glob("*.h"), key=lambda path: path.name))
    return hashlib.sha256(together.encode()).hexdigest()


def _declarations(folder: pathlib.Path) -> str:
    """The C declarations of the headers in _ROOTS and of those they include, each once, in order."""
    seen: List[str] = []
    parts: List[str] = []

    def add(name: str) -> None:
        if name in seen:
            return
        seen.append(name)
        text = _without_comments((folder / f"{name}.h").read_text("utf-8"))
        for needed in re.findall(r'#include "blurry/(\w+)\.h"', text):
            add(needed)
        text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
        text = re.sub(r"^[ \t]*#[^\n]*$", "", text, flags=re.M)
        parts.append(text.replace("BLURRY_API", ""))

    for root in _ROOTS:
        add(root)
    return "\n".join(parts)


def _candidates() -> List[str]:
    chosen = os.environ.get("BLURRY_LIBRARY")
    if chosen:
        return [chosen]
    bundled = sorted(str(path) for path in (_HERE / "lib").glob("libblurry.so*"))
    return bundled + ["libblurry.so.0", "libblurry.so"]


def _load() -> Any:
    problems = []
    for name in _candidates():
        try:
            library = ffi.dlopen(name)
            theirs = ffi.string(library.blurry_abi()).decode()
        except (OSError, AttributeError) as problem:
            problems.append(str(problem))
            continue
        if theirs == abi:
            return library
        problems.append(f"{name} was built from other headers (version {ffi.string(library.blurry_version()).decode()}): "
                        "build it again from the sources this package comes from")
    raise ImportError("blurry found no usable libblurry. Set BLURRY_LIBRARY to its path, or install the package with "
                      "`pip install .` in the source folder. Tried: " + "; ".join(problems))


_folder = _header_folder()
ffi = cffi.FFI()
ffi.cdef(_declarations(_folder))
abi: str = _abi_of(_folder)
lib = _load()
version: str = ffi.string(lib.blurry_version()).decode()

_EXCEPTIONS = {
    lib.BLURRY_E_INVALID: ValueError,
    lib.BLURRY_E_MEMORY: MemoryError,
    lib.BLURRY_E_IO: OSError,
    lib.BLURRY_E_FORMAT: FormatError,
    lib.BLURRY_E_UNSUPPORTED: UnsupportedError,
    lib.BLURRY_E_NUMERIC: NumericError,
    lib.BLURRY_E_DEVICE: DeviceError,
}


def check(status: int) -> None:
    """Raises the exception that belongs to a status other than BLURRY_OK, with the library's message."""
    if status != lib.BLURRY_OK:
        message = ffi.string(lib.blurry_last_error()).decode("utf-8", "replace")
        raise _EXCEPTIONS.get(status, RuntimeError)(message)


def owned(pointer: Any, kind: str, destroy: Callable[[Any], None], *keep: Any) -> Any:
    """`pointer` as an object that calls destroy(kind **) when nobody refers to it any more. `keep` lives as long."""
    holder = ffi.new(f"{kind} **", pointer)
    return ffi.gc(pointer, lambda _, holder=holder, destroy=destroy, keep=keep: destroy(holder))
