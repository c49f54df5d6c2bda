"""Rotary positions: half-rotation, as the C library does them. Angles are made in float64, so that positions far out
lose no digits."""
from __future__ import annotations

from typing import Tuple, Union

import torch
from torch import Tensor


def positions(length: int, start: Union[int, Tensor], device: torch.device) -> Tensor:
    """start .. start+length-1 as float64: [L], or [B, L] where start is a tensor [B]."""
    steps = torch.arange(length, dtype=torch.float64, device=device)
    return start.to(device=device, dtype=torch.float64)[:, None] + steps if isinstance(start, Tensor) else steps + start


def rotate(x: Tensor, position: Tensor, base: float = 10000.0) -> Tensor:
    """x [..., L, H, D] at `position` [L] or [..., L]: element i turns with element i + D/2; a last odd one stays."""
    width = x.shape[-1]
    half = width // 2
    frequency = float(base) ** (torch.arange(half, dtype=torch.float64, device=x.device) * (-2.0 / width))
    angle = position[..., None, None] * frequency
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:2 * half]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine, x[..., 2 * half:]], -1)


def rope(q: Tensor, k: Tensor, position: Tensor, base: float = 10000.0) -> Tuple[Tensor, Tensor]:
    return rotate(q, position, base), rotate(k, position, base)
