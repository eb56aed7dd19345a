"""`ramlet init`."""

from __future__ import annotations

from typing import Annotated

import typer

from ramlet.cli.options import Debug, Json, Quiet
from ramlet.cli.tokenizer.options import Threads, note, print_json
from ramlet.errors import SettingsError
from ramlet.runtime.budget import Budget
from ramlet.settings.declared import read
from ramlet.settings.kinds import Duration
from ramlet.training.settings import RunSettings


def init(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT...]",
            show_default=False,
            help="Files, folders, globs or names on the hub; left out: the text in this folder.",
        ),
    ] = None,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = "pipeline.yaml",
    params: Annotated[
        str | None,
        typer.Option("--params", "-p", metavar="N", show_default="what text, time and memory allow", help="How large."),
    ] = None,
    time: Annotated[str, typer.Option("--time", metavar="T", help="How long training may take: 20min, 1h, 2d.")] = "1h",
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", "-m", metavar="SIZE", show_default="half of what is free", help="For the file: 2GB, 2GiB, 50%."
        ),
    ] = None,
    threads: Threads = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file, if it is there.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a commented file for `ramlet run`, for this text and this machine.

    Looks at a little of the text, and measures for a second how fast this machine is.

      ramlet init corpus/
      ramlet init book.txt --time 20min --memory 2GB --out book.yaml

    Then `ramlet run` with the file makes tokenizer, dataset, model and report.
    """
    from ramlet.pipeline.starter import propose_pipeline, write

    try:
        seconds = Duration().read(time)
    except ValueError as error:
        raise SettingsError(f"--time {error}") from None
    proposal = propose_pipeline(
        text or [],
        out=out,
        params=read(RunSettings, "params", params),
        seconds=seconds,
        memory=None if memory is None else Budget.parse(memory).total,
        threads=threads,
        force=force,
    )
    write(proposal, force=force)
    for line in proposal.notes():
        note(f"note: {line}", quiet=quiet or json)
    if json:
        print_json(
            {
                "path": out,
                "inputs": list(proposal.text.inputs),
                "text_bytes": proposal.text.text_bytes,
                "bytes_per_token": round(proposal.bytes_per_token, 2),
                "vocab_size": proposal.vocab_size,
                "memory": proposal.memory,
                "params": proposal.params,
                "seq_len": proposal.course.seq_len,
                "batch_size": proposal.course.sequences,
                "max_steps": proposal.course.steps,
                "seconds": round(proposal.seconds),
                "time_limit": round(proposal.limit),
            }
        )
        return
    for line in proposal.summary():
        note(line, quiet=quiet)
    print(f"{out} is written: look at it, then  ramlet run {out}")


def add_to(root: typer.Typer) -> None:
    """Adds the command."""
    root.command("init")(init)
