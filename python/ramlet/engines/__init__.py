"""What computes: engines behind one contract. There is PyTorch; others have their place beside it.

    engine = open_engine("cpu", threads=2)
    budget = engine.budget("2GB")
    plan = engine.fit(task, settings, meter)                # which micro-batch, which states: what fits, tried out
    trainee = engine.trainee(task.shape, plan.choice, settings)
    trainee.reset(seed=1)
    loss = trainee.learn(batch, 1 / tokens)                 # a micro-batch
    grad_norm = trainee.update(rate=1e-3, clip=1.0)         # a step of the optimizer
    write_tensors("model.safetensors", trainee.weights())

The loop, the data, the settings and the files (training/, loading/, model/, generation/) know these types and nothing
of an engine behind them. To write a second one: a folder here, with an `open_engine(device, threads)` that returns an
`Engine`, and its name in ENGINES (tests/oracles_engine.py is one in 200 lines of NumPy). Where to begin:

    plan.py        what a plan is and what it is made for: the same for all engines
    Trainee        a model with its optimizer; Model what of it is needed to evaluate and to write text
    Ranks          this process among others that train the same model; one process is a `Ranks()`

Batches come as NumPy arrays, int64, of the names in `training_names`. Figures of a step are `Pending`: a device need
not have computed them when they are handed out, and whoever reads one with float() waits for it. Weights go by the
names and shapes of `ramlet.model.names`, as tensors that are `Stored` (`ramlet.model.tensor_file`). What does not fit
into a budget is a `BudgetError`, raised before memory is taken. On a CPU results are the same bits whatever the budget
and the number of threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from ramlet.engines.plan import Choice, Plan, Task
    from ramlet.model.folder import ModelFolder
    from ramlet.model.shape import Shape
    from ramlet.model.tensor_file import Stored
    from ramlet.runtime.budget import Budget
    from ramlet.runtime.meter import Meter

__all__ = [
    *("Continuation", "Division", "Engine", "Hyperparameters", "Model", "Pending", "Ranks", "Sampling", "Trainee"),
    *("LARGEST_SEED", "open_engine", "training_names"),
]

ENGINES = ("torch",)

LARGEST_SEED = (1 << 63) - 1

_ARRAYS = ("input_ids", "targets", "position_ids", "document_ids")


def training_names(document_mask: bool) -> tuple[str, ...]:
    """The arrays of a batch that an engine learns from, (sequences, tokens) each; the last two with a document mask.

    `targets` are the ids that follow the `input_ids`, -100 where nothing is to be learned. `position_ids` count from
    the start of a document, and a token sees only those before it that have its `document_ids`.
    """
    return _ARRAYS if document_mask else _ARRAYS[:2]


class Pending(Protocol):
    """A number that a device may still be at; float() waits for it."""

    def __float__(self) -> float: ...

    def __add__(self, other: Any, /) -> Pending: ...

    def __radd__(self, other: Any, /) -> Pending: ...

    def __truediv__(self, other: Any, /) -> Pending: ...


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is. An engine that joins several overrides what they do together."""

    rank: int = 0
    world: int = 1
    local: int = 0
    """Its number on this machine."""

    @property
    def first(self) -> bool:
        """The one that writes."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether it holds on any rank, so that all do the same."""
        return flag

    def wait(self) -> None:
        """Until all are here."""


class Hyperparameters(Protocol):
    """Of the optimizer: what a run's settings say of it."""

    @property
    def weight_decay(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def seed(self) -> int: ...


class Sampling(Protocol):
    """How the next token is chosen, as in `ramlet.generation.SampleSettings`; `seed` is set."""

    @property
    def max_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def num_samples(self) -> int: ...


class Continuation(Protocol):
    """Ids that go on from a prompt: the next id of every sample at a time, None for those that have ended."""

    def __iter__(self) -> Iterator[list[int | None]]: ...

    def end(self, sample: int) -> None:
        """No more of this sample is wanted."""


class Model(Protocol):
    """What is needed of a model to evaluate it and to write with it."""

    @property
    def shape(self) -> Shape: ...

    def token_losses(self, batch: Mapping[str, Any]) -> list[list[float]]:
        """Each token's loss in nats, by sequence; 0 where there is no target."""

    def continuation(
        self, prompt: Sequence[int], settings: Sampling, *, end_ids: Collection[int], known: bytearray | None = None
    ) -> Continuation:
        """`prompt` has at least one id and at most as many as the context; `known` is 0 for ids that no token has."""


class Trainee(Protocol):
    """A model with its gradients and its optimizer."""

    @property
    def model(self) -> Model: ...

    def reset(self, seed: int) -> None:
        """As new: weights drawn by the seed, the same with every engine's own numbers; all states zero."""

    def take_weights(self, found: ModelFolder) -> None:
        """Those of a folder, in whatever type it has them."""

    def prepare(self, plan: Plan, rank: int) -> None:
        """Before the first step: what makes the micro-batches of this plan faster, where there is something."""

    def learn(self, batch: Mapping[str, Any], scale: float) -> Pending:
        """The summed loss of a micro-batch, whose gradient, times `scale`, is added to the gradients."""

    def over_ranks(self, loss: Pending, tokens: int) -> tuple[Pending, int]:
        """A step's summed loss and how many tokens were learned from, of all ranks together."""

    def update(self, rate: float, clip: float, correction: float = 1.0) -> Pending:
        """A step of the optimizer with the gradients of all ranks times `correction`; returns their norm.

        Gradients are zero afterwards. Where the norm is NaN or infinite and known at once, weights stay as they are.
        """

    @property
    def overflow_is_normal(self) -> bool:
        """Whether a norm that is no number comes from fp16's range alone, and is no end of the run."""

    def weights(self) -> dict[str, Stored]:
        """The tensors themselves, by transformers' names: to be written before the next step, or to be read into."""

    def states(self) -> dict[str, Stored]:
        """The same of the optimizer's states, by names of the engine's own; there after `prepare_states` or a step."""

    def prepare_states(self) -> None: ...

    def scale_state(self) -> dict[str, Any]:
        """`loss_scale` and `good_steps`, of fp16; 1.0 and 0 where gradients are not scaled."""

    def restored(self, scale_state: Mapping[str, Any]) -> None:
        """All tensors have been read into: what follows from them is made again."""


class Division(NamedTuple):
    """How evaluating is divided so that it fits."""

    micro_batch: int
    """Sequences."""
    chunk: int
    """Tokens whose logits exist at once."""


class Engine(Protocol):
    """A device, with the memory and the clock that it has."""

    @property
    def kind(self) -> str:
        """cpu or cuda. On a CPU its memory is that of the process."""

    @property
    def name(self) -> str:
        """With its number, where there are several: cuda:1."""

    @property
    def ranks(self) -> Ranks: ...

    @property
    def threads(self) -> int: ...

    @property
    def versions(self) -> dict[str, str]:
        """For settings.yaml: what computed."""

    @property
    def out_of_memory(self) -> type[Exception]:
        """What is raised where the device has no more."""

    def joined(self) -> AbstractContextManager[Engine]:
        """This engine, with the other processes that were started for the same run, and on this one's own device."""

    def precision(self, wanted: str) -> str:
        """What products are made in: fp32, bf16 or fp16; `auto` is what is fastest here."""

    # Memory.

    def budget(self, memory: Budget | str | int | None) -> Budget:
        """What `memory` means here."""

    def cap(self, budget: Budget) -> None:
        """From here on more than the budget is refused, where the device can do that."""

    def resident(self, *, stepping: bool = False) -> int:
        """Bytes of the budget that are taken before there is a model, when all is given back that can be; `stepping`
        with what the first step of a process starts of itself."""

    def release(self) -> None:
        """Gives back what was freed."""

    def keep_freed(self, keep: bool) -> None:
        """Whether what is freed is kept for the next use, which is faster, or given back at once, which is smaller."""

    def current(self, meter: Meter) -> int: ...

    def peak(self, meter: Meter) -> int: ...

    # Plans.

    def sketch(self, task: Task) -> Plan:
        """The fastest plan that fits by the formulas alone."""

    def fit(self, task: Task, settings: Hyperparameters, meter: Meter) -> Plan:
        """The same, corrected by real steps. What it tried is gone afterwards."""

    def eval_rows(self, seq_len: int) -> int:
        """Sequences that a model in training is evaluated on at once, at most."""

    def division(self, shape: Shape, *, seq_len: int, precision: str, budget: Budget, document_mask: bool) -> Division:
        """How a model that is only evaluated fits."""

    def writing_parts(
        self, shape: Shape, *, precision: str, prompt: int, settings: Sampling, vocabulary: int
    ) -> dict[str, int]:
        """What writing behind a prompt of so many tokens takes beside what is `resident`, by part; `vocabulary` is that
        of the tokenizer, which may take something too."""

    # Models.

    def trainee(self, shape: Shape, choice: Choice, settings: Hyperparameters) -> Trainee: ...

    def load(self, found: ModelFolder, precision: str, *, chunk: int | None = None) -> Model:
        """The model of a folder, its weights kept in this type."""

    # Time. A device may be behind what it was asked for.

    @property
    def runs_behind(self) -> bool:
        """Whether it is: then figures are read a step later, so that the device never waits for Python."""

    def mark(self) -> Any:
        """The moment when all that was asked for so far is done."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Between two marks, of which the later one is waited for."""

    # The machine, for estimates.

    def free(self) -> int:
        """Bytes that are free on the device."""

    def flops(self, precision: str, seconds: float) -> float:
        """Operations a second in matrix products, measured for so long."""

    def gpus(self) -> list[dict[str, Any]]:
        """name, memory, free, bf16 of each; none on a CPU."""


def open_engine(device: str = "auto", threads: int | None = None, *, name: str = "torch") -> Engine:
    """The engine on a device (auto, cpu, cuda), working in so many threads; its libraries are loaded now."""
    assert name in ENGINES
    engine: Engine = import_module(f"ramlet.engines.{name}").open_engine(device, threads)
    return engine
