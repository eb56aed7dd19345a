"""What the tokenizer commands share."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ramlet.cli.color import marked
from ramlet.cli.options import MEMORY
from ramlet.cli.options import print_json as print_json
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
        rich_help_panel=MEMORY,
        show_default="one a processor",
        help="Threads to work on.",
    ),
]
"""The same where other trainers have processes."""

InputFlag = Annotated[bool, typer.Option("--input", "--input-files", hidden=True)]
"""`--input a.txt b.txt`, as other tools want it: the word says nothing, what follows are the inputs."""

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
