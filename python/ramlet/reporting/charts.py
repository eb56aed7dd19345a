"""Line charts, memory over time and histograms, as SVG that stretches and text that does not.

    line_chart("Loss", [Series("train", points, 1), Series("val", others, 2, "dots")], about="...")

The drawing is an SVG of 1000 x 1000 units that fills the space it gets; lines keep their width (`vector-effect`), and
dots are strokes of zero length, so nothing is distorted. Ticks and labels are HTML next to it, in the size of the
page's text: the same page is readable at 320 pixels and at 1600. Lines have their names and axes as data attributes,
from which page.js shows the values under the pointer; everything else works without it.

Only the drawing is here. A chart of the report is a function in one of *_sections.py, with a line in page.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramlet.reporting.curves import Point
from ramlet.reporting.markup import duration, escape, number, short, size, svg

COLORS = 8
LABEL_PIXELS = 19
"""Between one label at the end of a line and the next."""


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[Point]
    color: int
    style: str = "line"
    """line, thin (many points, without a name) or dots (few points, each shown)."""


@dataclass(frozen=True)
class _Axis:
    """From `low` to `high`, the edges of a chart."""

    low: float
    high: float

    def part(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def ticks(self, about: int) -> list[float]:
        """Round numbers, `about` this many."""
        span = self.high - self.low
        if not span > 0 or not math.isfinite(span):
            return [self.low]
        step = 10.0 ** math.floor(math.log10(span / about))
        step *= next(times for times in (1, 2, 5, 10) if span / (step * times) <= about)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [at * step for at in range(first, last + 1)]


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    about: str,
    height: int = 300,
    form: Callable[[float], str] = number,
    x_name: str = "step",
    zero: bool = False,
    rule: tuple[float, str] | None = None,
) -> str:
    """Lines over steps; `rule` is a horizontal line with its name, `zero` starts the axis at 0."""
    series = [each for each in series if each.points]
    if not series:
        return ""
    x, y = _x_axis(series), _y_axis(series, zero, rule)
    drawn = [_level(y, *rule)] if rule is not None else []
    drawn += [_line(each, x, y) for each in series]
    named = [each for each in series if each.style != "thin"]
    ends = _end_labels([(y.part(each.points[-1][1]), each, form(each.points[-1][1])) for each in named], height)
    legend = [(each.color, each.name, form(each.points[-1][1])) for each in named]
    return _figure(
        title, drawn, about=about, height=height, x=x, y=y, form=form, x_name=x_name, ends=ends, legend=legend
    )


def memory_chart(
    title: str,
    timeline: Sequence[tuple[float, float, str]],
    *,
    about: str,
    budget: float | None,
    stages: Sequence[tuple[str, str]],
    height: int = 220,
) -> str:
    """Memory over seconds, a color for each stage, the budget as a line; `stages` are names and details."""
    if len(timeline) < 2:
        return ""
    x = _Axis(timeline[0][0], timeline[-1][0])
    y = _Axis(0, max(budget or 0, *(rss for _, rss, _ in timeline)) * 1.12)
    colors = {name: at % COLORS + 1 for at, (name, _) in enumerate(stages)}
    drawn = []
    began = 0
    for at in range(1, len(timeline) + 1):
        if at < len(timeline) and timeline[at][2] == timeline[began][2]:
            continue
        stage = timeline[began][2]
        # Up to the first point of the next stage: the time until then was spent in this one.
        part = [(seconds, rss) for seconds, rss, _ in timeline[began : at + 1]]
        shape = _path(part, x, y)
        bottom = f"{_at(x.part(part[-1][0]))},1000 {_at(x.part(part[0][0]))},1000"
        tip = f"<title>{escape(stage or 'starting')}: up to {size(max(rss for _, rss in part))}</title>"
        color = f"c{colors[stage]}" if stage in colors else "c0"
        drawn.append(f'<polygon class="area {color}" points="{shape} {bottom}">{tip}</polygon>')
        drawn.append(f'<polyline class="line {color}" points="{shape}"/>')
        began = at
    whole = _path([(seconds, rss) for seconds, rss, _ in timeline], x, y)
    drawn.append(f'<polyline class="unseen" data-name="memory" points="{whole}"/>')
    over = ""
    if budget:
        drawn.append(_level(y, budget, f"budget {size(budget)}"))
        over = f'<span class="above" style="top:{100 * (1 - y.part(budget)):.2f}%">budget {size(budget)}</span>'
    legend = [(colors[name], name, details) for name, details in stages]
    return _figure(
        title, drawn, about=about, height=height, x=x, y=y, form=size, legend=legend, over=over, x_ticks=_time_ticks(x)
    )


def histogram(
    title: str,
    bins: Sequence[tuple[str, Sequence[int]]],
    *,
    about: str,
    parts: Sequence[tuple[str, int]],
    ticks: Sequence[tuple[float, str]],
    x_name: str,
    height: int = 240,
) -> str:
    """Bars side by side, with the given `parts` (name, color) stacked; `ticks` are edges of bins."""
    most = max((sum(counts) for _, counts in bins), default=0)
    if not most:
        return ""
    x, y = _Axis(0, len(bins)), _Axis(0, most * 1.06)
    drawn = []
    for at, (label, counts) in enumerate(bins):
        tip = ", ".join(f"{count:,} {name}" for count, (name, _) in zip(counts, parts))
        bar, top = "", 0.0
        for count, (_, color) in zip(counts, parts):
            if not count:
                continue
            # A bin of one document among millions is still visible.
            tall = max(y.part(count), 0.004)
            left, wide = 1000 * x.part(at + 0.06), 1000 * x.part(0.88)
            low = 1000 * (1 - top - tall)
            bar += (
                f'<rect class="c{color}" x="{left:.1f}" y="{low:.1f}" width="{wide:.1f}" height="{1000 * tall:.1f}"/>'
            )
            top += tall
        if bar:
            drawn.append(f"<g><title>{escape(label)}: {tip}</title>{bar}</g>")
    legend = [(color, name, "") for name, color in parts]
    return _figure(
        title, drawn, about=about, height=height, x=x, y=y, form=short, x_name=x_name, legend=legend, x_ticks=ticks
    )


def swatch(color: int) -> str:
    """A square of this color, before a name."""
    return f'<i class="swatch c{color}"></i>'


def _time_ticks(x: _Axis) -> list[tuple[float, str]]:
    """About six round times: seconds, minutes or hours."""
    span = x.high - x.low
    if span < 5:
        return [(tick, _tick(tick, duration)) for tick in x.ticks(6)]
    step = next((each for each in _CLOCK if span / each <= 6), 86_400 * math.ceil(span / 86_400 / 6))
    places = [at * step for at in range(math.ceil(x.low / step), math.floor(x.high / step) + 1)]
    return [(place, _tick(place, duration)) for place in places]


_CLOCK = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18_000, 36_000, 86_400)


def _x_axis(series: Sequence[Series]) -> _Axis:
    every = [point[0] for each in series for point in each.points]
    # A little space for the last dot.
    return _Axis(min(every), max(every) + (max(every) - min(every)) / 150)


def _y_axis(series: Sequence[Series], zero: bool, rule: tuple[float, str] | None) -> _Axis:
    """Shows the named lines completely, and of the thin ones what does not flatten those."""
    named = [y for each in series if each.style != "thin" for _, y in each.points] + ([rule[0]] if rule else [])
    thin = [y for each in series if each.style == "thin" for _, y in each.points]
    low, high = min(named or thin), max(named or thin)
    slack = 0.6 * (high - low) or abs(high) * 0.1 or 1.0
    low, high = min([low, *(y for y in thin if y >= low - slack)]), max([high, *(y for y in thin if y <= high + slack)])
    if zero:
        low = min(0.0, low)
    if high <= low:
        low, high = low - abs(low) * 0.05 - 0.5, high + abs(high) * 0.05 + 0.5
    edge = (high - low) * 0.05
    return _Axis(low if zero and low == 0 else low - edge, high + edge)


def _at(part: float) -> str:
    # A spike may leave the chart, but by no more than browsers draw well.
    return f"{min(max(1000 * part, -4000), 5000):.1f}"


def _path(points: Sequence[Point], x: _Axis, y: _Axis) -> str:
    return " ".join(f"{_at(x.part(px))},{_at(1 - y.part(py))}" for px, py in points)


def _line(series: Series, x: _Axis, y: _Axis) -> str:
    points, dots = _path(series.points, x, y), ""
    if len(series.points) == 1 or series.style == "dots":
        dots = "".join(f'<path class="dot c{series.color}" d="M{place} l0.01 0"/>' for place in points.split(" "))
    style, data = ("thin", "") if series.style == "thin" else ("line", f' data-name="{escape(series.name)}"')
    return f'<polyline class="{style} c{series.color}"{data} points="{points}"/>{dots}'


def _level(y: _Axis, value: float, name: str) -> str:
    height = _at(1 - y.part(value))
    return f'<path class="level" d="M0 {height} H1000"><title>{escape(name)}</title></path>'


def _end_labels(ends: Sequence[tuple[float, Series, str]], height: int) -> str:
    """Names at the ends of the lines, moved apart if they would overlap."""
    if len(ends) * LABEL_PIXELS > height:
        return ""
    placed: list[float] = []
    ordered = sorted(ends, key=lambda end: -end[0])
    for part, _, _ in ordered:
        top = (1 - part) * height
        placed.append(max(top, placed[-1] + LABEL_PIXELS) if placed else top)
    bottom = height - 6.0
    for at in range(len(placed) - 1, -1, -1):
        placed[at] = min(placed[at], bottom)
        bottom = placed[at] - LABEL_PIXELS
    return "".join(
        f'<span class="c{each.color}" style="top:{top:.0f}px">{escape(each.name)} <b>{value}</b></span>'
        for top, (_, each, value) in zip(placed, ordered)
    )


def _legend(entries: Sequence[tuple[int, str, str]]) -> str:
    rows = "".join(f"<li>{swatch(color)}{escape(name)} <b>{details}</b></li>" for color, name, details in entries)
    return f'<ul class="legend">{rows}</ul>' if rows else ""


_KINDS: dict[Callable[[float], str], str] = {size: "bytes", short: "short", duration: "seconds"}


def _figure(
    title: str,
    drawn: Sequence[str],
    *,
    about: str,
    height: int,
    x: _Axis,
    y: _Axis,
    form: Callable[[float], str],
    legend: Sequence[tuple[int, str, str]],
    x_name: str = "",
    ends: str = "",
    over: str = "",
    x_ticks: Sequence[tuple[float, str]] | None = None,
) -> str:
    levels = [(1 - y.part(tick), _tick(tick, form)) for tick in y.ticks(5) if 0 <= y.part(tick) <= 1]
    grid = "".join(f'<path class="grid" d="M0 {_at(top)} H1000"/>' for top, _ in levels)
    ys = "".join(f'<span style="top:{100 * top:.2f}%">{label}</span>' for top, label in levels)
    marks = [(tick, _tick(tick, short)) for tick in x.ticks(6)] if x_ticks is None else x_ticks
    # A label at the very edge ends there: centered, it would make a narrow page wider.
    xs = "".join(
        f'<span{" class=last" if x.part(tick) > 0.93 else ""} style="left:{100 * x.part(tick):.2f}%">{label}</span>'
        for tick, label in marks
    )
    name = f"<em>{escape(x_name)}</em>" if x_name else ""
    data = (
        f'data-x0="{x.low:g}" data-x1="{x.high:g}" data-y0="{y.low:g}" data-y1="{y.high:g}" '
        f'data-form="{_KINDS.get(form, "number")}" data-x="{escape(x_name)}"'
    )
    drawing = svg(grid + "".join(drawn), title, about, attributes=data)
    labelled = " labelled" if ends else ""
    return (
        f'<figure class="chart{labelled}"><figcaption>{escape(title)}</figcaption>'
        f'<div class="frame" style="grid-template-rows:{height}px 1.9rem"><div class="ys" aria-hidden="true">{ys}</div>'
        f'<div class="plot">{drawing}{over}</div><div class="ends" aria-hidden="true">{ends}</div>'
        f'<div class="xs" aria-hidden="true">{xs}{name}</div></div>{_legend(legend)}</figure>'
    )


def _tick(value: float, form: Callable[[float], str]) -> str:
    """Short, as ticks are: 5.5 and not 5.500, and never 0.30000000000000004."""
    if form is size:
        text = size(value).replace(".00\u00a0", "\u00a0").replace(".0\u00a0", "\u00a0")
        return text if value else "0"
    if form is duration:
        return duration(value).replace(".0 s", " s").replace("min 0 s", "min").replace("h 0 min", "h") if value else "0"
    if form is short or abs(value) >= 1000:
        return short(value)
    return f"{value:.10g}" if abs(value) > 1e-12 else "0"
