"""The ledger: every document and every byte of the input is kept, or dropped by a named rule.

    documents:  read + cut = kept + dropped            cut: parts beyond the first of documents that were cut
    bytes:      read = kept + dropped + lines dropped + normalised

A ledger is a tree of whole numbers with the same keys everywhere, so that ledgers add up. The rules are those of
`rust/clean/rules.rs`. A ledger of an older ramlet lacks the newer ones, which read as 0; one of a newer ramlet may have
others, which count like the known ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, NamedTuple

from ramlet import _native
from ramlet.runtime.plurals import plural

__all__ = ["RULES", "Counts", "Ledger", "Rule", "Taken", "add", "empty", "problems", "read", "taken"]

Ledger = dict[str, Any]


class Rule(NamedTuple):
    """A reason to drop something."""

    name: str
    unit: str
    """What it drops: `document` or `line`."""
    setting: str
    """That steers it; empty where none does."""
    meaning: str


RULES = tuple(Rule(*facts) for facts in _native.drop_rules())
"""Documents' first; of either unit in the order in which they are asked."""

_PLACES = {"document": ("documents", "dropped"), "line": ("lines", "lines_dropped")}
"""Where a ledger has what the rules took: the counts in `dropped` of the first, the bytes in the second of `bytes`."""


class Counts(dict[str, int]):
    """By rule; of one that is not there 0."""

    def __missing__(self, rule: str) -> int:
        return 0


class Taken(NamedTuple):
    """What a rule took."""

    rule: Rule
    units: int
    """Documents or lines."""
    bytes: int


def taken(ledger: Ledger, unit: str) -> list[Taken]:
    """What each rule took of documents or lines, in the order in which they are asked; only those that took any."""
    group, sizes = _PLACES[unit]
    counts, amounts = Counts(ledger[group]["dropped"]), Counts(ledger["bytes"][sizes])
    known = [rule for rule in RULES if rule.unit == unit]
    newer = counts.keys() - {rule.name for rule in known}
    known += [Rule(name, unit, "", "a rule of a newer ramlet") for name in sorted(newer)]
    return [Taken(rule, counts[rule.name], amounts[rule.name]) for rule in known if counts[rule.name]]


def empty() -> Ledger:
    """A ledger of nothing, with every key."""

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
    """Their sum; keys that one of them lacks count as 0 there.

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
    """What does not add up, a sentence each; nothing where all is well."""
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
    """A ledger as a file has it; `wrong` makes the error about the first key that is not what it should be."""
    return _checked(empty(), value, "", wrong)


def _checked(wanted: dict[str, Any], given: Any, where: str, wrong: Callable[[str, str], Exception]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise wrong(where, _COUNTS)
    found = dict(given)
    for key, value in wanted.items():
        name, has = f"{where}.{key}".strip("."), given.get(key)
        if isinstance(value, Counts):
            # Those that are there: an older ramlet has fewer rules, a newer one more.
            rules = dict.fromkeys(has, 0) if isinstance(has, dict) else {}
            if not all(re.fullmatch(r"[a-z0-9_]{1,64}", rule) for rule in rules):  # they are shown to people
                raise wrong(name, "counts by the names of rules")
            found[key] = Counts(_checked(rules, has, name, wrong))
        elif isinstance(value, dict):
            found[key] = _checked(value, has, name, wrong)
        elif not isinstance(has, int) or isinstance(has, bool) or (has < 0 and name != "bytes.normalised"):
            raise wrong(name, _COUNTS)
    return found


_COUNTS = "a count, or the counts that belong there"
