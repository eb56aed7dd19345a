"""Random bits without a generator: a hash of counters, the same in the native core and in Triton."""

from __future__ import annotations

from typing import Any, TypeVar

Bits = TypeVar("Bits")
"""One 32-bit number, or an int64 tensor or array of them."""


def scatter(counter: Bits) -> Bits:
    """32 pseudo-random bits from a counter, of which only the lower 32 bits matter."""
    bits: Any = counter
    bits = bits * 0x9E3779B1 & 0xFFFFFFFF
    bits = (bits ^ bits >> 16) * 0x7FEB352D & 0xFFFFFFFF
    bits = (bits ^ bits >> 15) * 0x846CA68B & 0xFFFFFFFF
    scattered: Bits = bits ^ bits >> 16
    return scattered


def seed_key(seed: int) -> int:
    """The key of a seed of 64 bits, to which others are added."""
    return scatter(scatter(seed & 0xFFFFFFFF) + (seed >> 32 & 0xFFFFFFFF))


def dropout_keys(seed_key: int, samples: Bits) -> Bits:
    """The keys of sequences, by their numbers since the beginning of the run."""
    numbers: Any = samples
    keys: Bits = scatter(scatter(numbers + seed_key) + (numbers >> 32))
    return keys
