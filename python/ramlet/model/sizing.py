"""Finds a shape with a given number of parameters, embedding included.

    shape = shape_for(10_000_000, vocab_size=8192, context=256)     # within 3% of ten million

All widths in steps of 128 (64 below 1,024, 32 below 512, 16 below 128) are tried with all depths; the feed-forward
layer makes up the difference around 8/3 of the width, in steps that products are fast with: on an H200, 350M parameters
with a feed-forward width of 3,072 or 3,200 do 2% to 3% more per second than with 3,136. If none comes close, because
the vocabulary needs nearly all parameters, every even width is tried. Among the shapes within 3%, the one closest to
the usual proportions wins: depth = width / (44 + width / 64), which gives 14 layers at 768 and 38 at 4096.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ramlet.errors import SettingsError, option
from ramlet.model.shape import Shape

TOLERANCE = 0.03


MOST = 10**13
"""Ten times the largest model ever trained; the search takes longer for larger ones."""


def shape_for(
    parameters: int,
    *,
    vocab_size: int,
    context: int,
    tied: bool = True,
    kv_groups: int = 1,
    qk_norm: bool = False,
    layers: int | None = None,
) -> Shape:
    """The best-proportioned shape of this size; `kv_groups` heads share one key/value head."""
    if parameters > MOST:
        raise SettingsError(f"{option('params')} must be at most {MOST:,}, not {parameters:,}")
    search = _Search(vocab_size, context, tied, kv_groups, layers)
    best = search.found(parameters)
    if best is None:
        reason, remedy = f"a vocabulary of {vocab_size:,}", "use a smaller vocabulary"
        if kv_groups > 1 and replace(search, kv_groups=1).found(parameters):
            reason, remedy = f"{kv_groups:,} query heads per key/value head", f"a smaller {option('kv_groups')}"
        raise SettingsError(
            f"{parameters:,} parameters are too few for {reason}: "
            f"give {option('params', search.least_above(parameters))} or more, or {remedy}"
        )
    return replace(best, qk_norm=qk_norm)  # a few gains, which no proportion depends on


def _widths() -> Iterator[int]:
    """Widths that hardware handles well."""
    width = 16
    while True:
        yield width
        width += 16 if width < 128 else 32 if width < 512 else 64 if width < 1024 else 128


@dataclass(frozen=True)
class _Search:
    """What is the same for all widths."""

    vocab_size: int
    context: int
    tied: bool
    kv_groups: int
    layers: int | None

    def found(self, parameters: int) -> Shape | None:
        return self.nearest(parameters, _widths()) or self.nearest(parameters, range(16, 1024, 2))

    def nearest(self, parameters: int, widths: Iterable[int]) -> Shape | None:
        best: tuple[float, Shape] | None = None
        for width in widths:
            if self._at_least(width) > parameters * (1 + TOLERANCE):
                break
            for shape in self._at_width(width, parameters):
                off = shape.parameters / parameters - 1
                if abs(off) > TOLERANCE:
                    continue
                cost = _imbalance(shape, self.layers) + 6 * abs(off)
                if best is None or cost < best[0]:
                    best = (cost, shape)
        return best[1] if best else None

    def least_above(self, parameters: int) -> int:
        """The next larger model: with a large vocabulary, or many groups, not every size is possible."""
        shapes = (self._smallest(width) for width in itertools.count(16, 2))
        sizes = (shape.parameters for shape in shapes if shape)
        return next(size for size in sizes if size > parameters and self.found(size))

    def _smallest(self, width: int) -> Shape | None:
        step = _feed_forward_step(width)
        return self._shape(width, self.layers or _depths(width)[0], -(-width // step) * step)

    def _at_least(self, width: int) -> int:
        """A lower bound for any shape of this width: the search ends when it is too large."""
        embeddings = width * self.vocab_size * (1 if self.tied else 2)
        return embeddings + (self.layers or _depths(width)[0]) * 5 * width**2

    def _at_width(self, width: int, parameters: int) -> Iterator[Shape]:
        """For every plausible depth, the shape with the best feed-forward width."""
        step = _feed_forward_step(width)
        for depth in [self.layers] if self.layers else _depths(width):
            bare = self._shape(width, depth, 1)
            if bare is None:
                return
            left = parameters - bare.parameters + 3 * width * depth
            feed_forward = max(step, round(left / (3 * width * depth * step)) * step)
            if width <= feed_forward <= 5 * width:
                yield replace(bare, feed_forward=feed_forward)

    def _shape(self, width: int, depth: int, feed_forward: int) -> Shape | None:
        head = self._head_width(width)
        # Between the usual widths the number of heads is that of the groups, however wide they are.
        heads = width // head if width % head == 0 else self.kv_groups
        if heads % self.kv_groups or width % heads or width // heads % 2:
            return None
        kv_heads = heads // self.kv_groups
        return Shape(self.vocab_size, self.context, depth, width, heads, kv_heads, feed_forward, tied=self.tied)

    def _head_width(self, width: int) -> int:
        """Wide heads learn faster and are faster (docs/design/recipe.md), as long as there are several of them."""
        if width >= 512 and width % (128 * self.kv_groups) == 0:
            return 128
        return 64 if width >= 256 and width % 64 == 0 else 32 if width % 32 == 0 else 16


def _feed_forward_step(width: int) -> int:
    return 128 if width >= 1024 else 64 if width >= 512 else 32 if width >= 64 else 16


def _depths(width: int) -> range:
    ideal = _ideal_depth(width)
    return range(max(1, math.floor(ideal / 2.5)), math.ceil(ideal * 2.5) + 1)


def _ideal_depth(width: int) -> float:
    return max(1.0, width / (44 + width / 64))


def _imbalance(shape: Shape, layers: int | None) -> float:
    """The distance from the usual proportions, and from multiples that hardware handles well."""
    depth = 0.0 if layers else abs(math.log(shape.layers / _ideal_depth(shape.width)))
    breadth = abs(math.log(shape.feed_forward / (shape.width * 8 / 3)))
    alignment = 0.0 if shape.width % 64 == 0 else 0.1 if shape.width % 32 == 0 else 0.25
    return depth + 1.5 * breadth + alignment
