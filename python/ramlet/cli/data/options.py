"""What the data commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ramlet.cli.progress import Progress
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter

DatasetPath = Annotated[
    Path, typer.Argument(metavar="DATASET", show_default=False, help="The folder of a prepared dataset.")
]
NewFolder = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", show_default=False, help="A new folder for the result.")
]

BLOCKS = 24_000_000
"""What the blocks of a command take at most: ids, masks of them, ends, a record batch."""
TOKEN_BYTES = 500
"""What a token of a loaded tokenizer takes at most; GPT-2's take 460."""


@contextmanager
def within(memory: str, *, silent: bool, vocabulary: int = 0) -> Iterator[tuple[Meter, Progress]]:
    """The meter and the bar of a command that works in blocks of fixed size; a smaller budget is refused.

    `vocabulary` is that of the tokenizer which the command loads, if it does.
    """
    import numpy  # noqa: F401 - what it takes must be counted

    from ramlet.runtime.memory import peak_memory

    budget = Budget.parse(memory)
    parts = {"blocks of ids": BLOCKS}
    if vocabulary:
        parts["the tokenizer"] = vocabulary * TOKEN_BYTES
    budget.grant(parts, "Python and NumPy", peak=peak_memory())
    with Meter(budget) as meter, Progress(meter, silent=silent) as bar:
        yield meter, bar
