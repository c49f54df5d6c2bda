"""The program's options as a handle of the library, and as plain dictionaries of texts."""
from __future__ import annotations

import math
from typing import Any, Dict, Mapping

from ._library import check, ffi, lib, owned
from ._tensors import path_bytes


def as_text(key: str, value: Any) -> str:
    """True -> "true", [2, 3] -> "2,3", anything else as Python shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(as_text(key, part) for part in value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{key} is {value}: give a finite number")
        return repr(value)
    return str(value)


def create() -> Any:
    handle = ffi.new("blurry_settings **")
    check(lib.blurry_settings_create(handle))
    return owned(handle[0], "blurry_settings", lib.blurry_settings_destroy)


def of_checkpoint(path: Any) -> Any:
    handle = ffi.new("blurry_settings **")
    check(lib.blurry_checkpoint_settings(path_bytes(path), handle))
    return owned(handle[0], "blurry_settings", lib.blurry_settings_destroy)


def assign(settings: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        check(lib.blurry_settings_set(settings, str(key).encode(), as_text(key, value).encode()))


def as_dict(settings: Any) -> Dict[str, str]:
    """Every option in its text form, as `blurry train --set key=value` takes it."""
    info = ffi.new("blurry_setting_info *")
    room = ffi.new("char[]", 4096)
    result = {}
    for i in range(lib.blurry_settings_count()):
        check(lib.blurry_settings_describe(i, info))
        check(lib.blurry_settings_get(settings, info.name, room, len(room)))
        result[ffi.string(info.name).decode()] = ffi.string(room).decode()
    return result
