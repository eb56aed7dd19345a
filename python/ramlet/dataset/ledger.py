"""The ledger: every document and every byte of the input is kept, or dropped by a named rule.

    documents:  read + cut = kept + dropped            cut: parts beyond the first of documents that were cut
    bytes:      read = kept + dropped + lines dropped + normalised

A ledger is a tree of whole numbers with the same keys everywhere, so that ledgers add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from ramlet.runtime.plurals import plural

__all__ = ["DOCUMENT_RULES", "DUPLICATES", "LINE_RULES", "Ledger", "add", "empty", "missing", "problems"]

Ledger = dict[str, Any]

DOCUMENT_RULES = {
    "empty": "nothing but white space was left",
    "too_short": "fewer characters than min_chars",
    "too_long": "more characters than max_chars",
    "symbols": "too large a share of symbols (max_symbols)",
    "repeated_lines": "too large a share of repeated lines (max_repeated)",
    "bad_encoding": "too many characters that could not be decoded (max_invalid)",
    "duplicate": "an earlier document has the same text",
    "too_few_tokens": "fewer tokens than min_tokens",
    "too_many_tokens": "more tokens than max_tokens",
}
LINE_RULES = {
    "line_too_short": "fewer characters than min_line_chars",
    "line_too_long": "more characters than max_line_chars",
    "line_symbols": "too large a share of symbols (max_line_symbols)",
    "duplicate_line": "an earlier line has the same text",
}

DUPLICATES = ("duplicate", "duplicate_line")
"""The rules that a dedup cache may have decided."""


def empty() -> Ledger:
    """A ledger of nothing, with every key."""
    documents = dict.fromkeys(DOCUMENT_RULES, 0)
    lines = dict.fromkeys(LINE_RULES, 0)
    return {
        "documents": {"read": 0, "cut": 0, "kept": 0, "dropped": dict(documents)},
        "lines": {"dropped": dict(lines)},
        "bytes": {"read": 0, "kept": 0, "dropped": dict(documents), "lines_dropped": dict(lines), "normalised": 0},
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


def missing(ledger: Any) -> str:
    """The first key that is not there or is no count; nothing where it is a ledger."""
    return next(_missing(empty(), ledger, ""), "")


def _missing(wanted: dict[str, Any], given: Any, where: str) -> Iterator[str]:
    for key, value in wanted.items():
        name = f"{where}{key}"
        has = given.get(key) if isinstance(given, dict) else None
        if isinstance(value, dict):
            if isinstance(has, dict):
                yield from _missing(value, has, f"{name}.")
            else:
                yield name
        elif not isinstance(has, int) or isinstance(has, bool) or (has < 0 and name != "bytes.normalised"):
            yield name
