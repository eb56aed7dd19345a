"""The stages that the native core runs, as a whole or one part at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramlet import _native
from ramlet.inputs.staging_folder import Progress
from ramlet.runtime.budget import Budget
from ramlet.tokenizer.engines import Engine, NativeEngine
from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["run_part", "run_stage"]


def run_stage(
    work: Path,
    out: str | os.PathLike[str],
    stage: str,
    engine: Engine | None,
    *,
    memory: int,
    threads: int,
    total: int = 0,
    progress: Progress | None = None,
    part: int | None = None,
) -> None:
    """Runs what is not done yet; the core encodes by itself, or calls back for tokenizers that it does not support."""
    encode: Callable[[list[str]], Any] | None = None
    if engine is not None and not isinstance(engine, NativeEngine):
        call = engine.encode_batch

        def encode(texts: list[str]) -> Any:
            return call(texts, [], threads, True)

    _native.run_prepare_stage(
        work,
        out,
        stage,
        encoder=engine.encoder if isinstance(engine, NativeEngine) else None,
        encode=encode,
        memory=memory,
        threads=threads,
        total=total,
        progress=progress,
        part=part,
    )


def run_part(
    out: str | os.PathLike[str],
    stage: str,
    index: int,
    *,
    memory: Budget | str | int | None = "auto",
    threads: int = 1,
) -> None:
    """One part of one stage of an unfinished run, here or on any machine that sees the folder and the inputs.

    It depends only on the plan in OUT/.work and the index: `scan` and `write` have one part per task, `settle` one per
    partition. A part that is done is not repeated; each stage needs all parts of the one before.
    """
    work = Path(out) / ".work"
    budget = Budget.parse(memory)
    engine = Tokenizer.load(work / "tokenizer.json").engine if stage == "write" else None
    run_stage(work, out, stage, engine, memory=budget.available(), threads=threads, part=index)
