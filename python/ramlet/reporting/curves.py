"""A curve of any length in at most 600 points, in one pass: the highest and the lowest of each stretch are kept.

    curve = Curve()
    for step, loss in lines: curve.add(step, loss)
    curve.points()     a spike of one step among ten million is in it
    curve.smooth()     the trend, as a centered mean

Points are collected in stretches of equal length. When there are 300 stretches, neighbors are merged and later
stretches are twice as long, so memory never grows. A curve of up to 300 points is kept as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(slots=True)
class _Stretch:
    """Neighboring points: their number, their sums, the lowest and the highest."""

    count: int
    x_sum: float
    y_sum: float
    low: Point
    high: Point

    def merge(self, other: _Stretch) -> None:
        self.count += other.count
        self.x_sum += other.x_sum
        self.y_sum += other.y_sum
        self.low = min(self.low, other.low, key=lambda point: point[1])
        self.high = max(self.high, other.high, key=lambda point: point[1])


class Curve:
    """Points with increasing x."""

    STRETCHES = 300

    def __init__(self) -> None:
        self.count = 0
        self.first: Point | None = None
        self.last: Point | None = None
        self._stretches: list[_Stretch] = []
        self._size = 1

    def add(self, x: float, y: float) -> None:
        """The next point; skipped if it is NaN or infinite, or does not come after the last."""
        if not (math.isfinite(x) and math.isfinite(y)) or (self.last is not None and x <= self.last[0]):
            return
        self.count += 1
        self.last = point = (x, y)
        if self._stretches:
            # Without an object of its own: this runs for every one of millions of points.
            current = self._stretches[-1]
            if current.count < self._size:
                current.count += 1
                current.x_sum += x
                current.y_sum += y
                if y < current.low[1]:
                    current.low = point
                elif y > current.high[1]:
                    current.high = point
                return
        else:
            self.first = point
        if len(self._stretches) == self.STRETCHES:
            for left, right in zip(self._stretches[::2], self._stretches[1::2]):
                left.merge(right)
            del self._stretches[1::2]
            self._size *= 2
        self._stretches.append(_Stretch(1, x, y, point, point))

    def points(self) -> list[Point]:
        """The lowest and the highest of each stretch, the first and the last point, by x."""
        kept = {point for stretch in self._stretches for point in (stretch.low, stretch.high)}
        kept |= {point for point in (self.first, self.last) if point is not None}
        return sorted(kept)

    def smooth(self) -> list[Point]:
        """A mean weighted by nearness, over about a twentieth of the curve."""
        stretches = self._stretches
        reach = max(1, len(stretches) // 32)
        weights = [math.exp(-0.5 * (offset / reach) ** 2) for offset in range(2 * reach + 1)]
        found = []
        for at, middle in enumerate(stretches):
            total = value = 0.0
            # As far right as left, or a steep start would be drawn too low; the end is not steep.
            before = min(2 * reach, at)
            after = min(before, len(stretches) - 1 - at)
            for near in range(at - before, at + after + 1):
                weight = weights[abs(near - at)]
                total += weight * stretches[near].count
                value += weight * stretches[near].y_sum
            found.append((middle.x_sum / middle.count, value / total))
        return found

    def mean(self) -> float | None:
        """Of all points."""
        return sum(stretch.y_sum for stretch in self._stretches) / self.count if self.count else None

    @property
    def highest(self) -> Point | None:
        return max((stretch.high for stretch in self._stretches), key=lambda point: point[1], default=None)
