"""Blurry Window Attention: attention with a fixed amount of memory.

    import numpy as np, blurry
    q = k = v = np.random.randn(1, 1000, 4, 64).astype(np.float32)      # [B, L, H, D]
    o = blurry.attention(q, k, v, modes=32)                             # 63 slots, whatever the length

`blurry.torch` has the operator, a layer and whole models for PyTorch. docs/python.md is the tutorial.
"""
from ._attention import Gradients, attention, attention_grad, weights
from ._library import DeviceError, FormatError, NumericError, UnsupportedError, version as __version__
from ._model import Model, evaluate, load
from ._state import State
from ._tensors import load_tensors, save_tensors

__all__ = ["DeviceError", "FormatError", "Gradients", "Model", "NumericError", "State", "UnsupportedError", "attention",
           "attention_grad", "evaluate", "load", "load_tensors", "save_tensors", "weights", "__version__"]
