"""The blurry operator (absolute grid, one period) in PyTorch matrix products, chunk by chunk.

Two styles: backward by autograd, and backward written out by hand.

A plan holds the data-independent tables for one shape; forward and backward are batched products over all chunks and
heads at once, and the only loop over time is the scan of the slots from chunk to chunk. With C tokens per chunk:

    logits_t[j] = scale * (b_t[j] <q_t, Kprev[j]> + sum_u <q_t, k_u> W[t,u,j])
    o_t         = sum_j p_t[j] b_t[j] Vprev[j]    + sum_u (sum_j p_t[j] W[t,u,j]) v_u

Without decay b = 1 and W[t,u,j] = phi_u[j] for u <= t, so both sums are plain products with phi. With decay W is a table;
for each t it is a [C,S] matrix, and one product per t serves every chunk that starts at the same fraction of a slot:
whole slots are taken out by turning the slots of a chunk ("rolled frame"). For integer T/S and suitable C a single table
serves all chunks.
"""
import math

import numpy as np
import torch


def write_weights(positions, S, T):
    """phi [len(positions), S] in double: the Dirichlet kernel at t*S/T - j."""
    x = np.fmod(np.asarray(positions, np.float64), T)[:, None] * (S / T) - np.arange(S)
    near = np.isclose(np.abs(np.sin(np.pi * x / S)), 0, atol=1e-12)
    return np.where(near, 1.0, np.sin(np.pi * x) / np.where(near, 1.0, S * np.sin(np.pi * x / S)))


def hidden_slots(length, S, T):
    """[length, S]: True where slot j is not yet visible at t."""
    return np.arange(length)[:, None] < np.rint(np.arange(S) / S * T)[None]


class PlainPlan:
    """Without decay. Chunked tensors are [B*N*H, C, width], chunk-major so that the heads of a chunk share one product."""

    def __init__(self, B, L, H, S, T, chunk, dtype=torch.float32):
        self.B, self.L, self.H, self.S, self.C = B, L, H, S, chunk
        self.N = -(-L // chunk)
        padded = self.N * chunk
        phi = torch.tensor(write_weights(range(padded), S, T), dtype=dtype).view(self.N, chunk, S)
        self.phi = phi.repeat(B, 1, 1) if B > 1 else phi
        hidden = torch.tensor(hidden_slots(padded, S, T)).view(self.N, 1, chunk, S)
        self.masked = int(hidden.flatten(1).any(1).sum())  # only the first chunks have hidden slots
        self.hidden = hidden[:self.masked]

    def split(self, x):
        """[B,L,H,D] -> [B*N*H, C, D], zeros after the end."""
        D = x.shape[3]
        if self.N * self.C != self.L:
            x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, self.N * self.C - self.L))
        return x.reshape(self.B * self.N, self.C, self.H, D).transpose(1, 2).reshape(-1, self.C, D)

    def join(self, x):
        D = x.shape[2]
        x = x.view(self.B * self.N, self.H, self.C, D).transpose(1, 2).reshape(self.B, self.N * self.C, self.H, D)
        return x[:, :self.L]

    def slots_of(self, pairs):
        """sum_u pairs[t,u] phi_u[j], u <= t: [BNH,C,C] (overwritten) -> [BNH,C,S]."""
        pairs.tril_()
        rows = pairs.view(self.B * self.N, self.H * self.C, self.C)
        return torch.bmm(rows, self.phi).view(-1, self.C, self.S)

    def tokens_of(self, p):
        """sum_j p_t[j] phi_u[j], u <= t: [BNH,C,S] -> [BNH,C,C]."""
        rows = torch.bmm(p.view(self.B * self.N, self.H * self.C, self.S), self.phi.transpose(1, 2))
        return rows.view(-1, self.C, self.C).tril_()

    def inherited(self, logits):
        return logits

    def mask(self, logits):
        view = logits.view(self.B, self.N, self.H, self.C, self.S)
        view[:, :self.masked].masked_fill_(self.hidden, float("-inf"))

    def scan(self, x):
        """Slots before each chunk from tokens x [BNH,C,D] -> [BNH,S,D]."""
        D = x.shape[2]
        x = x.view(self.B * self.N, self.H, self.C, D).transpose(1, 2).reshape(self.B * self.N, self.C, self.H * D)
        written = torch.bmm(self.phi.transpose(1, 2), x).view(self.B, self.N, self.S, self.H, D)
        before = torch.zeros(self.B, self.N, self.H, self.S, D, dtype=x.dtype)
        running = written[:, 0]
        for n in range(1, self.N):
            before[:, n] = running.transpose(1, 2)
            if n + 1 < self.N:
                running += written[:, n]
        return before.view(-1, self.S, D)

    def scan_back(self, d_before):
        """Gradient of the tokens through the slots from that of `before`: [BNH,S,D] -> [BNH,C,D]."""
        D = d_before.shape[2]
        d_before = d_before.view(self.B, self.N, self.H, self.S, D)
        after = torch.zeros(self.B, self.N, self.S, self.H, D, dtype=d_before.dtype)
        for n in range(self.N - 2, -1, -1):
            torch.add(after[:, n + 1], d_before[:, n + 1].transpose(1, 2), out=after[:, n])
        d_x = torch.bmm(self.phi, after.view(self.B * self.N, self.S, self.H * D))
        return d_x.view(self.B * self.N, self.C, self.H, D).transpose(1, 2).reshape(-1, self.C, D)


class DecayPlan:
    """With decay. Chunked tensors are [P*R*H, C, width]: chunks with the same fraction of a slot lie together.

    Chunk n = a*P + p starts at slot n*C*S/T = roll + fraction; the fraction depends on p alone. R = B*N/P.
    """

    def __init__(self, B, L, H, S, T, chunk, dtype=torch.float32):
        self.B, self.L, self.H, self.S, self.C = B, L, H, S, chunk
        N = -(-L // chunk)
        step = chunk * S / T
        self.P = next((P for P in range(1, N) if abs(P * step - round(P * step)) < 1e-9), N)
        self.N = -(-N // self.P) * self.P
        self.A = self.N // self.P
        whole = [math.floor(n * step + 1e-9) for n in range(self.N)]
        self.turn = [whole[n + 1] - whole[n] for n in range(self.N - 1)]
        self.tables(T, whole, dtype)

    def tables(self, T, whole, dtype):
        C, S, P = self.C, self.S, self.P
        W = np.zeros((P, C, C, S))
        gain = np.empty((P, C, S))
        for p in range(P):
            phi = np.roll(write_weights(range(p * C, (p + 1) * C), S, T), -whole[p], axis=1)
            keep = 1 - phi
            gain[p] = np.cumprod(keep, axis=0)
            for t in range(C):
                if t:
                    W[p, t, :t] = W[p, t - 1, :t] * keep[t]
                W[p, t, t] = phi[t]
        self.W = torch.tensor(W, dtype=dtype)
        self.gain = torch.tensor(gain, dtype=dtype).view(P, 1, C, S)
        self.last = self.W[:, C - 1].contiguous().view(P, 1, C, S)  # what a chunk writes
        hidden = hidden_slots(self.N * C, S, T).reshape(self.N, C, S)
        self.hidden = [torch.tensor(np.roll(hidden[n], -whole[n], axis=1)) for n in range(self.N) if hidden[n].any()]
        # Rows of W above the diagonal are zero: t-blocks leave most of them out.
        self.blocks = [(t, min(t + 32, C)) for t in range(0, C, 32)]

    def chunks(self, x):
        """[P*R*H, rows, width] -> [P, B, A, H, rows, width]."""
        return x.view(self.P, self.B, self.A, self.H, *x.shape[1:])

    def split(self, x):
        D = x.shape[3]
        if self.N * self.C != self.L:
            x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, self.N * self.C - self.L))
        x = x.reshape(self.B, self.A, self.P, self.C, self.H, D)
        return x.permute(2, 0, 1, 4, 3, 5).reshape(-1, self.C, D)

    def join(self, x):
        x = self.chunks(x).permute(1, 2, 0, 4, 3, 5).reshape(self.B, self.N * self.C, self.H, x.shape[2])
        return x[:, :self.L]

    def slots_of(self, pairs):
        """sum_u pairs[t,u] W[t,u,j]: one [rows,u]x[u,S] product per t."""
        pairs = pairs.view(self.P, -1, self.C, self.C)
        out = torch.empty(self.P, pairs.shape[1], self.C, self.S, dtype=pairs.dtype)
        for p in range(self.P):
            for t0, t1 in self.blocks:
                torch.bmm(pairs[p, :, t0:t1, :t1].transpose(0, 1), self.W[p, t0:t1, :t1],
                          out=out[p, :, t0:t1].transpose(0, 1))
        return out.view(-1, self.C, self.S)

    def tokens_of(self, weights):
        """sum_j weights_t[j] W[t,u,j]: one [rows,S]x[S,u] product per t."""
        weights = weights.view(self.P, -1, self.C, self.S)
        out = torch.zeros(self.P, weights.shape[1], self.C, self.C, dtype=weights.dtype)
        for p in range(self.P):
            for t0, t1 in self.blocks:
                torch.bmm(weights[p, :, t0:t1].transpose(0, 1), self.W[p, t0:t1, :t1].transpose(1, 2),
                          out=out[p, :, t0:t1, :t1].transpose(0, 1))
        return out.view(-1, self.C, self.C)

    def inherited(self, x):
        """b_t[j] x."""
        return (x.view(self.P, -1, self.C, self.S) * self.gain).view(-1, self.C, self.S)

    def mask(self, logits):
        view = self.chunks(logits)
        for n, hidden in enumerate(self.hidden):
            view[n % self.P, :, n // self.P].masked_fill_(hidden, float("-inf"))

    def scan(self, x):
        D = x.shape[2]
        rows = x.view(self.P, -1, self.C, D)
        written = torch.matmul(self.last.transpose(2, 3), rows).view(self.P, self.B, self.A, self.H, self.S, D)
        before = torch.zeros_like(written)
        kept = self.gain[:, 0, -1, :, None]
        for n in range(self.N - 1):
            a, p = divmod(n, self.P)
            a1, p1 = divmod(n + 1, self.P)
            after = torch.addcmul(written[p, :, a], before[p, :, a], kept[p])
            before[p1, :, a1] = torch.roll(after, -self.turn[n], dims=2)
        return before.view(-1, self.S, D)

    def scan_back(self, d_before):
        D = d_before.shape[2]
        d_before = self.chunks(d_before)
        d_written = torch.zeros_like(d_before)
        kept = self.gain[:, 0, -1, :, None]
        for n in range(self.N - 2, -1, -1):
            a, p = divmod(n, self.P)
            a1, p1 = divmod(n + 1, self.P)
            d_next = d_before[p1, :, a1]
            if n + 2 < self.N:
                d_next = torch.addcmul(d_next, d_written[p1, :, a1], kept[p1])
            d_written[p, :, a] = torch.roll(d_next, self.turn[n], dims=2)
        return torch.matmul(self.last, d_written.view(self.P, -1, self.S, D)).view(-1, self.C, D)


class AutogradPlainPlan(PlainPlan):
    """The same products in the operations autograd differentiates well."""

    def scan(self, x):
        D = x.shape[2]
        x = x.view(self.B * self.N, self.H, self.C, D).transpose(1, 2).reshape(self.B * self.N, self.C, self.H * D)
        written = torch.bmm(self.phi.transpose(1, 2), x).view(self.B, self.N, self.S, self.H, D)
        before = written.cumsum(1) - written
        return before.transpose(2, 3).reshape(-1, self.S, D)


class AutogradDecayPlan(DecayPlan):
    def slots_of(self, pairs):
        pairs = pairs.view(self.P, -1, self.C, self.C)
        return torch.einsum("prtu,ptuj->prtj", pairs, self.W).reshape(-1, self.C, self.S)

    def tokens_of(self, weights):
        weights = weights.view(self.P, -1, self.C, self.S)
        return torch.einsum("prtj,ptuj->prtu", weights, self.W).reshape(-1, self.C, self.C)

    def scan(self, x):
        D = x.shape[2]
        written = torch.matmul(self.last.transpose(2, 3), x.view(self.P, -1, self.C, D))
        written = written.view(self.P, self.B, self.A, self.H, self.S, D)
        kept = self.gain[:, 0, -1, :, None]
        states = [torch.zeros_like(written[0, :, 0])]
        for n in range(self.N - 1):
            a, p = divmod(n, self.P)
            after = torch.addcmul(written[p, :, a], states[n], kept[p])
            states.append(torch.roll(after, -self.turn[n], dims=2))
        by_phase = [torch.stack(states[p::self.P], 1) for p in range(self.P)]
        return torch.stack(by_phase).view(-1, self.S, D)


PLANS = {("written", False): PlainPlan, ("written", True): DecayPlan, ("autograd", False): AutogradPlainPlan,
         ("autograd", True): AutogradDecayPlan}


def make_plan(B, L, H, S, T, decay, chunk, dtype=torch.float32, style="written"):
    """style "written": backward by hand, below; "autograd": forward only, PyTorch differentiates it."""
    return PLANS[style, bool(decay)](B, L, H, S, max(T, S), chunk, dtype)


def scores(plan, q, keys, slots):
    """b <q, slots> + sum_u <q, k_u> W: the shape logits and d_p share."""
    out = plan.slots_of(torch.bmm(q, keys.transpose(1, 2)))
    return out.add_(plan.inherited(torch.bmm(q, slots.transpose(1, 2))))


def forward(plan, q, k, v, scale, keep=False):
    """q, k, v [B,L,H,D] -> o [B,L,H,Dv] and, with keep, what backward needs."""
    q, k, v = plan.split(q) * scale, plan.split(k), plan.split(v)
    K, V = plan.scan(k), plan.scan(v)
    logits = scores(plan, q, k, K)
    plan.mask(logits)
    p = torch.softmax(logits, -1)
    reads = plan.tokens_of(p)
    o = torch.bmm(reads, v)
    o.baddbmm_(plan.inherited(p), V)
    return plan.join(o), (q, k, v, K, V, p, reads, o, scale) if keep else None


def backward(plan, saved, d_o):
    """d_o [B,L,H,Dv] -> d_q, d_k, d_v."""
    q, k, v, K, V, p, reads, o, scale = saved
    d_o = plan.split(d_o)
    d_logits = scores(plan, d_o, v, V)
    d_logits.sub_((d_o * o).sum(-1, keepdim=True)).mul_(p)
    d_pairs = plan.tokens_of(d_logits)
    inherited = plan.inherited(d_logits)
    d_q = torch.bmm(d_pairs, k).baddbmm_(inherited, K).mul_(scale)
    d_k = plan.scan_back(torch.bmm(inherited.transpose(1, 2), q)).baddbmm_(d_pairs.transpose(1, 2), q)
    d_v = plan.scan_back(torch.bmm(plan.inherited(p).transpose(1, 2), d_o)).baddbmm_(reads.transpose(1, 2), d_o)
    return plan.join(d_q), plan.join(d_k), plan.join(d_v)


class BlurryFunction(torch.autograd.Function):
    """The operator as a differentiable function of q, k, v."""

    @staticmethod
    def forward(ctx, q, k, v, plan, scale):
        o, ctx.saved = forward(plan, q, k, v, scale, keep=True)
        ctx.plan = plan
        return o

    @staticmethod
    def backward(ctx, d_o):
        return (*backward(ctx.plan, ctx.saved, d_o), None, None)
