"""What the commands share: how an app is created, options that mean the same everywhere, and notes.

    app = new_app("Train and use tokenizers.")

    @app.add
    def train(inputs: Inputs, memory: Memory = "auto", json: Json = False, quiet: Quiet = False) -> None: ...

A docstring is the help: its first line says what the command does, its indented lines are examples (`help_page.py`,
which also adds --debug). `panel` is the group of an option (`parameters.py`). A metavar like `file|line` lists the
choices for completion in a shell (`completion.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
from click.exceptions import Exit

from ramlet.cli.color import marked
from ramlet.cli.help_page import Group
from ramlet.cli.parameters import GENERAL, Argument, GroupedOption, Option
from ramlet.errors import SettingsError
from ramlet.runtime.atomic_files import in_utf8
from ramlet.runtime.plurals import plural

MEMORY, CLUSTER = "Memory and speed", "Clusters"
"""Groups of options in several commands."""


def new_app(description: str, *, version: bool = False) -> Group:
    """A command with subcommands; without one it shows its help."""
    if not version:
        return Group(description)
    return Group(
        description,
        GroupedOption(
            ["--version", "-V"],
            panel=GENERAL,
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version.",
        ),
    )


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from ramlet import __version__

        print(f"ramlet {__version__}")
        raise Exit


def print_json(value: Mapping[str, Any]) -> None:
    """As one line, flushed: whoever reads it may be waiting while the command continues.

    `path` is what the command wrote, or else what it was asked about. An error is an object with `error` alone.
    """
    import json

    print(in_utf8(json.dumps(value, ensure_ascii=False)), flush=True)


def note(line: str, *, quiet: bool = False) -> None:
    """Prints to standard error, so notes do not mix with results."""
    if not quiet:
        print(marked(line, sys.stderr), file=sys.stderr, flush=True)


def reading_notes(read: dict[str, Any]) -> list[str]:
    """One sentence for each kind of problem that was repaired or skipped while reading."""
    notes = []
    for key, one, many in (
        ("invalid_utf8", "invalid UTF-8 sequence was replaced", "invalid UTF-8 sequences were replaced"),
        ("lone_surrogates", "lone surrogate was replaced", "lone surrogates were replaced"),
        ("null_text", "document without text was skipped", "documents without text were skipped"),
        ("broken_json", "broken line was skipped", "broken lines were skipped"),
        ("missing_field", "line without the text field was skipped", "lines without the text field were skipped"),
        (
            "not_a_string",
            "line whose text is not a string was skipped",
            "lines whose text is not a string were skipped",
        ),
        ("broken_files", "broken file was cut short", "broken files were cut short"),
    ):
        if read.get(key):
            notes.append(plural(read[key], one, many))
    return [*notes, *(f"  {example}" for example in read.get("examples", []))]


def named_datasets(flag: str, given: Sequence[str], unnamed: str = "", *, stem: bool = False) -> dict[str, str]:
    """NAME=DIR or DIR as paths by name. The first DIR without a name is called `unnamed`, others like their folder;
    with `stem`, files like themselves without their suffix."""
    named: dict[str, str] = {}
    for word in given:
        name, mark, path = word.partition("=")
        if not mark or Path(word).exists():
            name, path = unnamed if unnamed and unnamed not in named else Path(word).name, word
            name = Path(word).stem if stem else name
        if not name or not path or name in named:
            what = "task" if stem else "dataset"
            raise SettingsError(f"{flag} {word}: give each {what} its own name, as in {flag} general={path or 'DIR'}")
        named[name] = path
    return named


Inputs = Annotated[
    list[str],
    Argument(
        metavar="INPUT...",
        shown=False,
        help="Files, folders, globs, or - for standard input. Text, .jsonl or .parquet, "
        "each also compressed (.gz, .zst, .xz, .bz2).",
    ),
]


def memory_option(
    what: str = "Memory budget",
    sizes: str = "512MB, 2GB, 50% of what is free, or auto (60%)",
    *,
    default: str = "auto",
) -> Any:
    return Option("--memory", "-m", metavar="SIZE", panel=MEMORY, shown=default, help=f"{what}: {sizes}.")


def data_option(panel: str, metavar: str, more: str = "", shown: str | bool = False) -> Any:
    names = ("--data", "-d", "--dataset-dir")
    line = f"A dataset written by `ramlet prepare`, or a .npy file{more}."
    return Option(*names, metavar=metavar, shown=shown, panel=panel, help=line)


def _threads_option(*more: str) -> Any:
    names = ("--threads", "-t", *more)
    return Option(*names, metavar="N", min=1, panel=MEMORY, shown="one per core", help="Number of threads.")


Memory = Annotated[str, memory_option()]
DeviceMemory = Annotated[
    str,
    memory_option(
        "Memory budget, of the GPU if one is used, else of RAM",
        "512MB, 2GB, 50% of what is free, or auto (90% of free GPU memory, or 60% of free RAM)",
    ),
]
Threads = Annotated[int | None, _threads_option()]
Processes = Annotated[int | None, _threads_option("--processes")]
"""The same for commands whose counterparts in other tools have --processes."""
Cluster = Annotated[
    str | None,
    Option(
        "--cluster",
        metavar="ray|ray://HOST:PORT",
        panel=CLUSTER,
        shown="this machine",
        help="Run on a Ray cluster; --memory and --threads are those of each worker.",
    ),
]
InputFlag = Annotated[bool, Option("--input", "--input-files", hidden=True)]
"""`--input a.txt b.txt`, as in other tools: the flag is ignored, the files after it are the inputs."""
JSON = "--json"
Json = Annotated[bool, Option(JSON, panel=GENERAL, help="Print the result as JSON.")]
Quiet = Annotated[bool, Option("--quiet", "-q", panel=GENERAL, help="Print only the result, no progress or notes.")]
