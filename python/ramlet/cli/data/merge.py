"""`ramlet data merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ramlet.cli.data.options import NewFolder, within
from ramlet.cli.options import Json, Memory, Quiet, print_json
from ramlet.cli.parameters import Argument, Option
from ramlet.runtime.plurals import plural


def merge(
    datasets: Annotated[
        list[Path], Argument(metavar="DATASET...", shown=False, help="Two or more datasets, in order.")
    ],
    out: NewFolder,
    link: Annotated[
        bool, Option("--link", help="Hard-link shards instead of copying; takes no space, needs the same disk.")
    ] = False,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge datasets that use the same tokenizer.

    Shards are copied and renumbered, their statistics combined. Duplicates between the datasets are not removed.

      ramlet data merge monday tuesday --out week
    """
    from ramlet.dataset.merge import merge as merge_datasets

    with within(memory, silent=quiet or json) as (meter, bar):
        done = merge_datasets(datasets, out, link=link, progress=lambda *done: bar.update("merging", *done))
    splits = {
        name: {"shards": len(split.shards), "documents": split.documents, "tokens": split.tokens}
        for name, split in done.manifest.splits.items()
    }
    if json:
        written = {"splits": splits, "runs": len(done.manifest.runs), "already_done": done.already_done}
        print_json({"path": str(out), "out": str(out), **written, "memory": meter.summary()})
        return
    if done.already_done:
        print(f"{out} already has these datasets, merged: nothing to do")
        return
    counts = [
        plural(sum(split[key] for split in splits.values()), key[:-1]) for key in ("shards", "documents", "tokens")
    ]
    print(f"{plural(len(datasets), 'dataset')} merged into {out}: {', '.join(counts)}")
    print(meter.closing_line())
