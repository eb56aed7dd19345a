"""`ramlet export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ramlet.cli.options import Json, Memory, Quiet, note, print_json
from ramlet.cli.parameters import Argument, Option
from ramlet.cli.progress import Progress
from ramlet.errors import SettingsError
from ramlet.model.export import TARGETS, export_model, export_parts
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter


def export(
    run: Annotated[Path, Argument(metavar="RUN", shown=False, help="A run, or one of its checkpoints.")],
    folder: Annotated[
        Path | None, Argument(metavar="DIR", shown="RUN-FORMAT", help="A new folder for the model.")
    ] = None,
    to: Annotated[str, Option("--to", metavar="|".join(TARGETS), help="Target format.")] = "hf",
    out: Annotated[Path | None, Option("--out", "-o", metavar="DIR", help="Same as DIR.")] = None,
    dtype: Annotated[
        str | None,
        Option(
            "--dtype",
            metavar="fp32|bf16|fp16|q8_0",
            shown="as in the run; fp16 for gguf and gguf-ready",
            help="Data type of the weights; q8_0 only for gguf.",
        ),
    ] = None,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Export a trained model for other tools.

    {formats} Weights are copied in chunks, so a model of any size fits.

      ramlet export RUN --to hf my-model
      ramlet export RUN --to gguf --dtype q8_0
    """
    if folder is not None and out is not None:
        raise SettingsError("give one new folder for the model: ramlet export RUN DIR")
    target = folder or out or Path(f"{run if run.stem.strip('.') else run.resolve()}-{to}")
    with Meter(Budget.parse(memory)) as meter, Progress(meter, silent=quiet or json) as bar:
        assert meter.budget is not None
        meter.budget.grant(export_parts(run, to), "Python", peak=meter.peak)

        done = export_model(run, target, to=to, dtype=dtype, progress=bar.update)
    if json:
        written = {
            "path": str(target),
            "out": str(target),
            "to": to,
            "files": done.files,
            "bytes": done.bytes,
            "notes": done.notes,
        }
        print_json({**written, "already_done": done.already_done, "memory": meter.summary()})
        return
    if done.already_done:
        print(f"{target} already has this model, for {to}: nothing to do")
        return
    print(f"{format_bytes(done.bytes)} in {target}, for {to}: {', '.join(done.files)}")
    for line in done.notes:
        note(line, quiet=quiet)
    print(meter.closing_line())


export.__doc__ = (export.__doc__ or "").replace(
    "{formats}", " ".join(f"{name}: {what}." for name, what in TARGETS.items())
)
