"""The MQAR training step on a GPU in PyTorch's best form: bf16 autocast, fused AdamW, the step compiled and captured in a
CUDA graph whose replays are timed. Used by train.py --device cuda; chunked_mixers.py has the mixers.

Batches are copied into the graph's inputs before the clock starts, so a replay is forward, backward, clipping and update.
"""
import statistics

import torch
import torch.nn.functional as F

import blurry_chunked
import chunked_mixers
from twin import mixers as twin
from twin import model

CHUNK = 64


class BlurryBlock(torch.nn.Module):
    """x + Wo blurry(norm x) without decay: matrix products alone, which autograd and the compiler see through."""

    def __init__(self, settings, own, norm):
        super().__init__()
        _, self.heads, _, self.key, _ = twin.widths(settings)
        self.norm = torch.nn.Parameter(norm)
        self.q, self.k, self.v, self.o = (torch.nn.Parameter(own[f"{name}.weight"]) for name in "qkvo")

    def stream(self, x, weight):
        """[B, L, d] -> [B, H, L, D]"""
        return F.linear(x, weight).view(x.shape[0], x.shape[1], self.heads, self.key).transpose(1, 2)

    @staticmethod
    def turned(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x, cos, sin, phi, hidden):
        B, L, d = x.shape
        y = twin.rms_norm(x, self.norm)
        q, k, v = self.stream(y, self.q), self.stream(y, self.k), self.stream(y, self.v)
        q, k = self.turned(q, cos, sin) * self.key**-0.5, self.turned(k, cos, sin)
        q, k, v = (t.reshape(B * self.heads, L // CHUNK, CHUNK, self.key) for t in (q, k, v))
        written_k, written_v = phi.transpose(1, 2) @ k, phi.transpose(1, 2) @ v
        K, V = written_k.float().cumsum(1) - written_k, written_v.float().cumsum(1) - written_v
        pairs = (q @ k.transpose(2, 3)).tril()
        p = (pairs @ phi + q @ K.to(q.dtype).transpose(2, 3) + hidden).softmax(-1).to(q.dtype)
        o = p @ V.to(q.dtype) + (p @ phi.transpose(1, 2)).tril() @ v
        o = o.reshape(B, self.heads, L, self.key).transpose(1, 2).reshape(B, L, d)
        return x + F.linear(o, self.o)


class BlurryModel(torch.nn.Module):
    """The whole loss. What does not depend on weights or tokens is a buffer."""

    def __init__(self, settings, params, dtype=torch.bfloat16):
        super().__init__()
        d, H, Hkv, Dk, Dv = twin.widths(settings)
        L, S = int(settings["length"]), 2 * int(settings["modes"]) - 1
        if twin.flag(settings, "decay") or settings["mlp"] != "none" or settings["norm"] != "rmsnorm" or H != Hkv \
                or Dk != Dv or L % CHUNK or settings["tied"] != "true" or not twin.flag(settings, "rope"):
            raise ValueError("the GPU form of blurry has no decay, MLP, LayerNorm, groups or free head")
        values = {name: value.detach().clone() for name, value in params.items()}
        self.embed, self.norm = torch.nn.Parameter(values["embed.weight"]), torch.nn.Parameter(values["norm.weight"])
        self.blocks = torch.nn.ModuleList()
        for i in range(int(settings["layers"])):
            own = {name: values[f"layers.{i}.mixer.{name}.weight"] for name in "qkvo"}
            own = {f"{name}.weight": value for name, value in own.items()}
            self.blocks.append(BlurryBlock(settings, own, values[f"layers.{i}.norm1.weight"]))
        angle = torch.arange(L, dtype=torch.float64, device="cpu")[:, None] \
            * 10000.0 ** (-torch.arange(Dk // 2, dtype=torch.float64, device="cpu") / (Dk // 2))
        T = twin.fixed_periods(settings, Hkv)[0]
        phi = torch.tensor(blurry_chunked.write_weights(range(L), S, T), device="cpu").view(-1, CHUNK, S)
        unseen = torch.tensor(blurry_chunked.hidden_slots(L, S, T), device="cpu").view(-1, CHUNK, S)
        self.register_buffer("cos", angle.cos().to(dtype))
        self.register_buffer("sin", angle.sin().to(dtype))
        self.register_buffer("phi", phi.to(dtype))
        self.register_buffer("hidden", torch.zeros(unseen.shape, device="cpu").masked_fill(unseen, float("-inf")))

    def forward(self, tokens, rows, labels):
        x = F.embedding(tokens, self.embed)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.phi, self.hidden)
        x = twin.rms_norm(x.reshape(-1, x.shape[2]).index_select(0, rows), self.norm)
        return F.cross_entropy(F.linear(x, self.embed).float(), labels)


class OtherModel(torch.nn.Module):
    """Any mixer of chunked_mixers.py, the same in all layers."""

    def __init__(self, settings, params):
        super().__init__()
        made = chunked_mixers.tables(settings, int(settings["length"]), torch.bfloat16)
        self.tables = list(made)
        for name, value in made.items():
            self.register_buffer(f"table_{name}", value)
        self.settings, self.names = settings, list(params)
        self.values = torch.nn.ParameterList([torch.nn.Parameter(params[name].detach().clone()) for name in self.names])

    def forward(self, tokens, rows, labels):
        tables = {name: getattr(self, f"table_{name}") for name in self.tables}
        return model.loss(self.settings, dict(zip(self.names, self.values)), tokens, rows, labels,
                          lambda settings, params, x: chunked_mixers.mix(settings, params, x, tables))


class Step:
    """One training step over fixed tensors."""

    def __init__(self, settings, params, batch, compiled):
        net = BlurryModel(settings, params) if settings["mixer"] == "blurry" else OtherModel(settings, params)
        net = net.cuda()
        self.clip = float(settings["clip"])
        self.batch = [part.cuda() for part in batch]
        self.values = list(net.parameters())
        decayed, others = ([p for p in self.values if (p.dim() > 1) == wide] for wide in (True, False))
        self.adam = torch.optim.AdamW([{"params": decayed, "weight_decay": float(settings["weight_decay"])},
                                       {"params": others, "weight_decay": 0.0}], lr=float(settings["lr"]),
                                      betas=(float(settings["beta1"]), float(settings["beta2"])),
                                      eps=float(settings["eps"]), fused=True, capturable=True)
        self.net = torch.compile(net) if compiled else net
        self.value = None

    def run(self):
        self.adam.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            self.value = self.net(*self.batch)
        self.value.backward()
        torch.nn.utils.clip_grad_norm_(self.values, self.clip, foreach=True)
        self.adam.step()


def captured(settings, params, batch, compiled):
    """A step that has run a few times, its graph, and the loss of the first."""
    step = Step(settings, params, batch, compiled)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step.run()
        first = step.value.item()
        for _ in range(3):
            step.run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    return step, graph, first


def measure(settings, params, batches, steps, compiled):
    """Milliseconds per step of `steps` measurements, and the losses before and after."""
    step, graph, first = captured(settings, params, batches[0], compiled)
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
