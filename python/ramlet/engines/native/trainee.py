"""A model with its optimizer: accumulate the gradients of micro-batches, then step.

    trainee = NativeTrainee(shape, layout, settings)
    for batch in micro_batches:
        loss += trainee.learn(batch, scale=1 / tokens)
    grad_norm = trainee.update(rate=1e-3, clip=1.0)

The names, shapes and dtypes of weights and states are those of the torch engine, so a run can continue with another
engine. Dropout masks have the same keys too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ramlet.engines import Hyperparameters
from ramlet.engines.hashing import dropout_keys, seed_key
from ramlet.engines.native.gpt import GPT, Layout
from ramlet.engines.native.tensors import clear, stored
from ramlet.engines.plan import Plan
from ramlet.model.folder import ModelFolder
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import Stored
from ramlet.runtime.settled import release_heap


class NativeTrainee:
    overflow_is_normal = False

    def __init__(self, shape: Shape, layout: Layout, settings: Hyperparameters) -> None:
        self.model = GPT(shape, layout)
        self._hyper = (settings.beta1, settings.beta2, settings.eps, settings.weight_decay)
        self._seed = settings.seed
        self._seed_key = seed_key(settings.seed)

    def reset(self, seed: int) -> None:
        clear(self.model.states())
        self.model.initialize(seed)

    def load_weights(self, found: ModelFolder) -> None:
        self.model.load_weights(found)

    def prepare(self, plan: Plan, rank: int) -> None:
        """Returns what was only needed to make the model: a plan does not count it."""
        release_heap()

    def learn(self, batch: Mapping[str, Any], scale: float) -> float:
        return self.model.learn(batch, self._dropout_keys(batch), scale)

    def _dropout_keys(self, batch: Mapping[str, Any]) -> Any:
        """One for each sequence; None without dropout."""
        import numpy as np

        if not self.model.layout.dropout:
            return None
        return dropout_keys(self._seed_key, np.array(batch["samples"], np.int64))

    def over_ranks(self, loss: Any, tokens: int) -> tuple[Any, int]:
        return loss, tokens

    def update(self, rate: float, clip: float, correction: float = 1.0) -> float:
        return self.model.update(rate, clip or math.inf, correction, self._hyper, self._seed)

    def weights(self) -> dict[str, Stored]:
        return self.model.weights()

    def states(self) -> dict[str, Stored]:
        return stored(self.model.states(), self.model)

    def prepare_states(self) -> None:
        """They are in the arena."""

    def scale_state(self) -> dict[str, Any]:
        return {"loss_scale": 1.0, "good_steps": 0}

    def restored(self, scale_state: Mapping[str, Any]) -> None:
        """Products read the weights themselves."""
