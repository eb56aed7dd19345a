"""Plans of the native engine: memory is known before the first step, so nothing is measured but what is resident.

    peak = what is resident (measured) + the arena + the loader and a micro-batch + an evaluation or sample + LATER

Here a result depends neither on the micro-batch, as long as it divides a group of sequences (order.py), nor on the
chunk: every sum over tokens is one chain in the order of the tokens. Only gradients of bf16 weights, which have 8 bits,
are rounded in between: after each unit, and for the head after each chunk, whose size is then always the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ramlet.engines import EIGHT_BIT, choices
from ramlet.engines.native.gpt import ROUNDED_ORDER, Layout, arena_parts, continuing_parts, sum_order
from ramlet.engines.opening import needs_ranks, single_process
from ramlet.engines.order import MOST_CHUNK, even_part, head_chunk, unit_rows
from ramlet.engines.plan import PARTS, Choice, Plan, Task, too_small
from ramlet.model.shape import Shape
from ramlet.runtime.budget import DRIFT

BUILT_IN = ("adamw", "adamw8bit", "muon", "muon8bit")
"""The optimizers of the Rust core (rust/gpt/choice.rs)."""
LATER = 300_000
"""What a run adds to what was resident after its rehearsal: threads, a longer log, larger arrays. Measured: 0.1 to
0.5 MB (benchmarks/engines.py random)."""
EVALUATION = 200_000
"""Of a loader of its own, and its losses. Samples are generated at other times."""
NOT_REHEARSED = 2_500_000
"""Instead of LATER in the sketch of a run whose data and tokenizer are not open."""
SMALLEST_CHUNK = 16
"""Tokens: logits of fewer are not much smaller than anything else."""
LEAST_ROUNDED_CHUNK = 32
"""With gradients in 8 bits, fewer tokens would make the head slow."""


def make_plan(task: Task, *, threads: int) -> Plan:
    """The fastest choice that fits."""
    choices.check_task(task)
    forced = choices.forced_of(task)
    if task.ranks > 1:
        raise single_process()
    if forced.get("shard", "none") != "none":
        raise needs_ranks(forced["shard"])
    if (optimizer := forced.get("optimizer", task.optimizer)) not in BUILT_IN:
        raise choices.has_no("native", optimizer)
    available = task.budget.total - task.budget.reserve
    least: tuple[Choice, dict[str, int]] | None = None
    for choice in _choices(task, forced):
        parts = plan_parts(task, choice, threads)
        if sum(parts.values()) <= available:
            return Plan(
                task.shape,
                task.seq_len,
                task.batch_size,
                "cpu",
                choice,
                parts,
                task.budget.total,
                logits=parts["logits"],
                notes=_notes(choice, task, forced),
                document_mask=task.document_mask,
                remarks={"weights": choice.weights, "gradients": "8-bit" if choice.weights == "bf16" else "fp32"},
                held=task.budget.held,
            )
        if least is None or sum(parts.values()) < sum(least[1].values()):
            least = (choice, parts)
    if least is None:
        raise choices.cannot_update(forced)
    raise too_small(task.budget, *least, jitter=DRIFT)


def plan_parts(task: Task, choice: Choice, threads: int) -> dict[str, int]:
    """Bytes by part; together the peak of a run."""
    layout = Layout.of(choice, seq_len=task.seq_len, document_mask=task.document_mask, threads=threads)
    arena = arena_parts(task.shape, layout)
    loader = task.loader_bytes if isinstance(task.loader_bytes, int) else task.loader_bytes(choice.micro_batch)
    later = NOT_REHEARSED
    if task.rehearsal is not None:
        loader, later = loader - task.rehearsal.loader_bytes, LATER
    parts = {
        **arena,
        "data": loader + batch_bytes(choice.micro_batch * task.seq_len, task.document_mask),
        "overhead": task.resident + later + max(EVALUATION, sample_bytes(task, choice, threads)),
    }
    return {name: parts[name] for name in PARTS}


def batch_bytes(tokens: int, document_mask: bool) -> int:
    """Of a micro-batch: its arrays, once more if they are not contiguous, and the losses of an evaluation."""
    arrays = 4 if document_mask else 2
    return tokens * (2 * arrays * 8 + 32)


def sample_bytes(task: Task, choice: Choice, threads: int) -> int:
    """Of a sample generated between steps."""
    if not task.sampled:
        return 0
    prompt = min(task.prompted, max(1, task.shape.context // 2))
    settings = OneSample(task.sampled - task.prompted)
    parts = continuing_parts(task.shape, precision=choice.weights, settings=settings, threads=threads, prompt=prompt)
    return sum(parts.values())


@dataclass(frozen=True)
class OneSample:
    """How text is generated between steps (`ramlet.generation.Sampler`)."""

    max_tokens: int
    num_samples: int = 1
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = 0


def _choices(task: Task, forced: Mapping[str, Any]) -> Iterator[Choice]:
    """All possible choices, the fastest first."""
    compute = forced.get("compute", task.precision)
    if compute in ("fp8", "fp16"):
        raise choices.needs_a_gpu(compute)
    dropout = forced.get("dropout", 0.0)
    for optimizer, weights in choices.states(task.optimizer, compute, forced, updates):
        for recompute in choices.recomputes(forced):
            for micro_batch, chunk in _divisions(task, weights, forced):
                order = sum_order(weights, task.shape)
                held = choices.held_tokens(task.shape, task.seq_len, task.batch_size, micro_batch, order)
                yield Choice(micro_batch, chunk, recompute, optimizer, weights, compute, held=held, dropout=dropout)


def _divisions(task: Task, weights: str, forced: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Micro-batches, and the chunks of the smallest: a smaller chunk costs more than a smaller micro-batch."""
    is_rounded, order = weights == "bf16", sum_order(weights, task.shape)
    shape, seq_len = task.shape, task.seq_len
    wanted = _rounded_chunk(shape, seq_len) if is_rounded else head_chunk(seq_len, shape.width)
    for micro_batch in choices.micro_batches(task.seq_len, task.batch_size, forced, order):
        tokens = micro_batch * task.seq_len
        chunk = min(forced.get("chunk", wanted), tokens)
        yield micro_batch, chunk
    while "chunk" not in forced and not is_rounded and chunk > SMALLEST_CHUNK:
        chunk = max(SMALLEST_CHUNK, chunk // 2)
        yield micro_batch, chunk


def _rounded_chunk(shape: Shape, seq_len: int) -> int:
    """For any budget: as many tokens as have logits no larger than what a layer keeps, whose place they take."""
    unit = unit_rows(seq_len, ROUNDED_ORDER) * seq_len
    heads = 2 * shape.heads + 2 * shape.kv_heads
    kept = unit * (heads * shape.head_width + shape.width + 2 * shape.feed_forward)
    return even_part(unit, min(MOST_CHUNK, max(LEAST_ROUNDED_CHUNK, kept // shape.padded_vocab)))


def _notes(choice: Choice, task: Task, forced: Mapping[str, Any]) -> tuple[str, ...]:
    order = sum_order(choice.weights, task.shape)
    found = choices.notes(choice, task.seq_len, task.batch_size, forced, order=order)
    if choice.weights == "bf16":
        found = (*found, "the gradients of bf16 weights are stored in 8 bits, with an exponent for every 32 of a row")
    return found


def updates(optimizer: str) -> tuple[str, ...]:
    """The precisions of weights that it can update: bf16 ones must be rounded stochastically."""
    return ("fp32", "bf16") if optimizer in EIGHT_BIT.values() else ("fp32",)
