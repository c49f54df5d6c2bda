#!/usr/bin/env python3
"""Writes the ten-step training traces of this folder, or with --check recomputes them and compares (1e-11)."""
import argparse
import math
import pathlib
import sys
import zlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from twin import model, tensorfile  # noqa: E402

STEPS, BATCH, LENGTH, VOCAB, ROWS = 10, 4, 24, 32, 20
COMMON = dict(layers="2", width="16", vocab=str(VOCAB), length=str(LENGTH), batch=str(BATCH), steps=str(STEPS),
              dropout="0", lr="0.02", min_lr="0", schedule="cosine", warmup="3", weight_decay="0.1", beta1="0.9",
              beta2="0.999", eps="1e-8", clip="1", mlp="swiglu", norm="rmsnorm", tied="true", position="none")
CASES = {
    "softmax": dict(mixer="softmax", heads="2", rope="true"),
    "swa": dict(mixer="swa", heads="2", kv_heads="1", rope="true", window="6", mlp="gelu", norm="layernorm",
                tied="false", clip="2.5"),
    "abc": dict(mixer="abc", heads="2", rope="true", slots="5", expand_k="0.5", expand_v="1", mlp="none"),
    "gsa": dict(mixer="gsa", heads="2", slots="5", expand_k="1", expand_v="1", conv="true"),
    "gla": dict(mixer="gla", heads="2", expand_k="0.5", expand_v="1", conv="true", tied="false"),
    "gdn": dict(mixer="gdn", heads="2", expand_k="1", expand_v="1", conv="true", mlp="none"),
    "s4d": dict(mixer="s4d", state="8", mlp="gelu"),
    "blurry": dict(mixer="blurry", heads="2", modes="3", resolution="2", decay="false", grid="absolute", rope="true"),
    "blurry_decay": dict(mixer="blurry", heads="2", modes="3", period="10,7.3", decay="true", grid="absolute",
                         rope="false", position="learned", norm="layernorm", mlp="gelu"),
    "blurry_learned": dict(mixer="blurry", heads="2", modes="3", resolution="2", learned_period="true", decay="true",
                           grid="absolute", rope="true", mlp="none", tied="false"),
    "blurry_relative": dict(mixer="blurry", heads="2", kv_heads="1", modes="3", resolution="2", decay="false",
                            grid="relative", rope="true", mlp="none"),
    "hybrid": dict(mixer="blurry,softmax", heads="2", modes="3", resolution="2", decay="true", grid="absolute",
                   rope="true", conv="true"),
}


def draw_parameter(rng, settings, name, shape):
    last = name.rsplit(".", 1)[-1]
    if last == "period":
        return (2 * int(settings["modes"]) - 1) * rng.uniform(1.4, 2.6, shape)
    if last in ("log_step", "dt_bias"):
        step = np.exp(rng.uniform(math.log(1e-3), math.log(0.1), shape))
        return np.log(step) if last == "log_step" else step + np.log(-np.expm1(-step))
    if last == "A":
        return np.log(rng.uniform(1, 16, shape))
    if last == "bias":
        return rng.normal(0, 0.1, shape)
    if "norm" in name:
        return rng.uniform(0.8, 1.2, shape)
    if "conv_" in name or last in ("C_re", "C_im", "D"):
        return rng.normal(0, 0.5, shape)
    return rng.normal(0, 0.5 if "embed" in name else 1 / math.sqrt(shape[-1]), shape)


def draw_batches(rng):
    """tokens [10,4,24], rows [10,20] ascending (b*24 + t), labels [10,20]: the token two places before."""
    tokens = rng.integers(0, VOCAB, (STEPS, BATCH, LENGTH))
    places = np.array([b * LENGTH + t for b in range(BATCH) for t in range(2, LENGTH)])
    rows = np.stack([np.sort(rng.choice(places, ROWS, replace=False)) for _ in range(STEPS)])
    labels = np.take_along_axis(tokens.reshape(STEPS, -1), rows - 2, axis=1)
    return tokens.astype(np.int64), rows.astype(np.int64), labels.astype(np.int64)


def build(name):
    settings = dict(COMMON, **CASES[name])
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    tensors = {key: draw_parameter(rng, settings, key, shape)
               for key, shape in model.parameter_shapes(settings).items()}
    params = {key: torch.tensor(value, requires_grad=True) for key, value in tensors.items()}
    tokens, rows, labels = draw_batches(rng)
    adam = model.optimiser(settings, params)
    trace = [model.train_step(settings, params, adam, step,
                              tuple(torch.tensor(part[step]) for part in (tokens, rows, labels)))
             for step in range(STEPS)]
    with torch.no_grad():
        final = model.loss(settings, params, *(torch.tensor(part[0]) for part in (tokens, rows, labels)))
    tensors |= {"trace.tokens": tokens, "trace.rows": rows, "trace.labels": labels}
    for column, key in enumerate(("trace.loss", "trace.lr", "trace.grad_norm")):
        tensors[key] = np.array([line[column] for line in trace])
    tensors["trace.final_loss"] = np.array([final.item()])
    return tensors, settings


def compare(name, tensors, metadata):
    stored, stored_metadata = tensorfile.read(HERE / f"{name}.safetensors")
    if stored_metadata != metadata or list(stored) != list(tensors):
        raise SystemExit(f"{name}: settings or tensor names differ from the stored file")
    return max(np.abs(stored[key] - value).max() / max(np.abs(stored[key]).max(), 1e-300)
               for key, value in tensors.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the stored files instead of writing them")
    check = parser.parse_args().check
    worst = 0.0
    for name in CASES:
        tensors, metadata = build(name)
        print(f"{name:16s} loss", " ".join(f"{value:.3f}" for value in tensors["trace.loss"]), "norm",
              " ".join(f"{value:.2f}" for value in tensors["trace.grad_norm"]))
        if check:
            worst = max(worst, compare(name, tensors, metadata))
        else:
            tensorfile.write(HERE / f"{name}.safetensors", tensors, metadata)
    # Ten optimiser steps amplify the last bits of another machine's arithmetic.
    if worst > 1e-11:
        raise SystemExit(f"worst relative error {worst:.1e} exceeds 1e-11")


if __name__ == "__main__":
    main()
