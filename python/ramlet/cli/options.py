"""What the commands share: how an app is made, and the options that mean the same everywhere.

    app = new_app("Train and use tokenizers.")

    @app.command()
    def train(
        inputs: Inputs,
        memory: Memory = "auto",
        json: Json = False,
        quiet: Quiet = False,
        debug: Debug = False,
    ) -> None: ...

    def add_to(root: typer.Typer) -> None:
        root.add_typer(app, name="tokenizer")

A docstring is the help: its first line says what the command does, its indented lines are examples (`help_page.py`). An
option belongs to the group that its `rich_help_panel` names. A metavar like `file|line` tells the choices, which shells
then complete (`completion.py`). Typer is used without its rich mode: rich would cost every command 6 MB of RSS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ramlet.cli.help_page import GENERAL, App, Group

MEMORY = "Memory and speed"
"""A group of options that several commands have."""

DEBUG = "ramlet.debug"
"""Where the context remembers --debug for `main`."""


def _underscores_are_hyphens(word: str) -> str:
    """`--tokens_per_shard` is `--tokens-per-shard`. Names of options and choices pass here, not values."""
    return word.replace("_", "-")


def new_app(description: str, *, version: bool = False) -> typer.Typer:
    """A command with sub-commands; named alone, it shows its help."""
    app = App(
        help=description,
        cls=Group,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": _underscores_are_hyphens,
            "max_content_width": 100,
        },
    )

    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    def alone_or_version(
        context: typer.Context,
        version: Annotated[
            bool,
            typer.Option(
                "--version",
                "-V",
                callback=_show_version,
                is_eager=True,
                rich_help_panel=GENERAL,
                help="Show the version.",
            ),
        ] = False,
    ) -> None:
        alone(context)

    app.callback(invoke_without_command=True)(alone_or_version if version else alone)
    return app


def _show_version(value: bool) -> None:
    if value:
        from ramlet import __version__

        print(f"ramlet {__version__}")
        raise typer.Exit


def _remember_debug(context: typer.Context, value: bool) -> bool:
    if value:
        context.meta[DEBUG] = True
    return value


def print_json(value: Mapping[str, Any]) -> None:
    """As one line a machine reads, at once: it may wait for it while the command goes on.

    `path` is what the command wrote, or else what it was asked about; with `error` there is nothing but it.
    """
    import json

    print(json.dumps(value, ensure_ascii=False), flush=True)


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        show_default=False,
        help="Files, folders, globs, or - for standard input. Text, .jsonl or .parquet, "
        "each also .gz, .zst, .xz or .bz2.",
    ),
]


def _memory(of: str, auto: str) -> Any:
    return typer.Option(
        "--memory",
        "-m",
        metavar="SIZE",
        rich_help_panel=MEMORY,
        show_default="auto",
        help=f"Memory budget{of}: 512MB, 2GB, 2GiB, 50% or auto ({auto}).",
    )


Memory = Annotated[str, _memory("", "60% of what is free")]
DeviceMemory = Annotated[str, _memory(", of the device on a GPU", "60% of free RAM, 90% of a free GPU")]
JSON = "--json"
Json = Annotated[bool, typer.Option(JSON, rich_help_panel=GENERAL, help="Print the result as JSON, for machines.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=GENERAL, help="No progress and no notes, only the result.")
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", callback=_remember_debug, rich_help_panel=GENERAL, help="On an error, show the whole traceback."
    ),
]
