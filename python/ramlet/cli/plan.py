"""`ramlet plan`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TextIO

import typer

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import Debug, DeviceMemory, Json, Quiet
from ramlet.cli.tokenizer.options import Threads, note, print_json
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.plurals import plural
from ramlet.settings.declared import options
from ramlet.training.settings import DATA, LENGTH, MEMORY, MODEL, RunSettings


@with_settings(
    *options(RunSettings, "params", "config", "seq_len"),
    *options(RunSettings, "document_mask", "device", "batch_size", "precision", "optimizer"),
    panels=(MODEL, DATA, LENGTH, MEMORY),
)
def plan(
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            "--dataset-dir",
            metavar="DIR",
            show_default=False,
            rich_help_panel=DATA,
            help="Dataset, or a .npy file.",
        ),
    ] = None,
    memory: DeviceMemory = "auto",
    num_sequences: Annotated[
        int | None,
        typer.Option(
            "--num-sequences",
            metavar="N",
            show_default=False,
            rich_help_panel=DATA,
            help="Also show what this many sequences would take if held at once.",
        ),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab-size",
            metavar="N",
            show_default="the data's, or 8192",
            rich_help_panel=MODEL,
            help="Vocabulary size.",
        ),
    ] = None,
    *,
    given: Given,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show what training takes, part by part, before it is begun; without a model, what can be trained here.

    ramlet plan
    ramlet plan --params 124M --memory 4GB
    ramlet plan --data my-dataset --memory 2GB --device cpu
    """
    if not given.keys() & {"params", "config"} and vocab_size is None and num_sequences is None:
        _propose(data, memory, given.get("device"), threads, json)
        return
    from ramlet.training.propose import plan as make

    made = make(data=data, memory=memory, num_sequences=num_sequences, vocab_size=vocab_size, threads=threads, **given)
    from ramlet.engines import open_engine
    from ramlet.training.machine import look

    machine = look(open_engine(made.device, threads))
    seconds = machine.seconds(made.shape.step_flops(10**6, made.seq_len))
    told = {**made.to_dict(), "tokens_per_second": 1e6 / seconds if seconds else None}
    if json:
        print_json(told)
        return
    show_plan(told, quiet=quiet)


def show_plan(told: Mapping[str, Any], file: TextIO | None = None, *, quiet: bool = False) -> None:
    """The plan, as `--json` tells it, for people."""
    from ramlet.engines.plan import Plan

    made = Plan.from_dict(told)
    shape = made.shape
    say = partial(print, file=file)
    say(
        f"{shape.parameters:,} parameters: {plural(shape.layers, 'layer')}, width {shape.width}, "
        f"{plural(shape.heads, 'head')}, feed-forward {shape.feed_forward}, "
        f"vocabulary {shape.vocab_size:,}, on {made.device}\n"
    )
    for name, size, words in made.table():
        say(f"{name:<15} {size:>9}  {words}")
    say(
        f"\na step of {plural(made.batch_size, 'sequence')} of {made.seq_len} tokens, "
        f"{made.choice.micro_batch} at a time: {plural(made.accumulation, 'micro-batch', 'micro-batches')}"
    )
    if told["tokens_per_second"]:
        say(f"about {told['tokens_per_second']:,.0f} tokens a second, by the speed of matrix products here")
    for line in made.notes:
        note(f"note: {line}", quiet=quiet)


def _propose(data: str | None, memory: str, device: str | None, threads: int | None, json: bool) -> None:
    from ramlet.training.propose import propose

    told = propose(data, memory=memory, device=device, threads=threads)
    if json:
        print_json(
            {
                "device": told.machine.device,
                "gpu": told.machine.gpu,
                "threads": told.machine.threads,
                "flops": told.machine.flops,
                "precision": told.machine.compute,
                "budget": told.budget,
                "datasets": [vars(one) for one in told.datasets],
                "sizes": [
                    {
                        "params": row.params,
                        "fits": row.plan is not None,
                        "tokens": row.course.tokens,
                        "seconds": row.seconds,
                        "plan": row.plan.to_dict() if row.plan else None,
                    }
                    for row in told.rows
                ],
                "command": told.command,
            }
        )
        return
    machine = told.machine
    where = machine.gpu or plural(machine.threads, "core")
    print(
        f"{where}, {format_bytes(machine.memory)} free, a budget of {format_bytes(told.budget)}, "
        f"{machine.flops / 1e9:,.0f} GFLOP/s in {machine.compute}"
    )
    for one in told.datasets:
        print(f"dataset {one.path}: {one.tokens:,} tokens, vocabulary {one.vocab_size:,}")
    if not told.datasets:
        print("no dataset here: make one with  ramlet prepare TEXT --out DATASET")
    print(f"\n{'parameters':>12} {'peak':>9}  {'tokens':>15}  about")
    for row in told.rows:
        peak = format_bytes(row.plan.peak) if row.plan else "too large"
        mark = "  <" if told.best is not None and row is told.best else ""
        print(f"{row.params:>12,} {peak:>9}  {row.course.tokens:>15,}  {duration_words(row.seconds)}{mark}")
    print("\ntimes are estimates, from the speed of matrix products here")
    if told.best is None:
        assert told.rows[0].refusal is not None  # or there would be a plan
        raise told.rows[0].refusal
    print(f"\n  {told.command}")


def duration_words(seconds: float | None) -> str:
    """
    >>> duration_words(40), duration_words(600), duration_words(9000), duration_words(400_000)
    ('40 s', '10 min', '2.5 h', '4.6 days')
    """
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds < 730 * 86400:
        return f"{seconds / 86400:,.1f} days"
    return f"{seconds / 86400 / 365.25:,.0f} years"


def add_to(root: typer.Typer) -> None:
    root.command()(plan)
