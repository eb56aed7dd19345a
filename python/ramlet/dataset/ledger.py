"""The ledger: every document and every byte of the input is kept, or dropped by a named rule.

    documents:  read + cut = kept + dropped            cut: the additional parts of documents that were split
    bytes:      read = kept + dropped + lines dropped + normalised

A ledger is a tree of whole numbers with the same keys everywhere, so that ledgers can be summed. The rules are those of
`rust/clean/rules.rs`. The ledger of an older ramlet has no counts for newer rules, which are read as 0; that of a newer
ramlet may have unknown rules, which count like the known ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, NamedTuple

from ramlet import _native
from ramlet.runtime.plurals import plural

Ledger = dict[str, Any]


class Rule(NamedTuple):
    """A reason to drop something."""

    name: str
    unit: str
    """What it drops: `document` or `line`."""
    setting: str
    """The setting that controls it; empty if there is none."""
    meaning: str


RULES = tuple(Rule(*facts) for facts in _native.drop_rules())
"""Those for documents first; within a unit, in the order in which they are applied."""

_KEYS = {"document": ("documents", "dropped"), "line": ("lines", "lines_dropped")}
"""The ledger has the counts by rule in `dropped` of the first key, and the bytes in `bytes` under the second."""


class Counts(dict[str, int]):
    """By rule; 0 for a rule that is missing."""

    def __missing__(self, rule: str) -> int:
        return 0


class Dropped(NamedTuple):
    """What a rule dropped."""

    rule: Rule
    units: int
    """Documents or lines."""
    bytes: int


def dropped_by_rule(ledger: Ledger, unit: str) -> list[Dropped]:
    """The documents or lines that each rule dropped, in the order of the rules; without rules that dropped none."""
    group, sizes = _KEYS[unit]
    counts, amounts = Counts(ledger[group]["dropped"]), Counts(ledger["bytes"][sizes])
    known = [rule for rule in RULES if rule.unit == unit]
    newer = counts.keys() - {rule.name for rule in known}
    known += [Rule(name, unit, "", "a rule of a newer ramlet") for name in sorted(newer)]
    return [Dropped(rule, counts[rule.name], amounts[rule.name]) for rule in known if counts[rule.name]]


def empty() -> Ledger:
    """A ledger of zeros, with every key."""

    def by_rule(unit: str) -> Counts:
        return Counts((rule.name, 0) for rule in RULES if rule.unit == unit)

    return {
        "documents": {"read": 0, "cut": 0, "kept": 0, "dropped": by_rule("document")},
        "lines": {"dropped": by_rule("line")},
        "bytes": {
            "read": 0,
            "kept": 0,
            "dropped": by_rule("document"),
            "lines_dropped": by_rule("line"),
            "normalised": 0,
        },
        "tokens": {"train": 0, "val": 0, "end_ids": 0, "padding": 0},
        "characters": 0,
        "input": {
            "files": 0,
            "bytes_on_disk": 0,
            "broken_records": 0,
            "broken_files": 0,
            "invalid_utf8": 0,
            "skipped_files": {},
        },
    }


def add(ledgers: Iterable[Ledger]) -> Ledger:
    """Their sum; missing keys count as 0.

    >>> add([{"documents": {"read": 1}}, {"documents": {"read": 2, "kept": 1}}])["documents"]["read"]
    3
    """
    total = empty()
    for ledger in ledgers:
        _add_to(total, ledger)
    return total


def _add_to(total: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            inner = total.setdefault(key, {})
            if isinstance(inner, dict):
                _add_to(inner, value)
        elif isinstance(value, int):
            known = total.get(key, 0)
            total[key] = (known if isinstance(known, int) else 0) + value
        else:
            total.setdefault(key, deepcopy(value))


def problems(ledger: Ledger) -> list[str]:
    """What does not add up, one sentence each."""
    found = []
    documents, size = ledger["documents"], ledger["bytes"]
    came, went = documents["read"] + documents["cut"], documents["kept"] + sum(documents["dropped"].values())
    if came != went:
        found.append(f"{plural(came, 'document was', 'documents were')} read or cut, but {went:,} were kept or dropped")
    accounted = size["kept"] + sum(size["dropped"].values()) + sum(size["lines_dropped"].values()) + size["normalised"]
    if size["read"] != accounted:
        found.append(f"{size['read']:,} bytes were read, but {accounted:,} are accounted for")
    return found


def read(value: Any, wrong: Callable[[str, str], Exception]) -> Ledger:
    """A ledger from a file; `wrong` creates the error about the first invalid key."""
    return _checked(empty(), value, "", wrong)


def _checked(wanted: dict[str, Any], given: Any, where: str, wrong: Callable[[str, str], Exception]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise wrong(where, _COUNTS)
    found = dict(given)
    for key, value in wanted.items():
        name, has = f"{where}.{key}".strip("."), given.get(key)
        if isinstance(value, Counts):
            # Those of the file: an older ramlet has fewer rules, a newer one more.
            rules = dict.fromkeys(has, 0) if isinstance(has, dict) else {}
            if not all(re.fullmatch(r"[a-z0-9_]{1,64}", rule) for rule in rules):  # they are printed
                raise wrong(name, "counts by the names of rules")
            found[key] = Counts(_checked(rules, has, name, wrong))
        elif isinstance(value, dict):
            found[key] = _checked(value, has, name, wrong)
        elif not isinstance(has, int) or isinstance(has, bool) or (has < 0 and name != "bytes.normalised"):
            raise wrong(name, _COUNTS)
    return found


_COUNTS = "a count or an object of counts"
