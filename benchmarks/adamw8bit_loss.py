"""A small character-level transformer, trained twice from the same start on the same batches: for adamw8bit.py --loss.

The text is generated: sentences of 2,000 made-up words with Zipf frequencies, where each word prefers a few followers.
So there is spelling, frequency and order to learn, and an unlimited amount of text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

Make = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]

CONTEXT, BATCH, WIDTH, LAYERS, HEADS = 64, 16, 96, 2, 4
SEEDS = (0, 1)


def generated_text(characters: int) -> str:
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlucmfwypvbgk", k=draw.randint(2, 8))) for _ in range(2_000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    followers = [draw.choices(range(len(words)), weights, k=6) for _ in words]
    text, length, word = [], 0, 0
    while length < characters:
        word = draw.choice(followers[word]) if draw.random() < 0.8 else draw.choices(range(len(words)), weights)[0]
        text.append(words[word] + (". " if draw.random() < 0.1 else " "))
        length += len(text[-1])
    return "".join(text)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention_in, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        rows, length, _ = states.shape
        parts = self.attention_in(self.norms[0](states)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.attention_out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return states + self.narrow(functional.gelu(self.widen(self.norms[1](states))))


class Characters(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, vocabulary)

    def loss(self, window: torch.Tensor) -> torch.Tensor:
        states = self.tokens(window[:, :-1]) + self.places.weight
        logits = self.head(self.layers(states))
        return functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


def train(make: Make, ids: torch.Tensor, vocabulary: int, seed: int, steps: int) -> float:
    """The loss on held-out text."""
    torch.manual_seed(seed)
    model = Characters(vocabulary).to(ids.device)
    optimizer = make(list(model.parameters()))
    for group in optimizer.param_groups:
        group.update(betas=(0.9, 0.95), weight_decay=0.1)
    held_out = len(ids) * 9 // 10
    draw = torch.Generator().manual_seed(seed)
    window = torch.arange(CONTEXT + 1)

    def batch(first: int, end: int) -> torch.Tensor:
        starts = torch.randint(first, end - CONTEXT - 1, (BATCH, 1), generator=draw)
        return ids[(starts + window).to(ids.device)]

    for step in range(steps):
        rate = 3e-3 * min((step + 1) / 100, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        model.loss(batch(0, held_out)).backward()
        optimizer.step()
    with torch.no_grad():
        return sum(model.loss(batch(held_out, len(ids))).item() for _ in range(50)) / 50


def final_losses(ours: Make, theirs: Make, device: str, steps: int) -> dict[int, tuple[float, float]]:
    text = generated_text(1_000_000)
    alphabet = sorted(set(text))
    places = {character: place for place, character in enumerate(alphabet)}
    ids = torch.tensor([places[character] for character in text], device=device)
    runs = {seed: [train(make, ids, len(alphabet), seed, steps) for make in (ours, theirs)] for seed in SEEDS}
    return {seed: (one, other) for seed, (one, other) in runs.items()}
