"""Text and numbers for the page: everything from a file is escaped here, and numbers are formatted alike.

escape("</script>\\x00")       '&lt;/script&gt;␀'
number(1234.5), short(1.2e6)  '1,234.5', '1.2M'
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ramlet.runtime.budget import format_bytes

MOST_SHOWN = 1e30
"""Products of a few such numbers are still finite; integers in a file may have any number of digits."""

# Control characters as their Unicode pictures: a browser would drop or obey them. Tab and newline stay.
_PICTURES = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421}
# C1 controls and bidirectional overrides, which could make a text look like another.
_PICTURES |= dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFFFE, 0xFFFF), 0xFFFD)


def is_number(value: object) -> bool:
    """One that can be drawn: in a file it may be NaN or infinite, and an integer may have any number of digits."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST_SHOWN


def escape(value: object) -> str:
    """Any text, safe in an element or an attribute; a lone surrogate becomes a question mark."""
    text = str(value).translate(_PICTURES).encode("utf-8", "replace").decode("utf-8")
    return html.escape(text)


def number(value: float, digits: int = 1) -> str:
    """
    >>> number(303_760), number(5.4321, 3), number(1234.56), number(0.000147, 3)
    ('303,760', '5.432', '1,234.6', '0.000147')
    """
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):,}"
    if abs(value) < 10**-digits or abs(value) >= 1e15:
        return f"{value:.3g}"
    return f"{value:,.{digits}f}"


def short(value: float) -> str:
    """
    >>> short(303_760), short(1_200_000_000), short(42), short(0.25), short(999_999)
    ('304k', '1.2B', '42', '0.25', '1M')
    """
    for unit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * unit:  # as it will be rounded
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}"


def size(value: float) -> str:
    """Bytes, with a non-breaking space."""
    return format_bytes(value).replace(" ", "\u00a0")


def share(part: float, whole: float) -> str:
    """
    >>> share(1, 3), share(2, 168), share(1, 100_000), share(5, 5)
    ('33%', '1.2%', '<0.1%', '100%')
    """
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 0.1:
        return "<0.1%"
    return f"{percent:.0f}%" if percent >= 9.95 or percent == 0 else f"{percent:.1f}%"


def duration(seconds: float) -> str:
    """
    >>> duration(0.046), duration(4.26), duration(75), duration(7260)
    ('46 ms', '4.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def write_time(path: Path) -> str | None:
    """When a file was written, in local time."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime).strftime("%Y-%m-%d %H:%M")
    except OSError:
        return None


def setting_value(value: Any) -> str:
    """The value of a setting, as shown."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and abs(value) < MOST_SHOWN:
        return number(value, 4)
    return escape(value)


def highlights(rows: Iterable[tuple[str, str, str]]) -> str:
    """Large numbers side by side: name, value and details; all three are markup."""
    cells = "".join(
        f'<div class="figure"><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>' for name, value, more in rows
    )
    return f'<dl class="figures">{cells}</dl>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """Cells are markup; columns in `numbers` are aligned on the right."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{' class=n' if at in numbers else ''}>{cell}</{tag}>" for at, cell in enumerate(row))

    header = f"<thead><tr>{cells(head, 'th')}</tr></thead>" if any(head) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="table"><table>{header}<tbody>{body}</tbody></table></div>'


def svg(drawn: str, title: str, about: str = "", *, height: float = 1000, attributes: str = "") -> str:
    """A drawing 1000 units wide, which stretches to the space it gets."""
    description = f"<desc>{escape(about)}</desc>" if about else ""
    return (
        f'<svg role="img" viewBox="0 0 1000 {height:.0f}" preserveAspectRatio="none" {attributes}>'
        f"<title>{escape(title)}</title>{description}{drawn}</svg>"
    )
