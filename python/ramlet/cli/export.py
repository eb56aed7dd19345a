"""`ramlet export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramlet.cli.options import Debug, Json, Memory, Quiet
from ramlet.cli.tokenizer.options import note, print_json
from ramlet.errors import SettingsError
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter

BUFFERS = 72_000_000
"""What the pieces of a copy take, reading the names of the tensors, and NumPy, which converts them."""


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", show_default=False, help="A run, or one of its checkpoints.")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", show_default=False, help="A new folder for the result.")
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="hf|gguf-ready", help="Who is to open it.")] = "hf",
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="The same as DIR.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="fp32|bf16|fp16",
            show_default="as in the run; fp16 for gguf-ready",
            help="How weights are written.",
        ),
    ] = None,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a trained model as a folder for other tools.

    hf: for transformers and all that reads its folders. gguf-ready: the same in 16 bits, with a script that makes a
    .gguf of it through llama.cpp's converter. Weights are copied in pieces: any model fits in any memory.

      ramlet export RUN --to hf my-model
    """
    target = folder or out
    if target is None or (folder is not None and out is not None):
        raise SettingsError("name one new folder for the result: ramlet export RUN DIR")
    with Meter(Budget.parse(memory)) as meter:
        from ramlet.model.export import export_model

        assert meter.budget is not None
        meter.budget.grant({"pieces of the weights": BUFFERS}, "Python", peak=meter.peak)

        done = export_model(run, target, to=to, dtype=dtype)
    if json:
        figures = {
            "path": str(target),
            "out": str(target),
            "to": to,
            "files": done.files,
            "bytes": done.bytes,
            "notes": done.notes,
        }
        print_json({**figures, "already_done": done.already_done, "memory": meter.summary()})
        return
    if done.already_done:
        print(f"{target} already holds this model, for {to}: nothing to do")
        return
    print(f"{format_bytes(done.bytes)} in {target}, for {to}: {', '.join(done.files)}")
    for line in done.notes:
        note(line, quiet=quiet)
    print(meter.closing_line())


def add_to(root: typer.Typer) -> None:
    root.command()(export)
