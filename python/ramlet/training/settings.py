"""The settings of a training run, each checked once.

    settings = RunSettings(params=10_000_000, seq_len=256, batch_size=32, max_steps=2_000)
    settings.decisive()      the settings that determine the result, to compare runs

Memory, threads, logging intervals and paths do not change the result and are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ramlet.engines import EIGHT_BIT, OPTIMIZERS
from ramlet.engines.opening import DEVICES, ENGINES, PRECISIONS
from ramlet.engines.plan import SHARDS
from ramlet.errors import SettingsError, option
from ramlet.model.shape import LONGEST_USUAL
from ramlet.settings.declared import Declared, setting
from ramlet.settings.kinds import Choice, Count, Number, Place, Switch, Text, share

SCHEDULES = ("cosine", "linear", "constant", "wsd")
EVALUATIONS = 10
"""The default number in a run."""
EVAL_TOKENS = 131_072
"""The default size of an evaluation; less in a short run (job.py)."""
EVAL_SHARE = 0.1
"""The largest share of a run's time that evaluations take by default."""
MOST_EPOCHS, MOST_GROUPS, MOST_ROWS = 1e9, 1024, 1 << 20
"""More are mistakes, with which the length of a run, the shape of its model or its memory cannot be computed."""
LARGE = 50_000_000
"""From this many parameters on, the default sequence length is longer."""
MODEL, DATA, LENGTH, LEARNING = "Model", "Data", "Batches and steps", "Learning rate and optimizer"
MEMORY, WATCHING, KEEPING = "Memory and speed", "Evaluation and samples", "Checkpoints and logs"
"""Groups of settings in the help and the docs; in a pipeline the first is its own section."""


@dataclass(frozen=True, kw_only=True)
class RunSettings(Declared):
    """All settings of a run, except its data."""

    params: int | None = setting(
        None,
        Count(),
        "Approximate number of parameters, embedding included: 10M, 124M, 1.3B.",
        called=("params", "target_params"),
        short="p",
        panel=MODEL,
    )
    config: str | None = setting(
        None,
        Place(metavar="FILE"),
        "Shape of the model: JSON or YAML (keys of ramlet, transformers or nanoGPT), or a Llama or Qwen3 folder.",
        called=("config", "config_file"),
        panel=MODEL,
    )
    init_from: str | None = setting(
        None,
        Place(metavar="RUN"),
        "Initialize the weights from a run, a checkpoint, or a Llama or Qwen3 model saved by transformers.",
        called=("init_from", "init_from_model"),
        panel=MODEL,
    )
    seq_len: int | None = setting(
        None,
        Count(metavar="T"),
        "Sequence length in tokens.",
        panel=MODEL,
        shown=f"the length of packed sequences; else the model's context, at most {LONGEST_USUAL:,}; for a new model "
        f"256, or 1,024 from {LARGE // 10**6}M parameters",
    )
    kv_groups: int = setting(
        1,
        Count(most=MOST_GROUPS),
        "Query heads that share one key/value head (GQA); 1 is multi-head attention.",
        panel=MODEL,
    )
    tied: bool = setting(True, Switch(), "Tie the LM head to the embedding.", opposite="untied", panel=MODEL)

    qk_norm: bool | None = setting(
        None, Switch(), "RMSNorm of queries and keys, as in Qwen3.", panel=MODEL, shown="on for new models", later=True
    )

    batch_size: int = setting(
        32,
        Count(metavar="B"),
        "Sequences per batch, over all processes; split into micro-batches to fit the memory budget, never reduced.",
        panel=LENGTH,
    )
    gradient_accumulation_steps: int = setting(
        1,
        Count(),
        "Batches per optimizer step. Not needed to save memory: micro-batches are automatic.",
        panel=LENGTH,
    )
    tokens_per_step: int | None = setting(
        None,
        Count(),
        "Tokens per optimizer step, instead of {batch_size}; rounded up to whole sequences.",
        panel=LENGTH,
    )
    max_steps: int | None = setting(
        None,
        Count(),
        "Length of the run in steps; give at most one of this, {epochs} and {tokens}.",
        called=("max_steps", "max_iters"),
        panel=LENGTH,
    )
    epochs: float | None = setting(
        None, Number(above=0, most=MOST_EPOCHS, metavar="N"), "Length of the run in epochs.", panel=LENGTH, shown="1"
    )
    tokens: int | None = setting(None, Count(), "Length of the run in tokens.", panel=LENGTH)

    lr: float | None = setting(
        None,
        Number(),
        "Peak learning rate.",
        called=("lr", "learning_rate"),
        panel=LEARNING,
        shown="by size: with muon 0.006 at 10M and 0.004 at 124M, with adamw 0.0018 and 0.0006; "
        "a tenth of that with {init_from}",
    )
    min_lr: float | None = setting(
        None, Number(), "Final learning rate.", panel=LEARNING, shown="0 with wsd, else {lr} / 10"
    )
    warmup: int | None = setting(
        None, Count(least=0, metavar="STEPS"), "Warmup steps.", panel=LEARNING, shown="5% of the steps, at most 2,000"
    )
    schedule: str | None = setting(
        None,
        Choice(SCHEDULES),
        "Schedule after the warmup; wsd (warmup-stable-decay) is constant, then decays linearly.",
        panel=LEARNING,
        shown="wsd",
    )
    decay: float | None = setting(
        None,
        share(),
        "Fraction of the steps, at the end of the run, over which wsd decays the learning rate.",
        panel=LEARNING,
        shown="0.4",
        later=True,
    )
    average: float = setting(
        0.0,
        share(below_one=True),
        "Average the weights over this last fraction of the run; the average is kept if its loss is lower; 0 disables.",
        panel=LEARNING,
        later=True,
    )
    weight_decay: float = setting(
        0.1, Number(), "Weight decay; not for norms or, with muon, embeddings.", panel=LEARNING
    )
    beta1: float = setting(
        0.9, Number(below=1), "AdamW's beta1; with muon only for embeddings and norms.", panel=LEARNING
    )
    beta2: float = setting(
        0.95, Number(below=1), "AdamW's beta2; with muon only for embeddings and norms.", panel=LEARNING
    )
    eps: float = setting(1e-8, Number(), "AdamW's epsilon; with muon only for embeddings and norms.", panel=LEARNING)
    dropout: float = setting(
        0.0,
        share(below_one=True),
        "Dropout after the embedding and on the outputs of attention and MLP; attention weights have none.",
        panel=LEARNING,
        later=True,
    )
    clip: float = setting(1.0, Number(), "Clip the gradient norm to this; 0 disables.", panel=LEARNING)
    optimizer: str = setting(
        "auto",
        Choice(("auto", *OPTIMIZERS)),
        "Optimizer; auto: muon, but adamw for small batches and to train a model further; 8-bit states only if needed.",
        stands_for={"use_8bit_optimizer": "adamw8bit"},
        panel=MEMORY,
    )
    precision: str = setting(
        "auto",
        Choice(PRECISIONS),
        "Compute dtype; auto: bf16 if fast, else fp16 on a GPU, fp32 on a CPU; fp8 is faster on recent GPUs.",
        stands_for={"use_mixed_precision": "bf16"},
        panel=MEMORY,
    )
    weights: str = setting(
        "auto",
        Choice(("auto", "fp32", "bf16")),
        "Dtype of the weights in memory and in checkpoints; auto uses bf16 only if fp32 does not fit.",
        panel=MEMORY,
    )

    device: str = setting("auto", Choice(DEVICES), "Device; auto uses a GPU or TPU if there is one.", panel=MEMORY)
    engine: str = setting(
        "auto",
        Choice(("auto", *ENGINES)),
        "What runs the model; auto: torch (if installed) on GPUs, CPUs with AMX, torchrun; jax on TPUs; else native.",
        panel=MEMORY,
        decides=False,
    )
    seed: int = setting(
        1, Count(least=0, metavar="S"), "Seed for the initial weights, the data order and the samples.", panel=LEARNING
    )
    stride: int | None = setting(
        None,
        Count(),
        "Tokens between the starts of consecutive sequences; below {seq_len} they overlap.",
        panel=DATA,
        shown="the sequence length",
    )
    max_examples: int | None = setting(
        None, Count(), "Use only the first N sequences of the data, before shuffling.", panel=DATA, shown="all"
    )
    shift: bool = setting(
        False,
        Switch(),
        "Move the sequence boundaries in every epoch after the first; not for packed datasets or streams.",
        panel=DATA,
        later=True,
    )
    document_mask: bool = setting(False, Switch(), "Prevent attention across document boundaries.", panel=DATA)
    val_fraction: float = setting(
        0.1,
        share(below_one=True),
        "Fraction held out for validation: the end of a .npy file, or documents of a text file; a dataset has its own.",
        panel=DATA,
    )
    shuffle_buffer: int = setting(
        1000,
        Count(),
        "Size of a stream's shuffle buffer in sequences.",
        called=("shuffle_buffer", "shuffle_buffer_size"),
        panel=DATA,
    )

    micro_batch: int | None = setting(
        None, Count(most=MOST_ROWS), "Sequences per forward pass.", panel=MEMORY, shown="what fits", decides=False
    )
    shard: str = setting(
        "auto",
        Choice(("auto", *SHARDS)),
        "Shard over torchrun processes: states (ZeRO-1), also gradients (ZeRO-2), also weights (FSDP); "
        "auto: as needed.",
        panel=MEMORY,
        decides=False,
    )
    recompute: bool | None = setting(
        None,
        Switch(),
        "Activation checkpointing: less memory, slower.",
        panel=MEMORY,
        shown="only if needed",
        decides=False,
    )
    eval_every: int | None = setting(
        None,
        Count(least=0, metavar="STEPS"),
        "Steps between evaluations; 0 evaluates only at the end.",
        panel=WATCHING,
        shown=f"{EVALUATIONS} evaluations per run, fewer in a short one",
        decides=False,
    )
    eval_tokens: int | None = setting(
        None,
        Count(),
        "Tokens per evaluation.",
        panel=WATCHING,
        shown=f"{EVAL_TOKENS:,}; fewer if evaluations would take over {EVAL_SHARE:.0%} of the run",
        decides=False,
    )
    forgetting: float = setting(
        0.1,
        Number(),
        "With {init_from}: warn when the loss on an evaluation set, except val, is this many nats above the first.",
        panel=WATCHING,
        decides=False,
    )
    sample_every: int | None = setting(
        None,
        Count(least=0, metavar="STEPS"),
        "Steps between samples of generated text; 0 disables.",
        panel=WATCHING,
        shown=f"{EVALUATIONS // 2} per run",
        decides=False,
    )
    sample_prompt: str = setting("", Text(empty=True), "Prompt for the samples.", panel=WATCHING, decides=False)
    sample_tokens: int = setting(100, Count(), "Tokens per sample.", panel=WATCHING, decides=False)
    checkpoint_every: int | None = setting(
        None,
        Count(least=0, metavar="STEPS"),
        "Steps between checkpoints.",
        panel=KEEPING,
        shown=f"as {{eval_every}} if that is given, else {EVALUATIONS} per run",
        decides=False,
    )
    keep: int = setting(
        2,
        Count(),
        "Most recent checkpoints to keep, in addition to the best and, with wsd, the last one before the decay.",
        panel=KEEPING,
        decides=False,
    )
    log_every: int = setting(
        10, Count(metavar="STEPS"), "Steps between lines in metrics.jsonl.", panel=KEEPING, decides=False
    )
    spike: float = setting(
        3.0,
        Number(),
        "Stop when the loss is this many nats above its recent mean; 0 disables.",
        panel=KEEPING,
        decides=False,
    )
    tensorboard: bool = setting(
        False, Switch(), "Also write TensorBoard files to RUN/tensorboard.", panel=KEEPING, decides=False
    )
    wandb: bool = setting(
        False, Switch(), "Also log to Weights & Biases; needs the package wandb.", panel=KEEPING, decides=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = [option(name) for name in ("max_steps", "epochs", "tokens") if getattr(self, name) is not None]
        if len(ends) > 1:
            raise SettingsError(f"{' and '.join(ends)} both say when to stop: give only one")
        if self.params is not None and self.config is not None:
            raise SettingsError(f"{option('params')} and {option('config')} both set the model's size: give only one")
        if self.tokens_per_step is not None and self.gradient_accumulation_steps != 1:
            raise SettingsError(
                f"{option('tokens_per_step')} is already the size of a step: "
                f"do not give {option('gradient_accumulation_steps')}"
            )
        if self.weights == "bf16" and self.optimizer in EIGHT_BIT:
            raise SettingsError(
                f"{option('weights', 'bf16')} needs {option('optimizer', EIGHT_BIT[self.optimizer])}, "
                "which rounds them stochastically: give only one of the two settings"
            )

    def require_size(self) -> None:
        """Refuses settings without the model's size."""
        if self.params is None and self.config is None and self.init_from is None:
            raise SettingsError(
                f"the model's size is missing: give {option('params', '10M')} or a {option('config')}; "
                "`ramlet plan` proposes one"
            )

    def step_sequences(self, seq_len: int) -> int:
        """The number of sequences in a step."""
        if self.tokens_per_step is not None:
            return max(1, -(-self.tokens_per_step // seq_len))
        return self.batch_size * self.gradient_accumulation_steps

    def forgotten(self, rises: Mapping[str, float]) -> dict[str, float]:
        """The sets that the model is forgetting, from how much the loss on each has risen."""
        return {name: rise for name, rise in rises.items() if rise > self.forgetting and not is_validation(name)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSettings:
        """From settings.yaml; unknown names are ignored."""
        known = {each.name for each in fields(cls)}
        try:
            return cls(**{name: value for name, value in values.items() if name in known})
        except SettingsError:
            raise SettingsError("settings.yaml is damaged (a setting is invalid): restore it") from None


def is_validation(name: str) -> bool:
    """Whether an evaluation set is a validation split of the training data: `val`, or in a mix `val_NAME`."""
    return name == "val" or name.startswith("val_")


def default_seq_len(params: int) -> int:
    """Longer for larger models, which can use it."""
    return 1024 if params >= LARGE else 256
