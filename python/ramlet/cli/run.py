"""`ramlet run`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ramlet.cli.options import Debug, Json, Quiet
from ramlet.cli.progress import Progress
from ramlet.cli.tokenizer.options import Threads, note, print_json
from ramlet.pipeline.run import PipelineListener, StageResult, run_pipeline
from ramlet.runtime.budget import format_bytes


def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.yaml", show_default=False, help="What to make; `ramlet init` writes one.")
    ],
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            "-m",
            metavar="SIZE",
            show_default="the file's, or auto",
            help="Never hold more than this, over all stages: 512MB, 2GB, 50% or auto.",
        ),
    ] = None,
    threads: Threads = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="STAGE", show_default=False, help="Only text, tokenizer, data, training or report."
        ),
    ] = None,
    force: Annotated[
        list[str] | None,
        typer.Option(
            "--force", metavar="STAGE", show_default=False, help="Make this stage anew; the old is moved aside."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, and why.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Go from text to a trained model as one file says, doing only what changed.

    Tokenizer, data, model and training, each by its own command, all within one budget. Interrupted, the same
    command goes on where it was. `ramlet init` writes a file to begin with.

      ramlet run pipeline.yaml
      ramlet run pipeline.yaml --dry-run
    """
    with Progress(silent=quiet or json) as bar:
        told = _Shown(bar, json=json, quiet=quiet)
        result = run_pipeline(
            file, memory=memory, threads=threads, only=only, force=force or (), dry_run=dry_run, listener=told
        )
    if json:
        print_json(
            {
                "path": result.work,
                "work": result.work,
                "stages": [vars(stage) for stage in result.stages],
                "memory": {"peak": result.peak, "budget": result.budget},
            }
        )
        return
    if not dry_run and any(stage.what == "made" for stage in result.stages):
        limit = "" if result.budget is None else f" of {format_bytes(result.budget)}"
        print(f"peak {format_bytes(result.peak)}{limit}, over all stages")
    for stage in result.stages:
        if (stage.name, stage.what) == ("training", "made") and not quiet:
            print(f'now  ramlet generate {shlex.quote(stage.path)} --prompt "Once upon a time"')


class _Shown(PipelineListener):
    def __init__(self, bar: Progress, *, json: bool, quiet: bool) -> None:
        self._bar = bar
        self._json = json
        self.quiet = quiet
        self.shows_stages = not json

    def noted(self, line: str) -> None:
        note(line, quiet=self.quiet or self._json)

    def began(self, stage: StageResult) -> None:
        note(f"{stage.name}: {stage.why}", quiet=self.quiet or self._json)
        if stage.command:
            note(f"  {stage.command}", quiet=self.quiet or self._json)

    def ended(self, stage: StageResult) -> None:
        self._bar.close()
        if self._json:
            return
        if stage.what == "kept":
            print(f"{stage.name:<10} nothing changed: {stage.path}")
        elif stage.what == "due":
            print(f"{stage.name:<10} due: {stage.why}")
            if stage.command:
                print(f"  {stage.command}")
        elif not stage.command:
            print(f"{stage.name:<10} fetched: {stage.path}")

    def staged(self, done: int, total: int) -> None:
        self._bar.update("fetching", done, total or None)


def add_to(root: typer.Typer) -> None:
    """Adds the command."""
    root.command("run")(run)
