#!/usr/bin/env python3
"""Times the MQAR training step of every mixer in PyTorch on the CPU (float32): forward, backward, clipping, AdamW.

    python3 bench/peers/train.py --threads 2                       every mixer, one process each
    python3 bench/peers/train.py --mixer blurry --json --set modes=32 --set decay=true
    python3 bench/peers/train.py --device cuda [--eager]           on a GPU: bf16 autocast, compiled, in a CUDA graph

The model is that of `blurry bench train`: 2 layers, width 128, 1 head, vocabulary 8192, no MLP, RMSNorm, tied head;
32 sequences of 512 tokens with 64 pairs, logits at labelled rows only. --set changes any of them. Every mixer is
first checked against the float64 recurrence (outputs and gradients). Batches are made before the clock starts.
"""
import sys

# This folder holds a file named operator.py: it must not stand in front of the standard library.
sys.path.pop(0)
import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import pathlib  # noqa: E402
import resource  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import time  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent.parent / "tests" / "golden"), str(HERE)]
import chunked_mixers  # noqa: E402
from twin import mixers, model  # noqa: E402

DEFAULTS = dict(layers="2", width="128", heads="1", vocab="8192", length="512", pairs="64", batch="32", mlp="none",
                norm="rmsnorm", tied="true", position="none", modes="32", resolution="2", decay="false",
                grid="absolute", rope="true", window="64", slots="64", state="64", conv="false", lr="0.001", min_lr="0",
                warmup="10", weight_decay="0.01", beta1="0.9", beta2="0.999", eps="1e-8", clip="1")
KEY_EXPANSION = {"abc": "0.5", "gla": "0.5"}
NO_ROPE = ("gsa", "gla", "gdn", "s4d")
TOLERANCE = 1e-10


def settings_for(opt, mixer):
    settings = dict(DEFAULTS, mixer=mixer, expand_k=KEY_EXPANSION.get(mixer, "1"), expand_v="1",
                    steps=str(opt.steps + opt.warm + 10))
    settings |= dict(item.split("=", 1) for item in opt.set)
    if mixer in NO_ROPE:
        settings["rope"] = "false"
    return settings


def draw(rng, name, shape):
    """Initial values as the library draws them."""
    last = name.rsplit(".", 1)[-1]
    if last in ("log_step", "dt_bias"):
        step = np.exp(rng.uniform(math.log(1e-3), math.log(0.1), shape))
        return np.log(step) if last == "log_step" else step + np.log(-np.expm1(-step))
    if last == "A":
        return np.log(rng.uniform(1e-6, 16, shape))
    if last == "bias":
        return np.zeros(shape)
    if "norm" in name or last == "D":
        return np.ones(shape)
    if "conv_" in name:
        return rng.uniform(-0.5, 0.5, shape)
    return rng.normal(0, 1.0 if last in ("C_re", "C_im") else 0.02, shape)


def parameters(settings, seed, dtype):
    rng = np.random.Generator(np.random.PCG64(seed))
    return {name: torch.tensor(draw(rng, name, shape), dtype=dtype, requires_grad=True)
            for name, shape in model.parameter_shapes(settings).items()}


def mqar_batch(rng, settings):
    """tokens [B,L], rows, labels: keys and values first, each key asked again once at a power-law place."""
    B, L, K, V = (int(settings[name]) for name in ("batch", "length", "pairs", "vocab"))
    places = (L - 2 * K) // 2
    log_weight = (0.01 - 1) * np.log(np.arange(1, places + 1))
    tokens, rows, labels = np.zeros((B, L), np.int64), [], []
    for b in range(B):
        keys = 1 + rng.choice(V // 2 - 1, K, replace=False)
        values = V // 2 + rng.choice(V - V // 2, K, replace=False)
        tokens[b, 0:2 * K:2], tokens[b, 1:2 * K:2] = keys, values
        drawn = np.argsort(-(log_weight + rng.gumbel(size=places)))[:K]
        tokens[b, 2 * K + 2 * drawn] = keys
        order = np.argsort(drawn)
        rows.append(b * L + 2 * K + 2 * drawn[order])
        labels.append(values[order])
    return tuple(torch.tensor(part) for part in (tokens, np.concatenate(rows), np.concatenate(labels)))


def check(settings):
    """Worst relative error, output and gradients, of the chunked form against the recurrence: float64, L = 150."""
    small = dict(settings, width="16", heads="2", slots="7", state="8", window="33", modes="8")
    rng = np.random.Generator(np.random.PCG64(3))
    shapes = mixers.parameter_shapes(small)
    values = {name: draw(rng, name, shape) * (20 if name.endswith(".weight") and "norm" not in name else 1)
              for name, shape in shapes.items()}
    values["x"] = rng.normal(0, 1, (2, 150, 16))
    weight = torch.tensor(rng.normal(0, 1, (2, 150, 16)))
    results = []
    for mix in (mixers.mix, chunked_mixers.mix):
        leaves = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
        y = mix(small, leaves, leaves["x"])
        (y * weight).sum().backward()
        results.append([y.detach()] + [leaf.grad for leaf in leaves.values()])
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in zip(*results))


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_cuda(opt, mixer, form):
    """One form of the step: "eager" or "compiled", both in a CUDA graph."""
    import train_cuda
    settings = settings_for(opt, mixer)
    rng = np.random.Generator(np.random.PCG64(opt.seed + 1))
    batches = [mqar_batch(rng, settings) for _ in range(4)]
    params = parameters(settings, opt.seed, torch.float32)
    times, first, last, middle = train_cuda.measure(settings, params, batches, opt.steps, form == "compiled")
    return {"mixer": mixer, "form": form, "threads": 0, "steps": opt.steps, "ms_per_step": middle,
            "ms_fastest": min(times), "tokens_per_second": 1e3 * int(settings["batch"]) * int(settings["length"]) / middle,
            "peak_mb": torch.cuda.max_memory_allocated() / 1048576, "before_mb": 0.0, "first_loss": first, "last_loss": last,
            "check_error": None, "settings": settings}


def measure_cuda_forms(opt, mixer):
    """Both forms; a form that fails is a line on the error output, as long as the other does not."""
    rows, failures = [], []
    for form in ["eager"] + ["compiled"] * (not opt.eager):
        try:
            rows.append(measure_cuda(opt, mixer, form))
        except Exception as problem:  # whatever the compiler does not like
            failures.append(f"{mixer}, {form}: {type(problem).__name__}: {str(problem)[:1500]}")
            print(f"{failures[-1]}\n{mixer}: no figure for the {form} form", file=sys.stderr)
    if not rows:
        sys.exit("no form of the step runs")
    return rows


def measure(opt, mixer):
    settings = settings_for(opt, mixer)
    error = check(settings) if not opt.no_check else None
    before = peak_mb()
    params = parameters(settings, opt.seed, torch.float32)
    adam = model.optimiser(settings, params)
    rng = np.random.Generator(np.random.PCG64(opt.seed + 1))
    batches = [mqar_batch(rng, settings) for _ in range(4)]
    times, losses = [], []
    for step in range(opt.warm + opt.steps):
        start = time.perf_counter()
        value, _, _ = model.train_step(settings, params, adam, step, batches[step % 4], chunked_mixers.mix)
        times.append(1e3 * (time.perf_counter() - start))
        losses.append(value)
    timed = times[opt.warm:]
    tokens = int(settings["batch"]) * int(settings["length"])
    return {"mixer": mixer, "threads": torch.get_num_threads(), "steps": opt.steps, "ms_per_step": statistics.median(timed),
            "ms_fastest": min(timed), "tokens_per_second": 1e3 * tokens / statistics.median(timed),
            "peak_mb": peak_mb(), "before_mb": before, "first_loss": losses[0], "last_loss": losses[-1],
            "check_error": error, "settings": settings}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--mixer", default="all", choices=["all", *chunked_mixers.MIXERS])
    add("--threads", type=int, default=torch.get_num_threads())
    add("--steps", type=int, default=7, help="timed steps; the median counts")
    add("--warm", type=int, default=2, help="steps before the clock starts")
    add("--seed", type=int, default=1)
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of model, mixer or task")
    add("--device", default="cpu", choices=["cpu", "cuda"])
    add("--style", default="written", choices=["written", "autograd"],
        help="cpu, blurry: backward by hand (the faster), or by PyTorch as one would write it in a model")
    add("--eager", action="store_true", help="cuda: not the compiled form, only the eager one (both in a CUDA graph)")
    add("--no-check", action="store_true")
    add("--json", action="store_true")
    opt = parser.parse_args()
    for item in opt.set:
        if "=" not in item:
            parser.error(f"--set {item}: give key=value")
    return opt


def measure_all(opt):
    """One process per mixer, so that each peak of memory is its own."""
    rows = []
    for mixer in chunked_mixers.MIXERS:
        command = [sys.executable, __file__, "--mixer", mixer, "--json", "--threads", str(opt.threads), "--steps",
                   str(opt.steps), "--warm", str(opt.warm), "--seed", str(opt.seed)]
        command += [f"--set={item}" for item in opt.set] + ["--no-check"] * opt.no_check
        command += ["--device", opt.device, "--style", opt.style] + ["--eager"] * opt.eager
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{mixer}: failed")
        rows += json.loads(done.stdout)["rows"]
    return rows


def main():
    opt = options()
    chunked_mixers.blurry_style = opt.style
    torch.set_num_threads(opt.threads)
    torch.set_flush_denormal(True)
    if opt.mixer == "all":
        rows = measure_all(opt)
    else:
        rows = measure_cuda_forms(opt, opt.mixer) if opt.device == "cuda" else [measure(opt, opt.mixer)]
    worst = max(row["check_error"] or 0.0 for row in rows)
    if opt.json:
        print(json.dumps({"peer": f"PyTorch {torch.__version__}", "rows": rows, "worst_error": worst,
                          "tolerance": TOLERANCE, "agrees": worst <= TOLERANCE}))
    else:
        print(f"PyTorch {torch.__version__}, {opt.threads} threads, median of {opt.steps} steps")
        print("mixer      ms/step   fastest   tokens/s   peak MB (before)   loss first -> last   check error")
        for row in rows:
            name = row["mixer"] + (f", {row['form']}" if "form" in row else "")
            print(f"{name:8s} {row['ms_per_step']:9.3f} {row['ms_fastest']:9.3f} {row['tokens_per_second']:10.0f} "
                  f"{row['peak_mb']:9.0f} ({row['before_mb']:.0f}) {row['first_loss']:14.3f} -> {row['last_loss']:.3f}"
                  f"{row['check_error'] if row['check_error'] is not None else math.nan:14.1e}")
    if worst > TOLERANCE:
        sys.exit(f"a chunked form misses the recurrence by {worst:.1e}, allowed {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
