"""`ramlet.prepare`: turns its arguments into settings, and prepares a dataset within the budget.

ramlet.prepare(["corpus/", "more.jsonl.zst"], "my-dataset", tokenizer="gpt2", memory="2GB", dedup="line")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet.inputs.sources import Paths
from ramlet.inputs.staging_folder import Progress
from ramlet.notebook import in_notebook
from ramlet.preparing.finish import Prepared
from ramlet.preparing.run import prepare_to
from ramlet.preparing.settings import PrepareSettings
from ramlet.preparing.stages import UNITS
from ramlet.runtime.budget import AUTO, Budget
from ramlet.runtime.meter import Meter
from ramlet.settings.names import given_to
from ramlet.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ramlet.settings import typed


def prepare(
    inputs: Paths,
    out: str | os.PathLike[str],
    *,
    memory: Budget | str | int | None = "auto",
    threads: int | None = None,
    append: bool = False,
    cluster: str | None = None,
    progress: Progress | None = None,
    tokenizer: Tokenizer | str | os.PathLike[str] | Any | None = None,
    **settings: Unpack[typed.PrepareSettings],
) -> Prepared:
    """Prepares a dataset from files, folders, globs, hub names or URLs, within `memory`.

        ramlet.prepare(["corpus/", "more.jsonl.zst"], "my-dataset", tokenizer="gpt2", memory="2GB", dedup="line")

    `tokenizer` is a Tokenizer, or what `ramlet.Tokenizer.load` accepts. The settings are the options of
    `ramlet prepare`, with underscores. With `append` the documents are added to the dataset at `out`, with that
    dataset's tokenizer. With `cluster`, "ray" or "ray://host:port", the nodes of a Ray cluster do the work, and
    `memory` and `threads` are those of each worker.
    """
    if tokenizer is None or isinstance(tokenizer, (str, os.PathLike)):
        given, named = None, None if tokenizer is None else os.fspath(tokenizer)
    else:
        given = Tokenizer.load(tokenizer)  # with its own cache, which this call may limit
        named = given.kind
    chosen = PrepareSettings(tokenizer=named or "gpt2", **given_to(prepare, settings, PrepareSettings))
    with Meter(Budget.parse(memory)) as meter, _shown(progress, meter) as told:
        return prepare_to(
            inputs,
            Path(out),
            chosen,
            meter=meter,
            threads=threads,
            append=append,
            own_tokenizer=append and named is None,
            tokenizer=given,
            cluster=cluster,
            auto_memory=memory is None or memory == AUTO,
            progress=told,
        )


@contextmanager
def _shown(progress: Progress | None, meter: Meter) -> Iterator[Progress | None]:
    """The caller's progress; without one, a notebook shows it."""
    if progress is not None or not in_notebook():
        yield progress
        return
    from ramlet.notebook.display import Display

    with Display(meter, UNITS) as shown:
        yield shown.progress
