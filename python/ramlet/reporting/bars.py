"""Bars for amounts: memory by part, where documents went, measures.

    stacked([("predicted", [("weights", 3_000_000, 1)]), ("measured", [("peak", 2_900_000, 0)])], limit=4_000_000)
    flow("168 documents read", [("kept", 166, "166, 99%", 1), ("empty", 2, "2, 1.2%", 5)], about="...")

As in charts.py, drawings stretch and text is HTML next to them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ramlet.reporting.markup import escape, number, share, size, svg

Part = tuple[str, float, int]
"""Name, amount and color."""
Branch = tuple[str, float, str, int]
"""Name, amount, the amount as shown, and color."""

BAND = 150
"""Height in pixels of the whole input."""
ROW = 44
GAP = 6
THINNEST = 2.5


def stacked(title: str, rows: Sequence[tuple[str, Sequence[Part]]], *, about: str, limit: float | None) -> str:
    """Stacked bars in bytes, one below the other, with the budget as a line through them."""
    totals = [sum(amount for _, amount, _ in parts) for _, parts in rows]
    widest = max([*totals, limit or 0])
    if not widest:
        return ""
    drawn = ""
    for (name, parts), total in zip(rows, totals):
        left, rects = 0.0, ""
        for part, amount, color in parts:
            wide = 1000 * amount / widest
            tip = f"<title>{escape(part)}: {size(amount)}, {share(amount, total)}</title>"
            rects += f'<rect class="c{color}" x="{left:.2f}" y="0" width="{wide:.2f}" height="1000">{tip}</rect>'
            left += wide
        mark = ""
        if limit:
            place = min(1000 * limit / widest, 999)
            mark = f'<path class="level" d="M{place:.1f} 0 V1000"><title>budget {size(limit)}</title></path>'
        description = ", ".join(f"{part} {size(amount)}" for part, amount, _ in parts)
        bar = svg(rects + mark, f"{name}: {size(total)}", description)
        drawn += f"<dt>{escape(name)}</dt><dd>{bar}<b>{size(total)}</b></dd>"
    if limit:
        drawn += f'<dt class="limit">budget</dt><dd class="limit">{size(limit)}, the dashed line</dd>'
    return _figure("stacked", title, about, f"<dl>{drawn}</dl>")


def flow(title: str, read: str, branches: Sequence[Branch], *, about: str) -> str:
    """A Sankey diagram: everything that was read on the left, what became of it on the right."""
    total = sum(amount for _, amount, _, _ in branches)
    if total <= 0:
        return ""
    thick = [max(THINNEST, BAND * amount / total) for _, amount, _, _ in branches]
    rows = [max(ROW, each) + GAP for each in thick]
    height = sum(rows)
    left = (height - sum(thick)) / 2
    drawn, labels, top = f'<rect class="c0" x="0" y="{left:.1f}" width="9" height="{sum(thick):.1f}"/>', "", 0.0
    for (name, _, shown, color), wide, row in zip(branches, thick, rows):
        right = top + (row - GAP - wide) / 2
        band = (
            f"M9 {left:.1f} C500 {left:.1f} 500 {right:.1f} 991 {right:.1f} V{right + wide:.1f} "
            f"C500 {right + wide:.1f} 500 {left + wide:.1f} 9 {left + wide:.1f} Z"
        )
        tip = f"<title>{escape(name)}: {escape(shown)}</title>"
        drawn += f'<path class="band c{color}" d="{band}">{tip}</path>'
        drawn += f'<rect class="c{color}" x="991" y="{right:.1f}" width="9" height="{wide:.1f}"/>'
        middle = right + wide / 2
        labels += f'<span style="top:{middle:.0f}px"><b>{escape(name)}</b> {escape(shown)}</span>'
        left += wide
        top += row
    style = f'style="height:{height:.0f}px"'
    bands = svg(drawn, title, about, height=height, attributes=style)
    return _figure("flow", title, read, f'<div class="split">{bands}<div class="ways" {style}>{labels}</div></div>')


def measured_bars(title: str, explanation: str, points: Sequence[tuple[str, float]], unit: str) -> str:
    """A bar for each point, between its label and its value."""
    whole = 100.0 if unit == "%" else 0.0
    widest = max([whole, *(abs(value) for _, value in points)])
    drawn = ""
    for label, value in points:
        wide = 1000 * abs(value) / widest if widest else 0
        shown = f"{number(value, 1 if unit == '%' else 3)}{unit}"
        rects = '<rect class="track" x="0" y="0" width="1000" height="1000"/>'
        rects += f'<rect class="c1" x="0" y="0" width="{wide:.1f}" height="1000"/>'
        drawn += f"<dt>{escape(label)}</dt><dd>{svg(rects, f'{label}: {shown}')}<b>{escape(shown)}</b></dd>"
    return _figure("stacked measure", title, explanation, f"<dl>{drawn}</dl>")


def _figure(kind: str, title: str, about: str, content: str) -> str:
    head = f'<figcaption>{escape(title)}</figcaption><p class="about">{escape(about)}</p>'
    return f'<figure class="{kind}">{head}{content}</figure>'
