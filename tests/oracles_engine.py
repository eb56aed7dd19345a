"""A minimal second engine: a unigram model, trained with momentum, in NumPy.

It implements exactly what `ramlet.engines` requires, which proves that nothing outside an engine needs torch, and makes
it a starting point for a new engine. It has all weights of the model, but uses only the first column of the embedding.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ramlet.engines import Division, Engine, Hyperparameters, Ranks, Sampling
from ramlet.engines.plan import PARTS, Choice, Plan, Task, too_small
from ramlet.model.files import read_weights
from ramlet.model.folder import ModelFolder
from ramlet.model.names import named_tensors
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import Stored
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter

EMBEDDING = "model.embed_tokens.weight"


class Array:
    """An array as it is stored in a file; always fp32 here."""

    dtype = "F32"

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape: tuple[int, ...] = array.shape

    def pieces(self, dtype: str, most: int) -> Iterator[memoryview]:
        assert dtype == self.dtype
        memory = memoryview(self.array).cast("B")
        yield from (memory[start : start + most] for start in range(0, len(memory), most))

    places = pieces

    def copied(self) -> Array:
        return Array(self.array.copy())


class Counter:
    """The model: one logit per token, independent of the context."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.tensors = {each.name: np.zeros(each.shape, np.float32) for each in named_tensors(shape)}

    @property
    def logits(self) -> Any:
        return self.tensors[EMBEDDING][:, 0]

    def probabilities(self) -> Any:
        wide = np.exp(self.logits.astype(np.float64) - self.logits.max())
        return wide / wide.sum()

    def token_losses(self, batch: Mapping[str, Any]) -> list[list[float]]:
        targets = batch["targets"]
        losses: list[list[float]] = np.where(targets < 0, 0.0, -np.log(self.probabilities())[targets]).tolist()
        return losses

    def continuation(
        self, prompt: Sequence[int], settings: Sampling, *, end_ids: Collection[int], known: bytearray | None = None
    ) -> Ids:
        return Ids(self.probabilities(), settings)


class Ids:
    def __init__(self, probabilities: Any, settings: Sampling) -> None:
        self._probabilities, self._settings = probabilities.tolist(), settings
        self._ended = [False] * settings.num_samples

    def __iter__(self) -> Iterator[list[int | None]]:
        chance = random.Random(self._settings.seed)
        ids = range(len(self._probabilities))
        for _ in range(self._settings.max_tokens):
            yield [None if ended else chance.choices(ids, self._probabilities)[0] for ended in self._ended]

    def end(self, sample: int) -> None:
        self._ended[sample] = True


class CountingTrainee:
    overflow_is_normal = False

    def __init__(self, shape: Shape) -> None:
        self.model = Counter(shape)
        self._grad = np.zeros(shape.vocab_size)
        self._momentum = np.zeros(shape.vocab_size, np.float32)

    def reset(self, seed: int) -> None:
        for array in (*self.model.tensors.values(), self._momentum):
            array.fill(0.0)

    def load_weights(self, found: ModelFolder) -> None:
        read_weights(found, self.model.shape, self.weights())

    def prepare(self, plan: Plan, rank: int) -> None: ...

    def learn(self, batch: Mapping[str, Any], scale: float) -> float:
        targets = batch["targets"][batch["targets"] >= 0]
        counted = np.bincount(targets, minlength=len(self._grad))
        self._grad += scale * (counted.sum() * self.model.probabilities() - counted)
        return math.fsum(map(math.fsum, self.model.token_losses(batch)))

    def over_ranks(self, loss: Any, tokens: int) -> tuple[Any, int]:
        return loss, tokens

    def update(self, rate: float, clip: float, correction: float = 1.0) -> float:
        norm = float(np.linalg.norm(self._grad)) * correction
        self._momentum *= 0.9
        self._momentum += (correction * self._grad).astype(np.float32)
        self.model.logits[:] -= np.float32(100 * rate) * self._momentum
        self._grad.fill(0.0)
        return norm

    def weights(self) -> dict[str, Stored]:
        return {name: Array(array) for name, array in self.model.tensors.items()}

    def states(self) -> dict[str, Stored]:
        return {"momentum": Array(self._momentum)}

    def prepare_states(self) -> None: ...

    def scale_state(self) -> dict[str, Any]:
        return {"loss_scale": 1.0, "good_steps": 0}

    def restored(self, scale_state: Mapping[str, Any]) -> None: ...


class CountingEngine:
    kind = name = "cpu"
    ranks = Ranks()
    threads = 1
    versions = {"counting": "1"}  # noqa: RUF012 - never changed
    out_of_memory = MemoryError
    is_async = False
    uses_host_memory = True
    baseline = "Python and NumPy"

    @contextmanager
    def joined(self) -> Iterator[Engine]:
        yield self

    def precision(self, wanted: str) -> str:
        return "fp32"

    def budget(self, memory: Budget | str | int | None) -> Budget:
        return Budget.parse(memory)

    def cap(self, budget: Budget) -> None: ...

    def resident(self, *, stepping: bool = False) -> int:
        return 60_000_000

    def release(self) -> None: ...

    def keep_freed(self, keep: bool) -> None: ...

    def current(self, meter: Meter) -> int:
        return meter.current

    def peak(self, meter: Meter) -> int:
        return meter.peak

    def sketch(self, task: Task) -> Plan:
        parts = {**dict.fromkeys(PARTS, 0), "weights": task.shape.parameters * 4, "overhead": task.resident}
        choice = Choice(micro_batch=task.forced.get("micro_batch", 2), chunk=1)
        if sum(parts.values()) > task.budget.total:
            raise too_small(task.budget, choice, parts)
        return Plan(task.shape, task.seq_len, task.batch_size, self.kind, choice, parts, task.budget.total)

    def fit(self, task: Task, settings: Hyperparameters, meter: Meter) -> Plan:
        return self.sketch(task)

    def eval_rows(self, seq_len: int) -> int:
        return 4

    def division(
        self,
        shape: Shape,
        *,
        seq_len: int,
        precision: str,
        budget: Budget,
        document_mask: bool,
        aside: Mapping[str, int] | None = None,
    ) -> Division:
        return Division(4, 64)

    def generation_parts(
        self, shape: Shape, *, precision: str, prompt: int, settings: Sampling, vocabulary: int
    ) -> dict[str, int]:
        return {"the weights": shape.parameters * 4}

    def trainee(
        self,
        shape: Shape,
        choice: Choice,
        settings: Hyperparameters,
        *,
        seq_len: int | None = None,
        document_mask: bool = False,
    ) -> CountingTrainee:
        return CountingTrainee(shape)

    def load(
        self, found: ModelFolder, precision: str, *, division: Division | None = None, seq_len: int = 0
    ) -> Counter:
        trainee = CountingTrainee(found.shape())
        trainee.load_weights(found)
        return trainee.model

    def mark(self) -> float:
        return time.monotonic()

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def free(self) -> int:
        return 10**9

    def flops(self, precision: str, seconds: float) -> float:
        return 1e9

    def gpus(self) -> list[dict[str, Any]]:
        return []
