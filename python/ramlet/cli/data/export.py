"""`ramlet data export`."""

from __future__ import annotations

from typing import Annotated

from ramlet.cli.data.options import DatasetPath, NewFolder, within
from ramlet.cli.options import Json, Memory, Quiet, note, print_json
from ramlet.cli.parameters import Option
from ramlet.dataset.export import FORMATS, load_format
from ramlet.runtime.plurals import plural


def export(
    dataset: DatasetPath,
    to: Annotated[
        str,
        Option("--to", metavar="|".join(FORMATS), shown=False, help="Target format."),
    ],
    out: NewFolder,
    split: Annotated[
        list[str] | None,
        Option("--split", metavar="train|val", shown="all", help="Split to export; may be given several times."),
    ] = None,
    name: Annotated[
        str | None,
        Option("--name", metavar="NAME", shown="the name of --out", help="Prefix of the file names for llm.c."),
    ] = None,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Export a dataset in the format of another trainer.

    {formats}

      ramlet data export my-dataset --to nanogpt --out for-nanogpt
    """
    from ramlet.dataset.export.run import export as write
    from ramlet.dataset.reader import Dataset
    from ramlet.runtime.budget import Budget, using_budget

    # Loaded here, so that the budget counts what the format imports.
    needs = load_format(to)
    with using_budget(Budget.parse(memory)):
        opened = Dataset(dataset)
    vocabulary = needs.tokens_loaded(opened.manifest) if hasattr(needs, "tokens_loaded") else 0
    row = {"the longest document": needs.row_bytes(opened)} if hasattr(needs, "row_bytes") else {}
    with within(memory, silent=quiet or json, vocabulary=vocabulary, more=row) as (meter, bar):
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


export.__doc__ = (export.__doc__ or "").replace(
    "{formats}", " ".join(f"{name}: {what}." for name, what in FORMATS.items())
)


def _more(files: list[str]) -> str:
    return f" and {len(files) - 6} more" if len(files) > 6 else ""
