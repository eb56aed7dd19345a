"""The contract for engines: what runs the model. `torch` is PyTorch; `native` is the Rust core, on a CPU.

    engine = open_engine("cpu", threads=2)
    budget = engine.budget("2GB")
    plan = engine.fit(task, settings, meter)                # micro-batch, optimizer, weights: what fits, measured
    trainee = engine.trainee(task.shape, plan.choice, settings, seq_len=task.seq_len)
    trainee.reset(seed=1)
    loss = trainee.learn(batch, 1 / tokens)                 # a micro-batch
    grad_norm = trainee.update(rate=1e-3, clip=1.0)         # an optimizer step
    write_tensors("model.safetensors", trainee.weights())

The loop, the data, the settings and the files (training/, loading/, model/, generation/) use these types and know no
engine. To write another one, add a folder here with an `open_engine(device, threads)` that returns an `Engine`, and
add its name to ENGINES in opening.py (tests/oracles_engine.py has one in 200 lines of NumPy). Where to begin:

    opening.py     the names of engines, and which of them runs where
    plan.py        tasks and plans: the same for all engines
    choices.py     what a plan can choose on a CPU; order.py the order of sums, on which results depend
    Trainee        a model with its optimizer; Model is the part needed to evaluate and to generate
    Ranks          this process among those that train the same model; a single process is a `Ranks()`

Batches are int64 NumPy arrays with the names in `training_names`. The numbers of a step are `Pending`: the device may
not have computed them yet, and float() waits for it. Weights have the names and shapes of `ramlet.model.names` and are
`Stored` (`ramlet.model.tensor_file`). If something does not fit the budget, `BudgetError` is raised before the memory
is allocated. On a CPU, results of torch and native are bit-identical for every budget and number of threads; those of
jax differ in their last digits by the micro-batch, because XLA fixes no order of sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from ramlet.engines.plan import Choice, Plan, Task
    from ramlet.model.folder import ModelFolder
    from ramlet.model.shape import Shape
    from ramlet.model.tensor_file import Stored
    from ramlet.runtime.budget import Budget
    from ramlet.runtime.meter import Meter

OPTIMIZERS = ("adamw", "adamw8bit", "muon", "muon8bit")
"""Each is a file of this name in the `optim/` of torch and of jax, which has all that is known of it; those of native
are in the Rust core (`BUILT_IN` in native/plan.py). An engine refuses what it lacks."""
EIGHT_BIT = {"adamw": "adamw8bit", "muon": "muon8bit"}
"""Of each optimizer, the one with 8-bit states, which also updates bf16 weights."""
LARGEST_SEED = (1 << 63) - 1

SHARED = -1
"""The document of tokens at the beginning of a sequence that all its documents see."""

_ARRAYS = ("input_ids", "targets", "position_ids", "document_ids")


def training_names(document_mask: bool) -> tuple[str, ...]:
    """The arrays of a batch, (sequences, tokens) each; the last two only with a document mask.

    `targets` are the ids that follow the `input_ids`; -100 is ignored. `position_ids` count from the start of a
    document, and a token attends only to earlier tokens with the same `document_ids`. In an evaluation a sequence may
    begin with `SHARED` tokens, to which its other documents attend too, as if each began with them.
    """
    return _ARRAYS if document_mask else _ARRAYS[:2]


class Pending(Protocol):
    """A number that the device may still be computing; float() waits for it."""

    def __float__(self) -> float: ...

    def __add__(self, other: Any, /) -> Pending: ...

    def __radd__(self, other: Any, /) -> Pending: ...

    def __truediv__(self, other: Any, /) -> Pending: ...


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together. An engine that supports several overrides `every` and `wait`."""

    rank: int = 0
    world: int = 1
    local: int = 0
    """Rank on this machine."""

    @property
    def first(self) -> bool:
        """Only the first rank writes files."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """True on all ranks if it is true on any, so that all do the same."""
        return self.most(int(flag)) == 1

    def every(self, number: int) -> list[int]:
        """The numbers that the ranks give, by rank, on all of them."""
        return [number]

    def most(self, number: int) -> int:
        """The largest of the numbers that the ranks give, on all of them."""
        return max(self.every(number))

    def wait(self) -> None:
        """Barrier: returns when all ranks have called it."""


class Hyperparameters(Protocol):
    """Those of the optimizer, from a run's settings."""

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
    """How the next token is sampled, as in `ramlet.generation.SampleSettings`; `seed` is not None."""

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
    """The ids that follow a prompt: at each step the next id of every sample, None for samples that have ended."""

    def __iter__(self) -> Iterator[list[int | None]]: ...

    def end(self, sample: int) -> None:
        """Stops this sample."""


class Model(Protocol):
    """What evaluation and generation need of a model."""

    @property
    def shape(self) -> Shape: ...

    def token_losses(self, batch: Mapping[str, Any]) -> list[list[float]]:
        """The loss of each token in nats, by sequence; 0 for ignored targets."""

    def continuation(
        self, prompt: Sequence[int], settings: Sampling, *, end_ids: Collection[int], known: bytearray | None = None
    ) -> Continuation:
        """`prompt` has between one id and a full context; `known` is 0 for ids without a token, never generated."""


class Learner(Protocol):
    """What a step and a checkpoint need of a model with its gradients and its optimizer."""

    @property
    def model(self) -> Any: ...

    def learn(self, batch: Any, scale: float) -> Pending:
        """Forward and backward pass of a micro-batch: returns the summed loss; adds `scale` times its gradient."""

    def over_ranks(self, loss: Pending, tokens: int) -> tuple[Pending, int]:
        """A step's summed loss and its number of trained tokens, summed over all ranks."""

    def update(self, rate: float, clip: float, correction: float = 1.0) -> Pending:
        """An optimizer step with the gradients of all ranks times `correction`; returns their norm.

        Gradients are zero afterwards. If the norm is known at once and is NaN or infinite, the weights do not change.
        """

    @property
    def overflow_is_normal(self) -> bool:
        """Whether a NaN or infinite norm only means that fp16 overflowed, so the run goes on."""

    def weights(self) -> dict[str, Stored]:
        """The tensors themselves, by transformers' names: write them before the next step, or read into them."""

    def states(self) -> dict[str, Stored]:
        """Likewise the optimizer's states, by the engine's own names; they exist after `prepare_states` or a step."""

    def prepare_states(self) -> None:
        """Allocates all states, so that a checkpoint can be read into them."""

    def scale_state(self) -> dict[str, Any]:
        """`loss_scale` and `good_steps` of fp16; 1.0 and 0 if gradients are not scaled."""

    def restored(self, scale_state: Mapping[str, Any]) -> None:
        """Called after all tensors were read into, to refresh what depends on them."""


class Trainee(Learner, Protocol):
    """A model of ramlet's own with its gradients and its optimizer.

    `batch["samples"]` of a micro-batch are the numbers of its sequences among all since the beginning of the run.
    Dropout, whose rate is in the `Choice`, depends on them and the seed alone.
    """

    @property
    def model(self) -> Model: ...

    def reset(self, seed: int) -> None:
        """Initializes the weights by the seed (each engine has its own random numbers) and zeroes all states."""

    def load_weights(self, found: ModelFolder) -> None:
        """Reads the weights of a model folder, whatever their type."""

    def prepare(self, plan: Plan, rank: int) -> None:
        """Called before the first step: may compile or capture the micro-batches of this plan."""


class Division(NamedTuple):
    """How an evaluation is divided to fit the budget."""

    micro_batch: int
    """Sequences."""
    chunk: int
    """Tokens whose logits exist at once."""


class Engine(Protocol):
    """A device with its memory and its clock."""

    @property
    def kind(self) -> str:
        """cpu or cuda."""

    @property
    def name(self) -> str:
        """With its index, if there are several: cuda:1."""

    @property
    def uses_host_memory(self) -> bool:
        """Whether the model is in the memory of this process (RAM), and the budget is that of the process."""

    @property
    def baseline(self) -> str:
        """What is resident before there is a model, for messages: Python and PyTorch."""

    @property
    def ranks(self) -> Ranks: ...

    @property
    def threads(self) -> int: ...

    @property
    def versions(self) -> dict[str, str]:
        """The libraries' versions, for settings.yaml."""

    @property
    def out_of_memory(self) -> type[Exception]:
        """The exception raised when the device is out of memory."""

    def joined(self) -> AbstractContextManager[Engine]:
        """This engine connected to the other processes of the same run, on this process's own device."""

    def precision(self, wanted: str) -> str:
        """Precision of matrix products: fp32, bf16 or fp16; `auto` is the fastest here."""

    # Memory.

    def budget(self, memory: Budget | str | int | None) -> Budget:
        """What the setting `memory` means here."""

    def cap(self, budget: Budget) -> None:
        """From here on allocations beyond the budget fail, if the device supports that."""

    def resident(self, *, stepping: bool = False) -> int:
        """Bytes of the budget in use before there is a model, after releasing what can be; `stepping` includes what
        the first step of a process starts."""

    def release(self) -> None:
        """Returns freed memory to the system."""

    def keep_freed(self, keep: bool) -> None:
        """Whether the allocator keeps freed memory, which is faster, or returns it at once, which is smaller."""

    def current(self, meter: Meter) -> int: ...

    def peak(self, meter: Meter) -> int: ...

    # Plans.

    def sketch(self, task: Task) -> Plan:
        """The fastest plan that fits, by the formulas alone."""

    def fit(self, task: Task, settings: Hyperparameters, meter: Meter) -> Plan:
        """The same, corrected by real steps, whose memory is released afterwards."""

    def eval_rows(self, seq_len: int) -> int:
        """The most sequences in a forward pass when a model is evaluated during training."""

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
        """How an evaluation outside of training fits; `aside` are bytes that others need of the budget, by what for."""

    def generation_parts(
        self, shape: Shape, *, precision: str, prompt: int, settings: Sampling, vocabulary: int
    ) -> dict[str, int]:
        """Bytes by part that generating from a prompt of this many tokens needs on top of what is `resident`;
        `vocabulary` is the tokenizer's size."""

    # Models.

    def trainee(
        self,
        shape: Shape,
        choice: Choice,
        settings: Hyperparameters,
        *,
        seq_len: int | None = None,
        document_mask: bool = False,
    ) -> Trainee:
        """For sequences of this length [default: the context]."""

    def load(self, found: ModelFolder, precision: str, *, division: Division | None = None, seq_len: int = 0) -> Model:
        """The model of a folder, its weights stored in this precision; with a `division`, to evaluate it on sequences
        of this length."""

    # Time. A device may run asynchronously.

    @property
    def is_async(self) -> bool:
        """Whether it does: then the numbers of a step are read a step later, so that the device never waits."""

    def mark(self) -> Any:
        """The moment when everything queued so far is done."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Between two marks; waits for the later one."""

    # The machine, for estimates.

    def free(self) -> int:
        """Free bytes on the device."""

    def flops(self, precision: str, seconds: float) -> float:
        """Operations per second in matrix products, measured for this long."""

    def gpus(self) -> list[dict[str, Any]]:
        """name, memory, free and bf16 of each; empty on a CPU."""
