#!/usr/bin/env python3
"""Times the blurry operator in PyTorch matrix products and PyTorch's sliding-window attention on a GPU.

    python3 bench/peers/operator_cuda.py                       # bf16, B=4 L=4096 H=16 D=64 S=127
    python3 bench/peers/operator_cuda.py --dtype float32 --slots 63 --dim 128 --json

Rows: the chunk formulas of blurry_chunked.py under torch.compile, without and with decay, differentiated by PyTorch; and
flex_attention over a window of S keys, compiled, the price of an exact window of the same size. Each blurry form is first
compared with the float64 recurrence over a few chunks. Needs PyTorch 2.5 or later with CUDA; the first calls compile for
a minute. Times are medians of events around single calls, after warm-up; compare with `blurry bench op --device cuda`.
"""
import sys

# This folder holds a file named operator.py: it must not stand in front of the standard library.
sys.path.pop(0)
import argparse  # noqa: E402
import json  # noqa: E402
import pathlib  # noqa: E402
import statistics  # noqa: E402

import torch  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent.parent / "tests" / "golden"), str(HERE)]
import blurry_chunked as chunked  # noqa: E402
from twin import mixers  # noqa: E402

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 4e-2}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--batch", type=int, default=4)
    add("--length", type=int, default=4096)
    add("--heads", type=int, default=16)
    add("--dim", type=int, default=64)
    add("--slots", type=int, default=127, help="2M-1, odd; also the window of flex_attention")
    add("--chunk", type=int, default=64)
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--repeat", type=int, default=20)
    add("--only", choices=("plain", "decay", "window"), help="one row instead of all")
    add("--json", action="store_true")
    opt = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "operator_cuda.py: PyTorch sees no GPU; bench/peers/operator.py measures on the CPU\n")
    return opt


def moved(plan, dtype, device="cuda"):
    """The plan's tables on the device, numbers in `dtype`."""
    for name, value in vars(plan).items():
        if torch.is_tensor(value):
            setattr(plan, name, value.to(device) if value.dtype == torch.bool else value.to(device, dtype))
        elif isinstance(value, list) and value and torch.is_tensor(value[0]):
            setattr(plan, name, [x.to(device) for x in value])
    return plan


def blurry(B, L, H, D, opt, decay, dtype):
    plan = moved(chunked.make_plan(B, L, H, opt.slots, 2.0 * opt.slots, decay, opt.chunk, style="autograd"), dtype)
    return lambda q, k, v: chunked.forward(plan, q, k, v, D ** -0.5)[0]


def window(opt):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def near(b, h, t, u):
        return (u <= t) & (t - u < opt.slots)
    mask = create_block_mask(near, None, None, opt.length, opt.length, device="cuda")
    inner = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: inner(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=mask).transpose(1, 2)


def tensors(B, L, H, D, dtype, count):
    generator = torch.Generator("cuda").manual_seed(1)
    return [torch.randn(B, L, H, D, device="cuda", generator=generator).to(dtype) for _ in range(count)]


def check(opt, decay, dtype):
    """Largest relative error of o, d_q, d_k, d_v over a few chunks against the float64 recurrence."""
    B, L, H, D = 1, 5 * opt.chunk, 2, opt.dim
    q, k, v, d_o = tensors(B, L, H, D, dtype, 4)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o = blurry(B, L, H, D, opt, decay, dtype)(*leaves)
    o.backward(d_o)
    exact = [x.double().cpu().requires_grad_() for x in (q, k, v)]
    periods = torch.full((H,), 2.0 * opt.slots, dtype=torch.float64)
    want = mixers.blurry_operator(*exact, periods, (opt.slots + 1) // 2, decay, "absolute", D ** -0.5)
    (want * d_o.double().cpu()).sum().backward()
    pairs = [(o, want)] + [(x.grad, y.grad) for x, y in zip(leaves, exact)]
    return max(float((x.detach().double().cpu() - y.detach()).norm() / y.detach().norm()) for x, y in pairs)


def timed(run, repeat):
    for _ in range(3):
        run()
    times = []
    for _ in range(repeat):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def measure(opt, name, dtype):
    row = {"name": name}
    if name == "window":
        function = window(opt)
    else:
        row["error"] = check(opt, name == "decay", dtype)
        function = torch.compile(blurry(opt.batch, opt.length, opt.heads, opt.dim, opt, name == "decay", dtype),
                                 dynamic=False)
    q, k, v, d_o = tensors(opt.batch, opt.length, opt.heads, opt.dim, dtype, 4)
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def both():
        for leaf in leaves:
            leaf.grad = None
        function(*leaves).backward(d_o)

    with torch.no_grad():
        row["forward_ms"] = timed(lambda: function(q, k, v), opt.repeat)
    row["forward_backward_ms"] = timed(both, opt.repeat)
    return row


def main():
    opt = options()
    dtype = getattr(torch, opt.dtype)
    rows = [measure(opt, name, dtype) for name in ([opt.only] if opt.only else ("plain", "decay", "window"))]
    worst = max((row["error"] for row in rows if "error" in row), default=0.0)
    if opt.json:
        print(json.dumps({"peer": f"PyTorch {torch.__version__}", "device": torch.cuda.get_device_name(), "rows": rows}))
    else:
        print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, {opt.dtype}, B={opt.batch} L={opt.length} "
              f"H={opt.heads} D={opt.dim} S={opt.slots}")
        for row in rows:
            print(f"{row['name']:8s} forward {row['forward_ms']:8.3f} ms  forward+backward "
                  f"{row['forward_backward_ms']:8.3f} ms  error {row.get('error', float('nan')):.1e}")
    if worst > TOLERANCE[dtype]:
        sys.exit(f"the chunked form misses the float64 recurrence by {worst:.1e}, allowed {TOLERANCE[dtype]:.0e}")


if __name__ == "__main__":
    main()
