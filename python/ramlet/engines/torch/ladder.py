"""The choices of a plan, from the fastest to the smallest, and the first that fits.

    task = Task(shape, seq_len=256, batch_size=32, budget=Budget.parse("1GB"), precision="bf16", resident=310_000_000)
    plan = make_plan(task)
    plan.choice.micro_batch, plan.accumulation, plan.peak, plan.notes

The cheapest savings come first: smaller micro-batches (with gradient accumulation, so the effective batch stays the
same), on a GPU before that smaller chunks of logits, then activation checkpointing (`recompute`). On a CPU none of
these changes a bit of the result (order.py). Only if that is not enough, and the user has not fixed them, come the two
that change results: 8-bit optimizer states and bf16 weights; the plan's notes say so. If nothing fits, the error names
the smallest budget that does.

With enough memory the micro-batch is not the largest that fits but the fastest: beyond `FAST_TOKENS` a larger one only
costs memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ramlet.engines import EIGHT_BIT
from ramlet.engines.plan import Choice, Correction, Plan, Task, too_small
from ramlet.engines.torch.optim import optimizer_module
from ramlet.engines.torch.order import group_rows, head_chunk, unit_rows
from ramlet.engines.torch.predict import Prediction, predict
from ramlet.errors import SettingsError, option
from ramlet.model.shape import Shape

FAST_TOKENS = 16384
"""Beyond this many tokens a micro-batch is not faster on a GPU."""

SMALL_TOKENS = 512
"""Below this many tokens a micro-batch is slow."""

FAST_CHUNK, LEAST_CHUNK = 4096, 256
"""Chunks of logits on a GPU: smaller ones make the head's matrix products too thin to be fast."""


def make_plan(
    task: Task, *, device: str = "cpu", world: int = 1, threads: int = 1, correction: Correction | None = None
) -> Plan:
    """The cheapest choice that fits."""
    shape, seq_len, budget, loader_bytes = task.shape, task.seq_len, task.budget, task.loader_bytes
    _check(shape, seq_len, task.batch_size, world)
    forced = {name: value for name, value in task.forced.items() if value is not None}
    share = -(-task.batch_size // world)
    available = budget.total - budget.reserve
    least: tuple[Choice, Prediction] | None = None
    for choice in _choices(task, share, device, forced):
        prediction = predict(
            shape,
            choice,
            seq_len=seq_len,
            device=device,
            base=task.resident,
            loader_bytes=loader_bytes if isinstance(loader_bytes, int) else loader_bytes(choice.micro_batch),
            document_mask=task.document_mask,
            threads=threads,
            correction=correction,
        )
        if prediction.peak <= available:
            return Plan(
                shape,
                seq_len,
                task.batch_size,
                device,
                choice,
                prediction.parts,
                budget.total,
                prediction.moment,
                prediction.logits,
                world,
                _notes(choice, seq_len, share, device, forced),
                task.document_mask,
                correction or Correction(),
                held=budget.held,
            )
        if least is None or prediction.peak < least[1].peak:
            least = (choice, prediction)
    if least is None:
        raise SettingsError(
            f"{forced['optimizer']} cannot update {forced['weights']} weights: use "
            f"{option('optimizer', EIGHT_BIT.get(forced['optimizer'], 'adamw8bit'))}, which rounds them stochastically"
        )
    raise too_small(budget, least[0], least[1].parts)


def _choices(task: Task, share: int, device: str, forced: Mapping[str, Any]) -> Iterator[Choice]:
    """All possible choices, the cheapest first."""
    shape, seq_len = task.shape, task.seq_len
    compute = forced.get("compute", task.precision)
    dropout = forced.get("dropout", 0.0)
    for optimizer, weights in _states(task.optimizer, compute, forced):
        for recompute in [forced["recompute"]] if "recompute" in forced else [False, True]:
            for reuse in [forced["reuse"]] if "reuse" in forced else [True, False]:
                for micro_batch in _micro_batches(seq_len, share, device, forced):
                    fragments = recompute or weights == "bf16"
                    if "reuse" in forced or _may_reuse(
                        reuse, micro_batch, micro_batch * seq_len, device, fragments, forced
                    ):
                        held = _held(shape, seq_len, share, micro_batch, device)
                        for chunk in _chunks(shape, seq_len, micro_batch, device, forced):
                            yield Choice(
                                micro_batch, chunk, recompute, optimizer, weights, compute, reuse, held, dropout
                            )


def _may_reuse(
    reuse: bool, micro_batch: int, tokens: int, device: str, fragments: bool, forced: Mapping[str, Any]
) -> bool:
    """A smaller micro-batch costs less than returning every freed tensor: that comes only when it is small already.

    `fragments`: kept blocks may fragment more than predicted, with activation checkpointing and with bf16 weights (most
    of whose runs needed 5% more). Then everything is returned.
    """
    if device != "cpu":
        return reuse
    if fragments:
        return not reuse
    return reuse or micro_batch == 1 or tokens <= SMALL_TOKENS or "micro_batch" in forced


def _states(wanted: str, compute: str, forced: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Optimizer and weights, the most exact first; only the first changes no result."""
    named = forced.get("optimizer")
    for optimizer in (wanted, EIGHT_BIT[wanted]) if named is None else (named,):
        for weights in optimizer_module(optimizer).WEIGHTS:
            # With fp32 products, bf16 weights would need an fp32 copy: nothing saved.
            saves = weights == "fp32" or compute != "fp32" or "weights" in forced
            if saves and forced.get("weights", weights) == weights:
                yield optimizer, weights


def _micro_batches(seq_len: int, share: int, device: str, forced: Mapping[str, Any]) -> Iterator[int]:
    """From the fastest down. On a CPU only those that do not change results; on a GPU as even as possible: a batch of
    32 in three parts is 11, 11, 10."""
    if "micro_batch" in forced:
        yield min(forced["micro_batch"], share)
        return
    if device == "cpu":
        micro_batch = group_rows(seq_len)
        while micro_batch >= 2 * share and micro_batch > unit_rows(seq_len):
            micro_batch //= 2  # all of these are capped to the share
        while micro_batch >= unit_rows(seq_len):
            yield min(micro_batch, share)
            micro_batch //= 2
        return
    largest = min(share, max(1, FAST_TOKENS // seq_len))
    last = 0
    for parts in range(-(-share // largest), share + 1):
        micro_batch = -(-share // parts)
        if micro_batch != last:
            yield micro_batch
        last = micro_batch


def _in_order(seq_len: int, share: int, micro_batch: int) -> bool:
    """Whether gradients on a CPU are bit-identical to other micro-batches: whole units that divide a group."""
    rows = unit_rows(seq_len)
    return micro_batch >= share or (micro_batch % rows == 0 and group_rows(seq_len) % micro_batch == 0)


def _held(shape: Shape, seq_len: int, share: int, micro_batch: int, device: str) -> int:
    """Tokens of a group, if a tied embedding must wait until it is complete; else 0."""
    group = min(share, group_rows(seq_len))
    waits = device == "cpu" and shape.tied and micro_batch < group and _in_order(seq_len, share, micro_batch)
    return group * seq_len if waits else 0


def _chunks(shape: Shape, seq_len: int, micro_batch: int, device: str, forced: Mapping[str, Any]) -> Iterator[int]:
    """On a CPU one that depends only on the model: another would change results."""
    if "chunk" in forced:
        yield forced["chunk"]
        return
    tokens = micro_batch * seq_len
    if device == "cpu":
        yield min(head_chunk(seq_len, shape.width), tokens)
        return
    chunk = min(FAST_CHUNK, tokens)
    while True:
        yield chunk
        if chunk <= LEAST_CHUNK:
            return
        chunk = max(LEAST_CHUNK, chunk // 2)


def _notes(choice: Choice, seq_len: int, share: int, device: str, forced: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    if device == "cpu" and not _in_order(seq_len, share, choice.micro_batch):
        notes.append(
            f"micro-batches of {choice.micro_batch} sum gradients in a different order: "
            "the last digits differ from those with the default micro-batch"
        )
    if choice.optimizer in EIGHT_BIT.values() and "optimizer" not in forced:
        notes.append("the optimizer's states are 8-bit because nothing else fits: results differ slightly")
    if choice.weights == "bf16" and "weights" not in forced:
        notes.append("the weights are stored in bf16 because nothing else fits: results are less exact than with fp32")
    return tuple(notes)


def _check(shape: Shape, seq_len: int, batch_size: int, world: int) -> None:
    if batch_size < 1 or world < 1:
        raise SettingsError(f"the batch size ({batch_size}) and the processes ({world}) must be at least 1")
    if not 1 <= seq_len <= shape.context:
        raise SettingsError(
            f"{option('seq_len', seq_len)} must be between 1 and the model's context of {shape.context}"
        )
