"""Optimizers, schedules and architectures compared in plain PyTorch: what docs/design/recipe.md decides by.

    python benchmarks/recipe_prototype.py DATASET --size 124M --steps 400
    python benchmarks/recipe_prototype.py DATASET --size 10M --steps 1000 --only "muon, lr 0.006" --seeds 2

DATASET is one of `ramlet prepare`. Every variant trains the same model on the same batches from the same weights and
ends with the loss on the same validation tokens. Nothing of ramlet's engine is used, so a variant is a few lines here
before it is a few hundred there. Meant for a GPU; the smallest size also runs on a CPU.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, rms_norm, scaled_dot_product_attention, silu

from measure import markdown_table
from ramlet.dataset.reader import Dataset
from ramlet.engines.constants import COEFFICIENTS, MARGIN, initial_qk_gain

NEWTON_SCHULZ = ((3.4445, -4.7750, 2.0315),) * 5
THREE_STEPS = ((7.9899, -22.7523, 16.6825), (3.6434, -2.7268, 0.5371), (2.6712, -1.9853, 0.4535))
VALIDATION = 131_072


@dataclass(frozen=True)
class Variant:
    name: str
    lr: float
    muon: bool = True
    qk_norm: bool = True
    head: int = 0
    """Width of a head; 0 is that of the size."""
    qk_gain: float = 0.0
    """Of QK-norm at the start; 0 is the default for this width."""
    equal_rows: bool = True
    zero_outputs: bool = False
    cosine: bool = False
    decay: float = 0.4
    weight_decay: float = 0.1
    coefficients: tuple[tuple[float, float, float], ...] = COEFFICIENTS


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    heads: int
    feed_forward: int
    seq_len: int
    batch: int
    lr: float
    adamw_lr: float


SIZES = {
    "1M": Size(128, 3, 2, 384, 256, 8, 1e-2, 2.5e-3),
    "10M": Size(320, 6, 5, 896, 256, 32, 6e-3, 1.5e-3),
    "124M": Size(768, 12, 6, 2048, 1024, 32, 4e-3, 6e-4),
}


def variants(size: Size) -> list[Variant]:
    base = Variant(f"muon, lr {size.lr:g}", size.lr)
    return [
        Variant("adamw, cosine", size.adamw_lr, muon=False, qk_norm=False, cosine=True),
        Variant("adamw, QK-norm, wsd", 2 * size.adamw_lr, muon=False),
        base,
        replace(base, name=f"muon, lr {size.lr / 2:g}", lr=size.lr / 2),
        replace(base, name=f"muon, lr {size.lr * 2:g}", lr=size.lr * 2),
        replace(base, name="no QK-norm", qk_norm=False, lr=size.lr / 2),
        *(
            replace(base, name=f"heads of {head}, gain {gain:g}", head=head, qk_gain=gain)
            for head in (32, 64, 128, 160)
            if size.width % head == 0
            for gain in (1.0, 1.25, 1.5, 2.0)
        ),
        replace(base, name="rows as they come", equal_rows=False),
        replace(base, name="five steps of Newton-Schulz", coefficients=NEWTON_SCHULZ),
        replace(base, name="three steps of Polar Express", coefficients=THREE_STEPS),
        replace(base, name="zero-initialized outputs", zero_outputs=True),
        replace(base, name="no weight decay", weight_decay=0.0),
        *(replace(base, name=f"decay over {share:.0%}", decay=share) for share in (0.25, 0.7, 0.95)),
    ]


class Model(torch.nn.Module):
    def __init__(self, size: Size, variant: Variant, vocab: int) -> None:
        super().__init__()
        self.size, self.variant = size, variant
        width, wide = size.width, size.feed_forward
        self.heads = width // variant.head if variant.head else size.heads
        head = width // self.heads
        qk_gain = variant.qk_gain or initial_qk_gain(head)
        residual = 0.0 if variant.zero_outputs else 0.02 / math.sqrt(2 * size.layers)

        def matrices(rows: int, columns: int, deviation: float = 0.02) -> torch.nn.ParameterList:
            return torch.nn.ParameterList([torch.randn(rows, columns) * deviation for _ in range(size.layers)])

        def gains(count: int, value: float = 1.0) -> torch.nn.ParameterList:
            return torch.nn.ParameterList([torch.full((count,), value) for _ in range(size.layers)])

        self.embedding = torch.nn.Parameter(torch.randn(vocab, width) * 0.02)
        self.qkv, self.out = matrices(3 * width, width), matrices(width, width, residual)
        self.gate_up, self.down = matrices(2 * wide, width), matrices(width, wide, residual)
        self.norms = torch.nn.ModuleList([gains(width), gains(width), gains(head, qk_gain), gains(head, qk_gain)])
        self.norm = torch.nn.Parameter(torch.ones(width))
        angles = torch.arange(size.seq_len)[:, None] * 10_000.0 ** (-torch.arange(head // 2) / (head // 2))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def hidden_matrices(self) -> list[Tensor]:
        return [*self.qkv, *self.out, *self.gate_up, *self.down]

    def rotated(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)  # type: ignore[operator]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        batch, tokens = ids.shape
        heads, width = self.heads, self.size.width

        def normed(x: Tensor, gain: Tensor) -> Tensor:
            return rms_norm(x, (x.shape[-1],), gain.to(x.dtype), 1e-5)

        x = self.embedding[ids].to(torch.bfloat16)
        before, after, queries, keys = self.norms  # type: ignore[misc]
        for layer in range(self.size.layers):
            qkv = linear(normed(x, before[layer]), self.qkv[layer].to(x.dtype))
            q, k, v = qkv.view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            if self.variant.qk_norm:
                q, k = normed(q, queries[layer]), normed(k, keys[layer])
            attended = scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
            x = x + linear(attended.transpose(1, 2).reshape(batch, tokens, width), self.out[layer].to(x.dtype))
            gate, up = linear(normed(x, after[layer]), self.gate_up[layer].to(x.dtype)).chunk(2, -1)
            x = x + linear(silu(gate) * up, self.down[layer].to(x.dtype))
        logits = linear(normed(x, self.norm), self.embedding.to(x.dtype))
        return cross_entropy(logits.float().view(batch * tokens, -1), labels.reshape(-1))


class Muon:
    """All matrices of one size at once."""

    def __init__(self, model: Model, variant: Variant) -> None:
        self.variant = variant
        self.groups: dict[tuple[int, int], list[tuple[Tensor, int]]] = {}
        for parts, matrices in ((3, model.qkv), (1, model.out), (2, model.gate_up), (1, model.down)):
            for matrix in matrices:
                rows = len(matrix) // parts
                for part in range(parts):
                    self.groups.setdefault((rows, matrix.shape[1]), []).append((matrix, part * rows))
        device = model.norm.device
        self.momentum = {side: torch.zeros(len(found), *side, device=device) for side, found in self.groups.items()}
        self.squares = {side: torch.zeros(len(found), side[0], 1, device=device) for side, found in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for (rows, columns), found in self.groups.items():
            side = rows, columns
            gradient = torch.stack([matrix.grad[first : first + rows] for matrix, first in found])  # type: ignore[index]
            self.momentum[side].lerp_(gradient, 0.05)
            update = self.orthogonal(gradient.lerp(self.momentum[side], 0.95)).float()
            if self.variant.equal_rows:
                before = update.norm(dim=(1, 2), keepdim=True)
                self.squares[side].lerp_(update.square().mean(2, keepdim=True), 0.05)
                update /= self.squares[side].sqrt() + 1e-10
                update *= before / (update.norm(dim=(1, 2), keepdim=True) + 1e-10)
            for (matrix, first), one in zip(found, update):
                weight = matrix.data[first : first + rows]
                weight.mul_(1 - rate * self.variant.weight_decay).sub_(one, alpha=rate * 0.2 * math.sqrt(max(side)))

    def orthogonal(self, x: Tensor) -> Tensor:
        tall = x.shape[1] > x.shape[2]
        x = (x.mT if tall else x).to(torch.bfloat16)
        x = x / (x.norm(dim=(1, 2), keepdim=True) * MARGIN + 1e-7)
        for a, b, c in self.variant.coefficients:
            gram = x @ x.mT
            x = a * x + (b * gram + c * (gram @ gram)) @ x
        return x.mT if tall else x


def rate_at(variant: Variant, step: int, steps: int) -> float:
    warmup = max(1, steps // 20)
    if step < warmup:
        return variant.lr * (step + 1) / warmup
    if variant.cosine:
        part = (step - warmup) / max(1, steps - warmup)
        return variant.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * part)))
    return variant.lr * min(1.0, (steps - step) / (steps * variant.decay))


def trained(
    size: Size, variant: Variant, vocab: int, ids: Any, validation: Any, *, steps: int, seed: int, device: str
) -> tuple[float, float]:
    """The validation loss, and tokens per second without the first ten steps."""
    torch.manual_seed(seed)
    order = np.random.default_rng(seed).permutation((len(ids) - 1) // size.seq_len)
    model = Model(size, variant, vocab).to(device)
    run = torch.compile(model) if device == "cuda" else model
    hidden = model.hidden_matrices()
    rest = [each for each in model.parameters() if not any(each is matrix for matrix in hidden)]
    groups = [{"params": rest, "weight_decay": 0.0}]
    if not variant.muon:
        groups.append({"params": hidden, "weight_decay": variant.weight_decay})
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=device == "cuda")
    muon = Muon(model, variant) if variant.muon else None

    def batch(source: Any, sequences: Any) -> tuple[Tensor, Tensor]:
        rows = np.stack([source[first * size.seq_len :][: size.seq_len + 1] for first in sequences]).astype(np.int64)
        both = torch.from_numpy(rows).to(device)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    start = 0.0
    for step in range(steps):
        if step == min(10, steps - 1):
            start = time.perf_counter()
        run(*batch(ids, np.take(order, range(step * size.batch, (step + 1) * size.batch), mode="wrap"))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = rate_at(variant, step, steps)
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        if muon is not None:
            muon.step(rate)
        model.zero_grad(set_to_none=False)
    with torch.no_grad():
        parts = range(0, min(VALIDATION, len(validation) - 1) // size.seq_len - size.batch + 1, size.batch)
        losses = [float(run(*batch(validation, range(first, first + size.batch)))) for first in parts]
    seconds = time.perf_counter() - start
    return sum(losses) / len(losses), max(1, steps - 10) * size.batch * size.seq_len / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--size", choices=list(SIZES), default="10M")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", action="append", metavar="NAME", help="only this variant; can be repeated")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = Dataset(options.dataset)
    ids, validation = dataset.tokens("train"), dataset.tokens("val")
    size = SIZES[options.size]
    rows = []
    for variant in variants(size):
        if options.only and variant.name not in options.only:
            continue
        for seed in range(1, options.seeds + 1):
            loss, speed = trained(
                size, variant, dataset.vocab_size, ids, validation, steps=options.steps, seed=seed, device=device
            )
            rows.append([variant.name, str(seed), f"{loss:.4f}", f"{speed:,.0f}"])
            print(*rows[-1], flush=True)
    print(markdown_table(["variant", "seed", "validation loss", "tokens per second"], rows))


if __name__ == "__main__":
    main()
