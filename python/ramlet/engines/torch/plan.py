"""The choices of a plan, from the fastest to the smallest, and the first that fits.

    task = Task(shape, seq_len=256, batch_size=32, budget=Budget.parse("1GB"), precision="bf16", resident=310_000_000)
    plan = make_plan(task)
    plan.choice.micro_batch, plan.accumulation, plan.peak, plan.notes

The cheapest savings come first (engines/choices.py); on a GPU smaller chunks of logits come before smaller
micro-batches. If several ranks train a model that does not fit each of them, they divide it (division.py): optimizer
states, then also gradients, then also weights. That costs time and changes no result, so it comes before 8-bit states
and bf16 weights. If nothing fits, the error names the smallest budget that does.

With enough memory the micro-batch is not the largest that fits but a fast one: beyond `FAST_TOKENS` a larger one costs
much memory for little speed. Keeping queries and keys after QK-norm gains as much for less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ramlet.engines import choices
from ramlet.engines.opening import needs_ranks
from ramlet.engines.order import head_chunk
from ramlet.engines.plan import SHARDS, Choice, Correction, Plan, Task, too_small
from ramlet.engines.torch.division import can_divide, most_ranks
from ramlet.engines.torch.optim import needs_whole_matrices, optimizer_module
from ramlet.engines.torch.predict import Prediction, predict
from ramlet.engines.torch.sizes import recomputes_qk_norm
from ramlet.errors import SettingsError, option
from ramlet.model.shape import Shape

FAST_TOKENS, LEAST_FAST_TOKENS = 16384, 8192
FAST_ELEMENTS = 12288 * 1152
"""Beyond this many tokens, and in wide models fewer (elements of the residual stream), a micro-batch is hardly faster
on a GPU. On an H200 a step of 350M parameters takes 1.6% longer with 11 than with 16 sequences of 1,024 tokens, in 16%
less memory."""

SMALL_TOKENS = 512
"""Below this many tokens a micro-batch is slow."""

FAST_CHUNK, LEAST_CHUNK = 4096, 256
"""Chunks of logits on a GPU: smaller ones make the head's matrix products too thin to be fast."""


def make_plan(
    task: Task, *, device: str = "cpu", world: int = 1, threads: int = 1, correction: Correction | None = None
) -> Plan:
    """The cheapest choice that fits."""
    shape, seq_len, budget, loader_bytes = task.shape, task.seq_len, task.budget, task.loader_bytes
    choices.check_task(task, world)
    forced = choices.forced_of(task)
    share = -(-task.batch_size // world)
    available = budget.total - budget.reserve
    least: tuple[Choice, Prediction] | None = None
    for choice in _choices(task, share, device, forced, world):
        prediction = predict(
            shape,
            choice,
            seq_len=seq_len,
            device=device,
            base=task.resident,
            loader_bytes=loader_bytes if isinstance(loader_bytes, int) else loader_bytes(choice.micro_batch),
            document_mask=task.document_mask,
            threads=threads,
            world=world,
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
                choices.notes(choice, seq_len, share, forced, ordered=device == "cpu"),
                task.document_mask,
                correction or Correction(),
                held=budget.held,
            )
        if least is None or prediction.peak < least[1].peak:
            least = (choice, prediction)
    if least is None:
        raise choices.cannot_update(forced)
    raise too_small(budget, least[0], least[1].parts, world=world)


def _choices(task: Task, share: int, device: str, forced: Mapping[str, Any], world: int) -> Iterator[Choice]:
    """All possible choices, the cheapest first."""
    compute = forced.get("compute", task.precision)
    for optimizer, weights in choices.states(task.optimizer, compute, forced, _updates):
        for shard in _shards(task.shape, optimizer, compute, forced, world):
            for recompute in choices.recomputes(forced):
                spare = device != "cpu" and not recompute and _recomputes_qk_norm(task, device, compute)
                for reuse, micro_batch in _reusing(task, share, device, recompute or weights == "bf16", forced):
                    held = _held_tokens(task, share, micro_batch) if device == "cpu" else 0
                    for chunk in _chunks(task.shape, task.seq_len, micro_batch, device, forced):
                        choice = Choice(
                            *(micro_batch, chunk, recompute, optimizer, weights, compute, reuse, held),
                            dropout=forced.get("dropout", 0.0),
                            shard=shard,
                        )
                        if spare:
                            yield choice.with_(keeps_qk=True)
                            spare = False
                        yield choice


def _held_tokens(task: Task, share: int, micro_batch: int) -> int:
    return choices.held_tokens(task.shape, task.seq_len, share, micro_batch)


def _recomputes_qk_norm(task: Task, device: str, compute: str) -> bool:
    return recomputes_qk_norm(task.shape, device, task.document_mask, fp32=compute == "fp32")


def _reusing(
    task: Task, share: int, device: str, fragments: bool, forced: Mapping[str, Any]
) -> Iterator[tuple[bool, int]]:
    """Whether freed tensors are reused, and micro-batches; `fragments` as for `_may_reuse`."""
    for reuse in [forced["reuse"]] if "reuse" in forced else [True, False]:
        for micro_batch in _micro_batches(task.shape, task.seq_len, share, device, forced):
            tokens = micro_batch * task.seq_len
            if "reuse" in forced or _may_reuse(reuse, micro_batch, tokens, device, fragments, forced):
                yield reuse, micro_batch


def _shards(shape: Shape, optimizer: str, compute: str, forced: Mapping[str, Any], world: int) -> Iterator[str]:
    """What the ranks may divide, from nothing to everything; refuses what the user wants and cannot be."""
    whole = needs_whole_matrices(optimizer)
    divisible = world > 1 and can_divide(shape, whole_matrices=whole, world=world)
    named = forced.get("shard")
    for shard in SHARDS if named is None else (named,):
        if shard == "none" or (divisible and not (shard == "weights" and compute == "fp8")):
            yield shard
        elif named is not None:
            raise _cannot_divide(shape, optimizer, named, world, divisible)


def _cannot_divide(shape: Shape, optimizer: str, shard: str, world: int, divisible: bool) -> SettingsError:
    if world == 1:
        return needs_ranks(shard)
    if divisible:
        return SettingsError(f"fp8 products need all weights on each rank: use {option('shard', 'gradients')} or bf16")
    most = most_ranks(shape, whole_matrices=needs_whole_matrices(optimizer), world=world)
    return SettingsError(
        f"this model cannot be divided over {world} ranks with {optimizer}, only over up to {most}: "
        f"start fewer with torchrun, or use {option('shard', 'none')}"
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


def _updates(optimizer: str) -> tuple[str, ...]:
    """The precisions of weights that it can update."""
    precisions: tuple[str, ...] = optimizer_module(optimizer).WEIGHTS
    return precisions


def _micro_batches(shape: Shape, seq_len: int, share: int, device: str, forced: Mapping[str, Any]) -> Iterator[int]:
    """From the fastest down; on a GPU as even as possible: a batch of 32 in three parts is 11, 11, 10."""
    if device == "cpu" or "micro_batch" in forced:
        yield from choices.micro_batches(seq_len, share, forced)
        return
    tokens = min(FAST_TOKENS, max(LEAST_FAST_TOKENS, FAST_ELEMENTS // shape.width))
    largest = min(share, max(1, tokens // seq_len))
    last = 0
    for parts in range(-(-share // largest), share + 1):
        micro_batch = -(-share // parts)
        if micro_batch != last:
            yield micro_batch
        last = micro_batch


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
