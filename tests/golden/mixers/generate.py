#!/usr/bin/env python3
"""Writes the mixer goldens of this folder, or with --check recomputes them and compares (relative error 1e-12).

Every case is drawn from NumPy's PCG64 with a seed made from its name, so adding or removing a case changes no other.
"""
import argparse
import math
import pathlib
import sys
import zlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from twin import mixers, tensorfile  # noqa: E402

SHORT = {"batch": 2, "length": 19}
LONG = {"batch": 1, "length": 150}  # crosses chunk borders
CASES = {
    # name: (shape, settings)
    "softmax": (SHORT, dict(mixer="softmax", width="16", heads="2", rope="true")),
    "softmax_norope": (SHORT, dict(mixer="softmax", width="16", heads="2", rope="false")),
    "softmax_gqa_conv": (SHORT, dict(mixer="softmax", width="16", heads="4", kv_heads="2", rope="true", conv="true")),
    "softmax_long": (LONG, dict(mixer="softmax", width="8", heads="2", rope="true")),
    "swa": (SHORT, dict(mixer="swa", width="16", heads="2", rope="true", window="5")),
    "swa_gqa_conv": (SHORT, dict(mixer="swa", width="16", heads="4", kv_heads="1", rope="true", window="7",
                                 conv="true")),
    "swa_long": (LONG, dict(mixer="swa", width="8", heads="1", rope="true", window="33")),
    "abc": (SHORT, dict(mixer="abc", width="16", heads="2", rope="true", slots="5", expand_k="0.5", expand_v="1")),
    "abc_conv": (SHORT, dict(mixer="abc", width="16", heads="2", rope="true", slots="3", expand_k="1", expand_v="1",
                             conv="true")),
    "abc_long": (LONG, dict(mixer="abc", width="8", heads="1", rope="true", slots="7", expand_k="0.5", expand_v="1")),
    "gsa": (SHORT, dict(mixer="gsa", width="16", heads="2", slots="5", expand_k="1", expand_v="1")),
    "gsa_conv": (SHORT, dict(mixer="gsa", width="16", heads="4", slots="3", expand_k="0.5", expand_v="1",
                             conv="true")),
    "gsa_long": (LONG, dict(mixer="gsa", width="8", heads="1", slots="7", expand_k="1", expand_v="1")),
    "gla": (SHORT, dict(mixer="gla", width="16", heads="2", expand_k="0.5", expand_v="1")),
    "gla_conv": (SHORT, dict(mixer="gla", width="16", heads="2", expand_k="1", expand_v="2", conv="true")),
    "gla_long": (LONG, dict(mixer="gla", width="8", heads="2", expand_k="0.5", expand_v="1")),
    "gdn": (SHORT, dict(mixer="gdn", width="16", heads="2", expand_k="1", expand_v="1", conv="false")),
    "gdn_conv": (SHORT, dict(mixer="gdn", width="16", heads="2", expand_k="0.5", expand_v="2", conv="true")),
    "gdn_long": (LONG, dict(mixer="gdn", width="8", heads="2", expand_k="1", expand_v="1", conv="true")),
    "s4d": (SHORT, dict(mixer="s4d", width="12", state="8")),
    "s4d_long": (LONG, dict(mixer="s4d", width="8", state="16")),
    "blurry": (SHORT, dict(mixer="blurry", width="16", heads="2", modes="3", resolution="2", decay="true", rope="true",
                           grid="absolute")),
    "blurry_nodecay": (SHORT, dict(mixer="blurry", width="16", heads="2", modes="3", resolution="2", decay="false",
                                   rope="true", grid="absolute")),
    "blurry_relative": (SHORT, dict(mixer="blurry", width="16", heads="2", modes="3", resolution="2", decay="false",
                                    rope="false", grid="relative")),
    "blurry_periods": (SHORT, dict(mixer="blurry", width="16", heads="4", kv_heads="2", modes="4", period="7,17.3",
                                   decay="true", rope="false", grid="absolute")),
    "blurry_gqa_conv": (SHORT, dict(mixer="blurry", width="16", heads="4", kv_heads="1", modes="3", period="8.5",
                                    decay="false", rope="true", grid="absolute", conv="true")),
    "blurry_learned": (SHORT, dict(mixer="blurry", width="16", heads="4", kv_heads="2", modes="3", resolution="2",
                                   learned_period="true", decay="true", rope="true", grid="absolute")),
    "blurry_learned_relative": (SHORT, dict(mixer="blurry", width="16", heads="2", modes="3", resolution="2",
                                            learned_period="true", decay="false", rope="true", grid="relative")),
    "blurry_long": (LONG, dict(mixer="blurry", width="8", heads="2", modes="8", resolution="2,3", decay="true",
                               rope="true", grid="absolute")),
    "blurry_nodecay_long": (LONG, dict(mixer="blurry", width="8", heads="1", modes="8", resolution="2", decay="false",
                                       rope="true", grid="absolute")),
    "blurry_relative_long": (LONG, dict(mixer="blurry", width="8", heads="2", modes="8", period="30,41.5",
                                        decay="false", rope="true", grid="relative")),
}


def draw_parameter(rng, settings, name, shape):
    """Values of the size training would reach, so that every term of a formula matters."""
    if name == "period":
        S = 2 * int(settings["modes"]) - 1
        return S * rng.uniform(1.3, 2.6, shape)
    if name in ("log_step", "dt_bias"):
        step = np.exp(rng.uniform(math.log(1e-3), math.log(0.1), shape))
        return np.log(step) if name == "log_step" else step + np.log(-np.expm1(-step))
    if name == "A":
        return np.log(rng.uniform(1, 16, shape))
    if name == "norm.weight":
        return rng.uniform(0.5, 1.5, shape)
    if name.startswith("conv_"):
        return rng.normal(0, 0.5, shape)
    if name in ("C_re", "C_im", "D", "gk2.bias"):
        return rng.normal(0, 1, shape)
    return rng.normal(0, 1.5 / math.sqrt(shape[-1]), shape)


def build(name):
    """-> (tensors, metadata) of one case; gradients are those of sum(y * d_y)."""
    shape, settings = CASES[name]
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    B, L, d = shape["batch"], shape["length"], int(settings["width"])
    arrays = {"x": rng.normal(0, 1, (B, L, d))}
    for parameter, size in mixers.parameter_shapes(settings).items():
        arrays[parameter] = draw_parameter(rng, settings, parameter, size)
    d_y = rng.normal(0, 1, (B, L, d))
    leaves = {key: torch.tensor(value, requires_grad=True) for key, value in arrays.items()}
    y = mixers.mix(settings, leaves, leaves["x"])
    (y * torch.tensor(d_y)).sum().backward()
    tensors = dict(arrays, y=y.detach().numpy(), d_y=d_y)
    tensors.update({f"d_{key}": leaf.grad.numpy() for key, leaf in leaves.items()})
    return tensors, dict(settings, length=str(L), batch=str(B))


def compare(name, tensors, metadata):
    """Worst relative error against the stored file; raises where names, shapes or settings differ."""
    stored, stored_metadata = tensorfile.read(HERE / f"{name}.safetensors")
    if stored_metadata != metadata or list(stored) != list(tensors):
        raise SystemExit(f"{name}: settings or tensor names differ from the stored file")
    worst = 0.0
    for key, value in tensors.items():
        scale = max(np.abs(stored[key]).max(), 1e-300)
        worst = max(worst, np.abs(stored[key] - value).max() / scale)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the stored files instead of writing them")
    check = parser.parse_args().check
    worst = 0.0
    for name in CASES:
        tensors, metadata = build(name)
        if check:
            error = compare(name, tensors, metadata)
            worst = max(worst, error)
            print(f"{name:26s} {error:.1e}")
        else:
            tensorfile.write(HERE / f"{name}.safetensors", tensors, metadata)
    if worst > 1e-12:
        raise SystemExit(f"worst relative error {worst:.1e} exceeds 1e-12")


if __name__ == "__main__":
    main()
