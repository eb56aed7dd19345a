"""The log of a run: metrics.jsonl, and TensorBoard or W&B if wanted.

One JSON object per line, each with its `step`:

    {"step": 100, "tokens": 819200, "loss": 5.1, "lr": 0.001, "grad_norm": 0.8, "tokens_per_second": 9000, ...}
    {"step": 100, "eval": {"val": {"loss": 5.2, "perplexity": 181.3, "bits_per_byte": 1.9}}, "forgetting": {...}}
    {"step": 100, "sample": "Once upon a time ..."}

A resumed run truncates the file to where its checkpoint was: the lines are those of a run that never stopped.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from ramlet.errors import DiskFull, ModelError, SettingsError, option
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.small_files import SMALL, open_regular, read_text
from ramlet.training.run_files import METRICS, TENSORBOARD, WANDB_ID


class Journal:
    """Lines are synced to disk when `position` is read."""

    def __init__(
        self,
        place: Path,
        *,
        run: Path | None = None,
        position: int = 0,
        step: int = 0,
        tensorboard: bool = False,
        wandb: bool = False,
        writes: bool = True,
    ) -> None:
        """Writes to `place`, or nowhere if not `writes`: only the first rank does.

        `run` is the run's folder, for W&B, if it is another one. A resumed run continues at `position` and `step`.
        """
        self._writes = writes
        self._tensorboard = tensorboard and writes
        self._open(place, step)
        if writes:
            self._file.truncate(min(position, os.path.getsize(self._path)))
        self._wandb = _wandb(run or place, place, step) if wandb and writes else None

    def _open(self, place: Path, step: int) -> None:
        self._place = place
        self._path = place / METRICS if self._writes else Path(os.devnull)
        if self._writes and os.path.lexists(self._path):
            open_regular(self._path, ModelError).close()  # opening a pipe would wait for a reader
        self._file: IO[str] = open(self._path, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed by close()
        self._board = _tensorboard(place, step) if self._tensorboard else None

    def follow(self, place: Path, step: int) -> None:
        """Continues in the folder where the run's files are now."""
        if self._writes and place != self._place:
            self._file.close()
            if self._board is not None:
                self._board.close()
            self._open(place, step)

    def write(self, step: int, **values: Any) -> None:
        try:
            json.dump({"step": step, **values}, self._file, ensure_ascii=False)
            self._file.write("\n")
            self._file.flush()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no space left to write {self._path}: free some and run the same again") from None
            raise
        metrics = dict(_flat(values))
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add(name, value, step)
        if self._wandb is not None:
            self._wandb.log(metrics, step=step)

    @property
    def position(self) -> int:
        """Bytes written, all synced to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        # Not the stream's own position: it was opened before the file was truncated.
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        with suppress(OSError):  # a full disk was reported when it was written to
            self._file.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """`{"eval": {"val": {"loss": 1}}}` as `eval/val/loss`; only numbers and texts."""
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{before}{name}/")
        elif isinstance(value, (int, float, str)):
            found.append((before + name, value))
    return found


def load_loggers(*, tensorboard: bool, wandb: bool) -> None:
    """Imports the packages before the run starts: a missing one is an error, and the plan includes their memory."""
    for wanted, module, name, install in (
        (tensorboard, "ramlet.training.board", "TensorBoard", "tensorboard"),
        (wandb, "wandb", "W&B", "wandb"),
    ):
        if wanted:
            try:
                import_module(module)
            except ImportError:
                raise SettingsError(
                    f"{name} is not installed: pip install {install}, or do not give {option(install)}"
                ) from None


def _tensorboard(run: Path, step: int) -> Any:
    load_loggers(tensorboard=True, wandb=False)
    from ramlet.training.board import Board

    return Board(run / TENSORBOARD, step)


def _wandb(run: Path, place: Path, step: int) -> Any:
    """A run keeps its id there; the names of folders are often the same, and older runs had those."""
    import wandb

    noted = place / WANDB_ID
    if noted.exists():
        identity = read_text(noted, ModelError, SMALL).strip()
    else:
        identity = run.name if step else os.urandom(8).hex()
        with replacing(noted) as file:
            file.write(identity)
    return wandb.init(project="ramlet", name=run.absolute().name, dir=str(run), resume="allow", id=identity)
