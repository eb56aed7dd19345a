"""The choices that a plan has on PyTorch, from the fastest to the smallest, and the first of them that fits.

    plan = make_plan(shape, seq_len=256, batch_size=32, budget=Budget.parse("1GB"), compute="bf16", base=310_000_000)
    plan.choice.micro_batch, plan.accumulation, plan.peak, plan.notes

What costs least is given up first: the micro-batch (the effective batch stays: gradients of more micro-batches are
added up), on a GPU before it the size of the logits' chunks, then a second forward pass (`recompute`). On a CPU none of
these changes a bit of the result (order.py). Only when all that is not enough, and the user has not fixed them, come
the two that change results: 8-bit optimizer states, bf16 weights; the plan's notes say so. Where nothing fits, the
error names the smallest budget that does.

Without pressure the micro-batch is not the largest that fits but the fastest: beyond `FAST_TOKENS` a larger one takes
memory and gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ramlet.engines.plan import Choice, Correction, LoaderBytes, Plan, too_small
from ramlet.engines.torch.order import group_rows, head_chunk, unit_rows
from ramlet.engines.torch.predict import Prediction, predict
from ramlet.errors import SettingsError, option
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget

__all__ = ["make_plan"]

FAST_TOKENS = 16384
"""Tokens of a micro-batch from which on more of them are not faster on a GPU."""

SMALL_TOKENS = 512
"""Tokens of a micro-batch below which it becomes slow itself."""

FAST_CHUNK, LEAST_CHUNK = 4096, 256
"""Of the logits on a GPU: smaller chunks make the products of the head too thin to be fast."""


def make_plan(
    shape: Shape,
    *,
    seq_len: int,
    batch_size: int,
    budget: Budget,
    device: str = "cpu",
    compute: str = "fp32",
    forced: Mapping[str, Any] | None = None,
    base: int = 0,
    loader_bytes: LoaderBytes = 0,
    document_mask: bool = False,
    world: int = 1,
    threads: int = 1,
    correction: Correction | None = None,
) -> Plan:
    """The cheapest choice that fits.

    `forced` holds what the user has fixed, by the names of `Choice`; `base` is what is resident already. The budget is
    that of this process.
    """
    _check(shape, seq_len, batch_size, world)
    forced = {name: value for name, value in (forced or {}).items() if value is not None}
    share = -(-batch_size // world)
    room = budget.total - budget.reserve

    def predicted(choice: Choice) -> Prediction:
        held = loader_bytes if isinstance(loader_bytes, int) else loader_bytes(choice.micro_batch)
        return predict(
            shape,
            choice,
            seq_len=seq_len,
            device=device,
            base=base,
            loader_bytes=held,
            document_mask=document_mask,
            threads=threads,
            correction=correction,
        )

    least: tuple[Choice, Prediction] | None = None
    for choice in _choices(shape, seq_len, share, device, compute, forced):
        prediction = predicted(choice)
        if prediction.peak <= room:
            return Plan(
                shape,
                seq_len,
                batch_size,
                device,
                choice,
                prediction.parts,
                budget.total,
                prediction.moment,
                prediction.logits,
                world,
                _notes(choice, seq_len, share, device, forced),
                document_mask,
                correction or Correction(),
                held=budget.held,
            )
        if least is None or prediction.peak < least[1].peak:
            least = (choice, prediction)
    if least is None:
        raise SettingsError("weights in bf16 go with adamw8bit, which rounds them fairly: leave one of the two out")
    raise too_small(budget, least[0], least[1].parts)


def _choices(
    shape: Shape, seq_len: int, share: int, device: str, compute: str, forced: Mapping[str, Any]
) -> Iterator[Choice]:
    """All that may be chosen, the cheapest first."""
    compute = forced.get("compute", compute)
    for optimizer, weights in _states(compute, forced):
        for recompute in [forced["recompute"]] if "recompute" in forced else [False, True]:
            for reuse in [forced["reuse"]] if "reuse" in forced else [True, False]:
                for micro_batch in _micro_batches(seq_len, share, device, forced):
                    gappy = recompute or weights == "bf16"
                    if "reuse" in forced or _may_reuse(
                        reuse, micro_batch, micro_batch * seq_len, device, gappy, forced
                    ):
                        held = _held(shape, seq_len, share, micro_batch, device)
                        for chunk in _chunks(shape, seq_len, micro_batch, device, forced):
                            yield Choice(micro_batch, chunk, recompute, optimizer, weights, compute, reuse, held)


def _may_reuse(reuse: bool, micro_batch: int, tokens: int, device: str, gappy: bool, forced: Mapping[str, Any]) -> bool:
    """A smaller micro-batch costs less than giving every tensor back: that comes when there is none, or hardly one.

    `gappy` is where kept blocks may leave more gaps than predicted: where layers are made again, and with bf16 weights,
    of whose runs most, not all, took 5% more. There all is given back.
    """
    if device != "cpu":
        return reuse
    if gappy:
        return not reuse
    return reuse or micro_batch == 1 or tokens <= SMALL_TOKENS or "micro_batch" in forced


def _states(compute: str, forced: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Optimizer and weights: first those that change nothing. AdamW in 32 bits steps no bf16 weights."""
    for optimizer, weights in (("adamw", "fp32"), ("adamw8bit", "fp32"), ("adamw8bit", "bf16")):
        fits = forced.get("optimizer", optimizer) == optimizer and forced.get("weights", weights) == weights
        # With products in fp32 an fp32 copy would stand beside bf16 weights: nothing saved.
        saves = weights == "fp32" or compute != "fp32" or "weights" in forced
        if fits and saves:
            yield optimizer, weights


def _micro_batches(seq_len: int, share: int, device: str, forced: Mapping[str, Any]) -> Iterator[int]:
    """From the fastest down. On a CPU such that none changes a result; on a GPU none uneven for nothing: a batch of 32
    in three parts is 11, 11, 10."""
    if "micro_batch" in forced:
        yield min(forced["micro_batch"], share)
        return
    if device == "cpu":
        micro_batch = group_rows(seq_len)
        while micro_batch >= 2 * share and micro_batch > unit_rows(seq_len):
            micro_batch //= 2  # the same, for all are at most the share
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
    """Whether gradients come out on a CPU as with every other micro-batch that is: whole units, that a group is of."""
    rows = unit_rows(seq_len)
    return micro_batch >= share or (micro_batch % rows == 0 and group_rows(seq_len) % micro_batch == 0)


def _held(shape: Shape, seq_len: int, share: int, micro_batch: int, device: str) -> int:
    """Tokens of a group, where a tied embedding must wait until it is complete."""
    group = min(share, group_rows(seq_len))
    waits = device == "cpu" and shape.tied and micro_batch < group and _in_order(seq_len, share, micro_batch)
    return group * seq_len if waits else 0


def _chunks(shape: Shape, seq_len: int, micro_batch: int, device: str, forced: Mapping[str, Any]) -> Iterator[int]:
    """On a CPU one, which the model decides: another would change results."""
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
            f"micro-batches of {choice.micro_batch} sum gradients in an order of their own: "
            "the last digits differ from a run that is left to choose"
        )
    if choice.optimizer == "adamw8bit" and "optimizer" not in forced:
        notes.append(
            "the optimizer's states are kept in 8 bits, for nothing else fits: results differ slightly from adamw"
        )
    if choice.weights == "bf16" and "weights" not in forced:
        notes.append("the weights are kept in bf16, for nothing else fits: results are less exact than with fp32")
    return tuple(notes)


def _check(shape: Shape, seq_len: int, batch_size: int, world: int) -> None:
    if batch_size < 1 or world < 1:
        raise SettingsError(f"a batch of {batch_size} for {world} processes is none: give at least 1 of each")
    if not 1 <= seq_len <= shape.context:
        raise SettingsError(
            f"{option('seq_len', seq_len)} must be between 1 and the model's context of {shape.context}"
        )
