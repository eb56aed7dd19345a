"""The choices of a plan, from the fastest to the smallest, and the first that fits by formulas.

    plan = make_plan(task, place=Place("cpu", processes=1, shards=1))

The formulas count what layers.py keeps and the largest of what is alive at once; XLA decides the rest: it fuses,
reuses and copies as it likes. So a plan is only where to begin: probe.py compiles it and asks XLA (docs/design/jax.md).
Results here depend on how a step is divided by their last digits, as on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ramlet.engines import Division, Sampling, choices
from ramlet.engines.jax.continuing import continuing_bytes
from ramlet.engines.jax.optim import optimizer_module
from ramlet.engines.jax.weights import dtype_of, layout
from ramlet.engines.plan import JITTER, PARTS, Choice, Correction, Plan, Task, too_small
from ramlet.errors import SettingsError, option
from ramlet.model.shape import Shape
from ramlet.runtime.budget import format_bytes

FAST_TOKENS = {"cpu": 1024, "cuda": 16384, "tpu": 16384}
"""Beyond this many tokens a micro-batch of one device is not faster."""
FAST_CHUNK, LEAST_CHUNK = {"cpu": 512, "cuda": 4096, "tpu": 4096}, 64
ITEMS = {"fp32": 4, "bf16": 2}
COMPILING = {"adamw": 345_000_000, "adamw8bit": 500_000_000, "muon": 470_000_000, "muon8bit": 520_000_000}
"""What compiling a step takes on a CPU for a moment, on top of what is resident before: before there are weights. The
most that was seen in 55 random runs next to other work; the same program varies by a fifth."""
COMPILING_DEVICE = 25_000_000
"""The same for every further device."""
COMPILED = 125_000_000
"""What stays of that, with threads, and the pages of XLA that a step runs through."""
LATER = 20_000_000
"""What a run needs on a CPU beyond its probe, to evaluate, sample, save and report: mostly 10 MB."""
WORKSPACES = {"cuda": 128_000_000, "tpu": 0}
"""On a GPU, what libraries take for products while a step runs, and XLA while it tries kernels: at most 100 MB seen."""
DOUBT = 4
"""The smallest budget that is named has a quarter more than the formulas say: XLA may keep casts of weights, and what
it needs is known only after compiling."""
TOKEN_BYTES = 200
"""Per token when its bytes are first looked up."""


class Place(NamedTuple):
    """Where a step runs."""

    kind: str
    processes: int = 1
    shards: int = 1
    """Devices of a process."""

    @property
    def in_one_memory(self) -> int:
        """Devices that share the memory of the budget: on a CPU all of a process."""
        return self.shards if self.kind == "cpu" else 1


def make_plan(task: Task, *, place: Place, correction: Correction | None = None) -> Plan:
    """The fastest choice that fits."""
    choices.check_task(task, place.processes)
    forced = choices.forced_of(task)
    share = -(-task.batch_size // place.processes)
    available = task.budget.total - task.budget.reserve
    least: tuple[Choice, dict[str, int]] | None = None
    for choice in _choices(task, share, place, forced):
        parts = plan_parts(task, choice, place, correction or Correction())
        if sum(parts.values()) <= available:
            return Plan(
                task.shape,
                task.seq_len,
                task.batch_size,
                place.kind,
                choice,
                parts,
                task.budget.total,
                logits=parts["logits"],
                world=place.processes,
                notes=choices.notes(choice, task.seq_len, share, forced, ordered=False),
                document_mask=task.document_mask,
                correction=correction or Correction(),
                remarks=_remarks(choice, place, parts),
                held=task.budget.held,
            )
        if least is None or sum(parts.values()) < sum(least[1].values()):
            least = (choice, parts)
    if least is None:
        raise choices.cannot_update(forced)
    doubt = sum(size for name, size in least[1].items() if name != "overhead") // DOUBT
    raise too_small(task.budget, *least, jitter=JITTER + doubt)


def _remarks(choice: Choice, place: Place, parts: Mapping[str, int]) -> dict[str, str]:
    kinds = {"weights": choice.weights, "gradients": choice.weights, "optimizer": choice.optimizer}
    if place.shards > 1:
        each = {name: format_bytes(parts[name] / place.in_one_memory) for name in kinds}
        kinds = {name: f"{kind}, {each[name]} on each of {place.shards} devices" for name, kind in kinds.items()}
    return {
        **kinds,
        "overhead": "Python, JAX and what it compiles" if place.kind == "cpu" else "gathered layers and workspace",
    }


def _choices(task: Task, share: int, place: Place, forced: Mapping[str, Any]) -> Iterator[Choice]:
    """All possible choices, the fastest first."""
    compute = forced.get("compute", task.precision)
    if compute not in ITEMS:
        raise SettingsError(
            f"the jax engine does not multiply {compute}: use {option('precision', 'bf16')} or fp32, "
            f"or {option('engine', 'torch')}"
        )
    dropout = forced.get("dropout", 0.0)
    for optimizer, weights in choices.states(task.optimizer, compute, forced, updates):
        for recompute in choices.recomputes(forced):
            for micro_batch in _micro_batches(task.seq_len, share, place, forced):
                for chunk in _chunks(task.seq_len, micro_batch, place, forced):
                    yield Choice(micro_batch, chunk, recompute, optimizer, weights, compute, dropout=dropout)


def updates(optimizer: str) -> tuple[str, ...]:
    """The precisions of weights that it can update."""
    precisions: tuple[str, ...] = optimizer_module(optimizer).WEIGHTS
    return precisions


def _micro_batches(seq_len: int, share: int, place: Place, forced: Mapping[str, Any]) -> Iterator[int]:
    """From the fastest down, as even as possible: a batch of 32 in three parts is 11, 11, 10."""
    if "micro_batch" in forced:
        yield min(forced["micro_batch"], share)
        return
    largest = min(share, max(1, FAST_TOKENS[place.kind] // seq_len) * place.shards)
    parts = -(-share // largest)
    last = 0
    while last != 1 and parts <= share:
        micro_batch = -(-share // parts)
        if micro_batch != last:
            yield micro_batch
        last = micro_batch
        parts = max(parts + 1, parts * 5 // 4)
    if last != 1:
        yield 1


def _chunks(seq_len: int, micro_batch: int, place: Place, forced: Mapping[str, Any]) -> Iterator[int]:
    """Smaller ones for the smallest micro-batch alone."""
    tokens = micro_batch * seq_len
    chunk = min(forced.get("chunk", FAST_CHUNK[place.kind]), tokens)
    yield chunk
    while "chunk" not in forced and micro_batch == 1 and chunk > LEAST_CHUNK:
        chunk = max(LEAST_CHUNK, chunk // 2)
        yield chunk


def plan_parts(task: Task, choice: Choice, place: Place, correction: Correction) -> dict[str, int]:
    """Bytes by part; together the peak of a run."""
    shape, on_cpu = task.shape, place.kind == "cpu"
    loader = task.loader_bytes if isinstance(task.loader_bytes, int) else task.loader_bytes(choice.micro_batch)
    held = stored_bytes(shape, choice, place)
    work = work_bytes(shape, choice, task.seq_len, place, document_mask=task.document_mask)
    later = max(LATER, sample_bytes(task, choice))
    base = task.resident + COMPILED + later if on_cpu else WORKSPACES[place.kind]
    parts = {
        **held,
        "activations": int(work["activations"] * correction.factor),
        "logits": work["logits"],
        "data": loader + step_bytes(task, choice, place),
        "overhead": base + correction.extra,
    }
    if on_cpu:
        compiling = COMPILING[choice.optimizer] + COMPILING_DEVICE * (place.shards - 1)
        parts["overhead"] += max(0, task.resident + compiling - sum(parts.values()))
    return {name: parts[name] for name in PARTS}


def stored_bytes(shape: Shape, choice: Choice, place: Place) -> dict[str, int]:
    """Weights, gradients and states: on a CPU of all devices together, else of one."""
    sizes = layout(shape)
    weights = sum(math.prod(size) * np.dtype(dtype_of(name, choice.weights)).itemsize for name, size in sizes.items())
    described = optimizer_module(choice.optimizer).layout(shape)
    states = sum(
        math.prod(size) * np.dtype(dtype).itemsize for leaves in described.values() for size, dtype in leaves.values()
    )
    parts = 1 if place.kind == "cpu" else place.shards
    return {"weights": weights // parts, "gradients": weights // parts, "optimizer": states // parts}


def work_bytes(
    shape: Shape, choice: Choice, seq_len: int, place: Place, *, document_mask: bool = False
) -> dict[str, int]:
    """The activations of a micro-batch at their highest, and the logits of a chunk with their gradient."""
    item = ITEMS[choice.compute]
    rows = -(-choice.micro_batch // place.shards)
    tokens = rows * seq_len
    width, wide = shape.width, 2 * shape.feed_forward
    kept = width if choice.recompute else 2 * width + shape.qkv_width + shape.queries_width + wide
    again = 2 * width + shape.qkv_width + shape.queries_width + wide if choice.recompute else 0
    scores = rows * shape.heads * seq_len * seq_len * 4
    moving = tokens * (again * item + max(wide * 8, shape.qkv_width * 12 + 2 * scores // max(1, tokens)))
    head = shape.padded_vocab * width * (4 + (item if item == 2 else 0))
    chunk = max(rows, min(choice.chunk, tokens))
    logits = chunk * shape.padded_vocab * (4 + item)
    activations = shape.layers * tokens * kept * item + max(moving, head + 2 * tokens * width * item)
    mask = tokens * seq_len if document_mask else 0
    at_once = place.in_one_memory
    return {"activations": (activations + mask) * at_once, "logits": logits * at_once}


def step_bytes(task: Task, choice: Choice, place: Place) -> int:
    """The arrays of a step, on the host and on the devices."""
    sequences = -(-task.batch_size // place.processes) + choice.micro_batch
    return sequences * task.seq_len * 4 * (4 if task.document_mask else 2) * 3


def sample_bytes(task: Task, choice: Choice) -> int:
    """Of a sample generated between steps."""
    if not task.sampled:
        return 0
    parts = continuing_bytes(task.shape, ITEMS[choice.compute], 1, OneSample(task.sampled))
    return sum(parts.values())


class OneSample(NamedTuple):
    """How text is generated between steps (`ramlet.generation.Sampler`)."""

    max_tokens: int
    num_samples: int = 1
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = 0


# Evaluation and generation.


def forward_parts(
    shape: Shape, division: Division, seq_len: int, precision: str, place: Place, *, document_mask: bool
) -> dict[str, int]:
    """Bytes by part that evaluating needs, on top of what is resident."""
    choice = Choice(division.micro_batch, division.chunk, recompute=True, compute=precision)
    one = Shape(**{**shape.to_dict(), "layers": 1})
    work = work_bytes(one, choice, seq_len, place, document_mask=document_mask)
    parts = {
        "weights": weight_bytes(shape, precision),
        "a micro-batch": work["activations"] + division.micro_batch * seq_len * 64,
        "logits": 2 * work["logits"],
        "the byte lengths of tokens": shape.vocab_size * TOKEN_BYTES,
        "compiling": COMPILED + LATER,
    }
    return parts if place.kind == "cpu" else {name: parts[name] for name in ("weights", "a micro-batch", "logits")}


def generation_parts(
    shape: Shape, *, precision: str, prompt: int, settings: Sampling, vocabulary: int, place: Place
) -> dict[str, int]:
    on_cpu = place.kind == "cpu"
    return {
        "weights": weight_bytes(shape, precision),
        **continuing_bytes(shape, ITEMS[precision], prompt, settings),
        **({"the tokenizer": vocabulary * TOKEN_BYTES} if vocabulary and on_cpu else {}),
        **({"compiling": COMPILED + LATER} if on_cpu else {}),
    }


def weight_bytes(shape: Shape, precision: str) -> int:
    return sum(math.prod(size) * np.dtype(dtype_of(name, precision)).itemsize for name, size in layout(shape).items())
