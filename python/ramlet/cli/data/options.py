"""What the data commands share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from ramlet.cli.parameters import Argument, Option
from ramlet.cli.progress import Progress
from ramlet.dataset import TOKEN_BYTES
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter

DatasetPath = Annotated[Path, Argument(metavar="DATASET", shown=False, help="The folder of a dataset.")]
NewFolder = Annotated[Path, Option("--out", "-o", metavar="DIR", shown=False, help="A new folder for the result.")]

BLOCKS = 24_000_000
"""Upper bound for the blocks of a command: ids, their masks, document ends, a record batch."""


@contextmanager
def within(
    memory: str, *, silent: bool, vocabulary: int = 0, more: Mapping[str, int] | None = None
) -> Iterator[tuple[Meter, Progress]]:
    """The meter and progress of a command that works in blocks of fixed size; checks that they fit in the budget.

    `vocabulary` is the vocabulary size of the tokenizer, if the command loads one; `more` are bytes by what needs them.
    """
    import numpy  # noqa: F401 - its memory must be counted

    from ramlet.runtime.memory import peak_memory

    budget = Budget.parse(memory)
    parts = {"blocks of ids": BLOCKS}
    if vocabulary:
        parts["the tokenizer"] = vocabulary * TOKEN_BYTES
    parts |= {what: size for what, size in (more or {}).items() if size}
    budget.grant(parts, "Python and NumPy", peak=peak_memory())
    with Meter(budget) as meter, Progress(meter, silent=silent) as bar:
        yield meter, bar
