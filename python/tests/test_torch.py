"""blurry.torch.attention and BlurryAttention."""
import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import blurry  # noqa: E402
import blurry.torch as bt  # noqa: E402
from cases import GOLDEN_CASES, Golden, close, draw  # noqa: E402

MODERN = hasattr(torch.library, "register_autograd")
needs_compile = pytest.mark.skipif(not MODERN, reason=f"PyTorch {torch.__version__} registers no gradients (2.4 does)")


def tensors(*arrays, **options):
    return [torch.tensor(x, **options) for x in arrays]


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden(name):
    g = Golden(name)
    q, k, v, period = tensors(*(g.t[x] for x in ("q", "k", "v", "period")), requires_grad=True)
    options = {**g.options, "period": period}
    if g.has_state:
        k_in, v_in = tensors(g.t["k_state_in"], g.t["v_state_in"], requires_grad=True)
        state = bt.State(k_in, v_in, torch.full((q.shape[0],), g.position))
        o, after = bt.attention(q, k, v, state=state, return_state=True, **options)
        d_k, d_v = tensors(g.t["d_k_state_out"], g.t["d_v_state_out"])
        total = (o * torch.tensor(g.t["d_o"])).sum() + (after.k * d_k).sum() + (after.v * d_v).sum()
    else:
        o = bt.attention(q, k, v, **options)
        total = (o * torch.tensor(g.t["d_o"])).sum()
    total.backward()
    close(o.detach(), g.t["o"])
    for name, x in (("d_q", q), ("d_k", k), ("d_v", v)):
        close(x.grad, g.t[name])
    if g.has_state:
        close(after.k.detach(), g.t["k_state_out"])
        close(after.v.detach(), g.t["v_state_out"])
        close(k_in.grad, g.t["d_k_state_in"], least=1.0)
        close(v_in.grad, g.t["d_v_state_in"], least=1.0)
        close(period.grad, g.t["d_period"], 1e-8)
        assert (after.position == g.position + q.shape[1]).all()


def random_case(seed):
    """A random shape and setting: q, k, v, period, slots, and what attention takes beside them."""
    rng = np.random.default_rng(1000 + seed)
    Hkv = int(rng.integers(1, 3))
    H, M = Hkv * int(rng.integers(1, 3)), int(rng.integers(1, 5))
    B, L, Dk, Dv = int(rng.integers(1, 3)), int(rng.integers(1, 9)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    S = 2 * M - 1
    relative = bool(rng.random() < 0.25)
    options = dict(modes=M, decay=not relative and bool(rng.random() < 0.6), grid="relative" if relative else "absolute",
                   scale=None if rng.random() < 0.5 else float(rng.uniform(0.2, 1.5)), threads=1)
    make = lambda *shape: torch.tensor(rng.standard_normal(shape), requires_grad=True)  # noqa: E731
    q, k, v = make(B, L, H, Dk), make(B, L, Hkv, Dk), make(B, L, Hkv, Dv)
    # Away from S, below which the period does not move, and from the jumps of the mask at j T / S = t + 1/2.
    period = torch.tensor(S * rng.uniform(1.05, 3.0, Hkv), requires_grad=True)
    k_slots, v_slots = make(B, Hkv, S, Dk), make(B, Hkv, S, Dv)
    position = torch.tensor(rng.integers(0, 40, B))
    return options, position, (q, k, v, period, k_slots, v_slots)


@pytest.mark.parametrize("seed", range(50))
def test_gradcheck(seed):
    """Finite differences in float64: q, k, v, period and the slots on entry, through o and the slots on exit."""
    options, position, inputs = random_case(seed)

    def everything(q, k, v, period, k_slots, v_slots):
        o, state = bt.attention(q, k, v, period=period, state=bt.State(k_slots, v_slots, position), return_state=True,
                                **options)
        return o, state.k, state.v

    torch.manual_seed(seed)
    assert torch.autograd.gradcheck(everything, inputs, eps=1e-7, atol=1e-5, rtol=1e-4, fast_mode=seed >= 5)


def test_a_wrong_gradient_would_be_found():
    options, position, (q, k, v, period, *_) = random_case(0)

    def off(q):
        return bt.attention(q, k, v, period=period, **options) + (1e-3 * q.detach()).sum() * q.detach().sum()

    with pytest.raises(Exception, match="[Jj]acobian"):
        torch.autograd.gradcheck(off, (q,), eps=1e-7, atol=1e-5, rtol=1e-4)


def test_equal_to_numpy():
    rng = np.random.default_rng(0)
    arrays = draw(rng, L=40)
    for options in (dict(modes=3), dict(modes=3, period=[7.5, 9.25], decay=False), dict(modes=4, decay=False, grid="relative"),
                    dict(modes=3, resolution=1.5, scale=0.2, threads=1)):
        expected, state = blurry.attention(*arrays, return_state=True, **options)
        o, after = bt.attention(*tensors(*arrays), return_state=True, **options)
        assert (o.numpy() == expected).all()
        for a, b in zip((after.k, after.v), state.get_slots()):
            close(a, b)
        assert after.position.tolist() == [40, 40]
    single = [x.astype(np.float32) for x in arrays]
    assert (bt.attention(*tensors(*single), modes=3).numpy() == blurry.attention(*single, modes=3)).all()


def test_packed_sequences():
    q, k, v = tensors(*(x[0] for x in draw(np.random.default_rng(0), B=1, L=23)), requires_grad=True)
    offsets = torch.tensor([0, 4, 4, 15, 23])
    o, state = bt.attention(q, k, v, modes=3, offsets=offsets, return_state=True)
    assert state.position.tolist() == [4, 0, 11, 8]
    o.square().sum().backward()
    grads = [x.grad.clone() for x in (q, k, v)]
    for a, b in ((0, 4), (4, 15), (15, 23)):
        alone = [x.detach()[None, a:b].requires_grad_() for x in (q, k, v)]
        part = bt.attention(*alone, modes=3)
        part.square().sum().backward()
        close(o[a:b].detach(), part[0].detach().numpy())
        for whole, one in zip(grads, alone):
            close(whole[a:b], one.grad[0].numpy())


def test_split_with_state_carries_gradients():
    q, k, v = tensors(*draw(np.random.default_rng(1), L=12), requires_grad=True)
    whole = bt.attention(q, k, v, modes=3)
    expected = torch.autograd.grad(whole.square().sum(), (q, k, v))
    first, state = bt.attention(q[:, :5], k[:, :5], v[:, :5], modes=3, return_state=True)
    second = bt.attention(q[:, 5:], k[:, 5:], v[:, 5:], modes=3, state=state)
    both = torch.cat([first, second], 1)
    close(both.detach(), whole.detach().numpy())
    for a, b in zip(torch.autograd.grad(both.square().sum(), (q, k, v)), expected):
        close(a, b.numpy())


def test_tensors_that_are_not_contiguous():
    q, k, v = tensors(*draw(np.random.default_rng(2), L=40))
    strided = [x[:, ::2].requires_grad_() for x in (q, k, v)]
    dense = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in strided]
    a, b = bt.attention(*strided, modes=3), bt.attention(*dense, modes=3)
    assert (a == b).all()
    a.sum().backward()  # the incoming gradient is expanded, with strides of 0
    b.backward(torch.ones_like(b))
    for x, y in zip(strided, dense):
        assert (x.grad == y.grad).all()


def test_only_what_is_asked_for_gets_gradients():
    q, k, v = tensors(*draw(np.random.default_rng(3)))
    q.requires_grad_()
    bt.attention(q, k, v, modes=3).sum().backward()
    assert q.grad is not None and k.grad is None
    with torch.no_grad():
        assert not bt.attention(q, k, v, modes=3).requires_grad
    _, state = bt.attention(q, k, v, modes=3, return_state=True)
    assert state.k.requires_grad or state.k.grad_fn is not None
    (state.v * 2).sum()  # V slots alone
    o, state = bt.attention(q, k.requires_grad_(), v, modes=3, return_state=True)
    state.k.sum().backward()
    assert k.grad.abs().sum() > 0


def test_second_derivatives_are_refused():
    q, k, v = tensors(*draw(np.random.default_rng(3)), requires_grad=True)
    first, = torch.autograd.grad(bt.attention(q, k, v, modes=3).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        first.square().sum().backward()


def test_meta_tensors():
    q, k, v = (torch.empty(shape, device="meta") for shape in ((2, 9, 4, 3), (2, 9, 2, 3), (2, 9, 2, 5)))
    o, state = bt.attention(q, k, v, modes=3, return_state=True)
    assert o.shape == (2, 9, 4, 5) and o.device.type == "meta" and state.k.shape == (2, 2, 5, 3)


BAD = [
    ("q", dict(q=np.zeros((2, 20, 4, 3)))), ("q", dict(q=torch.zeros(2, 20, 4, 3, dtype=torch.int64))),
    ("q", dict(q=torch.zeros(2, 20, 4, 3, dtype=torch.float16))), ("q", dict(q=torch.zeros(20, 4, 3).double())),
    ("q", dict(q=None)), ("k", dict(k=torch.zeros(2, 20, 2, 3))), ("k", dict(k=torch.zeros(2, 19, 2, 3).double())),
    ("k", dict(k=torch.zeros(2, 20, 2, 4).double())), ("k", dict(k=torch.zeros(2, 20, 3, 3).double())),
    ("k", dict(k=torch.zeros(2, 20, 2, 3, dtype=torch.float64, device="meta"))), ("v", dict(v=[1, 2])),
    ("v", dict(v=torch.zeros(2, 20, 2, 0).double())), ("modes", dict(modes=0)), ("modes", dict(modes=1.5)),
    ("period", dict(period=torch.zeros(3))), ("period", dict(period=torch.ones(2, dtype=torch.int64))),
    ("period", dict(period=-1.0)), ("period", dict(period=7.0, resolution=2.0)),
    ("period", dict(period=torch.ones(2), resolution=2.0)), ("period", dict(period=torch.tensor([1.0, float("nan")]))),
    ("decay", dict(decay="x")), ("decay", dict(grid="relative", decay=True)), ("grid", dict(grid="x")),
    ("scale", dict(scale=-1.0)), ("threads", dict(threads=0)), ("state", dict(state=7)),
    ("state.k", dict(state=(torch.zeros(1), torch.zeros(1), torch.zeros(1)))), ("return_state", dict(return_state="x")),
    ("offsets", dict(offsets=torch.zeros(3))), ("offsets", dict(offsets=[0])),
]


@pytest.mark.parametrize("name,change", BAD, ids=lambda x: x if isinstance(x, str) else None)
def test_bad_arguments_are_named(name, change):
    q, k, v = tensors(*draw(np.random.default_rng(4)))
    with pytest.raises(ValueError, match=rf"\b{name}"):
        bt.attention(**{**dict(q=q, k=k, v=v, modes=3), **change})


def test_bad_states_and_offsets():
    q, k, v = tensors(*draw(np.random.default_rng(4)))
    _, good = bt.attention(q, k, v, modes=3, return_state=True)
    for name, state in (("state.k", good._replace(k=good.k.float())), ("state.v", good._replace(v=good.v[:1])),
                        ("position", good._replace(position=good.position[:1])),
                        ("position", good._replace(position=good.position.float())),
                        ("position", good._replace(position=good.position - 100))):
        with pytest.raises(ValueError, match=name):
            bt.attention(q, k, v, modes=3, state=state)
    for offsets in ([1, 20], [0, 12, 11, 20], [0, 21]):
        with pytest.raises(ValueError, match="offsets"):
            bt.attention(q[0], k[0], v[0], modes=3, offsets=offsets)


# ---- the layer ----
def layer(**change):
    torch.manual_seed(0)
    made = bt.BlurryAttention(**{**dict(hidden_size=16, num_heads=4, num_kv_heads=2, modes=3), **change})
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return made


LAYERS = [dict(), dict(decay=False), dict(decay=False, grid="relative", rope=False), dict(learned_period=True),
          dict(short_conv=True), dict(resolution=[1.5, 2.5]), dict(head_dim=3, head_dim_v=6), dict(num_kv_heads=None)]


@pytest.mark.parametrize("change", LAYERS, ids=str)
def test_steps_with_a_cache_equal_a_whole_pass(change):
    made = layer(**change).eval()
    x = torch.randn(3, 40, 16)
    with torch.no_grad():
        whole, nothing, cache = made(x)
        assert nothing is None and cache is None
        y, _, cache = made(x[:, :17], use_cache=True)
        parts = [y]
        for t in range(17, 25):
            y, _, same = made(x[:, t:t + 1], past_key_values=cache)
            assert same is cache
            parts.append(y)
        size = cache.nbytes()
        parts.append(made(x[:, 25:], past_key_values=cache)[0])
    close(torch.cat(parts, 1), whole.numpy(), 1e-5)
    assert cache.get_seq_length() == 40 and cache.nbytes() == size


def test_caches_fork_and_reorder():
    made = layer(short_conv=True).eval()
    x = torch.randn(2, 12, 16)
    with torch.no_grad():
        cache = made(x[:, :6], use_cache=True)[2]
        twin, turned = cache.copy(), cache.select([1, 0, 1])
        a, b = made(x[:, 6:], past_key_values=cache)[0], made(x[:, 6:], past_key_values=twin)[0]
        c = made(x[[1, 0, 1], 6:], past_key_values=turned)[0]
    assert (a == b).all()
    close(c, a[[1, 0, 1]].numpy(), 1e-5)


def test_masks_on_either_side():
    made = layer().eval()
    x = torch.randn(3, 9, 16)
    mask = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0, 0], [1] * 9])
    with torch.no_grad():
        y, _, cache = made(x, attention_mask=mask, use_cache=True)
        spans = [slice(4, 9), slice(0, 6), slice(0, 9)]
        for b, span in enumerate(spans):
            close(y[b, span], made(x[b:b + 1, span])[0][0].numpy(), 1e-5)
        assert (y[0, :4] == 0).all() and (y[1, 6:] == 0).all()
        following = made(x[:, :1], past_key_values=cache)[0]
        for b, span in enumerate(spans):
            longer = torch.cat([x[b:b + 1, span], x[b:b + 1, :1]], 1)
            close(following[b, 0], made(longer)[0][0, -1].numpy(), 1e-5)


def test_packed_sequences_in_the_layer():
    made = layer()
    x = torch.randn(1, 11, 16)
    y = made(x, cu_seqlens=torch.tensor([0, 4, 11]))[0]
    for a, b in ((0, 4), (4, 11)):
        close(y[0, a:b].detach(), made(x[:, a:b])[0][0].detach().numpy(), 1e-5)


def test_a_layer_learns_its_periods():
    made = layer(learned_period=True)
    y = made(torch.randn(2, 30, 16))[0]
    y.square().sum().backward()
    assert made.period.shape == (2,) and (made.period.grad != 0).all()


def test_layers_are_ordinary_modules(tmp_path):
    made = layer(learned_period=True, short_conv=True)
    x = torch.randn(2, 9, 16)
    expected = made(x)[0]
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (twin(x)[0] == expected).all()
    torch.save(made.state_dict(), tmp_path / "weights")
    other = layer(learned_period=True, short_conv=True, resolution=3.0)
    other.load_state_dict(torch.load(tmp_path / "weights"))
    assert (other(x)[0] == expected).all()
    assert sorted(made.state_dict()) == sorted(["q.weight", "k.weight", "v.weight", "o.weight", "period", "conv_q.weight",
                                                "conv_k.weight", "conv_v.weight"])
    close(copy.deepcopy(made).double()(x.double())[0].detach().float(), expected.detach().numpy(), 1e-5)


def test_bad_layers_and_calls():
    for name, change in (("hidden_size", dict(hidden_size=0)), ("num_heads", dict(num_heads=3)),
                         ("num_kv_heads", dict(num_kv_heads=3)), ("modes", dict(modes=-1)), ("grid", dict(grid="x")),
                         ("decay", dict(grid="relative")), ("resolution", dict(resolution=[1, 2, 3])),
                         ("rope", dict(rope=3)), ("layer_idx", dict(layer_idx=-1))):
        with pytest.raises(ValueError, match=name):
            layer(**change)
    made, x = layer(), torch.randn(2, 5, 16)
    with torch.no_grad():
        cache = made(x, use_cache=True)[2]
        for name, call in (("past_key_values", lambda: made(x[:1], past_key_values=cache)),
                           ("hidden_states", lambda: made(x[0])), ("hidden_states", lambda: made(x[..., :3])),
                           ("attention_mask", lambda: made(x, attention_mask=torch.ones(2, 3))),
                           ("cu_seqlens", lambda: made(x, cu_seqlens=torch.tensor([0, 5]))),
                           ("output_attentions", lambda: made(x, output_attentions=True)),
                           ("short_conv", lambda: layer(short_conv=True)(x, attention_mask=torch.ones(2, 5)))):
            with pytest.raises(ValueError, match=name):
                call()
    with pytest.raises(ValueError, match="no_grad"):
        made(x, use_cache=True)


# ---- PyTorch 2 ----
@needs_compile
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_without_a_graph_break(dynamic):
    made = layer(learned_period=True)
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (9, 13):
        x, y = torch.randn(2, length, 16, requires_grad=True), None
        y = made(x)[0]
        expected = torch.autograd.grad(y.square().sum(), [x, *made.parameters()])
        z = compiled(x)[0]
        close(z.detach(), y.detach().numpy(), 1e-5)
        for a, b in zip(torch.autograd.grad(z.square().sum(), [x, *made.parameters()]), expected):
            close(a, b.numpy(), 1e-4)


@needs_compile
def test_compiled_steps():
    made = layer().eval()
    x = torch.randn(2, 8, 16)
    with torch.no_grad():
        cache = made(x, use_cache=True)[2]
        twin = cache.copy()
        torch._dynamo.reset()
        step = torch.compile(made, fullgraph=True, backend="aot_eager")
        for t in range(3):
            a, b = made(x[:, t:t + 1], past_key_values=cache)[0], step(x[:, t:t + 1], past_key_values=twin)[0]
            close(b, a.numpy(), 1e-5)


@needs_compile
def test_operators_keep_their_promises():
    options, position, (q, k, v, period, k_slots, v_slots) = random_case(1)
    shared = (options["modes"], [], 0.0, options["decay"], options["grid"] == "relative", 1)
    torch.library.opcheck(torch.ops.blurry.attention.default,
                          (q, k, v, period, k_slots, v_slots, position, None, *shared, True, False))
    fixed = (shared[0], [30.0], *shared[2:])
    torch.library.opcheck(torch.ops.blurry.attention.default,
                          (q, k, v, None, None, None, None, None, *fixed, False, False))
    detached = [x.detach() for x in (q, k, v)]
    states = torch.ops.blurry.attention_states(q, q.shape[0], q.shape[2], k.shape[2], q.shape[3], v.shape[3], *fixed)
    torch.library.opcheck(torch.ops.blurry.attention_cached.default, (*detached, states, None, *fixed))
