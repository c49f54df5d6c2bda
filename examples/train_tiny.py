#!/usr/bin/env python3
"""Trains a small model with blurry.torch on the text of this file, continues it, and saves it for the command line.

    python3 examples/train_tiny.py [--steps 150] [--out tiny.safetensors]
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F

import blurry
import blurry.torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", default="tiny.safetensors")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = torch.tensor(list(pathlib.Path(__file__).read_bytes()), device=device)
    length = 128

    model = blurry.torch.LanguageModel(mixer="blurry", layers=2, width=64, heads=4, vocab=256, length=length, modes=16,
                                       resolution=2, decay=True, conv=True, task="text").to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(options.steps):
        starts = torch.randint(0, len(text) - length - 1, (16,)).tolist()
        batch = torch.stack([text[start:start + length + 1] for start in starts])
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 25 == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.item():.3f} nats per byte")

    model.eval()
    prompt = torch.tensor([list(b"import ")], device=device)
    print("import " + bytes(model.generate(prompt, 80)[0].tolist()).decode("utf-8", "replace"))
    model.save_checkpoint(options.out)
    print(f"saved {options.out}; the C library continues:", repr(blurry.load(options.out).generate("import ", 40, temperature=0)))


if __name__ == "__main__":
    main()
