"""LanguageModel: a whole blurry model as an nn.Module, with the same parameters under the same names, so that checkpoints
go both ways and logits agree."""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import _settings
from .._model import Model
from .._tensors import Path, load_tensors
from ._cache import Cache
from ._mixers import Blurry, RMSNorm, flag, linear, make_mixer

_NORM_EPS = 1e-5


def _norm(settings: Dict[str, str]) -> nn.Module:
    width = int(settings["width"])
    return nn.LayerNorm(width, eps=_NORM_EPS) if settings["norm"] == "layernorm" else RMSNorm(width)


class SwiGLU(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        hidden = (8 * width + 95) // 96 * 32
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class GELU(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.fc1, self.fc2 = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """x += mixer(norm x); x += mlp(norm x)."""

    def __init__(self, settings: Dict[str, str], mixer: str, layer_idx: int):
        super().__init__()
        self.norm1, self.mixer = _norm(settings), make_mixer(settings, mixer, layer_idx)
        kind = settings["mlp"]
        self.norm2 = None if kind == "none" else _norm(settings)
        self.mlp = None if kind == "none" else (SwiGLU if kind == "swiglu" else GELU)(int(settings["width"]))

    def forward(self, x: Tensor, cache: Optional[Cache] = None) -> Tensor:
        if isinstance(self.mixer, Blurry):
            mixed, _, _ = self.mixer(self.norm1(x), past_key_values=cache)
        elif cache is None:
            mixed = self.mixer(self.norm1(x))
        else:
            raise ValueError(f"cache is given: the mixer {self.mixer.name} of this model keeps none here; blurry.load runs "
                             "every mixer step by step")
        x = x + mixed
        return x if self.mlp is None else x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    """The twin of a blurry model: tokens [B, L] -> logits [B, L, vocabulary].

    LanguageModel(mixer="blurry", layers=2, width=64, vocab=256, length=512) takes the settings of `blurry train --help`;
    LanguageModel.from_checkpoint(path) has a checkpoint's settings and weights; save_checkpoint writes one that
    blurry.load and the command line take. `state_dict` has the names of the checkpoint.
    """

    def __init__(self, settings: Optional[Mapping[str, Any]] = None, **more: Any):
        super().__init__()
        handle = _settings.create()
        _settings.assign(handle, {**(settings or {}), **more})
        self.settings: Dict[str, str] = _settings.as_dict(handle)
        s, width, vocabulary = self.settings, int(self.settings["width"]), int(self.settings["vocab"])
        names = s["mixer"].split(",")
        layers = int(s["layers"])
        if len(names) not in (1, layers):
            raise ValueError(f"mixer has {len(names)} names: give one, or one for each of the {layers} layers")
        self.embed = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.position = nn.Embedding(int(s["length"]), width) if s["position"] == "learned" else None
        if self.position is not None:
            nn.init.normal_(self.position.weight, std=0.02)
        self.dropout = nn.Dropout(float(s["dropout"]))
        self.layers = nn.ModuleList(Block(s, names[i % len(names)], i) for i in range(layers))
        self.norm = _norm(s)
        self.head = None if flag(s, "tied") else linear(width, vocabulary)

    def forward(self, tokens: Tensor, cache: Optional[Cache] = None) -> Tensor:
        """With a cache (blurry layers only, under torch.no_grad()) the tokens continue those fed before."""
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise ValueError(f"tokens has shape {tuple(tokens.shape)} and dtype {str(tokens.dtype)[6:]}: give whole "
                             "numbers, [B, L]")
        x = self.embed(tokens)
        if self.position is not None:
            first = 0 if cache is None else cache.get_seq_length()
            if first + tokens.shape[1] > self.position.num_embeddings:
                raise ValueError(f"tokens reaches position {first + tokens.shape[1]}: the model has learned positions for "
                                 f"{self.position.num_embeddings}")
            x = x + self.position.weight[first:first + tokens.shape[1]]
        x = self.dropout(x)
        for block in self.layers:
            x = block(x, cache)
        return F.linear(self.norm(x), self.embed.weight if self.head is None else self.head.weight)

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int, temperature: float = 0.0,
                 generator: Optional[torch.Generator] = None) -> Tensor:
        """`count` tokens that continue each row of tokens [B, L]: [B, count], with constant memory (blurry layers only)."""
        cache, drawn = Cache(), []
        logits = self(tokens, cache)[:, -1]
        for _ in range(count):
            if temperature > 0:
                following = torch.multinomial((logits.float() / temperature).softmax(-1), 1, generator=generator)
            else:
                following = logits.argmax(-1, keepdim=True)
            drawn.append(following)
            logits = self(following, cache)[:, -1]
        return torch.cat(drawn, 1) if drawn else tokens[:, :0]

    # ---- checkpoints ----
    @classmethod
    def from_checkpoint(cls, path: Path, device: Any = None, dtype: Optional[torch.dtype] = None) -> "LanguageModel":
        """The twin of a checkpoint: a model file, or a run directory (its best model)."""
        handle = _settings.of_checkpoint(path)
        model = cls(_settings.as_dict(handle))
        kind = torch.float64 if model.settings["precision"] == "f64" else torch.float32
        model.to(dtype or kind).load_library_parameters(_weights(path))
        return model if device is None else model.to(device)

    @torch.no_grad()
    def load_library_parameters(self, values: Mapping[str, Any]) -> None:
        """Copies parameters, for example of blurry.Model.parameters(), into this model; all must be there."""
        own = dict(self.named_parameters())
        for name in sorted(set(own) ^ set(values)):
            raise ValueError(f"values: parameter {name!r} is only in " + ("this model" if name in own else "values"))
        for name, parameter in own.items():
            value = torch.as_tensor(values[name])
            if tuple(value.shape) != tuple(parameter.shape):
                raise ValueError(f"values[{name!r}] has shape {tuple(value.shape)}: it must be {tuple(parameter.shape)}")
            parameter.copy_(value)

    def to_library(self, **settings: Any) -> Model:
        """The same model in the C library. Settings given here replace its own: length, batch, threads, device."""
        model = Model({"batch": 8, **self.settings, **settings})
        model.set_parameters({name: parameter.detach().double().cpu().numpy()
                              for name, parameter in self.named_parameters()})
        return model

    def save_checkpoint(self, path: Path) -> None:
        """Writes a model file that blurry.load, from_checkpoint and the command line take."""
        self.to_library().save(path)


def _weights(path: Path) -> Dict[str, Any]:
    """The tensors of a model file or of the model a run directory stands for."""
    import os
    if os.path.isdir(path):
        best = os.path.join(path, "best.safetensors")
        path = best if os.path.exists(best) else os.path.join(path, "model.safetensors")
    return load_tensors(path)[0]
