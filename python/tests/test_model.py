"""blurry.Model, load and evaluate."""
import json
import subprocess

import numpy as np
import pytest

import blurry

SMALL = dict(mixer="blurry", layers=2, width=16, heads=2, vocab=40, length=24, modes=3, batch=4)


@pytest.fixture(scope="module")
def model():
    return blurry.Model(SMALL)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(0, 40, (6, 20))


def test_loss_is_that_of_the_logits(model, tokens):
    logits = model.logits(tokens).astype(np.float64)
    assert logits.shape == (6, 20, 40)
    norm = np.log(np.exp(logits).sum(-1))
    chosen = np.take_along_axis(logits[:, :-1], tokens[:, 1:, None], 2)[..., 0] - norm[:, :-1]
    assert abs(model.loss(tokens) + chosen.mean()) < 1e-5
    assert np.abs(model.log_probs(tokens) - chosen).max() < 1e-5
    labels = np.full(tokens.shape, -1)
    labels[1, 3], labels[5, 19] = 7, 0
    expected = -(logits[1, 3, 7] - norm[1, 3] + logits[5, 19, 0] - norm[5, 19]) / 2
    assert abs(model.loss(tokens, labels) - expected) < 1e-5
    assert np.abs(model.logits(tokens[0]) - logits[0]).max() < 1e-5
    assert model.log_probs(tokens[0]).shape == (19,)


def test_parameters_can_be_read_and_written(model, tokens):
    twin = blurry.Model(SMALL, seed=7)
    assert np.abs(twin.logits(tokens) - model.logits(tokens)).max() > 1e-3
    twin.set_parameters(model.parameters())
    assert (twin.logits(tokens) == model.logits(tokens)).all()
    with pytest.raises(ValueError, match="no parameter"):
        twin.set_parameters({"nonsense": np.zeros(3)})
    with pytest.raises(ValueError, match=r"embed.weight.*shape"):
        twin.set_parameters({"embed.weight": np.zeros((3, 3))})
    assert (twin.logits(tokens) == model.logits(tokens)).all()


def test_save_and_load(model, tokens, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    back = blurry.load(path, batch=4)
    assert (back.logits(tokens) == model.logits(tokens)).all()
    assert back.settings["modes"] == "3" and back.vocabulary == 40 and back.length == 24
    longer = blurry.load(str(path), length=50, threads=1, batch=2)
    assert longer.length == 50 and longer.logits(np.zeros((3, 50), int)).shape == (3, 50, 40)


def test_generation(model):
    one = model.generate([1, 2, 3], 30, seed=5)
    assert one.dtype == np.int32 and one.shape == (30,)
    assert (one == model.generate(np.array([1, 2, 3]), 30, seed=5)).all()
    assert (one != model.generate([1, 2, 3], 30, seed=6)).any()
    greedy, text = [], [1, 2, 3]
    for _ in range(10):
        greedy.append(int(model.logits(text)[-1].argmax()))
        text.append(greedy[-1])
    assert model.generate([1, 2, 3], 10, temperature=0).tolist() == greedy
    stream = model.stream([1, 2, 3], seed=5)
    assert [next(stream) for _ in range(30)] == one.tolist()
    assert model.generate([1], 0).shape == (0,)


def test_text():
    model = blurry.Model(SMALL, vocab=256)
    answer = model.generate("In the beginning", 20)
    assert isinstance(answer, str)
    raw = model.generate(b"In the beginning", 20)
    assert isinstance(raw, bytes) and len(raw) == 20 and raw.decode("utf-8", "replace") == answer


def test_a_trained_model_scores_as_the_command_line_says(program, trained):
    shown = json.loads(subprocess.run([program, "eval", str(trained), "--json"], check=True, capture_output=True,
                                      text=True).stdout)
    ours = blurry.evaluate(trained)
    assert ours["labels"] == shown["labels"] and abs(ours["loss"] - shown["loss"]) < 1e-6
    assert abs(ours["accuracy"] - shown["accuracy"]) < 1e-9 and "l1" not in ours


def test_logits_are_those_of_the_command_line(program, trained, tmp_path):
    file = tmp_path / "logits.safetensors"
    subprocess.run([program, "eval", str(trained), "--eval_samples", "5", "--logits", str(file)], check=True,
                   capture_output=True)
    t, metadata = blurry.load_tensors(file)
    assert metadata["format"] == "blurry-logits 1" and t["tokens"].shape == (5, 32)
    model = blurry.load(trained)
    logits = model.logits(t["tokens"]).reshape(-1, 64)[t["rows"]]
    assert np.abs(logits - t["logits"]).max() < 1e-5
    labels = np.full(5 * 32, -1)
    labels[t["rows"]] = t["labels"]
    assert abs(model.loss(t["tokens"], labels.reshape(5, 32)) - blurry.evaluate(trained, eval_samples=5)["loss"]) < 1e-5


def test_bad_arguments_are_named(model, tokens, tmp_path, trained):
    for name, call in (
            ("tokens", lambda: model.logits(tokens.astype(float))), ("tokens", lambda: model.logits(tokens + 1000)),
            ("tokens", lambda: model.logits(tokens - 1)), ("tokens", lambda: model.logits(tokens[None])),
            ("length=30", lambda: model.logits(np.zeros(30, int))), ("tokens", lambda: model.loss([1])),
            ("labels", lambda: model.loss(tokens, tokens[:1])), ("labels", lambda: model.loss(tokens, tokens * 0 - 1)),
            ("labels", lambda: model.loss(tokens, tokens + 100)), ("prompt", lambda: model.generate([], 3)),
            ("prompt", lambda: model.generate([99], 3)), ("prompt", lambda: model.generate(b"", 3)),
            ("count", lambda: model.generate([1], -1)), ("temperature", lambda: model.generate([1], 3, temperature=-1)),
            ("temperature", lambda: model.generate([1], 3, temperature="x")),
            ("top_p", lambda: model.generate([1], 3, top_p=2)), ("seed", lambda: model.generate([1], 3, seed=-1)),
            ("max_length", lambda: model.generate([1], 3, max_length=0)), ("path", lambda: blurry.load(7)),
            ("path", lambda: blurry.load("")), ("batch", lambda: blurry.load(trained, batch=0)),
            ("nonsense", lambda: blurry.load(trained, nonsense=1)), ("threads", lambda: blurry.load(trained, threads=-1)),
            ("modes", lambda: blurry.Model(modes=0)), ("lenght", lambda: blurry.Model(lenght=3)),
            ("lr", lambda: blurry.Model(lr=float("nan"))), ("split", lambda: blurry.evaluate(trained, "nonsense"))):
        with pytest.raises(ValueError, match=name):
            call()
    with pytest.raises(OSError, match="no/such"):
        blurry.load("/no/such/model.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(blurry.FormatError, match="broken"):
        blurry.load(broken)


def test_tensor_files(tmp_path):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7, np.int64), "c": np.zeros((0, 4), np.uint8),
              "d": np.array([True, False]), "e": np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)}
    blurry.save_tensors(tmp_path / "x", arrays, {"key": "välue"})
    back, metadata = blurry.load_tensors(tmp_path / "x")
    assert metadata == {"key": "välue"} and back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape and (back[name] == array).all()
    with pytest.raises(ValueError, match="dtype complex"):
        blurry.save_tensors(tmp_path / "y", {"z": np.zeros(2, complex)})
    with pytest.raises(OSError):
        blurry.save_tensors(tmp_path / "no" / "y", {})
