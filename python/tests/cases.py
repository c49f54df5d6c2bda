"""What several tests share: the goldens, and an operator written out token by token in NumPy."""
import pathlib

import numpy as np

import blurry

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "operator"
GOLDEN_CASES = sorted(path.stem for path in GOLDEN.glob("case*.safetensors"))


class Golden:
    """One file of tests/golden/operator."""

    def __init__(self, name):
        self.t, metadata = blurry.load_tensors(GOLDEN / f"{name}.safetensors")
        self.position = int(metadata["position"])
        self.absolute = metadata["grid"] == "absolute"
        self.options = dict(modes=int(metadata["modes"]), period=self.t["period"], decay=metadata["decay"] == "1",
                            grid=metadata["grid"])

    @property
    def has_state(self):
        return "k_state_in" in self.t

    def state(self, dtype=np.float64):
        """The state on entry, or None where the case begins at the beginning."""
        if not self.has_state:
            return None
        q, k, v = (self.t[name].astype(dtype) for name in "qkv")
        state = blurry.State(q.shape[0], heads=q.shape[2], heads_kv=k.shape[2], dim_k=q.shape[3], dim_v=v.shape[3],
                             dtype=q.dtype, **self.options)
        state.set_slots(self.position, self.t["k_state_in"].astype(dtype), self.t["v_state_in"].astype(dtype))
        return state


def close(actual, expected, tolerance=1e-10, least=1e-300):
    """Relative to the largest number expected, or to `least` where all are smaller: what cancels to 0 is never exact."""
    scale = max(least, np.abs(expected).max()) if np.size(expected) else 1.0
    worst = np.abs(np.asarray(actual, np.float64) - expected).max() if np.size(expected) else 0.0
    assert np.shape(actual) == np.shape(expected) and worst <= tolerance * scale, f"off by {worst / scale:.2e}"


def plain(q, k, v, modes, period, decay, scale=None):
    """The absolute grid, token by token: q [B,L,H,Dk], k [B,L,Hkv,Dk], v [B,L,Hkv,Dv], one period for all heads."""
    B, L, H, Dk = q.shape
    S, group = 2 * modes - 1, H // k.shape[2]
    T = max(period, S)
    phi = blurry.weights(modes, T, 0, L)
    visible_from = np.rint(np.arange(S) * T / S)
    K, V = np.zeros((B, k.shape[2], S, Dk)), np.zeros((B, k.shape[2], S, v.shape[3]))
    o = np.empty((B, L, H, v.shape[3]))
    for t in range(L):
        write = phi[t][None, None, :, None]
        keep = 1 - write if decay else 1.0
        K, V = keep * K + write * k[:, t, :, None], keep * V + write * v[:, t, :, None]
        for h in range(H):
            logits = np.einsum("bd,bsd->bs", q[:, t, h], K[:, h // group]) * (scale or Dk ** -0.5)
            logits = np.where(t >= visible_from, logits, -np.inf)
            p = np.exp(logits - logits.max(1, keepdims=True))
            o[:, t, h] = np.einsum("bs,bsd->bd", p / p.sum(1, keepdims=True), V[:, h // group])
    return o


def draw(rng, B=2, L=20, H=4, Hkv=2, Dk=3, Dv=5, dtype=np.float64):
    return tuple(rng.standard_normal(shape).astype(dtype)
                 for shape in ((B, L, H, Dk), (B, L, Hkv, Dk), (B, L, Hkv, Dv)))
