"""`ramlet eval`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import (
    MEMORY,
    DeviceMemory,
    Json,
    Quiet,
    Threads,
    data_option,
    named_datasets,
    print_json,
)
from ramlet.cli.parameters import Argument, Option
from ramlet.cli.progress import Progress, format_score
from ramlet.cli.usage import UsageError
from ramlet.engines.opening import OF_WEIGHTS
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural
from ramlet.settings.declared import options
from ramlet.settings.kinds import Choice, Count
from ramlet.training.settings import DATA, EVAL_TOKENS, RunSettings

if TYPE_CHECKING:
    from ramlet.training.evaluate import Score
    from ramlet.training.evaluate_tasks import TaskScore


@with_settings(
    *options(RunSettings, "seq_len", panel=DATA, shown="as in training"),
    *options(RunSettings, "device", "engine"),
    *options(
        RunSettings,
        "precision",
        kind=Choice(OF_WEIGHTS),
        help="Dtype of the weights; auto: fp32 on a CPU, else bf16 or fp16, in half the memory.",
        stands_for={},
    ),
    panels=(DATA, MEMORY),
)
def evaluate(
    run: Annotated[
        str,
        Argument(
            metavar="RUN", shown=False, help="A run, one of its checkpoints, or the folder of a Llama or Qwen3 model."
        ),
    ],
    data: Annotated[
        list[str] | None,
        data_option(DATA, "[NAME=]DIR", "; may be given several times", shown="the run's data; none with --task"),
    ] = None,
    task: Annotated[
        list[str] | None,
        Option(
            "--task",
            metavar="[NAME=]FILE",
            shown=False,
            panel=DATA,
            help="Multiple-choice questions, or pairs of sentences as in BLiMP, in .jsonl; may be given several times.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        Option(
            "--split",
            metavar="val|train",
            shown="val, or the whole dataset if it has no val",
            panel=DATA,
            help="Split to evaluate on.",
        ),
    ] = None,
    tokens: Annotated[
        str,
        Option(
            "--tokens",
            "--eval-tokens",
            metavar="N|all",
            shown=f"{EVAL_TOKENS:,}",
            panel=DATA,
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
    """Evaluate a model: loss, perplexity and bits per byte, or the accuracy on tasks.

    Without --data or --task it uses the validation split of the data that the run was trained on.

      ramlet eval my-run
      ramlet eval my-run --data general=data --data law --tokens all
      ramlet eval my-run --task questions.jsonl --task grammar=blimp.jsonl
    """
    named = named_datasets("--data", data or ())
    tasks = named_datasets("--task", task or (), stem=True)
    if both := named.keys() & tasks.keys():
        raise UsageError(
            f"{min(both)} is the name of a dataset and of a task: give them names, as in --task tasks=FILE"
        )
    options = {"memory": memory, "threads": threads, **given}
    scores: dict[str, Score | TaskScore] = {}
    with (
        Meter(Budget.parse(memory if given.get("device") != "cuda" else None)) as meter,
        Progress(meter, silent=quiet or json) as bar,
    ):
        if named or not tasks:
            from ramlet.training.evaluate_run import evaluate as measure

            scores |= measure(
                run,
                named or None,
                split=split,
                tokens=_tokens(tokens),
                meter=meter,
                progress=lambda name, done, total: bar.update(f"evaluating {name}", done, total, "tokens"),
                **options,
            )
        if tasks:
            from ramlet.training.evaluate_tasks import evaluate_tasks

            options.pop("seq_len", None)
            scores |= evaluate_tasks(
                run,
                tasks,
                meter=meter,
                progress=lambda name, done, total: bar.update(f"evaluating {name}", done, total, "items"),
                **options,
            )
    results = {name: score.to_dict() for name, score in scores.items()}
    if json:
        print_json({"path": run, "scores": results, "memory": meter.summary()})
        return
    for name, score in results.items():
        if name in tasks:
            print(_task_line(name, score))
        else:
            print(f"{format_score(name, score)}, {score['tokens']:,} tokens")
    print(meter.closing_line())


def _task_line(name: str, score: dict[str, Any]) -> str:
    parts = []
    for measure in ("acc", "acc_norm"):
        if measure in score:
            error = score[f"{measure}_stderr"]
            parts.append(f"{measure} {score[measure]:.4f}" + ("" if error is None else f" ± {error:.4f}"))
    return f"{name}: {', '.join(parts)}, {plural(score['items'], 'item')}"


def _tokens(text: str) -> int | str:
    try:
        return text if text == "all" else Count(least=0).read(text)
    except ValueError as error:
        raise UsageError(f"--tokens {error}; or use all") from None
