"""`ramlet report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramlet.cli.options import Debug, Json, Memory, Quiet
from ramlet.cli.progress import Progress
from ramlet.cli.tokenizer.options import note, print_json
from ramlet.errors import SettingsError
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter

BLOCKS = 28_000_000
"""What curves, blocks of an index and the page itself take at most."""


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|DATASET|TOKENIZER...", show_default=False, help="Folders that ramlet wrote."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", show_default="report.html in the first folder", help="Where the page goes."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Serve the page on this machine, and keep it up to date.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", min=0, max=65535, show_default="any that is free", help="For --watch: the port."
        ),
    ] = None,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Tell all about a run, a dataset or a tokenizer on one HTML page.

    Loss, speed, memory against the budget, where documents went, samples and settings, from what the stages wrote. The
    page needs no network and opens from disk. A run brings its dataset and tokenizer along; several runs are compared.
    A run that is not finished is told as far as it is; --watch shows it live until Ctrl-C, which is its end: exit 0.

      ramlet report my-run

      ramlet report my-run --watch
    """
    if port is not None and not watch:
        raise SettingsError("--port is for --watch: add it, or leave --port out")
    if watch and out is not None:
        raise SettingsError("--watch serves the page and writes no file: leave --out out, or --watch")
    with Meter(Budget.parse(memory)) as meter:
        _require(meter)
        if watch:
            _watch(paths, port or 0, meter.budget, json=json, quiet=quiet)
        else:
            _write(paths, out, meter, json=json, quiet=quiet)
    if not json:
        print(meter.closing_line())


def _require(meter: Meter) -> None:
    import numpy  # noqa: F401 - what it takes must be counted

    from ramlet.reporting import serve  # noqa: F401 - likewise

    assert meter.budget is not None
    meter.budget.grant({"curves and blocks": BLOCKS}, "Python and NumPy", peak=meter.peak)


def _write(paths: list[Path], out: Path | None, meter: Meter, *, json: bool, quiet: bool) -> None:
    from ramlet.reporting.entry import write_report

    units = {"reading lengths": "files"}
    with Progress(meter, silent=quiet or json) as bar:
        target, stories = write_report(
            paths,
            out,
            lambda what, done, total: bar.update(what, done, total, units.get(what, "bytes")),
            meter.budget,
        )
    notes = [line for story in stories for line in [*story.notes, *(n for d in story.datasets for n in d.notes)]]
    if json:
        told = [
            {
                "run": None if story.run is None else str(story.run.path),
                "finished": None if story.run is None else story.run.statistics is not None,
                "datasets": [str(each.path) for each in story.datasets],
                "tokenizers": [str(each.path) for each in story.tokenizers],
            }
            for story in stories
        ]
        size = target.stat().st_size
        figures = {"path": str(target), "out": str(target), "bytes": size, "told": told, "notes": notes}
        print_json({**figures, "memory": meter.summary()})
        return
    for line in notes:
        note(line, quiet=quiet)
    print(target)


def _watch(paths: list[Path], port: int, budget: Budget | None, *, json: bool, quiet: bool) -> None:
    from ramlet.reporting.serve import PageServer

    with PageServer(paths, port, budget) as server:
        if json:
            print_json({"address": server.address})
        else:
            print(server.address, flush=True)
            note("made anew as the files change; Ctrl-C ends it", quiet=quiet)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            note("", quiet=quiet or json)


def add_to(root: typer.Typer) -> None:
    """Adds the command."""
    root.command()(report)
