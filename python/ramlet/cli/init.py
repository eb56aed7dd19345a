"""`ramlet init`."""

from __future__ import annotations

from typing import Annotated

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import Json, Quiet, Threads, memory_option, note, print_json
from ramlet.cli.parameters import Argument, Option
from ramlet.errors import SettingsError
from ramlet.runtime.budget import Budget
from ramlet.settings.declared import options
from ramlet.settings.kinds import Duration
from ramlet.training.settings import RunSettings


@with_settings(
    *options(RunSettings, "params", panel="", shown="as many as text, time and memory allow"),
    *options(RunSettings, "engine", panel=""),
)
def init(
    text: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT...]",
            shown="the text in this folder",
            help="Files, folders, globs or Hugging Face datasets.",
        ),
    ] = None,
    out: Annotated[str, Option("--out", "-o", metavar="FILE", help="The file to write.")] = "pipeline.yaml",
    *,
    given: Given,
    time: Annotated[str, Option("--time", metavar="T", help="Time limit for training: 20min, 1h, 2d.")] = "1h",
    memory: Annotated[
        str | None,
        memory_option("Memory budget to write into the file", "512MB, 2GB, 50% of what is free", default="50%"),
    ] = None,
    threads: Threads = None,
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a commented config file for `ramlet run`, chosen for this text and this machine.

    Reads a small part of the text, and measures for a second how fast this machine is.

      ramlet init corpus/
      ramlet init book.txt --time 20min --memory 2GB --out book.yaml

    `ramlet run` then makes the tokenizer, the dataset, the model and a report, as the file says.
    """
    from ramlet.pipeline.init import propose_pipeline, write

    try:
        seconds = Duration().read(time)
    except ValueError as error:
        raise SettingsError(f"--time {error}") from None
    proposal = propose_pipeline(
        text or [],
        out=out,
        params=given.get("params"),
        seconds=seconds,
        memory=None if memory is None else Budget.parse(memory).total,
        threads=threads,
        engine=given.get("engine", "auto"),
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
    print(f"wrote {out}: check it, then  ramlet run {out}")
