"""Writes the tables of settings in docs/ from the declarations.

    python -m ramlet.settings.tables docs/*.md        updates them; a test fails if one is out of date

A page marks the place of a table, with a group of a command's settings or the names of some:

    <!-- settings of train: Model -->
    | option | default | |
    |---|---|---|
    | `--seq-len T` | 256 | Sequence length in tokens. |
    <!-- end of settings -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ramlet.settings.declared import Setting, declared, flag, with_flags
from ramlet.settings.kinds import Switch
from ramlet.settings.owners import owner

_TABLE = re.compile(r"(<!-- settings of ([\w ]+): ([\w ]+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)


def updated(page: str) -> str:
    """The page with its tables up to date."""
    return _TABLE.sub(lambda found: found[1] + _table(found[2], found[3]) + found[4], page)


def documented(page: str) -> Iterator[tuple[str, str]]:
    """The settings in the tables of a page, as command and name."""
    for _, command, names, _ in _TABLE.findall(page):
        yield from ((command, each.name) for each in _chosen(declared(owner(command)), names))


def _chosen(settings: Mapping[str, Setting], names: str) -> list[Setting]:
    return [each for each in settings.values() if each.panel == names] or [settings[name] for name in names.split()]


def _table(command: str, names: str) -> str:
    settings = declared(owner(command))
    rows = (_row(each, settings) for each in _chosen(settings, names))
    return "\n".join(["| option | default | |", "|---|---|---|", *rows, ""])


def _row(each: Setting, settings: Mapping[str, Setting]) -> str:
    named = [f"{name} {each.kind.metavar}".strip() for name in each.flags[:1]] + each.flags[1:]
    named += [flag(name) for name in ([each.opposite] if each.opposite else []) + list(each.stands_for)]
    default = with_flags(each.shown_default, settings)
    if isinstance(each.kind, Switch) and each.default is not None:
        default = "on" if each.default else "off"
    elif isinstance(each.default, str) and default:
        default = f"`{default}`"
    names, line = ", ".join(f"`{name}`" for name in named), _as_code(with_flags(each.help, settings))
    cells = (names, _as_code(default) or "none", line)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _as_code(text: str) -> str:
    return re.sub(r"--[a-z0-9-]+|<\w+>", r"`\g<0>`", text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
