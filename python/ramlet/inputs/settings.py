"""How inputs are read: what a document is, which field holds the text, what happens at a broken line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ramlet.errors import SettingsError

__all__ = ["ReadSettings"]


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """The settings that every command that reads text has."""

    documents: str = "file"
    """In text files a document is the `file`, or each `line`."""

    doc_separator: str | None = None
    """Or what stands between two occurrences of this string."""

    text_field: str = "text"
    """The field of jsonl lines and parquet rows that holds the text."""

    format: str | None = None
    """Reads every input as `text`, `jsonl` or `parquet`, whatever its suffix."""

    on_error: str = "stop"
    """At a broken line: `stop`, or `skip` it and count it."""

    def __post_init__(self) -> None:
        self._check_choice("documents", ("file", "line"))
        self._check_choice("on_error", ("stop", "skip"))
        if self.documents == "line" and self.doc_separator is not None:
            raise SettingsError("documents are lines or end at a separator, not both: leave one out")
        if self.doc_separator == "":
            raise SettingsError("an empty separator separates nothing: leave it out")

    def _check_choice(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise SettingsError(f"{name} is {' or '.join(allowed)}, not {getattr(self, name)!r}")

    def reading(self) -> dict[str, Any]:
        """As the native core takes it."""
        return {
            "documents": self.documents if self.doc_separator is None else "separator",
            "separator": self.doc_separator,
            "text_field": self.text_field,
            "skip_broken": self.on_error == "skip",
        }
