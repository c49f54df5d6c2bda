"""python3 -m blurry.torch.compare RUN: are the logits of `blurry eval` those of the PyTorch twin?

Runs `blurry eval RUN --logits` on a few sequences of the checkpoint's own task, gives the same sequences to
LanguageModel.from_checkpoint(RUN), prints the largest difference and fails where it exceeds 1e-4.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from typing import List, Optional

import torch

from .. import load_tensors
from ._model import LanguageModel

TOLERANCE = 1e-4


def largest_difference(run: str, file: str, device: Optional[str] = None) -> "tuple[float, float, int]":
    """-> the largest difference and the largest logit, and how many rows were compared."""
    tensors, _ = load_tensors(file)
    model = LanguageModel.from_checkpoint(run, device=device).eval()
    worst, largest = 0.0, 0.0
    length = tensors["tokens"].shape[1]
    with torch.no_grad():
        for n, tokens in enumerate(torch.from_numpy(tensors["tokens"]).long()):
            mine = (tensors["rows"] // length) == n
            theirs = torch.from_numpy(tensors["logits"][mine])
            rows = torch.from_numpy(tensors["rows"][mine] % length)
            ours = model(tokens[None].to(device or "cpu"))[0, rows.to(device or "cpu")].float().cpu()
            worst = max(worst, (ours - theirs).abs().max().item() if len(rows) else 0.0)
            largest = max(largest, theirs.abs().max().item() if len(rows) else 0.0)
    return worst, largest, len(tensors["rows"])


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m blurry.torch.compare", description=__doc__.split("\n")[0])
    parser.add_argument("run", help="run directory or model file")
    parser.add_argument("--blurry", default=os.environ.get("BLURRY", "blurry"), help="the command line program")
    parser.add_argument("--samples", type=int, default=8, help="sequences to compare")
    parser.add_argument("--split", default="val", choices=("val", "test"))
    parser.add_argument("--device", help="where the twin computes, for example cuda")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "logits.safetensors")
        command = [options.blurry, "eval", options.run, "--split", options.split, "--eval_samples", str(options.samples),
                   "--logits", file]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            print(f"{options.blurry}: no such program; give --blurry PATH", file=sys.stderr)
            return 2
        except subprocess.CalledProcessError as problem:
            return problem.returncode
        worst, largest, rows = largest_difference(options.run, file, options.device)
    verdict = "equal" if worst <= TOLERANCE else "DIFFERENT"
    print(f"{rows} rows of logits up to {largest:.3g}: blurry eval and the PyTorch twin differ by at most {worst:.2e}: "
          f"{verdict} (tolerance {TOLERANCE:g})")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
