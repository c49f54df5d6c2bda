"""What layers remember while text is generated: constant memory per sequence, however many tokens were fed."""
from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
from torch import Tensor


class LayerCache:
    """Of one layer: the operator's states [B, bytes], tokens seen [B], and the last inputs of its convolutions."""

    def __init__(self, states: Tensor, periods: List[float]):
        self.states = states
        self.periods = periods
        self.position = torch.zeros(states.shape[0], dtype=torch.int64, device=states.device)
        self.conv: Dict[str, Tensor] = {}

    def tensors(self) -> List[Tensor]:
        return [self.states, self.position, *self.conv.values()]

    def select(self, indices: Tensor) -> "LayerCache":
        chosen = LayerCache(self.states[indices].contiguous(), self.periods)
        chosen.position = self.position[indices]
        chosen.conv = {name: x[indices] for name, x in self.conv.items()}
        return chosen


class Cache:
    """The memory of all layers, by `layer_idx`. Hand the same object to every call of a generation.

    Its tensors are updated in place, so a step may be captured in a CUDA graph and replayed.
    """

    def __init__(self) -> None:
        self.layers: Dict[int, LayerCache] = {}
        self._seen: Dict[int, int] = {}

    def get(self, layer_idx: int) -> Optional[LayerCache]:
        return self.layers.get(layer_idx)

    def put(self, layer_idx: int, layer: LayerCache) -> LayerCache:
        self.layers[layer_idx] = layer
        return layer

    def advance(self, layer_idx: int, tokens: int) -> None:
        self._seen[layer_idx] = self.get_seq_length(layer_idx) + tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens fed so far (of the longest sequence)."""
        return self._seen.get(layer_idx, 0)

    def nbytes(self) -> int:
        """Bytes of memory, all layers together."""
        return sum(x.numel() * x.element_size() for layer in self.layers.values() for x in layer.tensors())

    def select(self, indices: Any) -> "Cache":
        """The memory of these sequences, in this order; one may be named twice (beams)."""
        chosen = Cache()
        chosen._seen = dict(self._seen)
        for layer_idx, layer in self.layers.items():
            chosen.layers[layer_idx] = layer.select(torch.as_tensor(indices, device=layer.states.device))
        return chosen

    def copy(self) -> "Cache":
        """An independent copy: two continuations of one text."""
        chosen = Cache()
        chosen._seen = dict(self._seen)
        for layer_idx, layer in self.layers.items():
            twin = LayerCache(layer.states.clone(), layer.periods)
            twin.position = layer.position.clone()
            twin.conv = {name: x.clone() for name, x in layer.conv.items()}
            chosen.layers[layer_idx] = twin
        return chosen
