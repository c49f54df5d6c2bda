#!/usr/bin/env python3
"""Times the blurry operator written in PyTorch matrix products (CPU, float32) and checks it against a float64 recurrence.

    python3 bench/peers/operator.py --threads 2
    python3 bench/peers/operator.py --json --threads 2 --inputs in.safetensors --outputs out.safetensors \\
        --decay on --style written

Forward+backward is one forward that keeps what backward needs, and one backward giving d_q, d_k, d_v: in style
"autograd" PyTorch differentiates the forward, in style "written" the backward is written out by hand with in-place
products. Tables (write weights, W) are made beforehand, as a plan would. Where no chunk size is given, the fastest of a
few is used.
With --outputs the results (o, d_q, d_k, d_v) are those of the one --decay chosen (of style "written" where both run).
"""
import sys

# This folder holds a file named operator.py: it must not stand in front of the standard library.
sys.path.pop(0)
import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import pathlib  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent.parent / "tests" / "golden"), str(HERE)]
import blurry_chunked as chunked  # noqa: E402
from twin import mixers, tensorfile  # noqa: E402

CHUNKS = (32, 64, 96, 128)
TOLERANCE = 2e-5


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--batch", type=int, default=1)
    add("--length", type=int, default=4096)
    add("--heads", type=int, default=4)
    add("--dim", type=int, default=64, help="width per head of q, k and v")
    add("--slots", type=int, default=127, help="2M-1, odd")
    add("--period", type=float, default=0, help="T; 0: twice the slots")
    add("--decay", choices=("on", "off", "both"), default="both")
    add("--style", choices=("autograd", "written", "both"), default="both")
    add("--chunk", type=int, default=0, help="tokens per chunk; 0: the fastest of " + ", ".join(map(str, CHUNKS)))
    add("--threads", type=int, default=torch.get_num_threads())
    add("--repeat", type=int, default=7, help="timed runs; the median counts")
    add("--seed", type=int, default=1)
    add("--check-length", type=int, default=0, help="tokens over which gradients are checked; 0: min(length, 2T+64)")
    add("--no-check", action="store_true")
    add("--inputs", help="safetensors with q, k, v, d_o [B,L,H,D] instead of drawn ones")
    add("--outputs", help="where to write o, d_q, d_k, d_v (float32)")
    add("--json", action="store_true")
    opt = parser.parse_args()
    if opt.slots < 1 or opt.slots % 2 == 0:
        parser.error(f"--slots is {opt.slots}: give an odd number")
    if opt.outputs and opt.decay == "both":
        parser.error("--outputs needs --decay on or --decay off")
    return opt


def inputs(opt):
    """q, k, v, d_o as float32 tensors; key/value heads are repeated to the query heads' number."""
    if opt.inputs:
        tensors, _ = tensorfile.read(opt.inputs)
        q, k, v, d_o = (torch.tensor(tensors[name], dtype=torch.float32) for name in ("q", "k", "v", "d_o"))
    else:
        rng = np.random.Generator(np.random.PCG64(opt.seed))
        shape = (opt.batch, opt.length, opt.heads, opt.dim)
        q, k, v, d_o = (torch.tensor(rng.standard_normal(shape, np.float32)) for _ in range(4))
    group = q.shape[2] // k.shape[2]
    return q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2), d_o, group


def fold_heads(gradient, group):
    B, L, H, D = gradient.shape
    return gradient.reshape(B, L, H // group, group, D).sum(3)


def timed(run, repeat):
    run()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def both_passes(style, plan, tensors, scale):
    q, k, v, d_o = tensors
    if style == "autograd":
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o, _ = chunked.forward(plan, *leaves, scale)
        o.backward(d_o)
        return (o.detach(), *(leaf.grad for leaf in leaves))
    o, saved = chunked.forward(plan, q, k, v, scale, keep=True)
    return (o, *chunked.backward(plan, saved, d_o))


def best_plan(opt, tensors, period, decay, style):
    B, L, H, D = tensors[0].shape
    sizes = [opt.chunk] if opt.chunk else sorted({min(size, max(L, 1)) for size in CHUNKS})
    best, best_time = None, math.inf
    for size in sizes:
        plan = chunked.make_plan(B, L, H, opt.slots, period, decay, size, style=style)
        elapsed = timed(lambda: both_passes(style, plan, tensors, D ** -0.5), 5) if len(sizes) > 1 else 0
        if elapsed < best_time:
            best, best_time = plan, elapsed
    return best


def relative(got, want):
    return float((got.double() - want).abs().max() / want.abs().max().clamp(min=1e-300))


def check(opt, row, tensors):
    """Relative error of o, d_q, d_k, d_v over the first check_length tokens against the float64 recurrence."""
    q, k, v, d_o = (x[:, :row["check_length"]].contiguous() for x in tensors)
    B, L, H, D = q.shape
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    periods = torch.full((H,), row["period"], dtype=torch.float64)
    o = mixers.blurry_operator(*leaves, periods, (opt.slots + 1) // 2, row["decay"], "absolute", D ** -0.5)
    (o * d_o.double()).sum().backward()
    plan = chunked.make_plan(B, L, H, opt.slots, row["period"], row["decay"], row["chunk"], style=row["style"])
    got = both_passes(row["style"], plan, (q, k, v, d_o), D ** -0.5)
    wanted = [o.detach()] + [leaf.grad for leaf in leaves]
    return {name: relative(x, y) for name, x, y in zip(("o", "d_q", "d_k", "d_v"), got, wanted)}


def measure(opt, decay, style):
    *tensors, group = inputs(opt)
    B, L, H, D = tensors[0].shape
    period = max(opt.period or 2.0 * opt.slots, float(opt.slots))
    plan = best_plan(opt, tensors, period, decay, style)
    row = {"style": style, "decay": decay, "batch": B, "length": L, "heads": H, "dim": D, "slots": opt.slots,
           "period": period, "threads": torch.get_num_threads(), "chunk": plan.C}
    with torch.no_grad():
        row["forward_ms"] = timed(lambda: chunked.forward(plan, *tensors[:3], D ** -0.5), opt.repeat)
    row["forward_backward_ms"] = timed(lambda: both_passes(style, plan, tensors, D ** -0.5), opt.repeat)
    if not opt.no_check:
        row["check_length"] = min(L, opt.check_length or int(2 * period) + 64)
        row["error"] = check(opt, row, tensors)
    if opt.outputs:
        o, d_q, d_k, d_v = both_passes(style, plan, tensors, D ** -0.5)
        results = {"o": o, "d_q": d_q, "d_k": fold_heads(d_k, group), "d_v": fold_heads(d_v, group)}
        tensorfile.write(opt.outputs, {name: x.numpy() for name, x in results.items()}, {"peer": "pytorch"})
    return row


def sgemm_gflops(repeat=5):
    """1024^3 float32 product on the same threads: the machine's yardstick in the same run."""
    a = torch.randn(1024, 1024)
    return 2 * 1024 ** 3 / timed(lambda: a @ a, repeat) / 1e6


def main():
    opt = options()
    torch.set_num_threads(opt.threads)
    decays = {"on": (True,), "off": (False,), "both": (False, True)}[opt.decay]
    styles = ("autograd", "written") if opt.style == "both" else (opt.style,)
    rows = [measure(opt, decay, style) for decay in decays for style in styles]
    worst = max((max(row["error"].values()) for row in rows if "error" in row), default=0.0)
    report = {"peer": f"PyTorch {torch.__version__}", "sgemm_1024_gflops": sgemm_gflops(), "rows": rows,
              "worst_error": worst, "tolerance": TOLERANCE, "agrees": worst <= TOLERANCE}
    if opt.json:
        print(json.dumps(report))
    else:
        print(f"{report['peer']}, {opt.threads} threads, sgemm 1024^3 {report['sgemm_1024_gflops']:.0f} GFLOP/s")
        print("style    decay  B      L   H   D    S       T  chunk   forward ms   forward+backward ms   worst error")
        for row in rows:
            error = max(row["error"].values()) if "error" in row else math.nan
            print(f"{row['style']:8s} {'on' if row['decay'] else 'off':5s} {row['batch']:2d} {row['length']:6d} "
                  f"{row['heads']:3d} {row['dim']:3d} {row['slots']:4d} {row['period']:7g} {row['chunk']:6d} "
                  f"{row['forward_ms']:12.1f} {row['forward_backward_ms']:21.1f} {error:13.1e}")
    if worst > TOLERANCE:
        sys.exit(f"the chunked form misses the float64 recurrence by {worst:.1e}, allowed {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
