"""The average of the weights over the last part of a run, accumulated on disk.

    RUN/checkpoints/average_000950.safetensors      the mean of the weights at all moments up to step 950, in fp32

At a few moments of the last part the weights are added to the mean: the file of the moment before is read and a new one
written, in pieces of 128 KiB, so training needs no memory for it. A checkpoint continues with the file of the last
moment before it, and that one is kept as long as the checkpoint is: a run that was killed ends with the same average.
At the end it is evaluated like any other model, and kept if it is the best (kept.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ramlet.engines import Learner
from ramlet.model.tensor_file import Stored, blend_tensors, read_header, read_tensors_into
from ramlet.training.run_files import CHECKPOINTS

MOMENTS = 10
_NAME = re.compile(r"average_(\d{6,})\.safetensors")


@dataclass(frozen=True)
class Averaging:
    """When a run of `steps` adds its weights to the mean: over the last `part` of them, the last step included."""

    steps: int
    part: float

    @property
    def moments(self) -> tuple[int, ...]:
        window = math.ceil(self.part * self.steps)
        count = min(MOMENTS, window)
        return tuple(self.steps - window * before // count for before in reversed(range(count)))

    def add(self, run: Path, step: int, weights: Mapping[str, Stored]) -> None:
        """Writes the mean of the weights at this moment and all before it."""
        (run / CHECKPOINTS).mkdir(exist_ok=True)
        place = self.moments.index(step)
        before = _file(run, self.moments[place - 1]) if place else None
        count = self.count(before) if before is not None else 0
        blend_tensors(
            _file(run, step),
            weights,
            before if count else None,
            1 / (count + 1),
            {"format": "pt", "averaged": str(count + 1), "steps": str(self.steps)},
        )

    def count(self, file: Path) -> int:
        """How many moments are in a file; 0 without one, or if it is of a run of another length."""
        if not file.is_file():
            return 0
        known = read_header(file).metadata
        return int(known.get("averaged", "0")) if known.get("steps") == str(self.steps) else 0

    def load(self, run: Path, trainee: Learner) -> int:
        """Replaces the weights by their average and returns of how many moments it is; 0 if there is none."""
        file = _file(run, self.steps)
        count = self.count(file)
        if count:
            read_tensors_into(file, trainee.weights(), cast=True)
            trainee.restored(trainee.scale_state())
        return count


def prune(run: Path, step: int, checkpoints: Collection[int], averaging: Averaging | None) -> None:
    """Removes all but those of this step, and those that one of the checkpoints continues with."""
    found = {int(match[1]): path for path in (run / CHECKPOINTS).iterdir() if (match := _NAME.fullmatch(path.name))}
    # Those of a run of another length are never continued with.
    own = [at for at, path in found.items() if averaging is not None and averaging.count(path)]
    needed = {max((at for at in own if at <= reached), default=0) for reached in (*checkpoints, step)}
    for at, path in found.items():
        if at not in needed:
            path.unlink()


def _file(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"average_{step:06}.safetensors"
