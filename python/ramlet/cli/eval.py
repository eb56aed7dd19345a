"""`ramlet eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramlet.cli.options import MEMORY, Debug, Json, Memory, Quiet
from ramlet.cli.progress import Progress, format_perplexity
from ramlet.cli.tokenizer.options import Threads, print_json
from ramlet.errors import SettingsError
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.settings.kinds import Count
from ramlet.training.settings import EVAL_TOKENS

DATA = "Data"


def evaluate(
    run: Annotated[
        str, typer.Argument(metavar="RUN", show_default=False, help="A run, one of its checkpoints, or a Llama folder.")
    ],
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            "-d",
            "--dataset-dir",
            metavar="[NAME=]DIR",
            show_default=False,
            rich_help_panel=DATA,
            help="A dataset of `ramlet prepare`, or a .npy file; may be given again.",
        ),
    ],
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            metavar="val|train",
            show_default="val, or all of a set that has none",
            rich_help_panel=DATA,
            help="The part to look at.",
        ),
    ] = None,
    tokens: Annotated[
        str,
        typer.Option(
            "--tokens",
            "--eval-tokens",
            metavar="N|all",
            rich_help_panel=DATA,
            help="How many tokens of each set to look at.",
        ),
    ] = str(EVAL_TOKENS),
    seq_len: Annotated[
        int | None,
        typer.Option(
            "--seq-len", metavar="T", show_default="as in training", rich_help_panel=DATA, help="Tokens in a sequence."
        ),
    ] = None,
    memory: Memory = "auto",
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="auto|cpu|cuda", rich_help_panel=MEMORY, help="cpu or cuda; auto: cuda if there is one."
        ),
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            metavar="auto|bf16|fp16|fp32",
            rich_help_panel=MEMORY,
            help="bf16, fp16 or fp32; auto: fp32 on a CPU.",
        ),
    ] = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure a model: loss, perplexity and bits per byte on any dataset of its tokenizer.

    ramlet eval my-run --data my-dataset
    ramlet eval my-run --data general=data --data law --tokens all
    """
    named = _named(data)
    from ramlet.training.evaluate_run import evaluate as measure

    with (
        Meter(Budget.parse(memory if device != "cuda" else None)) as meter,
        Progress(meter, silent=quiet or json) as bar,
    ):
        scores = measure(
            run,
            named,
            split=split,
            tokens=_tokens(tokens),
            seq_len=seq_len,
            device=device,
            precision=precision,
            memory=memory,
            threads=threads,
            progress=lambda name, done, total: bar.update(f"evaluating {name}", done, total, "tokens"),
        )
    if json:
        told = {name: score.to_dict() for name, score in scores.items()}
        print_json({"path": run, "scores": told, "memory": meter.summary()})
        return
    for name, score in scores.items():
        bits = "" if score.bits_per_byte is None else f", {score.bits_per_byte:.3f} bits per byte"
        perplexity = format_perplexity(score.perplexity)
        print(f"{name}: loss {score.loss:.4f}, perplexity {perplexity}{bits}, {score.tokens:,} tokens")
    print(meter.closing_line())


def _named(words: list[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for word in words:
        name, mark, path = word.partition("=")
        if not mark or Path(word).exists():
            name, path = Path(word).name, word
        if not name or not path or name in named:
            raise SettingsError(f"--data {word}: give each set a name of its own, as in --data general={path or 'DIR'}")
        named[name] = path
    return named


def _tokens(text: str) -> int | str:
    if text == "all":
        return text
    try:
        return Count(least=0).read(text)
    except ValueError as error:
        raise SettingsError(f"--tokens {error}, or all") from None


def add_to(root: typer.Typer) -> None:
    """Adds the command."""
    root.command("eval")(evaluate)
