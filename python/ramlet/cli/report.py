"""`ramlet report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ramlet.cli.options import Json, Memory, Quiet, note, print_json
from ramlet.cli.parameters import Argument, Option
from ramlet.cli.progress import Progress
from ramlet.errors import SettingsError
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter

BLOCKS = 28_000_000
"""Upper bound for the curves, blocks of an index and the page itself."""


def report(
    paths: Annotated[
        list[Path],
        Argument(metavar="RUN|DATASET|TOKENIZER...", shown=False, help="Folders written by ramlet."),
    ],
    out: Annotated[
        Path | None,
        Option("--out", "-o", metavar="FILE", shown="report.html in the first folder", help="File for the page."),
    ] = None,
    watch: Annotated[
        bool, Option("--watch", "-w", help="Serve the page on this machine and keep it up to date.")
    ] = False,
    port: Annotated[
        int | None,
        Option("--port", metavar="N", min=0, max=65535, shown="any free port", help="Port for --watch."),
    ] = None,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write an HTML report about runs, datasets or tokenizers.

    It shows loss, speed, memory and budget, which documents were dropped, samples and settings. The page is one file
    that opens from disk without a network. The report of a run includes its dataset and tokenizer; several runs are
    compared. An unfinished run is shown up to its last step; --watch shows it live until Ctrl-C.

      ramlet report my-run

      ramlet report my-run --watch
    """
    if port is not None and not watch:
        raise SettingsError("--port needs --watch: add --watch, or remove --port")
    if watch and out is not None:
        raise SettingsError("--watch serves the page and writes no file: remove --out or --watch")
    with Meter(Budget.parse(memory)) as meter:
        _check_budget(meter)
        if watch:
            _watch(paths, port or 0, meter.budget, json=json, quiet=quiet)
        else:
            _write(paths, out, meter, json=json, quiet=quiet)
    if not json:
        print(meter.closing_line())


def _check_budget(meter: Meter) -> None:
    import numpy  # noqa: F401 - its memory must be counted

    from ramlet.reporting import serve  # noqa: F401 - as above

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
        described = [
            {
                "run": None if story.run is None else str(story.run.path),
                "finished": None if story.run is None else story.run.statistics is not None,
                "datasets": [str(each.path) for each in story.datasets],
                "tokenizers": [str(each.path) for each in story.tokenizers],
            }
            for story in stories
        ]
        size = target.stat().st_size
        written = {"path": str(target), "out": str(target), "bytes": size, "told": described, "notes": notes}
        print_json({**written, "memory": meter.summary()})
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
            note("updated whenever the files change; stop with Ctrl-C", quiet=quiet)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            note("", quiet=quiet or json)
