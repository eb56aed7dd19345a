"""`ramlet data merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramlet.cli.data.options import NewFolder, within
from ramlet.cli.options import Debug, Json, Memory, Quiet
from ramlet.cli.tokenizer.options import plural, print_json


def merge(
    datasets: Annotated[
        list[Path], typer.Argument(metavar="DATASET...", show_default=False, help="Two datasets or more, in order.")
    ],
    out: NewFolder,
    link: Annotated[
        bool, typer.Option("--link", help="Hard links instead of copies: no space taken, on the same disk.")
    ] = False,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Put datasets of the same tokenizer together.

    Shards are copied and renumbered, ledgers and runs added up. Documents that are in two of them are not
    looked for.

      ramlet data merge monday tuesday --out week
    """
    from ramlet.dataset.merge import merge as put_together

    with within(memory, silent=quiet or json) as (meter, bar):
        done = put_together(datasets, out, link=link, progress=lambda done, total: bar.update("merging", done, total))
    splits = {
        name: {"shards": len(split.shards), "documents": split.documents, "tokens": split.tokens}
        for name, split in done.manifest.splits.items()
    }
    if json:
        figures = {"splits": splits, "runs": len(done.manifest.runs), "already_done": done.already_done}
        print_json({"path": str(out), "out": str(out), **figures, "memory": meter.summary()})
        return
    if done.already_done:
        print(f"{out} already holds these datasets, merged: nothing to do")
        return
    counts = [
        plural(sum(split[key] for split in splits.values()), key[:-1]) for key in ("shards", "documents", "tokens")
    ]
    print(f"{plural(len(datasets), 'dataset')} merged into {out}: {', '.join(counts)}")
    print(meter.closing_line())
