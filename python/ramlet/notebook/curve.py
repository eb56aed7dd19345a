"""A curve of any number of points, in bounded memory, as SVG.

curve = Curve()
curve.add(1, 10.9)
svg({"loss": curve})
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

POINTS = 400
"""The most that are kept: about one per pixel."""
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 48, 22
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


class Curve:
    """When it is full, neighbors are merged into their mean, and each later point covers twice as many."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._pending: list[tuple[float, float]] = []
        self._stride = 1

    def add(self, x: float, y: float) -> None:
        """NaN and infinite values are left out."""
        if not math.isfinite(y):
            return
        self._pending.append((x, y))
        if len(self._pending) < self._stride:
            return
        self._points.append(_mean(self._pending))
        self._pending = []
        if len(self._points) == POINTS:
            self._points = [_mean(self._points[at : at + 2]) for at in range(0, POINTS, 2)]
            self._stride *= 2

    def points(self) -> list[tuple[float, float]]:
        return self._points + ([_mean(self._pending)] if self._pending else [])


def _mean(points: list[tuple[float, float]]) -> tuple[float, float]:
    """At the last x."""
    return points[-1][0], sum(y for _, y in points) / len(points)


def svg(curves: Mapping[str, Curve], end: float) -> str:
    """The curves by name, from 0 to `end`; empty if they have no points. Colors fit light and dark pages."""
    drawn = {name: points for name, curve in curves.items() if (points := curve.points())}
    if not drawn:
        return ""
    values = [y for points in drawn.values() for _, y in points]
    low, high = min(values), max(values)
    margin = max(0.05 * (high - low), 1e-9 * max(1.0, abs(low), abs(high)))
    low, high = low - margin, high + margin

    def place(x: float, y: float) -> str:
        across = LEFT + x / max(end, 1) * (WIDTH - LEFT - 8)
        return f"{across:.1f},{(high - y) / (high - low) * (HEIGHT - BOTTOM):.1f}"

    parts = [
        f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{value:.3g}</text>'
        for y, value in ((10, high), (HEIGHT - BOTTOM, low))
    ]
    parts.append(f'<text x="{WIDTH - 8}" y="{HEIGHT - 6}" text-anchor="end">step {end:,.0f}</text>')
    parts.append(
        f'<path d="M{LEFT},0V{HEIGHT - BOTTOM}H{WIDTH - 8}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
    )
    for number, (name, points) in enumerate(drawn.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        if len(points) <= 40:
            parts += [
                f'<circle cx="{x}" cy="{y}" r="2.5" fill="{color}"/>'
                for x, y in (place(*point).split(",") for point in points)
            ]
        label = f"{escape(name)} {points[-1][1]:.4f}"
        across = LEFT + 12 + 150 * number
        parts.append(f'<text x="{across}" y="{HEIGHT - 6}" style="fill: {color}">{label}</text>')
    style = "font: 11px sans-serif; fill: currentColor"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" style="{style}">{"".join(parts)}</svg>'
