"""What a run does besides its steps, done once with a tiny model before its memory is planned.

    rehearsal = Rehearsal(loader, sets, sampler, described, meter)
    rehearsal(trainee)                  # called by the engine, which then measures what is resident

Code is resident once it has run: pages of Python, of NumPy and of the native core, and what Python imports and caches.
How much that is depends on how the system caches their files, so it is measured, not assumed. A rehearsal takes a step
with a batch of the run's own data, evaluates, generates a sample, and goes through what settings.yaml and a checkpoint
have, all in 10 ms. It writes nothing: no folder has been touched yet if the plan does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, cast

from ramlet.engines import Model, Trainee, training_names
from ramlet.errors import RamletError
from ramlet.generation import Sampler
from ramlet.loading.loader import OWN_BYTES
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.meter import Meter
from ramlet.training.checkpoint import Snapshot
from ramlet.training.evaluate import EvalSet, evaluate_model
from ramlet.training.run_folder import settings_text

PIECE = 1 << 10


@dataclass(frozen=True)
class Rehearsal:
    loader: Callable[[], Any] | None
    """Of the run's data, one sequence at a time; None if the first one takes long."""
    sets: Sequence[EvalSet]
    """One sequence of each."""
    sampler: Sampler | None
    described: Mapping[str, Any]
    """As in settings.yaml."""
    meter: Meter

    @property
    def loader_bytes(self) -> int:
        return OWN_BYTES if self.loader is not None else 0

    def __call__(self, trainee: Trainee) -> None:
        """`trainee` may be shorter than the run's sequences, and have fewer ids."""
        trainee.reset(0)
        if self.loader is not None:
            with self.loader() as loader, closing(iter(loader)) as batches:
                batch = next(batches)
                assert batch.trained >= 0
                trainee.learn(_cut(batch, trainee.model.shape, batch.document_ids is not None), 1.0)
                json.dumps(loader.state())
            trainee.update(0.0, 1.0)
        for each in self.sets:
            evaluate_model(cast(Model, _Cutting(trainee.model)), each)
        if self.sampler is not None:
            with suppress(RamletError):  # a tokenizer may have none of the few ids
                self.sampler(trainee.model, 0)
        self._describe(trainee)

    def _describe(self, trainee: Trainee) -> None:
        snapshot = Snapshot.of(trainee, 0, {})
        for tensor in (*snapshot.model.values(), *snapshot.optimizer.values()):
            for _ in tensor.pieces(tensor.dtype, PIECE):
                pass
        file_checksum(__file__)
        json.dumps(self.meter.summary(), indent=1)
        settings_text(self.described)


class _Cutting:
    """A model that evaluates the beginning of longer sequences."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def token_losses(self, batch: Mapping[str, Any]) -> list[list[float]]:
        return self._model.token_losses(_cut(batch, self._model.shape, "document_ids" in batch))


def _cut(batch: Any, shape: Any, document_mask: bool) -> dict[str, Any]:
    import numpy as np

    names = training_names(document_mask)
    cut = {name: np.minimum(batch[name][:1, : shape.context], shape.vocab_size - 1) for name in names}
    return {**cut, "samples": range(1)}
