"""The settings of a training run, each checked once.

    settings = RunSettings(params=10_000_000, seq_len=256, batch_size=32, max_steps=2_000)
    settings.decisive()      all that the result follows from, to compare runs by

Memory, threads, how often something is logged and where things lie decide nothing, and are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ramlet.errors import SettingsError, option

__all__ = ["RunSettings", "default_seq_len", "help_text"]

PRECISIONS = ("auto", "bf16", "fp16", "fp32")
OPTIMIZERS = ("auto", "adamw", "adamw8bit")
SCHEDULES = ("cosine", "linear", "constant")
DEVICES = ("auto", "cpu", "cuda")
EVALUATIONS = 10
"""In a run, where nothing is said."""
EVAL_TOKENS = 131_072
"""That an evaluation looks at, where nothing is said; in a short run fewer (job.py)."""
EVAL_SHARE = 0.1
"""Of the time of a run that its evaluations take together, at most, where nothing is said."""
LARGE = 50_000_000
"""Parameters from which on sequences are longer, where nothing is said."""


def _option(default: Any, help: str, *, decides: bool = True) -> Any:  # noqa: A002 - what the command calls it
    return field(default=default, metadata={"help": help, "decides": decides})


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All that a run follows from, but for its data."""

    params: int | None = _option(None, "How large the model is to be: 10M, 124M, 1.3B; the embedding counts.")
    config: str | None = _option(
        None, "A JSON or YAML file with the model's shape, in our words, transformers' or nanoGPT's."
    )
    init_from: str | None = _option(None, "Start from the weights of this run or checkpoint, or of a Llama folder.")
    seq_len: int | None = _option(
        None, "Tokens in a sequence; left out: the packed length, the model's context, or 256 (1024 from 50M on)."
    )
    kv_groups: int = _option(1, "So many heads share their keys and values (grouped-query attention).")
    tied: bool = _option(True, "The embedding is also the head.")

    batch_size: int = _option(32, "Sequences in a step, times --gradient-accumulation-steps; memory never changes it.")
    gradient_accumulation_steps: int = _option(1, "Batches that make one step.")
    tokens_per_step: int | None = _option(None, "The step's size in tokens instead, up to a whole sequence.")
    max_steps: int | None = _option(None, "Stop after so many steps.")
    epochs: float | None = _option(None, "Stop after so many times through the data; the default is once.")
    tokens: int | None = _option(None, "Stop after so many tokens.")

    lr: float | None = _option(
        None, "The highest learning rate; left out: by size, 0.0025 to 5M, 0.0006 for 124M; a tenth with --init-from."
    )
    min_lr: float | None = _option(None, "Where it ends; left out: a tenth of it.")
    warmup: int | None = _option(None, "Steps until it is reached; left out: a twentieth of all, at most 2000.")
    schedule: str = _option("cosine", "How it falls afterwards: cosine, linear or constant.")
    weight_decay: float = _option(0.1, "Pull of the matrices towards 0; norms have none.")
    beta1: float = _option(0.9, "AdamW's memory of the gradient.")
    beta2: float = _option(0.95, "AdamW's memory of its square.")
    eps: float = _option(1e-8, "AdamW's smallest divisor.")
    clip: float = _option(1.0, "Gradients longer than this are made as long; 0: never.")
    optimizer: str = _option("auto", "adamw, adamw8bit, or auto: 8-bit states only where nothing else fits.")
    precision: str = _option("auto", "bf16, fp16 or fp32; auto: bf16 where the hardware has it.")
    weights: str = _option("auto", "What weights are kept in: fp32, bf16, or auto: bf16 only where nothing else fits.")

    device: str = _option("auto", "cpu or cuda; auto: cuda where there is one.")
    seed: int = _option(1, "Of the weights, the order of the data and the samples.")
    stride: int | None = _option(None, "Tokens from one sequence to the next; left out: no overlap.")
    max_examples: int | None = _option(None, "Use only the first so many sequences.")
    document_mask: bool = _option(False, "Tokens look no further back than their own document.")
    val_fraction: float = _option(0.1, "Of a .npy file: the share at its end that is kept for validation.")
    shuffle_buffer: int = _option(1000, "Of a stream: sequences that are shuffled together.")

    micro_batch: int | None = _option(
        None, "Sequences that go through the model at once; left out: what fits.", decides=False
    )
    recompute: bool | None = _option(
        None, "Make activations again on the way back; left out: where it must.", decides=False
    )
    eval_every: int | None = _option(
        None,
        f"Steps between evaluations; left out: {EVALUATIONS} over the run, fewer in a short one; 0: only at its end.",
        decides=False,
    )
    eval_tokens: int | None = _option(
        None,
        f"Tokens that an evaluation looks at; left out: {EVAL_TOKENS:,}, or fewer, so that all evaluations "
        f"together take no more than about {EVAL_SHARE:.0%} of the run.",
        decides=False,
    )
    forgetting: float = _option(0.1, "Warn when a set's loss is so much above what it was before.", decides=False)
    sample_every: int | None = _option(
        None, f"Steps between samples; left out: {EVALUATIONS // 2} over the run; 0: none.", decides=False
    )
    sample_prompt: str = _option("", "What samples begin with.", decides=False)
    sample_tokens: int = _option(100, "How long samples are.", decides=False)
    checkpoint_every: int | None = _option(
        None, f"Steps between checkpoints; left out: --eval-every, or {EVALUATIONS} over the run.", decides=False
    )
    keep: int = _option(2, "Checkpoints to keep, besides the best.", decides=False)
    log_every: int = _option(10, "Steps between lines in metrics.jsonl.", decides=False)
    spike: float = _option(3.0, "Stop when the loss jumps so far above its recent mean; 0: never.", decides=False)
    tensorboard: bool = _option(False, "Also write TensorBoard files into RUN/tensorboard.", decides=False)
    wandb: bool = _option(False, "Also log to Weights & Biases, where it is installed.", decides=False)

    def __post_init__(self) -> None:
        for name, words in (
            ("precision", PRECISIONS),
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("device", DEVICES),
            ("weights", ("auto", "fp32", "bf16")),
        ):
            if getattr(self, name) not in words:
                raise SettingsError(f"{name} is one of {', '.join(words)}, not {getattr(self, name)!r}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise SettingsError(f"{name} is at least 1, not {value}")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise SettingsError(f"{name} is a number of at least 0, not {value}")
        for name in ("beta1", "beta2", "val_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingsError(f"{name} is at least 0 and below 1, not {getattr(self, name)}")
        if self.epochs is not None and not (self.epochs > 0 and math.isfinite(self.epochs)):
            raise SettingsError(f"epochs is more than 0, not {self.epochs}")
        ends = [name for name in ("max_steps", "epochs", "tokens") if getattr(self, name) is not None]
        if len(ends) > 1:
            raise SettingsError(f"{' and '.join(ends)} each say when to stop: give one of them")
        if self.params is not None and self.config is not None:
            raise SettingsError("params and config each say how large the model is: give one of them")
        if self.tokens_per_step is not None and self.gradient_accumulation_steps != 1:
            raise SettingsError("tokens_per_step already is the size of a step: leave gradient_accumulation_steps out")
        if self.weights == "bf16" and self.optimizer == "adamw":
            raise SettingsError("weights in bf16 go with adamw8bit, which rounds them fairly: leave one of the two out")

    def require_size(self) -> None:
        """Stops where nothing says how large the model is."""
        if self.params is None and self.config is None and self.init_from is None:
            raise SettingsError(
                f"how large is the model to be? Give {option('params', '10M')}, or a {option('config')}; "
                "`ramlet plan` proposes one"
            )

    def step_sequences(self, seq_len: int) -> int:
        """How many sequences make a step."""
        if self.tokens_per_step is not None:
            return max(1, -(-self.tokens_per_step // seq_len))
        return self.batch_size * self.gradient_accumulation_steps

    def forgotten(self, rises: Mapping[str, float]) -> dict[str, float]:
        """Of how far each set's loss has risen since the start: the sets that the model is forgetting."""
        return {
            name: rise
            for name, rise in rises.items()
            if rise > self.forgetting and name != "val" and not name.startswith("val_")
        }

    def decisive(self) -> dict[str, Any]:
        """What the result follows from."""
        values = asdict(self)
        return {each.name: values[each.name] for each in fields(self) if each.metadata["decides"]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSettings:
        """As settings.yaml has them; what is not known here is left out."""
        known = {each.name for each in fields(cls)}
        try:
            return cls(**{name: value for name, value in values.items() if name in known})
        except TypeError:  # a word where a number is wanted
            raise SettingsError(
                "settings.yaml is damaged, for a setting is not as it was written: restore it"
            ) from None


_POSITIVE = (
    *("params", "seq_len", "kv_groups", "batch_size", "gradient_accumulation_steps", "tokens_per_step", "max_steps"),
    *("tokens", "stride", "max_examples", "micro_batch", "eval_tokens", "sample_tokens", "keep", "log_every"),
    "shuffle_buffer",
)
_NOT_NEGATIVE = (
    *("lr", "min_lr", "warmup", "weight_decay", "eps", "clip", "forgetting", "spike", "seed"),
    *("eval_every", "sample_every", "checkpoint_every"),
)


def default_seq_len(params: int) -> int:
    """Tokens in a sequence where nothing says it: longer ones for models that can use them."""
    return 1024 if params >= LARGE else 256


def help_text(name: str) -> str:
    """A setting's one line of help."""
    return next(str(each.metadata["help"]) for each in fields(RunSettings) if each.name == name)
