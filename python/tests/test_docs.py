"""docs/python.md and examples/ do what they say: every block is run, in order, as a reader would paste it."""
import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT

PAGE = ROOT / "docs" / "python.md"


def has_torch():
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def blocks():
    """(language, options, text) of every fenced block."""
    found = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    return [(language, options.split(), text) for language, options, text in found]


def test_the_tutorial(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    os.symlink(program, tmp_path / "bin" / "blurry")
    os.symlink(sys.executable, tmp_path / "bin" / "python3")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    names, ran, torch_here = {}, 0, has_torch()
    for language, options, text in blocks():
        if "install" in options or ("torch" in options and not torch_here):
            continue
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
        else:
            assert language == "sh"
            done = subprocess.run(["sh", "-e", "-c", text], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            if "compare" in text:
                assert "equal" in done.stdout
        ran += 1
    assert ran == len(blocks()) - 1 if torch_here else ran > 5
    assert "k has dtype float64: it must be float32 as q is" in capsys.readouterr().out


def run_example(name, *arguments, cwd):
    done = subprocess.run([sys.executable, str(ROOT / "examples" / name), *arguments], cwd=cwd, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_streaming(tmp_path):
    shown = run_example("stream_million.py", "--tokens", "200000", cwd=tmp_path)
    assert shown.startswith("200100 tokens")


@pytest.mark.skipif(not has_torch(), reason="PyTorch is not installed")
def test_training(tmp_path):
    shown = run_example("train_tiny.py", "--steps", "15", cwd=tmp_path)
    losses = [float(x) for x in re.findall(r"loss (\S+) nats", shown)]
    assert losses[-1] < 0.8 * losses[0] and (tmp_path / "tiny.safetensors").exists()


@pytest.mark.skipif(not has_torch(), reason="PyTorch is not installed")
def test_swapping(tmp_path):
    shown = run_example("swap_attention.py", cwd=tmp_path)
    assert "swapped 3 layers" in shown
    assert float(re.search(r"differ by (\S+)", shown).group(1)) < 1e-4
