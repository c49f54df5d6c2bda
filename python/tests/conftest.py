"""Tests of the package in this source tree, with the library that `make` built (or BLURRY_LIBRARY).

BLURRY_TEST_INSTALLED=1 tests the installed package instead, with the library it brings along.
"""
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BLURRY_BUILD", ROOT / "build"))

if not os.environ.get("BLURRY_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("BLURRY_LIBRARY", str(BUILD / "libblurry.so"))
    if not os.path.exists(os.environ["BLURRY_LIBRARY"]):
        pytest.exit(f"{os.environ['BLURRY_LIBRARY']} is not there: run `make` first, or set BLURRY_LIBRARY", 4)


@pytest.fixture(scope="session")
def program():
    """The command line program, where it was built."""
    path = os.environ.get("BLURRY", str(BUILD / "blurry"))
    if not os.path.exists(path):
        pytest.skip(f"{path} is not built")
    return path


@pytest.fixture(scope="session")
def trained(program, tmp_path_factory):
    """A run directory of a small blurry model."""
    import subprocess
    out = tmp_path_factory.mktemp("runs") / "mqar"
    subprocess.run([program, "train", "mqar", "--mixer", "blurry", "--length", "32", "--pairs", "4", "--vocab", "64",
                    "--width", "32", "--layers", "2", "--heads", "2", "--modes", "6", "--batch", "16", "--steps", "60",
                    "--train_samples", "500", "--val_samples", "40", "--lr", "0.01", "--quiet", "--out", str(out)],
                   check=True, capture_output=True)
    return out
