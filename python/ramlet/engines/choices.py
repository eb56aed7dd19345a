"""What a plan can choose on a CPU, from the fastest to the smallest: the same for all engines.

The cheapest savings come first: smaller micro-batches (with gradient accumulation, so the effective batch stays the
same), then activation checkpointing. None of these changes a bit of the result (order.py). Several ranks may then
divide the model among them, with the torch engine. Only if that is not enough,
and the user has not fixed them, come the two that change results: 8-bit optimizer states and bf16 weights; the plan's
notes say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ramlet.engines import EIGHT_BIT, Division
from ramlet.engines.order import TORCH_ORDER, Order, group_rows, unit_rows
from ramlet.engines.plan import Choice, Task
from ramlet.errors import SettingsError, option
from ramlet.model.shape import Shape

EVAL_TOKENS = 2048
"""In a micro-batch of an evaluation. During training on a GPU, its memory comes on top of what training keeps."""
EVAL_CHUNK, LEAST_EVAL_CHUNK = 512, 64
"""Tokens of it whose logits exist at once."""

Forced = Mapping[str, Any]
"""What the user has fixed, by the names of `Choice`."""


def forced_of(task: Task) -> dict[str, Any]:
    return {name: value for name, value in task.forced.items() if value is not None}


def check_task(task: Task, world: int = 1) -> None:
    """Refuses sizes that no plan can have."""
    if task.batch_size < 1 or world < 1:
        raise SettingsError(f"the batch size ({task.batch_size}) and the processes ({world}) must be at least 1")
    if not 1 <= task.seq_len <= task.shape.context:
        raise SettingsError(
            f"{option('seq_len', task.seq_len)} must be between 1 and the model's context of {task.shape.context}"
        )


def states(
    wanted: str, compute: str, forced: Forced, updates: Callable[[str], tuple[str, ...]]
) -> Iterator[tuple[str, str]]:
    """Optimizer and weights, the most exact first; only the first changes no result.

    `updates` has the precisions of stored weights that an optimizer can update.
    """
    named = forced.get("optimizer")
    for optimizer in (wanted, EIGHT_BIT[wanted]) if named is None else (named,):
        for weights in updates(optimizer):
            # With fp32 products, bf16 weights would need an fp32 copy: nothing saved.
            saves = weights == "fp32" or compute != "fp32" or "weights" in forced
            if saves and forced.get("weights", weights) == weights:
                yield optimizer, weights


def cannot_update(forced: Forced) -> SettingsError:
    """If there are no `states` at all."""
    return SettingsError(
        f"{forced['optimizer']} cannot update {forced['weights']} weights: use "
        f"{option('optimizer', EIGHT_BIT.get(forced['optimizer'], 'adamw8bit'))}, which rounds them stochastically"
    )


def has_no(engine: str, optimizer: str) -> SettingsError:
    """If an engine lacks an optimizer that another has."""
    return SettingsError(
        f"the {engine} engine has no {optimizer}: use {option('engine', 'torch')}, or another {option('optimizer')}"
    )


def needs_a_gpu(precision: str) -> SettingsError:
    return SettingsError(f"{precision} needs a GPU: use {option('precision', 'bf16')} or fp32 on a CPU")


def divisions(seq_len: int) -> Iterator[Division]:
    """Of an evaluation, from the fastest to the smallest."""
    micro_batch = max(1, EVAL_TOKENS // seq_len)
    chunk = min(EVAL_CHUNK, micro_batch * seq_len)
    while True:
        yield Division(micro_batch, chunk)
        if micro_batch // 2 >= unit_rows(seq_len):
            micro_batch //= 2
            chunk = min(chunk, micro_batch * seq_len)
        elif chunk > LEAST_EVAL_CHUNK:
            chunk = max(LEAST_EVAL_CHUNK, chunk // 2)
        else:
            return


def recomputes(forced: Forced) -> list[bool]:
    return [forced["recompute"]] if "recompute" in forced else [False, True]


def micro_batches(seq_len: int, share: int, forced: Forced, order: Order = TORCH_ORDER) -> Iterator[int]:
    """From the fastest down; only those that do not change results: with whole units."""
    unit = unit_rows(seq_len, order)
    if "micro_batch" in forced:
        yield min(forced["micro_batch"], share)
        return
    micro_batch = group_rows(seq_len, order)
    while micro_batch >= 2 * share and micro_batch > unit:
        micro_batch //= 2  # all of these are capped to the share
    while micro_batch >= unit:
        yield min(micro_batch, share)
        micro_batch //= 2


def held_tokens(shape: Shape, seq_len: int, share: int, micro_batch: int, order: Order = TORCH_ORDER) -> int:
    """Tokens of a group, if a tied embedding must wait until it is complete; else 0."""
    group = min(share, group_rows(seq_len, order))
    waits = shape.tied and micro_batch < group and in_order(seq_len, share, micro_batch, order)
    return group * seq_len if waits else 0


def in_order(seq_len: int, share: int, micro_batch: int, order: Order = TORCH_ORDER) -> bool:
    """Whether gradients are bit-identical to other micro-batches: whole units that divide a group."""
    unit, group = unit_rows(seq_len, order), group_rows(seq_len, order)
    return micro_batch >= share or (micro_batch % unit == 0 and group % micro_batch == 0)


def notes(
    choice: Choice, seq_len: int, share: int, forced: Forced, *, ordered: bool = True, order: Order = TORCH_ORDER
) -> tuple[str, ...]:
    """Sentences that the user should read; `ordered` if results do not depend on how a step is divided."""
    found = []
    if ordered and not in_order(seq_len, share, choice.micro_batch, order):
        found.append(
            f"micro-batches of {choice.micro_batch} sum gradients in a different order: "
            "the last digits differ from those with the default micro-batch"
        )
    if choice.optimizer in EIGHT_BIT.values() and "optimizer" not in forced:
        found.append("the optimizer's states are 8-bit because nothing else fits: results differ slightly")
    if choice.weights == "bf16" and "weights" not in forced:
        found.append("the weights are stored in bf16 because nothing else fits: results are less exact than with fp32")
    return tuple(found)
