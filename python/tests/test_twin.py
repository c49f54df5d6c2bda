"""Whole models as nn.Modules: equal logits for every mixer, checkpoints in both directions, the comparing command."""
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import blurry  # noqa: E402
import blurry.torch as bt  # noqa: E402

SHAPE = dict(layers=2, width=16, heads=2, vocab=40, length=24, modes=3, slots=5, window=7, state=8, precision="f64")
PLAIN = dict(conv=False, norm="rmsnorm", mlp="swiglu", tied=True, position="none", rope=True)
OTHER = dict(conv=True, norm="layernorm", mlp="gelu", tied=False, position="learned", rope=False)
BARE = dict(conv=False, norm="layernorm", mlp="none", tied=True, position="none", rope=True)
MIXERS = ["softmax", "swa", "abc", "gsa", "gla", "gdn", "s4d", "blurry", "blurry,softmax"]
BLURRY = [dict(decay=True, period="7,17.3"), dict(decay=False, grid="relative"), dict(learned_period=True, decay=True),
          dict(heads=4, kv_heads=2, resolution="1.5,2.5"), dict(expand_k=0.5, expand_v=2)]
CASES = [dict(mixer=mixer, **form) for mixer in MIXERS for form in (PLAIN, OTHER, BARE)] + \
        [dict(mixer="blurry", **PLAIN, **more) for more in BLURRY] + \
        [dict(mixer="gdn", expand_v=2, **PLAIN), dict(mixer="gla", expand_k=1, **PLAIN), dict(mixer="softmax", kv_heads=1, **PLAIN)]


def twin(case):
    torch.manual_seed(0)
    model = bt.LanguageModel({**SHAPE, **case}).double()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or "norm" in name:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(f"{k}={v}" for k, v in case.items())[:60])
def test_logits_are_those_of_the_library(case):
    model = twin(case)
    tokens = torch.tensor(np.random.default_rng(0).integers(0, 40, (3, 20)))
    with torch.no_grad():
        ours = model(tokens).numpy()
    theirs = model.to_library()
    assert list(theirs.parameters()) and set(theirs.parameters()) == set(dict(model.named_parameters()))
    assert np.abs(ours - theirs.logits(tokens.numpy())).max() < 2e-6 * np.abs(ours).max()  # its logits leave as float32


@pytest.mark.parametrize("mixer", ["blurry", "gdn", "s4d"])
def test_checkpoints_go_both_ways(mixer, tmp_path):
    model = twin(dict(mixer=mixer, **OTHER))
    path = tmp_path / "model.safetensors"
    model.save_checkpoint(path)
    back = bt.LanguageModel.from_checkpoint(path)
    assert back.settings["mixer"] == mixer
    for (name, a), (other, b) in zip(model.named_parameters(), back.named_parameters()):
        assert name == other and (a == b).all()
    tokens = np.random.default_rng(1).integers(0, 40, (2, 9))
    assert np.abs(blurry.load(path).logits(tokens) - back(torch.tensor(tokens)).detach().numpy()).max() < 1e-5


def test_a_trained_run_becomes_a_twin_and_returns(trained, program, tmp_path):
    model = bt.LanguageModel.from_checkpoint(trained)
    assert next(model.parameters()).dtype == torch.float32
    expected = blurry.evaluate(trained)
    path = tmp_path / "again.safetensors"
    model.save_checkpoint(path)
    assert abs(blurry.evaluate(path)["loss"] - expected["loss"]) < 1e-6
    shown = subprocess.run([program, "eval", str(path)], capture_output=True, text=True)
    assert shown.returncode == 0 and "accuracy" in shown.stdout


def test_the_comparing_command(trained, program):
    command = [sys.executable, "-m", "blurry.torch.compare", str(trained), "--blurry", program, "--samples", "4"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "equal" in result.stdout and "differ by at most" in result.stdout
    from blurry.torch import compare
    assert compare.main([str(trained), "--blurry", "/no/such/program"]) == 2
    assert compare.main(["/no/such/run", "--blurry", program]) == 2


def test_the_comparing_command_finds_a_difference(trained, program, tmp_path):
    """A file of logits that are off in one place."""
    from blurry.torch import compare
    file = tmp_path / "logits.safetensors"
    subprocess.run([program, "eval", str(trained), "--eval_samples", "3", "--logits", str(file)], check=True,
                   capture_output=True)
    worst, _, rows = compare.largest_difference(str(trained), str(file))
    assert worst < 1e-5 and rows > 0
    tensors, metadata = blurry.load_tensors(file)
    tensors["logits"][2, 7] += 3e-4
    blurry.save_tensors(file, tensors, metadata)
    assert compare.largest_difference(str(trained), str(file))[0] > 2e-4


def test_generation_is_that_of_the_library():
    model = bt.LanguageModel(dict(SHAPE, mixer="blurry", **BARE)).double().eval()
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    drawn = model.generate(tokens, 30)
    library = model.to_library()
    for row, prompt in zip(drawn, tokens):
        assert row.tolist() == library.generate(prompt.numpy(), 30, temperature=0).tolist()
    generator = torch.Generator().manual_seed(0)
    assert model.generate(tokens, 5, temperature=1.0, generator=generator).shape == (2, 5)
    assert model.generate(tokens, 0).shape == (2, 0)


def test_training_a_twin_lowers_its_loss():
    torch.manual_seed(0)
    model = bt.LanguageModel(mixer="blurry", layers=1, width=32, heads=2, vocab=16, length=24, modes=4, learned_period=True)
    tokens = torch.arange(24).repeat(4, 1) % 7
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].reshape(-1, 16), tokens[:, 1:].reshape(-1))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < losses[0]


def test_bad_arguments():
    model = bt.LanguageModel(SHAPE, mixer="blurry,softmax")
    for name, call in (("nonsense", lambda: bt.LanguageModel(nonsense=1)), ("mixer", lambda: bt.LanguageModel(SHAPE, mixer="x")),
                       ("mixer", lambda: bt.LanguageModel(SHAPE, mixer="blurry,blurry,blurry")),
                       ("tokens", lambda: model(torch.zeros(3, dtype=torch.int64))), ("tokens", lambda: model(torch.zeros(2, 3))),
                       ("cache", lambda: model.generate(torch.ones(1, 3, dtype=torch.int64), 2)),
                       ("embed.weight", lambda: model.load_library_parameters({}))):
        with pytest.raises(ValueError, match=name):
            call()
    learned = bt.LanguageModel(SHAPE, position="learned")
    with pytest.raises(ValueError, match="position"):
        learned(torch.zeros(1, 30, dtype=torch.int64))
    with pytest.raises(OSError):
        bt.LanguageModel.from_checkpoint("/no/such/run")
