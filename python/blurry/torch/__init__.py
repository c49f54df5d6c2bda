"""Blurry Window Attention for PyTorch: the operator with gradients, a layer with a cache, whole models.

    import torch, blurry.torch
    q = k = v = torch.randn(1, 1000, 4, 64, requires_grad=True)         # [B, L, H, D]
    o = blurry.torch.attention(q, k, v, modes=32)                       # 63 slots, whatever the length

PyTorch 1.13 and later; torch.compile from 2.4 on.
"""
try:
    import torch as _torch  # noqa: F401
except ImportError as problem:
    raise ImportError("blurry.torch needs PyTorch 1.13 or later: install torch (Debian: python3-torch)") from problem

from ._attention import State, attention
from ._cache import Cache
from ._layer import BlurryAttention, ShortConvolution
from ._model import LanguageModel

__all__ = ["BlurryAttention", "Cache", "LanguageModel", "ShortConvolution", "State", "attention"]
