"""The wheel: built offline from the build folder that is there, unpacked elsewhere, run without the source tree."""
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

from conftest import BUILD, ROOT

sys.path.insert(0, str(ROOT / "python" / "packaging"))
import blurry_build  # noqa: E402

THREE_LINES = ("import numpy as np, blurry\n"
               "q = k = v = np.random.randn(1, 1000, 4, 64).astype(np.float32)\n"
               "o = blurry.attention(q, k, v, modes=32)\n"
               "print(o.shape, blurry.__file__)\n"
               "print(*{line.split()[-1] for line in open('/proc/self/maps') if '.so' in line}, sep='\\n')\n")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if not (BUILD / "CMakeCache.txt").exists():
        pytest.skip(f"{BUILD} is no CMake build folder")
    folder = tmp_path_factory.mktemp("dist")
    return folder / blurry_build.build_wheel(str(folder), {"build-dir": str(BUILD)})


def test_the_wheel_runs_elsewhere(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {key: value for key, value in os.environ.items() if key not in ("BLURRY_LIBRARY", "PYTHONPATH")}
    done = subprocess.run([sys.executable, "-c", THREE_LINES], cwd=tmp_path, env={**environment, "PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"(1, 1000, 4, 64) {tmp_path}")
    mapped = [line for line in done.stdout.splitlines() if "libblurry" in line or "libjansson" in line]
    assert len(mapped) == 2 and all(path.startswith(str(tmp_path)) for path in mapped)  # what it brought along


def test_what_is_in_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = archive.read(next(name for name in names if name.endswith("RECORD"))).decode()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert wheel.name.startswith("blurry-") and "-py3-none-" in wheel.name
    assert {line.split(",")[0] for line in record.splitlines()} == set(names)
    assert {"blurry/__init__.py", "blurry/py.typed", "blurry/torch/__init__.py", "blurry/include/blurry/attention.h"} <= set(names)
    assert len([name for name in names if "libblurry" in name]) == 1
    assert not [name for name in names if "tests" in name or name.endswith(".pyc")]
    for needed in ("Requires-Dist: numpy", "Requires-Dist: cffi", 'torch>=1.13 ; extra == "torch"', "Requires-Python: >=3.8"):
        assert needed in metadata


def test_equal_sources_give_equal_wheels(wheel, tmp_path):
    again = tmp_path / blurry_build.build_wheel(str(tmp_path), {"build-dir": str(BUILD)})
    with zipfile.ZipFile(wheel) as a, zipfile.ZipFile(again) as b:
        assert [(x.filename, x.CRC) for x in a.infolist()] == [(x.filename, x.CRC) for x in b.infolist()]


def test_metadata_and_sources(tmp_path):
    info = tmp_path / blurry_build.prepare_metadata_for_build_wheel(str(tmp_path))
    assert "Name: blurry" in (info / "METADATA").read_text()
    import tarfile
    with tarfile.open(tmp_path / blurry_build.build_sdist(str(tmp_path))) as archive:
        names = {pathlib.PurePath(*pathlib.PurePath(name).parts[1:]).as_posix() for name in archive.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "PKG-INFO", "python/packaging/blurry_build.py", "include/blurry/attention.h"} <= names
    assert not [name for name in names if name.startswith("build")]
