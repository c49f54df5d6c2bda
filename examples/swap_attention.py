#!/usr/bin/env python3
"""Replaces the softmax attention of an existing module by blurry window attention, weights included.

nn.MultiheadAttention keeps q, k and v in one matrix; its parts become the projections of a BlurryAttention. With a period
of as many tokens as there are slots the result is sliding-window attention; as long as the text is not longer than
the window and slots do not forget, it is what softmax attention gives.

    python3 examples/swap_attention.py
"""
import torch
from torch import nn

import blurry.torch


class Swapped(nn.Module):
    """Stands where an nn.MultiheadAttention(batch_first=True) stood in a causal model."""

    def __init__(self, old: nn.MultiheadAttention, **options):
        super().__init__()
        self.batch_first = True
        self.layer = blurry.torch.BlurryAttention(old.embed_dim, old.num_heads, rope=False, **options)
        with torch.no_grad():
            for name, part in zip("qkv", old.in_proj_weight.chunk(3)):
                getattr(self.layer, name).weight.copy_(part)
            self.layer.o.weight.copy_(old.out_proj.weight)

    def forward(self, query, key, value, **ignored_because_causal):
        return self.layer(query)[0], None


def swap(module: nn.Module, **options) -> int:
    """Replaces every nn.MultiheadAttention inside `module`; returns how many."""
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                setattr(parent, name, Swapped(child, **options))
                count += 1
    return count


def main():
    torch.manual_seed(0)
    make = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(make, 3)
    for module in model.modules():  # BlurryAttention has no biases, so the old ones must be 0 to compare
        if isinstance(module, nn.MultiheadAttention):
            nn.init.zeros_(module.in_proj_bias)
            nn.init.zeros_(module.out_proj.bias)
    x = torch.randn(2, 60, 64)
    causal = nn.Transformer.generate_square_subsequent_mask(60)
    before = model.train()(x, mask=causal)  # in train mode PyTorch takes the plain path, not a fused one

    swapped = swap(model, modes=32, period=63, decay=False)
    after = model(x)
    print(f"swapped {swapped} layers; 63 slots, one token each: outputs differ by {(before - after).abs().max():.1e}")

    swap_count = sum(isinstance(module, blurry.torch.BlurryAttention) for module in model.modules())
    for module in model.modules():
        if isinstance(module, blurry.torch.BlurryAttention):
            module.periods = (126.0,) * module.num_kv_heads
    after.square().mean().backward()
    long = model(torch.randn(1, 5000, 64))
    print(f"{swap_count} layers trained; 5000 tokens through 63 slots of 2 tokens each: {tuple(long.shape)}")


if __name__ == "__main__":
    main()
