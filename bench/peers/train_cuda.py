"""The MQAR training step on a GPU in PyTorch's best form: bf16 autocast, fused AdamW, the step compiled and captured in a
CUDA graph whose replays are timed. Used by train.py --device cuda; chunked_mixers.py has the mixers.

Batches are copied into the graph's inputs before the clock starts, so a replay is forward, backward, clipping and update.
"""
import functools
import math
import statistics

import torch

import blurry_chunked
import chunked_mixers
from twin import mixers as twin
from twin import model


# Tables are made once, not in every step.
chunked_mixers.rope_tables = torch.compiler.assume_constant_result(chunked_mixers.rope_tables)
chunked_mixers.causal_bias = torch.compiler.assume_constant_result(chunked_mixers.causal_bias)
chunked_mixers.band_bias = torch.compiler.assume_constant_result(chunked_mixers.band_bias)


@torch.compiler.assume_constant_result
@functools.lru_cache(maxsize=None)
def blurry_tables(L, S, T, C):
    """phi [N, C, S] and what hides slots, [N, C, S]: -inf where slot j is not visible yet."""
    phi = torch.tensor(blurry_chunked.write_weights(range(L), S, T), dtype=torch.float32).view(-1, C, S)
    hidden = torch.tensor(blurry_chunked.hidden_slots(L, S, T)).view(-1, C, S)
    return phi, torch.zeros_like(phi).masked_fill(hidden, float("-inf"))


def blurry(settings, params, x):
    """Without decay: matrix products that autograd and the compiler see through."""
    _, H, Hkv, Dk, _ = twin.widths(settings)
    if twin.flag(settings, "decay"):
        raise ValueError("the GPU form of blurry has no decay")
    C, L = 64, x.shape[1]
    q, k, v = (chunked_mixers.chunks(stream, C) for stream in chunked_mixers.projections(settings, params, x))
    phi, bias = blurry_tables(L, 2 * int(settings["modes"]) - 1, twin.fixed_periods(settings, Hkv)[0], C)
    q = q * (1 / math.sqrt(Dk))
    to_slots = phi.to(q.dtype)
    written_k, written_v = to_slots.transpose(1, 2) @ k, to_slots.transpose(1, 2) @ v
    K, V = written_k.float().cumsum(1) - written_k, written_v.float().cumsum(1) - written_v
    pairs = (q @ k.transpose(2, 3)).tril()
    p = (pairs @ to_slots + q @ K.to(q.dtype).transpose(2, 3) + bias).softmax(-1).to(q.dtype)
    o = p @ V.to(q.dtype) + (p @ to_slots.transpose(1, 2)).tril() @ v
    return twin.output(params, chunked_mixers.unchunk(o, L, H))


def mix(settings, params, x):
    return (blurry if settings["mixer"] == "blurry" else chunked_mixers.MIXERS[settings["mixer"]])(settings, params, x)


class Step:
    """One training step over fixed tensors."""

    def __init__(self, settings, params, batch, compiled):
        self.settings, self.params = settings, params
        self.batch = [part.cuda() for part in batch]
        decayed = [p for name, p in params.items() if model.decays(name)]
        others = [p for name, p in params.items() if not model.decays(name)]
        self.adam = torch.optim.AdamW([{"params": decayed, "weight_decay": float(settings["weight_decay"])},
                                       {"params": others, "weight_decay": 0.0}], lr=float(settings["lr"]),
                                      betas=(float(settings["beta1"]), float(settings["beta2"])),
                                      eps=float(settings["eps"]), fused=True, capturable=True)
        self.loss = torch.compile(self.forward) if compiled else self.forward
        self.value = None

    def forward(self, tokens, rows, labels):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model.loss(self.settings, self.params, tokens, rows, labels, mix)

    def run(self):
        self.adam.zero_grad(set_to_none=False)
        self.value = self.loss(*self.batch)
        self.value.backward()
        torch.nn.utils.clip_grad_norm_(list(self.params.values()), float(self.settings["clip"]), foreach=True)
        self.adam.step()


def measure(settings, params, batches, steps, compiled):
    """Milliseconds per step of `steps` measurements, and the losses before and after."""
    step = Step(settings, params, batches[0], compiled)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step.run()
        first = step.value.item()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    times = []
    for i in range(steps):
        for to, part in zip(step.batch, batches[i % len(batches)]):
            to.copy_(part)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(20):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 20)
    return times, first, step.value.item(), statistics.median(times)
