"""`ramlet eval`."""

from __future__ import annotations

from typing import Annotated

import typer

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import MEMORY, DeviceMemory, Json, Quiet, Threads, data_option, named_datasets, print_json
from ramlet.cli.progress import Progress, format_score
from ramlet.cli.usage import UsageError
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.settings.declared import options
from ramlet.settings.kinds import Count
from ramlet.training.settings import DATA, EVAL_TOKENS, RunSettings


@with_settings(
    *options(RunSettings, "seq_len", panel=DATA, shown="as in training"),
    *options(RunSettings, "device", "engine"),
    *options(RunSettings, "precision", help="Precision; auto uses fp32 on a CPU.", stands_for={}),
    panels=(DATA, MEMORY),
)
def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", show_default=False, help="A run, one of its checkpoints, a Llama or a Qwen3 folder."
        ),
    ],
    data: Annotated[list[str], data_option(DATA, "[NAME=]DIR", "; may be given several times")],
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            metavar="val|train",
            show_default="val, or the whole dataset if it has no val",
            rich_help_panel=DATA,
            help="Split to evaluate on.",
        ),
    ] = None,
    tokens: Annotated[
        str,
        typer.Option(
            "--tokens",
            "--eval-tokens",
            metavar="N|all",
            show_default=f"{EVAL_TOKENS:,}",
            rich_help_panel=DATA,
            help="Number of tokens of each dataset to evaluate on.",
        ),
    ] = str(EVAL_TOKENS),
    memory: DeviceMemory = "auto",
    threads: Threads = None,
    *,
    given: Given,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model: loss, perplexity and bits per byte on any dataset with the same tokenizer.

    ramlet eval my-run --data my-dataset
    ramlet eval my-run --data general=data --data law --tokens all
    """
    named = named_datasets("--data", data)
    from ramlet.training.evaluate_run import evaluate as measure

    with (
        Meter(Budget.parse(memory if given.get("device") != "cuda" else None)) as meter,
        Progress(meter, silent=quiet or json) as bar,
    ):
        scores = measure(
            run,
            named,
            split=split,
            tokens=_tokens(tokens),
            memory=memory,
            threads=threads,
            meter=meter,
            progress=lambda name, done, total: bar.update(f"evaluating {name}", done, total, "tokens"),
            **given,
        )
    results = {name: score.to_dict() for name, score in scores.items()}
    if json:
        print_json({"path": run, "scores": results, "memory": meter.summary()})
        return
    for name, score in results.items():
        print(f"{format_score(name, score)}, {score['tokens']:,} tokens")
    print(meter.closing_line())


def _tokens(text: str) -> int | str:
    try:
        return text if text == "all" else Count(least=0).read(text)
    except ValueError as error:
        raise UsageError(f"--tokens {error}; or use all") from None
