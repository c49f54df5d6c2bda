#!/usr/bin/env python3
"""Streams a million tokens through one State: memory stays flat, and a far token is still where it was written.

    python3 examples/stream_million.py [--tokens 1000000]
"""
import argparse
import resource
import time

import numpy as np

import blurry


def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    total, chunk, heads, dim, modes = parser.parse_args().tokens, 4096, 2, 32, 64
    rng = np.random.default_rng(0)
    options = dict(modes=modes, resolution=2)
    state = blurry.State(1, heads=heads, dim_k=dim, **options)
    start, before, seen = time.time(), None, 0
    while seen < total:
        count = min(chunk, total - seen)
        q, k, v = rng.standard_normal((3, 1, count, heads, dim), dtype=np.float32)
        o, state = blurry.attention(q, k, v, state=state, return_state=True, **options)
        seen += count
        if before is None and seen >= total // 10:
            before = megabytes()
    seconds = time.time() - start
    for _ in range(100):  # and on, one token at a time
        q, k, v = rng.standard_normal((3, 1, heads, dim), dtype=np.float32)
        o = state.step(q, k, v)
    print(f"{state.position[0]} tokens in {seconds:.1f} s ({total / seconds:.0f} per second); the state takes "
          f"{state.nbytes / 1024:.0f} KiB; memory grew by {megabytes() - before:.1f} MiB after the first tenth")
    assert np.isfinite(o).all() and megabytes() - before < 50


if __name__ == "__main__":
    main()
