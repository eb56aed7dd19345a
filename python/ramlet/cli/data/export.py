"""`ramlet data export`."""

from __future__ import annotations

from typing import Annotated

import typer

from ramlet.cli.data.options import DatasetPath, NewFolder, within
from ramlet.cli.options import Debug, Json, Memory, Quiet
from ramlet.cli.tokenizer.options import note, plural, print_json


def export(
    dataset: DatasetPath,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="nanogpt|llm.c|megatron|npy|hf", show_default=False, help="Whose layout to write."
        ),
    ],
    out: NewFolder,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", metavar="train|val", help="Only this one; may be given twice. Else all there are."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", show_default="that of --out", help="How llm.c's files begin."),
    ] = None,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a dataset in the layout of another trainer.

    nanogpt: train.bin, val.bin and meta.pkl. llm.c: files with a header, the end id before each document. megatron:
    .bin and .idx. npy: NumPy arrays. hf: a folder for datasets.load_from_disk.

      ramlet data export my-dataset --to nanogpt --out for-nanogpt
    """
    from ramlet.dataset.export import export as write
    from ramlet.dataset.manifest import Manifest
    from ramlet.dataset.nanogpt_meta import MEMORY_FACTOR, needs_meta

    if to == "hf":
        from contextlib import suppress

        with suppress(ImportError):
            import pyarrow.ipc  # noqa: F401 - what it takes must be counted in the budget
    vocabulary = 0
    if to == "nanogpt":
        manifest = Manifest.read(dataset)
        vocabulary = MEMORY_FACTOR * manifest.vocab_size if needs_meta(manifest) else 0
    with within(memory, silent=quiet or json, vocabulary=vocabulary) as (meter, bar):
        done = write(
            dataset,
            to,
            out,
            splits=split,
            name=name,
            progress=lambda so_far, total: bar.update("exporting", so_far, total),
        )
    if json:
        figures = {
            "path": str(out),
            "out": str(out),
            "to": to,
            "files": done.files,
            "tokens": done.tokens,
            "notes": done.notes,
        }
        print_json({**figures, "already_done": done.already_done, "memory": meter.summary()})
        return
    if done.already_done:
        print(f"{out} already holds this export, of the same dataset: nothing to do")
        return
    print(f"{plural(done.tokens, 'token')} in {out}, for {to}: {', '.join(done.files[:6])}{_more(done.files)}")
    for line in done.notes:
        note(line, quiet=quiet)
    print(meter.closing_line())


def _more(files: list[str]) -> str:
    return f" and {len(files) - 6} more" if len(files) > 6 else ""
