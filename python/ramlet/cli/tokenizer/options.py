"""What the tokenizer commands share."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import typer

from ramlet.cli.color import marked
from ramlet.cli.options import MEMORY, READING
from ramlet.cli.options import print_json as print_json
from ramlet.errors import SettingsError
from ramlet.runtime.plurals import plural as plural  # the commands' one place for what they share

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        metavar="N",
        min=1,
        rich_help_panel=MEMORY,
        show_default="one a processor",
        help="Threads to work on.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        "--processes",
        metavar="N",
        min=1,
        show_default="one a processor",
        help="Threads to work on.",
    ),
]
"""The same where other trainers have processes."""

InputFlag = Annotated[bool, typer.Option("--input", "--input-files", hidden=True)]
"""`--input a.txt b.txt`, as other tools want it: the word says nothing, what follows are the inputs."""

Docs = Annotated[
    str,
    typer.Option(
        "--docs",
        metavar="file|line",
        rich_help_panel=READING,
        help="In text files a document is the file or a line.",
    ),
]
DocSeparator = Annotated[
    str | None,
    typer.Option(
        "--doc-separator", metavar="TEXT", rich_help_panel=READING, help="Documents end at this string instead."
    ),
]
TextField = Annotated[
    str,
    typer.Option(
        "--text-field",
        metavar="NAME",
        rich_help_panel=READING,
        help="The field of .jsonl and .parquet that holds the text.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="text|jsonl|parquet",
        rich_help_panel=READING,
        help="Read every input so, whatever its suffix.",
    ),
]
OnError = Annotated[
    str,
    typer.Option(
        "--on-error",
        metavar="stop|skip",
        rich_help_panel=READING,
        help="At a broken line: stop, or skip and count it.",
    ),
]
TokenizerName = Annotated[
    str,
    typer.Option(
        "--tokenizer",
        "-T",
        metavar="X",
        show_default=False,
        help="A tokenizer.json, its folder, vocab.json + merges.txt, a .tiktoken, gpt2, byte, or a hub name.",
    ),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--pattern", metavar="NAME", help="For files that hold none (.tiktoken): gpt2, cl100k, ... or a regex."
    ),
]


def parse_count(text: str) -> int:
    """`32000`, `32,000`, `32k` or `32ki`.

    >>> parse_count("32k"), parse_count("50,257"), parse_count("64Ki")
    (32000, 50257, 65536)
    """
    match = re.fullmatch(r"(\d[\d,_]*)\s*(k|ki|m)?", text.strip().lower())
    if match is None:
        raise SettingsError(f"cannot read {text!r} as a number of tokens: write it like 32000 or 32k")
    return int(re.sub("[,_]", "", match[1])) * {None: 1, "k": 1000, "ki": 1024, "m": 1_000_000}[match[2]]


def note(line: str, *, quiet: bool = False) -> None:
    """To standard error, where notes do not mix with results."""
    if not quiet:
        print(marked(line, sys.stderr), file=sys.stderr)


def reading_notes(read: dict[str, Any]) -> list[str]:
    """One sentence for each thing that reading had to repair or leave out."""
    notes = []
    for key, one, many in (
        ("invalid_utf8", "invalid UTF-8 sequence was replaced", "invalid UTF-8 sequences were replaced"),
        ("lone_surrogates", "lone surrogate was replaced", "lone surrogates were replaced"),
        ("null_text", "document without a text was passed over", "documents without a text were passed over"),
        ("broken_json", "broken line was skipped", "broken lines were skipped"),
        ("missing_field", "line without the text field was skipped", "lines without the text field were skipped"),
        ("not_a_string", "line whose text is no string was skipped", "lines whose text is no string were skipped"),
        ("broken_files", "broken file was cut short", "broken files were cut short"),
    ):
        if read.get(key):
            notes.append(plural(read[key], one, many))
    notes += [f"  {example}" for example in read.get("examples", [])]
    return notes
