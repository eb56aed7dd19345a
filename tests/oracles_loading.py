"""Reference implementation of the loaders: everything in lists, one sample at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_BLOCK = 256
IGNORED = -100

Row = list[int]
Example = tuple[Row, Row]
"""Inputs and labels."""


def mixed(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def key(*words: int) -> int:
    result = 0
    for word in words:
        result = mixed(mixed((result + GOLDEN) & WORD) ^ word)
    return result


def slow_shuffle(length: int, seed: int) -> list[int]:
    """The permutation defined in rust/loading/shuffle.rs. Checkpoints depend on it, so it must never change."""
    left = next(side for side in range(1, length + 1) if side * side >= length)
    right = -(-length // left)
    keys = [mixed((seed + (number + 1) * GOLDEN) & WORD) for number in range(8)]
    order = []
    for index in range(length):
        value = index
        while True:
            a, b = divmod(value, right)
            for number, each in enumerate(keys):
                if number % 2 == 0:
                    a = (a + (mixed(b ^ each) * left >> 64)) % left
                else:
                    b = (b + (mixed(a ^ each) * right >> 64)) % right
            value = a * right + b
            if value < length:
                break
        order.append(value)
    return order


def windows(ids: Sequence[int], seq_len: int, stride: int | None = None) -> list[Example]:
    stride = stride or seq_len
    starts = range(0, len(ids), stride)
    return [
        (list(ids[at : at + seq_len]), list(ids[at + 1 : at + seq_len + 1]))
        for at in starts
        if at + seq_len + 1 <= len(ids)
    ]


def masked(example: Example, end_id: int) -> tuple[Row, Row, Row, Row]:
    """Inputs, labels, positions, documents."""
    inputs, labels = example
    positions, documents = [], []
    position = document = 0
    kept = []
    for given, label in zip(inputs, labels):
        positions.append(position)
        documents.append(document)
        kept.append(IGNORED if given == end_id else label)
        position += 1
        if given == end_id:
            position, document = 0, document + 1
    return inputs, kept, positions, documents


@dataclass
class SlowMix:
    """The order of the examples of several datasets."""

    counts: list[int]
    """Examples of each dataset."""
    weights: list[int]
    seed: int
    shuffle: bool

    def samples(self, count: int) -> Iterator[tuple[int, int]]:
        """Dataset and example of the first samples: assigned to datasets one by one, then shuffled in blocks."""
        whole = -(-count // MIX_BLOCK) * MIX_BLOCK
        dealt = [0] * len(self.counts)
        turns = []
        for number in range(whole):
            dataset = self.turn(number)
            turns.append((dataset, dealt[dataset]))
            dealt[dataset] += 1
        orders: dict[tuple[int, int], list[int]] = {}
        for number in range(count):
            block, place = divmod(number, MIX_BLOCK)
            if self.shuffle and len(self.counts) > 1:
                place = slow_shuffle(MIX_BLOCK, key(self.seed, 1, block))[place]
            dataset, own = turns[block * MIX_BLOCK + place]
            epoch, example = divmod(own, self.counts[dataset])
            if self.shuffle:
                if (dataset, epoch) not in orders:
                    orders[dataset, epoch] = slow_shuffle(self.counts[dataset], key(self.seed, 0, dataset, epoch))
                example = orders[dataset, epoch][example]
            yield dataset, example

    def turn(self, number: int) -> int:
        """The dataset whose share (rounded down) grows by one from `number` to `number + 1` samples."""
        left, total = number, sum(self.weights)
        for dataset, weight in enumerate(self.weights):
            before, after = left * weight // total, (left + 1) * weight // total
            if after > before:
                return dataset
            left, total = left - before, total - weight
        raise AssertionError


def global_batches(samples: Sequence[int], batch_size: int) -> list[list[int]]:
    return [list(samples[at : at + batch_size]) for at in range(0, len(samples), batch_size)]


def slow_stream(
    examples: Sequence[Example], seed: int, shuffle_buffer: int, epochs: int, max_examples: int | None = None
) -> list[Example]:
    """The samples of a stream loader: each epoch is divided into blocks, and each block is shuffled."""
    samples = []
    for epoch in range(epochs):
        used = list(examples[:max_examples])
        for block, start in enumerate(range(0, len(used), shuffle_buffer)):
            part = used[start : start + shuffle_buffer]
            samples += [part[at] for at in slow_shuffle(len(part), key(seed, 2, epoch, block))]
    return samples
