"""The language model around the mixers, and its optimiser: parameters as a dictionary of checkpoint names.

x = embedding (+ learned position); per layer x += mixer(norm x), then x += mlp(norm x) unless the MLP is off; final norm;
logits at the labelled rows through the tied or untied head; mean cross-entropy over those rows.
"""
import math

import torch
import torch.nn.functional as F

from . import mixers

NORM_EPS = 1e-5


def layer_settings(settings):
    """One settings dictionary per layer: `mixer` is one name for all layers or one name each."""
    names = settings["mixer"].split(",")
    count = int(settings["layers"])
    names = names * count if len(names) == 1 else names
    return [dict(settings, mixer=name) for name in names]


def norm_shapes(settings, prefix):
    d = int(settings["width"])
    shapes = {f"{prefix}.weight": (d,)}
    if settings.get("norm") == "layernorm":
        shapes[f"{prefix}.bias"] = (d,)
    return shapes


def mlp_shapes(settings, prefix):
    d = int(settings["width"])
    if settings["mlp"] == "swiglu":
        hidden = math.ceil(8 * d / 3 / 32) * 32
        return {f"{prefix}.gate.weight": (hidden, d), f"{prefix}.up.weight": (hidden, d),
                f"{prefix}.down.weight": (d, hidden)}
    if settings["mlp"] == "gelu":
        return {f"{prefix}.fc1.weight": (4 * d, d), f"{prefix}.fc2.weight": (d, 4 * d)}
    return {}


def parameter_shapes(settings):
    V, d = int(settings["vocab"]), int(settings["width"])
    shapes = {"embed.weight": (V, d)}
    if settings.get("position") == "learned":
        shapes["position.weight"] = (int(settings["length"]), d)
    for i, layer in enumerate(layer_settings(settings)):
        shapes |= norm_shapes(settings, f"layers.{i}.norm1")
        shapes |= {f"layers.{i}.mixer.{name}": shape for name, shape in mixers.parameter_shapes(layer).items()}
        if settings["mlp"] != "none":
            shapes |= norm_shapes(settings, f"layers.{i}.norm2") | mlp_shapes(settings, f"layers.{i}.mlp")
    shapes |= norm_shapes(settings, "norm")
    if settings.get("tied") == "false":
        shapes["head.weight"] = (V, d)
    return shapes


def decays(name):
    """Weight decay applies to linear and embedding weights only."""
    part = name.split(".")
    return part[-1] == "weight" and "norm" not in part[-2] and not part[-2].startswith("conv_")


def normalised(settings, params, prefix, x):
    weight = params[f"{prefix}.weight"]
    if settings.get("norm") == "layernorm":
        return F.layer_norm(x, x.shape[-1:], weight, params[f"{prefix}.bias"], NORM_EPS)
    return mixers.rms_norm(x, weight)


def mlp(settings, params, prefix, x):
    if settings["mlp"] == "swiglu":
        gate, up = x @ params[f"{prefix}.gate.weight"].T, x @ params[f"{prefix}.up.weight"].T
        return (F.silu(gate) * up) @ params[f"{prefix}.down.weight"].T
    return F.gelu(x @ params[f"{prefix}.fc1.weight"].T) @ params[f"{prefix}.fc2.weight"].T


def logits(settings, params, tokens, rows, mix=mixers.mix):
    """tokens [B,L], rows [R] (each b*L + t) -> [R,V]. `mix` may be another implementation of the mixers."""
    x = F.embedding(tokens, params["embed.weight"])
    if "position.weight" in params:
        x = x + params["position.weight"][:tokens.shape[1]]
    for i, layer in enumerate(layer_settings(settings)):
        prefix = f"layers.{i}.mixer."
        own = {name[len(prefix):]: value for name, value in params.items() if name.startswith(prefix)}
        x = x + mix(layer, own, normalised(settings, params, f"layers.{i}.norm1", x))
        if settings["mlp"] != "none":
            x = x + mlp(settings, params, f"layers.{i}.mlp", normalised(settings, params, f"layers.{i}.norm2", x))
    # Only labelled rows pass the final norm and the head.
    x = normalised(settings, params, "norm", x.reshape(-1, x.shape[-1]).index_select(0, rows))
    return x @ params["head.weight" if "head.weight" in params else "embed.weight"].T


def loss(settings, params, tokens, rows, labels, mix=mixers.mix):
    return F.cross_entropy(logits(settings, params, tokens, rows, mix), labels)


def learning_rate(settings, step):
    """Step counts from 0: linear warm-up to lr over `warmup` steps, then half a cosine down to min_lr."""
    steps, warmup = int(settings["steps"]), int(settings["warmup"])
    peak, floor = float(settings["lr"]), float(settings["min_lr"])
    if step < warmup:
        return peak * (step + 1) / warmup
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def optimiser(settings, params):
    groups = [{"params": [p for name, p in params.items() if decays(name)],
               "weight_decay": float(settings["weight_decay"])},
              {"params": [p for name, p in params.items() if not decays(name)], "weight_decay": 0.0}]
    betas = float(settings["beta1"]), float(settings["beta2"])
    return torch.optim.AdamW(groups, lr=float(settings["lr"]), betas=betas, eps=float(settings["eps"]))


def clip_gradients(params, limit):
    """Scales all gradients by limit/norm where the norm exceeds limit; returns the norm before."""
    grads = [p.grad for p in params.values()]
    norm = torch.sqrt(sum((g * g).sum() for g in grads))
    if norm > limit:
        for g in grads:
            g.mul_(limit / norm)
    return norm.item()


def train_step(settings, params, adam, step, batch, mix=mixers.mix):
    """One optimiser step on batch (tokens, rows, labels) -> loss, learning rate, gradient norm."""
    rate = learning_rate(settings, step)
    for group in adam.param_groups:
        group["lr"] = rate
    adam.zero_grad(set_to_none=True)
    value = loss(settings, params, *batch, mix)
    value.backward()
    norm = clip_gradients(params, float(settings["clip"]))
    adam.step()
    return value.item(), rate, norm
