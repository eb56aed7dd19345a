"""`ramlet plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import DeviceMemory, Json, Quiet, Threads, data_option, note, print_json
from ramlet.cli.parameters import Option
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.plurals import plural
from ramlet.settings.declared import options
from ramlet.tokenizer.settings import TrainSettings
from ramlet.training.settings import DATA, LENGTH, MEMORY, MODEL, RunSettings


@with_settings(
    *options(RunSettings, "params", "config", "seq_len"),
    *options(
        TrainSettings, "vocab_size", help="Vocabulary size.", short="", panel=MODEL, shown="that of the data, or 8,192"
    ),
    *options(RunSettings, "document_mask", "device", "engine", "batch_size", "precision", "optimizer", "shard"),
    panels=(MODEL, DATA, LENGTH, MEMORY),
)
def plan(
    data: Annotated[str | None, data_option(DATA, "DIR")] = None,
    memory: DeviceMemory = "auto",
    ranks: Annotated[
        int,
        Option(
            "--ranks",
            metavar="N",
            min=1,
            panel=MEMORY,
            help="Number of torchrun processes; --memory and the plan are those of each process.",
        ),
    ] = 1,
    num_sequences: Annotated[
        int | None,
        Option(
            "--num-sequences",
            metavar="N",
            shown="that of --data",
            panel=DATA,
            help="Number of sequences in the data: the plan says what loading all of them would take.",
        ),
    ] = None,
    *,
    given: Given,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how much memory training needs, part by part; without a model, which sizes can be trained here.

    ramlet plan
    ramlet plan --params 124M --memory 4GB
    ramlet plan --data my-dataset --memory 2GB --device cpu
    ramlet plan --params 7B --memory 70GB --ranks 8
    """
    if not given.keys() & {"params", "config", "vocab_size", "shard"} and num_sequences is None and ranks == 1:
        _propose(data, memory, given.get("device"), given.get("engine", "auto"), threads, json)
        return
    from ramlet.training.propose import plan as make

    made = make(data=data, memory=memory, ranks=ranks, num_sequences=num_sequences, threads=threads, **given)
    from ramlet.engines.opening import choose_engine, open_engine
    from ramlet.training.machine import look

    engine = choose_engine(given.get("engine", "auto"), given.get("device", "auto"), ranks=ranks).name
    machine = look(open_engine(made.device, threads, name=engine))
    seconds = machine.seconds(made.shape.step_flops(10**6, made.seq_len))
    described = {**made.to_dict(), "engine": engine, "tokens_per_second": 1e6 / seconds}
    if json:
        print_json(described)
        return
    show_plan(described, quiet=quiet)


def show_plan(described: Mapping[str, Any], *, quiet: bool = False) -> None:
    """Prints a plan from its `--json` output."""
    from ramlet.engines.plan import Plan

    made = Plan.from_dict(described)
    shape = made.shape
    print(
        f"{shape.parameters:,} parameters: {plural(shape.layers, 'layer')}, width {shape.width}, "
        f"{plural(shape.heads, 'head')}, feed-forward {shape.feed_forward}, "
        f"vocabulary {shape.vocab_size:,}, on {made.device} with the {described['engine']} engine\n"
    )
    for name, size, detail in made.table():
        print(f"{name:<15} {size:>9}  {detail}")
    print(
        f"\na step of {plural(made.batch_size, 'sequence')} of {made.seq_len} tokens, "
        f"{made.choice.micro_batch} at a time: {plural(made.accumulation, 'micro-batch', 'micro-batches')}"
        f"{f' on each of {made.world} ranks' if made.world > 1 else ''}"
    )
    speed = f"{described['tokens_per_second']:,.0f} tokens per second"
    print(f"about {speed}, estimated from the speed of matrix products here")
    for line in made.notes:
        note(f"note: {line}", quiet=quiet)


def _propose(data: str | None, memory: str, device: str | None, engine: str, threads: int | None, json: bool) -> None:
    from ramlet.engines.opening import choose_engine
    from ramlet.training.propose import propose

    name = choose_engine(engine, device or "auto").name
    found = propose(data, memory=memory, device=device, engine=engine, threads=threads)
    if json:
        print_json(
            {
                "device": found.machine.device,
                "engine": name,
                "gpu": found.machine.gpu,
                "threads": found.machine.threads,
                "flops": found.machine.flops,
                "precision": found.machine.compute,
                "budget": found.budget,
                "datasets": [vars(one) for one in found.datasets],
                "sizes": [
                    {
                        "params": row.params,
                        "fits": row.plan is not None,
                        "tokens": row.course.tokens,
                        "seconds": row.seconds,
                        "plan": row.plan.to_dict() if row.plan else None,
                    }
                    for row in found.rows
                ],
                "command": found.command,
            }
        )
        return
    machine = found.machine
    where = machine.gpu or plural(machine.threads, "core")
    print(
        f"{where}, {format_bytes(machine.memory)} free, a budget of {format_bytes(found.budget)}, "
        f"{machine.flops / 1e9:,.0f} GFLOP/s in {machine.compute} with the {name} engine"
    )
    for one in found.datasets:
        print(f"dataset {one.path}: {one.tokens:,} tokens, vocabulary {one.vocab_size:,}")
    if not found.datasets:
        print("no dataset here: make one with  ramlet prepare TEXT --out DATASET")
    print(f"\n{'parameters':>12} {'peak':>9}  {'tokens':>15}  about")
    for row in found.rows:
        peak = format_bytes(row.plan.peak) if row.plan else "too large"
        mark = "  <" if found.best is not None and row is found.best else ""
        print(f"{row.params:>12,} {peak:>9}  {row.course.tokens:>15,}  {rough_duration(row.seconds)}{mark}")
    print("\ntimes are estimated from the speed of matrix products here")
    if found.best is None:
        assert found.rows[0].refusal is not None  # or there would be a plan
        raise found.rows[0].refusal
    print(f"\n  {found.command}")


def rough_duration(seconds: float) -> str:
    """
    >>> rough_duration(40), rough_duration(600), rough_duration(9000), rough_duration(400_000)
    ('40 s', '10 min', '2.5 h', '4.6 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds < 730 * 86400:
        return f"{seconds / 86400:,.1f} days"
    return f"{seconds / 86400 / 365.25:,.0f} years"
