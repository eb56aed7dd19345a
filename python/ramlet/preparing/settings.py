"""The settings of `prepare`, each checked once.

    settings = PrepareSettings(tokenizer="gpt2", dedup="line", val_fraction=0.01)
    settings.cleaning()      what the cleaner takes
    settings.parts()         bytes that differ whenever the result may

All that decides the result is here, and nothing that does not: no memory, no threads, no folders to write to.
Every field carries its one line of help (`help_text`), from which the command and the docs are made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ramlet.errors import SettingsError
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.sources import FORMATS

__all__ = ["PrepareSettings", "check_option", "help_text"]

DOCUMENT_BYTES = 1 << 20
WHOLE_FILE_BYTES = 1 << 16
"""Of a text file that is one document: nothing in it says where one ends, and shorter parts shuffle better."""

LEAST_DOCUMENT_BYTES = 16
LARGEST_DOCUMENT_BYTES = 1 << 28
"""A document is held whole, several times over: a larger one would be the budget."""

NO_END_TOKEN = "none"


def _option(default: Any, help: str) -> Any:  # noqa: A002 - what the command calls it
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class PrepareSettings(ReadSettings):
    """All that decides what a dataset holds."""

    tokenizer: str = _option(
        "gpt2", "gpt2, byte, char (learned from the input), a tokenizer file or folder, or a name on the hub."
    )
    end_token: str | None = _option(
        None, "Token behind every document; left out: the tokenizer's own; none: no such token."
    )
    unknown: str = _option("error", "What a character that the tokenizer lacks becomes: an error, or unk.")

    normalize: bool = _option(
        True, "One kind of line end, NFC, no control characters, no blanks at line ends, at most two blank lines."
    )
    collapse_blanks: bool = _option(False, "When normalizing: runs of blanks inside a line become one space.")

    filter: bool = _option(True, "Apply the rules below; without it only empty documents are dropped.")
    min_chars: int = _option(1, "Drop documents with fewer characters.")
    max_chars: int = _option(0, "Drop documents with more characters; 0: no limit.")
    max_symbols: float = _option(0.6, "Drop documents with a larger share of symbols, from 0 to 1.")
    max_repeated: float = _option(0.5, "Drop documents with a larger share in repeated lines, from 0 to 1.")
    max_invalid: float = _option(0.02, "Drop documents with a larger share of undecodable characters, from 0 to 1.")
    min_line_chars: int = _option(0, "Drop lines with fewer characters; blank lines stay.")
    max_line_chars: int = _option(100_000, "Drop lines with more characters; 0: no limit.")
    max_line_symbols: float = _option(1.0, "Drop lines with a larger share of symbols, from 0 to 1.")

    dedup: str = _option("doc", "Keep the first of equal documents (doc) or lines (line), or all (none).")
    dedup_cache: str | None = _option(
        None, "Folder that remembers what earlier runs kept, so that it is a duplicate in this one."
    )

    document_bytes: int | None = _option(
        None, "Longer documents are cut; left out: 1 MiB, and 64 KiB for text files taken whole."
    )
    min_tokens: int = _option(1, "Drop documents with fewer tokens.")
    max_tokens: int | None = _option(None, "Documents with more tokens are split or dropped.")
    long_documents: str = _option("split", "What becomes of documents over max_tokens: split or drop.")

    val_fraction: float = _option(0.1, "Share of the documents for validation, chosen by their hash; below 1.")
    tokens_per_shard: int = _option(10_000_000, "A shard holds at most so many tokens, in whole documents.")
    pack: int | None = _option(None, "Lay the documents out in sequences of so many tokens, padded.")
    output_format: str = _option("shards", "A folder of shards, or all ids in one npy file, with no validation split.")
    allow_empty: bool = _option(False, "Write the dataset even if no document is left; otherwise that is an error.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))
            if check in (_share, _share_below_one):
                object.__setattr__(self, name, float(getattr(self, name)))  # 1 and 1.0 are the same setting
        for least, most in (("min_chars", "max_chars"), ("min_line_chars", "max_line_chars")):
            low, high = getattr(self, least), getattr(self, most)
            if high and low > high:
                raise SettingsError(f"{least} is {low:,} and {most} {high:,}: nothing could pass both, change one")
        if self.collapse_blanks and not self.normalize:
            raise SettingsError("collapse_blanks is a part of normalizing, which is off: leave one of the two out")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise SettingsError(
                f"min_tokens is {self.min_tokens:,} and max_tokens {self.max_tokens:,}: "
                "nothing could pass both, change one"
            )
        if self.pack is not None and self.pack > self.tokens_per_shard:
            raise SettingsError(
                f"tokens_per_shard is {self.tokens_per_shard:,}, less than one sequence of pack, {self.pack:,}: "
                "give at least that many"
            )

    @property
    def end_token_wanted(self) -> bool:
        """Whether documents end in a token at all."""
        return self.end_token != NO_END_TOKEN

    @property
    def largest_document(self) -> int:
        """Bytes beyond which a document is cut."""
        return self.document_bytes or DOCUMENT_BYTES

    @property
    def largest_whole_file(self) -> int:
        """The same for text files that are one document."""
        return self.document_bytes or WHOLE_FILE_BYTES

    @property
    def cache_folder(self) -> str | None:
        """The folder of the dedup cache, if there is dedup to use it for."""
        return None if self.dedup == "none" else self.dedup_cache

    def cleaning(self) -> dict[str, Any]:
        """As the native core takes it."""
        return {"normalise": self.normalize, **{name: getattr(self, name) for name in _CLEANING}}

    def cleaning_parts(self) -> bytes:
        """What decides how a text is cleaned: hashes of cleaned texts compare only where this is the same."""
        return b"ramlet cleaning 1\0" + _parts(self.cleaning())

    def parts(self) -> bytes:
        """For the signature of a result: other bytes whenever these settings may lead to another one.

        Two things that decide the result are known by name only here, and are for the caller to add: the
        content of the tokenizer (its fingerprint) and that of the dedup cache. Where the cache lies decides
        nothing, so that it can be moved.
        """
        values = asdict(self)
        values["dedup_cache"] = self.cache_folder is not None
        del values["allow_empty"]  # decides whether there is a result, never what is in it
        return b"ramlet prepare 1\0" + _parts(values)


LATER: frozenset[str] = frozenset()
"""Settings that 0.1.0 did not have. By their defaults the result is what it was without them, so only other values
count: a dataset or dedup cache of an older version is known again."""


def _parts(values: dict[str, Any]) -> bytes:
    known = {each.name: each.default for each in fields(PrepareSettings) if each.name in LATER}
    counted = {name: value for name, value in values.items() if name not in known or value != known[name]}
    return json.dumps(counted, sort_keys=True).encode()


_CLEANING = (
    *("collapse_blanks", "filter", "min_chars", "max_chars", "max_symbols", "max_repeated", "max_invalid"),
    *("min_line_chars", "max_line_chars", "max_line_symbols"),
)

Check = Callable[[str, Any], None]


def _wrong(name: str, value: object, allowed: str) -> SettingsError:
    return SettingsError(f"{name} is {allowed}, not {value!r}")


def _choice(*allowed: str) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in allowed:
            raise _wrong(name, value, " or ".join(allowed))

    return check


def _whole_number(least: int, most: int | None = None) -> Check:
    def check(name: str, value: Any) -> None:
        # True is a number to Python, and a mistake here.
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most and value > most):
            allowed = f"from {least:,} to {most:,}" if most else f"of at least {least:,}"
            raise _wrong(name, value, f"a whole number {allowed}")

    return check


def _share(name: str, value: Any) -> None:
    if not _is_number(value) or not 0 <= value <= 1:
        raise _wrong(name, value, "a share from 0 to 1")


def _share_below_one(name: str, value: Any) -> None:
    if not _is_number(value) or not 0 <= value < 1:
        raise _wrong(name, value, "a share from 0 to below 1")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")


def _words(what: str) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or not value.strip():
            raise _wrong(name, value, what)

    return check


def _separator(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise _wrong(name, value, "a string that stands between two documents")


def _optional(check: Check) -> Check:
    def check_given(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return check_given


_CHECKS: dict[str, Check] = {
    "documents": _choice("file", "line"),
    "doc_separator": _optional(_separator),
    "text_field": _words("the name of a field"),
    "format": _optional(_choice(*FORMATS)),
    "on_error": _choice("stop", "skip"),
    "tokenizer": _words("gpt2, byte, char, a file, a folder or a name on the hub"),
    "end_token": _optional(_words("a token of the tokenizer, or none")),
    "unknown": _choice("error", "unk"),
    "normalize": _switch,
    "collapse_blanks": _switch,
    "filter": _switch,
    "min_chars": _whole_number(0),
    "max_chars": _whole_number(0),
    "max_symbols": _share,
    "max_repeated": _share,
    "max_invalid": _share,
    "min_line_chars": _whole_number(0),
    "max_line_chars": _whole_number(0),
    "max_line_symbols": _share,
    "dedup": _choice("doc", "line", "none"),
    "dedup_cache": _optional(_words("a folder")),
    "document_bytes": _optional(_whole_number(LEAST_DOCUMENT_BYTES, LARGEST_DOCUMENT_BYTES)),
    "min_tokens": _whole_number(0),
    "max_tokens": _optional(_whole_number(1)),
    "long_documents": _choice("split", "drop"),
    "val_fraction": _share_below_one,
    "tokens_per_shard": _whole_number(1),
    "pack": _optional(_whole_number(2)),
    "output_format": _choice("shards", "npy"),
    "allow_empty": _switch,
}

_READING_HELP = {
    "documents": "In text files a document is the file, or each line.",
    "doc_separator": "Documents end at this string instead.",
    "text_field": "The field of jsonl lines and parquet rows that holds the text.",
    "format": "Read every input as text, jsonl or parquet, whatever its suffix.",
    "on_error": "At a broken line: stop, or skip it and count it.",
}


def check_option(name: str, value: Any) -> None:
    """Checks one value by itself, for those who know where it was written; SettingsError says what it may be."""
    _CHECKS[name](name, value)


def help_text(name: str) -> str:
    """The line of help for a setting.

    >>> help_text("min_tokens")
    'Drop documents with fewer tokens.'
    """
    by_name = {each.name: each for each in fields(PrepareSettings)}
    return str(by_name[name].metadata.get("help") or _READING_HELP[name])
