"""Plans without training: `ramlet.plan`, and a proposal of what to train on this machine, with its command.

    plan(params="10M", data="my-dataset", memory="2GB")      # a Plan: memory by part, and what was chosen
    propose()                                                # inspects the machine and the folder, and proposes a run

A plan starts from the memory resident with the engine loaded, so it loads the engine. Times are estimates: operations
divided by the measured speed of matrix products, times the fraction that a whole step usually reaches.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ramlet.engines.opening import choose_engine, open_engine
from ramlet.engines.plan import Plan, Task
from ramlet.errors import BudgetError, SettingsError, option
from ramlet.loading.division import check_counts
from ramlet.model.shape import Shape
from ramlet.model.sizing import shape_for
from ramlet.runtime.budget import Budget
from ramlet.runtime.threads import check_threads
from ramlet.settings.declared import argv, differing, flag
from ramlet.training.course import Course, course_for, largest_for
from ramlet.training.machine import Found, Machine, find_datasets, look
from ramlet.training.plan import fixed
from ramlet.training.recipe import QK_NORM, recipe_for, step_flops
from ramlet.training.settings import RunSettings, default_seq_len

PATIENCE = 3600.0
"""The longest proposed run in seconds, if possible."""

SIZES = (300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 60_000_000, 124_000_000, 350_000_000, 760_000_000)
ALL_SIZES = (*SIZES, 1_300_000_000, 3_000_000_000, 7_000_000_000)
"""With those that need a GPU."""
VOCABULARY = 8192
"""Without a dataset."""
TOKENIZER_BYTES = 400
"""Per token, approximately: a run has loaded its tokenizer when it plans."""


@dataclass(frozen=True)
class Row:
    """One model size."""

    params: int
    plan: Plan | None
    """None if it does not fit."""
    course: Course
    seconds: float
    """Approximate training time."""
    refusal: BudgetError | None = None
    """Why it does not fit, and the budget that would."""


@dataclass(frozen=True)
class Proposal:
    machine: Machine
    budget: int
    datasets: tuple[Found, ...]
    rows: tuple[Row, ...]
    best: Row | None
    command: str


def plan(
    *,
    params: str | int | None = None,
    config: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    memory: Budget | str | int | None = None,
    device: str | None = None,
    engine: str = "auto",
    seq_len: int | str | None = None,
    batch_size: int | str | None = None,
    precision: str = "auto",
    optimizer: str = "auto",
    weights: str = "auto",
    micro_batch: int | None = None,
    recompute: bool | None = None,
    shard: str = "auto",
    ranks: int = 1,
    document_mask: bool = False,
    num_sequences: int | None = None,
    vocab_size: int | None = None,
    threads: int | None = None,
) -> Plan:
    """Plans the training of a model within a memory budget.

    >>> ramlet.plan(params="10M", data="my-dataset", memory="2GB").peak       # doctest: +SKIP
    694000000

    Without `params` or `config` the size depends on the data; give `vocab_size` if there is no data yet. With several
    `ranks` it is the memory of each of them, if torchrun starts that many.
    `num_sequences` is only used to report the size of all data, which is never in memory at once. Raises BudgetError if
    it does not fit. Loads the engine, because a plan starts from the memory resident then.
    """
    given: dict[str, Any] = {"params": params, "config": config, "seq_len": seq_len, "micro_batch": micro_batch}
    given |= {"recompute": recompute, "document_mask": document_mask, "optimizer": optimizer, "weights": weights}
    given |= {"shard": shard, "precision": precision, "device": device or "auto", "engine": engine}
    given |= {} if batch_size is None else {"batch_size": batch_size}
    chosen = RunSettings(**given)
    check_counts(ranks=ranks, vocab_size=vocab_size, num_sequences=num_sequences)
    check_threads(threads)
    engine = choose_engine(engine, chosen.device, ranks=ranks).name
    site = _Site(memory, chosen.device, engine, precision, threads, ranks)
    found = None if data is None else _known(data)
    known_vocab = vocab_size or (found.vocab_size if found else None)
    vocab_size = known_vocab or VOCABULARY
    forced = fixed(chosen)
    length, batch = chosen.seq_len, chosen.batch_size
    if params is None and config is None:
        machine = look(site.engine)
        sizes = [size for size in ALL_SIZES if size <= _largest(found)]
        rows = site.rows(sizes, found, machine, vocab_size, length, batch, forced, document_mask)
        best = _best(rows, found)
        if best is None or best.plan is None:
            assert rows[0].refusal is not None  # otherwise there would be a plan
            raise rows[0].refusal
        made = best.plan
    elif chosen.config is not None:
        from ramlet.training.model_config import shape_from_file

        shape = shape_from_file(chosen.config, chosen, vocab_size=known_vocab, otherwise=VOCABULARY)
        made = site.plan_shape(shape, length or shape.context, batch, forced, document_mask)
    else:
        assert chosen.params is not None
        length = length or default_seq_len(chosen.params)
        shape = shape_for(chosen.params, vocab_size=vocab_size, context=length, qk_norm=QK_NORM)
        made = site.plan_shape(shape, length, batch, forced, document_mask)
    sequences = num_sequences or (found.tokens // made.seq_len if found else 0)
    return replace(made, whole_data=sequences * made.seq_len * 16)


def propose(
    data: str | os.PathLike[str] | None = None,
    *,
    memory: Budget | str | int | None = None,
    device: str | None = None,
    engine: str = "auto",
    folder: str | os.PathLike[str] = ".",
    threads: int | None = None,
) -> Proposal:
    """Inspects the machine and the datasets, and proposes what to train."""
    found = (_known(data),) if data is not None else tuple(find_datasets(folder))
    dataset = found[0] if found else None
    site = _Site(memory, device, engine, "auto", threads)
    machine = look(site.engine)
    site.compute = machine.compute
    vocab_size = dataset.vocab_size if dataset else VOCABULARY
    rows = site.rows(ALL_SIZES if machine.gpu else SIZES, dataset, machine, vocab_size)
    best = _best(rows, dataset)
    command = _command(best, dataset, memory, device, engine)
    return Proposal(machine, site.budget.total, found, tuple(rows), best, command)


def _largest(dataset: Found | None) -> int:
    """The most parameters for this much text."""
    return max(SIZES[0], largest_for(dataset.tokens)) if dataset else 10_000_000


def _best(rows: list[Row], dataset: Found | None) -> Row | None:
    """The largest that fits, has enough text and does not take too long; else the smallest that fits."""
    fitting = [row for row in rows if row.plan is not None]
    good = [row for row in fitting if row.params <= _largest(dataset) and row.seconds <= PATIENCE]
    return good[-1] if good else next(iter(fitting), None)


def _command(best: Row | None, dataset: Found | None, memory: Any, device: str | None, engine: str) -> str:
    if best is None:
        return ""
    path = dataset.path if dataset else "DATASET"
    words = ["ramlet", "train", flag("data"), path, flag("out"), "RUN"]
    if isinstance(memory, str) and memory != "auto":
        words += [flag("memory"), memory]
    size, steps = best.course.sequences, best.course.steps
    given = {"params": _short(best.params), "device": device, "engine": engine, "batch_size": size, "max_steps": steps}
    return shlex.join([*words, *argv(RunSettings, differing(RunSettings, given))])


def _short(number: int) -> str:
    """
    >>> _short(10_000_000), _short(1_300_000_000), _short(300_000)
    ('10M', '1.3B', '300k')
    """
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return str(number)


def _known(data: str | os.PathLike[str]) -> Found:
    """A dataset or array that the user named; raises if it cannot be used."""
    from ramlet.loading.tokens import open_tokens

    tokens = open_tokens(os.fspath(data), "train", 0.1)
    return Found(os.fspath(data), tokens.count, tokens.vocab_size())


class _Site:
    """The device, the budget, and what is resident before training."""

    def __init__(
        self,
        memory: Budget | str | int | None,
        device: str | None,
        engine: str,
        precision: str,
        threads: int | None,
        ranks: int = 1,
    ) -> None:
        self._ranks = ranks
        self.engine = open_engine(device or "auto", threads, name=engine)
        # A run has loaded this when it plans.
        from ramlet.training import trainer  # noqa: F401

        self.budget = self.engine.budget(memory)
        self.compute = self.engine.precision(precision)
        self._base = self.engine.resident()

    def plan_shape(self, shape: Shape, seq_len: int, batch: int, forced: dict[str, Any], document_mask: bool) -> Plan:
        return self.engine.sketch(
            Task(
                shape,
                seq_len,
                batch,
                self.budget,
                self.compute,
                document_mask,
                recipe_for(shape, step_tokens=batch * seq_len, continued=False).optimizer,
                forced,
                resident=self._base and self._base + TOKENIZER_BYTES * shape.vocab_size,
                loader_bytes=lambda rows: _loader_bytes(rows, seq_len, document_mask),
                ranks=self._ranks,
            )
        )

    def rows(
        self,
        sizes: Sequence[int],
        dataset: Found | None,
        machine: Machine,
        vocab: int,
        seq_len: int | None = None,
        batch: int | None = None,
        forced: dict[str, Any] | None = None,
        document_mask: bool = False,
    ) -> list[Row]:
        """The sizes that are large enough for the vocabulary; at least one."""
        rows = []
        for params in sizes:
            length = seq_len or default_seq_len(params)
            course = course_for(params, text=dataset.tokens if dataset else 0, seq_len=length)
            try:
                shape = shape_for(params, vocab_size=vocab, context=length, qk_norm=QK_NORM)
            except SettingsError:
                continue
            plan, refusal = None, None
            try:
                plan = self.plan_shape(shape, length, batch or course.sequences, forced or {}, document_mask)
            except BudgetError as error:
                refusal = error
            seconds = machine.seconds(course.steps * step_flops(shape, course.step_tokens, length))
            rows.append(Row(params, plan, course, seconds, refusal))
        if not rows:
            raise SettingsError(
                f"the vocabulary is too large for the models that this little text can train: give {option('params')}"
            )
        return rows


def _loader_bytes(rows: int, seq_len: int, document_mask: bool) -> int:
    """Like `ramlet.Loader.memory` for a dataset of few shards."""
    return 4 * rows * seq_len * 8 * (4 if document_mask else 2) + 2_000_000
