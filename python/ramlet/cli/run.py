"""`ramlet run`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from ramlet.cli.options import Json, Quiet, Threads, memory_option, note, print_json
from ramlet.cli.parameters import Argument, Option
from ramlet.cli.progress import Progress
from ramlet.pipeline.run import PipelineListener, StageResult, run_pipeline
from ramlet.runtime.budget import format_bytes


def run(
    file: Annotated[
        Path,
        Argument(metavar="FILE.yaml", shown=False, help="The config file; `ramlet init` writes one."),
    ],
    memory: Annotated[
        str | None,
        memory_option("Memory budget for each stage", default="as in the file, or auto"),
    ] = None,
    threads: Threads = None,
    only: Annotated[
        str | None,
        Option(
            "--only",
            metavar="STAGE",
            shown=False,
            help="Run only this stage: text (fetches what is remote), tokenizer, data, training or report.",
        ),
    ] = None,
    force: Annotated[
        list[str] | None,
        Option(
            "--force",
            metavar="STAGE",
            shown=False,
            help="Run this stage again, and move its old result aside; may be given several times.",
        ),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be run, and why.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go from text to a trained model as one config file says, running only the stages that changed.

    Each stage (tokenizer, data, training, report) is a ramlet command of its own; all keep the same memory budget.
    After an interruption, the same command resumes.

      ramlet run pipeline.yaml
      ramlet run pipeline.yaml --dry-run
    """
    with Progress(silent=quiet or json) as bar:
        listener = _Printer(bar, json=json, quiet=quiet)
        result = run_pipeline(
            file, memory=memory, threads=threads, only=only, force=force or (), dry_run=dry_run, listener=listener
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


class _Printer(PipelineListener):
    def __init__(self, bar: Progress, *, json: bool, quiet: bool) -> None:
        self._bar = bar
        self._json = json
        self.quiet = quiet
        self.shows_stages = not json

    def noted(self, line: str) -> None:
        note(line, quiet=self.quiet or self._json)

    def began(self, stage: StageResult) -> None:
        self.noted(f"{stage.name}: {stage.why}")
        if stage.command:
            self.noted(f"  {stage.command}")

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
