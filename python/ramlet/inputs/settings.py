"""How inputs are read: what a document is, which field holds the text, what to do at a broken line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ramlet.errors import SettingsError, option
from ramlet.inputs.formats import FORMATS
from ramlet.settings.declared import Declared, setting
from ramlet.settings.kinds import Choice, Text

READING = "Reading"


@dataclass(frozen=True, kw_only=True)
class ReadSettings(Declared):
    """The settings of every command that reads text."""

    documents: str = setting(
        "file",
        Choice(("file", "line")),
        "What a document is in a text file: the whole file, or each line.",
        called=("docs",),
        panel=READING,
    )
    doc_separator: str | None = setting(
        None,
        Text(what="a string that stands between two documents", spaces=True),
        "String between the documents of a text file.",
        panel=READING,
    )
    text_field: str = setting(
        "text",
        Text(what="the name of a field", metavar="NAME"),
        "JSON field, or column of a Parquet file or dataset, that holds the text.",
        keys=("text_column",),
        panel=READING,
    )
    format: str | None = setting(
        None,
        Choice(tuple(FORMATS)),
        "Format of all inputs.",
        called=("input_format", "format"),
        panel=READING,
        shown="by suffix",
    )
    on_error: str = setting(
        "stop", Choice(("stop", "skip")), "At a broken line or file: stop, or skip it and count it.", panel=READING
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.documents == "line" and self.doc_separator is not None:
            raise SettingsError(
                f"documents are lines ({option('documents', 'line')}) or end at a {option('doc_separator')}, not both: "
                "remove one"
            )

    def reading(self) -> dict[str, Any]:
        """For the native core."""
        return {
            "documents": self.documents if self.doc_separator is None else "separator",
            "separator": self.doc_separator,
            "text_field": self.text_field,
            "skip_broken": self.on_error == "skip",
        }
