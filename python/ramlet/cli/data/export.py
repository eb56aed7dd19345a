"""`ramlet data export`."""

from __future__ import annotations

from typing import Annotated

import typer

from ramlet.cli.data.options import DatasetPath, NewFolder, within
from ramlet.cli.options import Json, Memory, Quiet, note, print_json
from ramlet.runtime.plurals import plural


def export(
    dataset: DatasetPath,
    to: Annotated[
        str,
        typer.Option("--to", metavar="nanogpt|llm.c|megatron|npy|hf", show_default=False, help="Target format."),
    ],
    out: NewFolder,
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split", metavar="train|val", show_default="all", help="Split to export; may be given several times."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", show_default="the name of --out", help="Prefix of the file names for llm.c."
        ),
    ] = None,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Export a dataset in the format of another trainer.

    nanogpt: train.bin, val.bin and meta.pkl. llm.c: files with a header, and the end id before each document. megatron:
    .bin and .idx. npy: NumPy arrays. hf: a folder for datasets.load_from_disk.

      ramlet data export my-dataset --to nanogpt --out for-nanogpt
    """
    from ramlet.dataset.export import export as write
    from ramlet.dataset.manifest import Manifest
    from ramlet.dataset.nanogpt_meta import MEMORY_FACTOR, needs_meta

    if to == "hf":
        from contextlib import suppress

        with suppress(ImportError):
            import pyarrow.ipc  # noqa: F401 - its memory must be counted
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
        written = {
            "path": str(out),
            "out": str(out),
            "to": to,
            "files": done.files,
            "tokens": done.tokens,
            "notes": done.notes,
        }
        print_json({**written, "already_done": done.already_done, "memory": meter.summary()})
        return
    if done.already_done:
        print(f"{out} already has this export of the same dataset: nothing to do")
        return
    print(f"{plural(done.tokens, 'token')} in {out}, for {to}: {', '.join(done.files[:6])}{_more(done.files)}")
    for line in done.notes:
        note(line, quiet=quiet)
    print(meter.closing_line())


def _more(files: list[str]) -> str:
    return f" and {len(files) - 6} more" if len(files) > 6 else ""
