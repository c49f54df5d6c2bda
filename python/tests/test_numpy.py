"""blurry.attention and attention_grad on arrays."""
import numpy as np
import pytest

import blurry
from cases import GOLDEN_CASES, Golden, close, draw, plain


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden(name):
    g = Golden(name)
    o, after = blurry.attention(g.t["q"], g.t["k"], g.t["v"], state=g.state(), return_state=True, **g.options)
    close(o, g.t["o"])
    d_state = (g.t["d_k_state_out"], g.t["d_v_state_out"]) if g.has_state else None
    grad = blurry.attention_grad(g.t["q"], g.t["k"], g.t["v"], g.t["d_o"], state=g.state(), d_state=d_state, **g.options)
    for name in "qkv":
        close(getattr(grad, name), g.t[f"d_{name}"])
    if g.has_state:
        k, v = after.get_slots()
        close(k, g.t["k_state_out"])
        close(v, g.t["v_state_out"])
        close(grad.k_state, g.t["d_k_state_in"], least=1.0)
        close(grad.v_state, g.t["d_v_state_in"], least=1.0)
        close(grad.period, g.t["d_period"], 1e-8)
        assert (after.position == g.position + g.t["q"].shape[1]).all()


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden_in_single_precision(name):
    g = Golden(name)
    o = blurry.attention(*(g.t[x].astype(np.float32) for x in "qkv"), state=g.state(np.float32), **g.options)
    assert o.dtype == np.float32
    close(o, g.t["o"], 1e-4)


def test_there_are_goldens():
    assert len(GOLDEN_CASES) == 9


@pytest.mark.parametrize("decay", [True, False])
@pytest.mark.parametrize("period", [5.0, 9.0, 13.7])
def test_against_the_written_out_operator(rng, decay, period):
    q, k, v = draw(rng)
    close(blurry.attention(q, k, v, modes=3, period=period, decay=decay), plain(q, k, v, 3, period, decay))
    close(blurry.attention(q, k, v, modes=3, resolution=period / 5, decay=decay), plain(q, k, v, 3, period, decay))
    close(blurry.attention(q, k, v, modes=3, decay=decay, scale=0.3), plain(q, k, v, 3, 10.0, decay, scale=0.3))


def test_a_period_of_as_many_tokens_as_slots_is_a_sliding_window(rng):
    q, k, v = draw(rng, H=1, Hkv=1, L=30)
    S = 7
    o = blurry.attention(q, k, v, modes=4, period=S)
    for t in range(30):
        first = max(0, t - S + 1)
        logits = np.einsum("bd,bud->bu", q[:, t, 0], k[:, first:t + 1, 0]) / np.sqrt(3)
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        close(o[:, t, 0], np.einsum("bu,bud->bd", p, v[:, first:t + 1, 0]))


def test_periods_per_head(rng):
    q, k, v = draw(rng)
    both = blurry.attention(q, k, v, modes=3, period=[7.5, 11.0])
    for head, period in enumerate((7.5, 11.0)):
        one = blurry.attention(q[:, :, 2 * head:2 * head + 2], k[:, :, head:head + 1], v[:, :, head:head + 1], modes=3,
                               period=period)
        close(both[:, :, 2 * head:2 * head + 2], one)
    close(blurry.attention(q, k, v, modes=3, resolution=(1.5, 2.2)), both)


@pytest.mark.parametrize("split", [0, 1, 7, 19, 20])
def test_split_with_state(rng, split):
    q, k, v = draw(rng)
    options = dict(modes=3, period=8.3)
    whole, end = blurry.attention(q, k, v, return_state=True, **options)
    first, state = blurry.attention(q[:, :split], k[:, :split], v[:, :split], return_state=True, **options)
    before = state.to_bytes()
    second, after = blurry.attention(q[:, split:], k[:, split:], v[:, split:], state=state, return_state=True, **options)
    close(np.concatenate([first, second], 1), whole)
    assert state.to_bytes() == before  # an input is not changed
    for a, b in zip(after.get_slots(), end.get_slots()):
        close(a, b)
    assert (after.position == 20).all()


def test_packed_sequences(rng):
    q, k, v = (x[0] for x in draw(rng, B=1, L=23))
    offsets = [0, 4, 4, 15, 23]
    options = dict(modes=3, period=8.3)
    o, state = blurry.attention(q, k, v, offsets=offsets, return_state=True, **options)
    assert state.position.tolist() == [4, 0, 11, 8]
    d_o = rng.standard_normal(o.shape)
    grad = blurry.attention_grad(q, k, v, d_o, offsets=np.array(offsets, np.int32), **options)
    close(blurry.attention(q[None], k[None], v[None], offsets=offsets, **options)[0], o)
    for a, b in zip(offsets, offsets[1:]):
        if a == b:
            continue
        close(o[a:b], blurry.attention(q[None, a:b], k[None, a:b], v[None, a:b], **options)[0])
        alone = blurry.attention_grad(q[None, a:b], k[None, a:b], v[None, a:b], d_o[None, a:b], **options)
        for name in "qkv":
            close(getattr(grad, name)[a:b], getattr(alone, name)[0])


def test_arrays_that_are_not_contiguous(rng):
    q, k, v = draw(rng, L=40)
    strided = [x[:, ::2] for x in (q, k, v)]
    turned = [np.asfortranarray(x) for x in strided]
    swapped = [x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in strided]
    raw = np.zeros(strided[0].nbytes + 1, np.uint8)
    misaligned = raw[1:].view(np.float64).reshape(strided[0].shape)
    misaligned[...] = strided[0]
    expected = blurry.attention(*(x.copy() for x in strided), modes=3)
    for arrays in (strided, turned, swapped, [misaligned, *strided[1:]]):
        close(blurry.attention(*arrays, modes=3), expected, 0)
    d_o = np.broadcast_to(rng.standard_normal((1, 1, 4, 5)), expected.shape)
    a = blurry.attention_grad(*strided, d_o, modes=3)
    b = blurry.attention_grad(*(x.copy() for x in strided), d_o.copy(), modes=3)
    for x, y in zip(a, b):
        close(x, y, 0)


def test_inputs_are_left_alone(rng):
    arrays = draw(rng)
    copies = [x.copy() for x in arrays]
    for x in arrays:
        x.flags.writeable = False
    blurry.attention(*arrays, modes=3)
    for x, y in zip(arrays, copies):
        assert (x == y).all()


def test_threads_give_the_same_bits(rng):
    q, k, v = draw(rng, L=700, Dk=16, Dv=16, dtype=np.float32)
    d_o = rng.standard_normal(q.shape).astype(np.float32)
    one = blurry.attention(q, k, v, modes=16, threads=1)
    grads = blurry.attention_grad(q, k, v, d_o, modes=16, threads=1)
    for threads in (2, 3, 8):
        assert (blurry.attention(q, k, v, modes=16, threads=threads) == one).all()
        for a, b in zip(grads, blurry.attention_grad(q, k, v, d_o, modes=16, threads=threads)):
            assert (a == b).all()


def test_weights():
    w = blurry.weights(8, 37.5, 10 ** 9, 50)
    assert w.shape == (50, 15) and w.dtype == np.float64
    close(w.sum(1), np.ones(50), 1e-12)
    assert blurry.weights(4, 7.0, 3, 1)[0].argmax() == 3
    assert blurry.weights(4, 7.0, count=0).shape == (0, 7)


def test_empty_sequences(rng):
    q, k, v = draw(rng, L=0)
    o, state = blurry.attention(q, k, v, modes=3, return_state=True)
    assert o.shape == (2, 0, 4, 5) and (state.position == 0).all()


BAD = [
    ("q", dict(q=np.zeros((2, 20, 4, 3), np.int64))), ("q", dict(q=np.zeros((2, 20, 4, 3), np.float16))),
    ("q", dict(q=np.zeros((2, 20, 4, 3), ">f8"))), ("q", dict(q=np.zeros((20, 4, 3)))), ("q", dict(q="text")),
    ("q", dict(q=None)), ("q", dict(q=[[1.0], [1.0, 2.0]])), ("q", dict(q=np.zeros((2, 20, 4, 3), object))),
    ("q", dict(q=np.zeros((2, 20, 0, 3)))), ("k", dict(k=np.zeros((2, 20, 2, 3), np.float32))),
    ("k", dict(k=np.zeros((2, 19, 2, 3)))), ("k", dict(k=np.zeros((2, 20, 2, 4)))), ("k", dict(k=np.zeros((2, 20, 3, 3)))),
    ("k", dict(k=np.zeros((2, 20, 1, 3)))), ("v", dict(v=np.zeros((2, 20, 2, 5), np.complex128))),
    ("v", dict(v=np.zeros((3, 20, 2, 5)))), ("v", dict(v=np.zeros((2, 20, 2, 0)))),
    ("modes", dict(modes=0)), ("modes", dict(modes=-3)), ("modes", dict(modes=2.5)), ("modes", dict(modes="8")),
    ("modes", dict(modes=True)), ("modes", dict(modes=None)), ("modes", dict(modes=10 ** 30)),
    ("period", dict(period=-1.0)), ("period", dict(period=float("nan"))), ("period", dict(period=float("inf"))),
    ("period", dict(period=[1.0, 2.0, 3.0])), ("period", dict(period="7")), ("period", dict(period=[7.0, "x"])),
    ("period", dict(period=[])), ("period", dict(period=7.0, resolution=2.0)), ("resolution", dict(resolution=-2.0)),
    ("resolution", dict(resolution={})), ("decay", dict(decay=2)), ("decay", dict(decay="yes")),
    ("decay", dict(decay=True, grid="relative")), ("grid", dict(grid="polar")), ("grid", dict(grid=None)),
    ("scale", dict(scale=-1.0)), ("scale", dict(scale=0.0)), ("scale", dict(scale="big")),
    ("scale", dict(scale=float("nan"))), ("threads", dict(threads=0)), ("threads", dict(threads=-1)),
    ("threads", dict(threads=1.5)), ("threads", dict(threads=10 ** 6)), ("state", dict(state=b"bytes")),
    ("state", dict(state=7)), ("offsets", dict(offsets="text")),
]


@pytest.mark.parametrize("name,change", BAD, ids=lambda x: x if isinstance(x, str) else None)
def test_bad_arguments_are_named(rng, name, change):
    q, k, v = draw(rng)
    arguments = dict(q=q, k=k, v=v, modes=3)
    arguments.update(change)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        blurry.attention(**arguments)
    if change.keys() & {"q", "k", "v"}:
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            blurry.attention_grad(d_o=np.zeros((2, 20, 4, 5)), **arguments)


@pytest.mark.parametrize("offsets", [[0], [1, 20], [0, 12, 11, 20], [0, 21], [0, 19], [[0, 20]], [0.0, 20.0], [], [0, 10 ** 18]])
def test_bad_offsets(rng, offsets):
    q, k, v = (x[0] for x in draw(rng, B=1))
    with pytest.raises(ValueError, match="offsets"):
        blurry.attention(q, k, v, modes=3, offsets=offsets)


def test_bad_gradients(rng):
    q, k, v = draw(rng)
    good = np.zeros((2, 20, 4, 5))
    for name, change in (("d_o", dict(d_o=good[:1])), ("d_o", dict(d_o=good.astype(np.float32))),
                         ("d_state", dict(d_state=7)), (r"d_state\[0\]", dict(d_state=(good, good))),
                         (r"d_state\[1\]", dict(d_state=(np.zeros((2, 2, 5, 3)), np.zeros((2, 2, 5, 3)))))):
        with pytest.raises(ValueError, match=name):
            blurry.attention_grad(q, k, v, **{"d_o": good, "modes": 3, **change})


def test_bad_weights():
    for name, arguments in (("modes", (0, 7.0)), ("period", (4, -1.0)), ("period", (4, "x")), ("start", (4, 7.0, -1)),
                            ("count", (4, 7.0, 0, -1)), ("count", (4, 7.0, 0, 1.5))):
        with pytest.raises(ValueError, match=name):
            blurry.weights(*arguments)
