"""What happens to the process: threads, fork, garbage, a library that is missing or another one."""
import gc
import os
import resource
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import blurry
from blurry import _plan
from cases import draw


def test_many_threads_at_once():
    rng = np.random.default_rng(0)
    cases = [draw(rng, L=64 + i, dtype=np.float32) for i in range(8)]
    expected = [blurry.attention(*case, modes=5) for case in cases]
    wrong = []

    def work(i):
        for _ in range(20):
            if not (blurry.attention(*cases[i], modes=5) == expected[i]).all():
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert not wrong


def test_errors_belong_to_their_thread():
    rng = np.random.default_rng(0)
    q, k, v = draw(rng)
    seen = {}

    def work(grid):
        for _ in range(50):
            try:
                blurry.attention(q, k, v, modes=3, grid="relative", decay=True) if grid else \
                    blurry.State.from_bytes(b"x")
            except ValueError as problem:
                seen.setdefault(grid, set()).add(str(problem))

    workers = [threading.Thread(target=work, args=(grid,)) for grid in (0, 1)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert len(seen[0]) == 1 and len(seen[1]) == 1 and "relative" in seen[1].pop()


def test_fork():
    """Children forked while threads work compute the same and end."""
    rng = np.random.default_rng(0)
    q, k, v = draw(rng, L=300, dtype=np.float32)
    expected = blurry.attention(q, k, v, modes=5, threads=2)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            blurry.attention(q, k, v, modes=5, threads=2)

    workers = [threading.Thread(target=work) for _ in range(2)]
    [worker.start() for worker in workers]
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    same = (blurry.attention(q, k, v, modes=5, threads=2) == expected).all()
                    state = blurry.State(1, heads=1, dim_k=4, modes=7)
                    state.step(*np.ones((3, 1, 1, 4), np.float32))
                    code = 0 if same else 2
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert os.WEXITSTATUS(status) == 0 and not os.WIFSIGNALED(status)
    finally:
        stop.set()
        [worker.join() for worker in workers]


def test_multiprocessing_carries_states():
    import multiprocessing
    state = blurry.State(1, heads=2, dim_k=4, modes=3)
    state.step(np.ones((1, 2, 4), np.float32), np.ones((1, 2, 4), np.float32), np.ones((1, 2, 4), np.float32))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        back = pool.map(_advance, [state, state])
    assert [b.position.tolist() for b in back] == [[2], [2]]


def _advance(state):
    state.step(*(np.ones((1, 2, 4), np.float32),) * 3)
    return state


def test_objects_are_released():
    state = blurry.State(1, heads=1, dim_k=4, modes=3)
    model = blurry.Model(layers=1, width=8, vocab=16, length=8, modes=2)
    stream = model.stream([1, 2])
    next(stream)
    watched = [weakref.ref(state), weakref.ref(model)]
    del state, model, stream
    gc.collect()
    assert [w() for w in watched] == [None, None]


def test_a_session_outlives_its_model():
    stream = blurry.Model(layers=1, width=8, vocab=16, length=8, modes=2).stream([1, 2])
    gc.collect()
    assert all(0 <= next(stream) < 16 for _ in range(20))


def test_memory_stays_flat():
    """Thousands of calls and hundreds of plans leave nothing behind."""
    rng = np.random.default_rng(0)
    q, k, v = draw(rng, L=64, dtype=np.float32)

    def work(count):
        for i in range(count):
            blurry.attention(q, k, v, modes=9, period=20 + i * 1e-3, threads=1)
            blurry.State(2, heads=4, dim_k=16, modes=9, period=20 + i * 1e-3)
        gc.collect()

    work(150)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work(600)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024  # KiB
    assert len(_plan._plans) <= _plan._CAPACITY


def run(code, **environment):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=120)


def test_a_missing_library_is_an_import_error():
    result = run("import blurry", BLURRY_LIBRARY="/no/such/libblurry.so")
    assert result.returncode == 1 and "BLURRY_LIBRARY" in result.stderr and "/no/such" in result.stderr


def test_another_library_is_an_import_error():
    import ctypes.util
    result = run("import blurry", BLURRY_LIBRARY=ctypes.util.find_library("m") or "libm.so.6")
    assert result.returncode == 1 and "ImportError" in result.stderr


def test_a_library_of_other_headers_is_refused(tmp_path):
    """A package whose headers differ in one field does not take this library."""
    import pathlib
    import shutil
    from blurry import _library
    shutil.copytree(pathlib.Path(blurry.__file__).parent, tmp_path / "blurry",
                    ignore=shutil.ignore_patterns("lib", "__pycache__", "torch"))
    shutil.rmtree(tmp_path / "blurry/include", ignore_errors=True)
    shutil.copytree(_library._folder, tmp_path / "blurry/include/blurry")
    environment = {"PYTHONPATH": str(tmp_path)}
    if os.environ.get("BLURRY_LIBRARY"):
        environment["BLURRY_LIBRARY"] = os.environ["BLURRY_LIBRARY"]
    else:
        pytest.skip("the installed package finds its own library")
    assert run("import blurry", **environment).returncode == 0
    header = tmp_path / "blurry/include/blurry/attention.h"
    commented = header.read_text().replace("int threads;", "int threads; /* a comment more */")
    header.write_text(commented)
    assert run("import blurry", **environment).returncode == 0
    header.write_text(commented.replace("int threads;", "int threads; int more;"))
    result = run("import blurry", **environment)
    assert result.returncode == 1 and "other headers" in result.stderr


def test_the_interpreter_ends_quietly():
    code = ("import blurry, numpy as np\n"
            "s = blurry.State(1, heads=1, dim_k=4, modes=3)\n"
            "m = blurry.Model(layers=1, width=8, vocab=16, length=8, modes=2)\n"
            "g = m.stream([1]); next(g)\n"
            "blurry.attention(*np.ones((3, 1, 500, 4, 8), np.float32), modes=9)\n")
    result = run(code)
    assert result.returncode == 0 and result.stderr == ""
