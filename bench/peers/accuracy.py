#!/usr/bin/env python3
"""How far blurry.torch and the same formulas in PyTorch matrix products are from the float64 recurrence.

    python3 bench/peers/accuracy.py                                  # float32 on the CPU
    python3 bench/peers/accuracy.py --device cuda --dtype bfloat16

Both sides get the same tensors, already rounded to the type, and compute in it (PyTorch with its own accumulation). Errors
are norms of differences over the norm of the exact tensor; a row shows the worst of o, d_q, d_k, d_v for each side. Exits
non-zero where ours is more than twice PyTorch's in any of the four.
"""
import sys

# This folder holds a file named operator.py: it must not stand in front of the standard library.
sys.path.pop(0)
import argparse  # noqa: E402
import pathlib  # noqa: E402

try:
    import torch  # noqa: E402
except ModuleNotFoundError:
    sys.exit("accuracy.py needs PyTorch: install the package python3-torch, or run it with a Python that has torch")

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent.parent / "tests" / "golden"), str(HERE), str(HERE.parent.parent / "python")]
import blurry.torch as ours  # noqa: E402
import blurry_chunked as chunked  # noqa: E402
from operator_cuda import moved  # noqa: E402
from twin import mixers  # noqa: E402

# B, L, H, D, S, T/S, decay
SHAPES = [(1, 320, 2, 64, 127, 2, False), (1, 320, 2, 64, 127, 2, True), (1, 256, 2, 128, 63, 2, False),
          (1, 256, 2, 128, 63, 2, True), (2, 192, 1, 32, 31, 1, False), (2, 192, 1, 32, 31, 1, True),
          (1, 320, 1, 64, 31, 4, False), (1, 320, 1, 64, 31, 4, True), (1, 448, 2, 96, 95, 2, False),
          (1, 448, 2, 96, 95, 2, True), (1, 128, 3, 64, 7, 8, True), (1, 576, 1, 128, 127, 4, True)]
NAMES = ("o", "d_q", "d_k", "d_v")


def results(function, inputs, d_o):
    leaves = [x.clone().requires_grad_() for x in inputs]
    o = function(*leaves)
    o.backward(d_o)
    return [x.detach().double().cpu() for x in (o, *(leaf.grad for leaf in leaves))]


def peer(shape, device, dtype):
    B, L, H, D, S, ratio, decay = shape
    plan = chunked.make_plan(B, L, H, S, float(ratio * S), decay, 64, style="autograd")
    if device == "cuda" or dtype != torch.float32:
        plan = moved(plan, dtype, device)
    return lambda q, k, v: chunked.forward(plan, q, k, v, D ** -0.5)[0]


def errors(shape, device, dtype, seed):
    B, L, H, D, S, ratio, decay = shape
    generator = torch.Generator().manual_seed(seed)
    exact = [torch.randn(B, L, H, D, generator=generator).to(dtype) for _ in range(4)]
    periods = torch.full((H,), float(ratio * S), dtype=torch.float64)
    wide = [x.double() for x in exact]
    want = results(lambda q, k, v: mixers.blurry_operator(q, k, v, periods, (S + 1) // 2, decay, "absolute", D ** -0.5),
                   wide[:3], wide[3])
    here = [x.to(device) for x in exact]
    sides = (lambda q, k, v: ours.attention(q, k, v, modes=(S + 1) // 2, resolution=float(ratio), decay=decay),
             peer(shape, device, dtype))
    return [[float((x - y).norm() / y.norm()) for x, y in zip(results(side, here[:3], here[3]), want)] for side in sides]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    opt = parser.parse_args()
    dtype, failed = getattr(torch, opt.dtype), False
    torch.set_num_threads(1)  # the recurrence is many small operations: threads would only wait for each other
    print(f"{opt.device}, {opt.dtype}: worst relative error of o, d_q, d_k, d_v against float64")
    for seed, shape in enumerate(SHAPES):
        mine, theirs = errors(shape, opt.device, dtype, seed)
        ratio = max(a / b for a, b in zip(mine, theirs))
        missed = [n for n, a, b in zip(NAMES, mine, theirs) if not a <= 2 * b]
        failed = failed or bool(missed)
        print("B={} L={:3d} H={} D={:3d} S={:3d} T/S={} {:8s}".format(*shape[:6], "decay" if shape[6] else "no decay"),
              f"ours {max(mine):.2e}  PyTorch {max(theirs):.2e}  largest ratio {ratio:.2f}",
              f" MISSED: {', '.join(missed)}" if missed else "", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
