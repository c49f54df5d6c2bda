"""blurry.State: steps, copies, bytes, pickles, bad input."""
import copy
import pickle
import threading

import numpy as np
import pytest

import blurry
from cases import close, draw


def make(**change):
    options = dict(batch=2, heads=4, heads_kv=2, dim_k=3, dim_v=5, modes=3, period=8.3, dtype=np.float64)
    options.update(change)
    return blurry.State(**options)


@pytest.mark.parametrize("fold", [None, 1, 3, 32])
@pytest.mark.parametrize("decay,grid", [(True, "absolute"), (False, "absolute"), (False, "relative")])
def test_steps_equal_a_whole_pass(fold, decay, grid):
    rng = np.random.default_rng(1)
    q, k, v = draw(rng, L=50)
    state = make(fold=fold, decay=decay, grid=grid)
    o = np.stack([state.step(q[:, t], k[:, t], v[:, t]) for t in range(50)], 1)
    close(o, blurry.attention(q, k, v, modes=3, period=8.3, decay=decay, grid=grid))
    assert (state.position == 50).all()


def test_a_state_continues_from_a_pass_and_into_one():
    rng = np.random.default_rng(2)
    q, k, v = draw(rng, L=30)
    whole = blurry.attention(q, k, v, modes=3, period=8.3)
    first, state = blurry.attention(q[:, :11], k[:, :11], v[:, :11], modes=3, period=8.3, return_state=True)
    steps = np.stack([state.step(q[:, t], k[:, t], v[:, t]) for t in range(11, 16)], 1)
    rest = blurry.attention(q[:, 16:], k[:, 16:], v[:, 16:], modes=3, period=8.3, state=state)
    close(np.concatenate([first, steps, rest], 1), whole)


def advanced(tokens=13, **change):
    rng = np.random.default_rng(3)
    state = make(**change)
    for _ in range(tokens):
        q, k, v = (x[:, 0] for x in draw(rng, B=state.batch, L=1))
        state.step(q, k, v)
    return state


def same(a, b):
    return (a.position == b.position).all() and all((x == y).all() for x, y in zip(a.get_slots(), b.get_slots()))


@pytest.mark.parametrize("how", [lambda s: s.copy(), copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s)),
                                 lambda s: blurry.State.from_bytes(s.to_bytes()),
                                 lambda s: blurry.State.from_bytes(memoryview(s.to_bytes()))])
def test_copies_are_equal_and_independent(how):
    state = advanced()
    twin = how(state)
    assert same(state, twin) and twin.nbytes == state.nbytes
    q, k, v = (x[:, 0] for x in draw(np.random.default_rng(4), L=1))
    a, b = state.step(q, k, v), twin.step(q, k, v)
    assert (a == b).all() and same(state, twin)
    twin.step(q, k, v)
    assert not same(state, twin)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_protocols(protocol):
    state = advanced(period=[7.25, 11.125], dtype=np.float64)
    assert same(state, pickle.loads(pickle.dumps(state, protocol)))


def test_slots_can_be_set_and_read():
    state = make()
    rng = np.random.default_rng(5)
    k, v = rng.standard_normal((2, 2, 5, 3)), rng.standard_normal((2, 2, 5, 5))
    state.set_slots([3, 10 ** 12], k, v)
    assert state.position.tolist() == [3, 10 ** 12]
    got = state.get_slots()
    assert (got[0] == k).all() and (got[1] == v).all()
    state.reset()
    assert (state.position == 0).all() and not state.get_slots()[0].any()


def test_take():
    state = advanced()
    taken = state.take([1, 0, 1])
    assert taken.batch == 3
    assert (taken.get_slots()[0] == state.get_slots()[0][[1, 0, 1]]).all()


@pytest.mark.parametrize("name,change", [("heads", dict(heads=0)), ("heads", dict(heads=3)), ("dim_k", dict(dim_k=-1)),
                                         ("dtype", dict(dtype=np.int32)), ("dtype", dict(dtype="nonsense")),
                                         ("batch", dict(batch=0)), ("fold", dict(fold=0)), ("fold", dict(fold=10 ** 6)),
                                         ("period", dict(period=[1, 2, 3])), ("grid", dict(grid="x")),
                                         ("threads", dict(threads=0)), ("batch", dict(batch=10 ** 18))])
def test_bad_arguments_are_named(name, change):
    with pytest.raises((ValueError, MemoryError), match=rf"\b{name}"):
        make(**change)


def test_bad_steps():
    state = make()
    q, k, v = (x[:, 0] for x in draw(np.random.default_rng(6), L=1))
    for name, arguments in (("q", (q[:1], k, v)), ("q", (q.astype(np.float32), k, v)), ("k", (q, v, v)),
                            ("v", (q, k, "x")), ("k", (q, k[..., :2], v))):
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            state.step(*arguments)
    assert (state.position == 0).all()
    for name, arguments in (("position", (-1, None, None)), ("position", ([1, 2, 3], None, None)),
                            ("position", (1 << 60, None, None)), ("k_slots", (0, q, None)), ("v_slots", (0, None, q))):
        k_slots, v_slots = state.get_slots()
        with pytest.raises(ValueError, match=name):
            state.set_slots(arguments[0], k_slots if arguments[1] is None else arguments[1],
                            v_slots if arguments[2] is None else arguments[2])
    with pytest.raises(ValueError, match="indices"):
        state.take([2])


@pytest.mark.parametrize("change", [dict(modes=4), dict(period=9.0), dict(decay=False), dict(batch=3), dict(dim_v=4),
                                    dict(dtype=np.float32)])
def test_a_state_of_something_else_is_refused(change):
    q, k, v = draw(np.random.default_rng(7))
    with pytest.raises(ValueError, match="state has"):
        blurry.attention(q, k, v, modes=3, period=8.3, state=make(**change))


def test_bytes_that_are_cut_or_altered_are_refused():
    data = advanced().to_bytes()
    for cut in range(0, len(data), 97):
        with pytest.raises(blurry.FormatError):
            blurry.State.from_bytes(data[:cut])
    rng = np.random.default_rng(8)
    for place in rng.integers(0, len(data), 200):
        altered = bytearray(data)
        altered[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(blurry.FormatError):
            blurry.State.from_bytes(bytes(altered))
    with pytest.raises(ValueError, match="data"):
        blurry.State.from_bytes("text")


def forged(description, memory):
    """Bytes with a right checksum around any content."""
    import hashlib
    import json
    text = json.dumps(description).encode()
    body = len(text).to_bytes(8, "little") + text + memory
    return b"BLURRY-PY-STATE1" + hashlib.sha256(body).digest() + body


def test_forged_bytes_are_refused():
    from dataclasses import asdict
    state = advanced()
    good, memory = asdict(state._description), state._memory.tobytes()
    assert same(state, blurry.State.from_bytes(forged(good, memory)))
    for change in (dict(batch="x"), dict(batch=10 ** 30), dict(modes=-1), dict(period=[]), dict(period=["a", "b"]),
                   dict(grid="x"), dict(heads=None), dict(dtype=9), dict(unknown=1), dict(batch=1), dict(modes=5),
                   dict(period=[9.0, 9.0]), dict(device=1)):
        with pytest.raises((ValueError, RuntimeError)):
            blurry.State.from_bytes(forged({**good, **change}, memory))
    for other in (b"", memory[:-1], memory + b"x", b"\0" * len(memory), memory[::-1]):
        with pytest.raises(ValueError):
            blurry.State.from_bytes(forged(good, other))
    for text in ([], 7, None, "x", {"batch": 1}):
        with pytest.raises(ValueError):
            blurry.State.from_bytes(forged(text, memory))


def test_threads_share_a_state():
    state = make(batch=1)
    q, k, v = (x[:, 0] for x in draw(np.random.default_rng(9), B=1, L=1))

    def work():
        for _ in range(50):
            state.step(q, k, v)

    workers = [threading.Thread(target=work) for _ in range(4)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert state.position.tolist() == [200]
