"""`ramlet train`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import DeviceMemory, Json, Quiet, Threads, data_option, named_datasets, note, print_json
from ramlet.cli.parameters import Option
from ramlet.cli.passage import passage
from ramlet.cli.progress import Progress, format_score
from ramlet.engines.opening import is_first_process
from ramlet.errors import SettingsError
from ramlet.inputs.settings import ReadSettings
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural
from ramlet.settings.declared import options
from ramlet.training.listener import Listener
from ramlet.training.settings import DATA, KEEPING, LEARNING, LENGTH, MEMORY, MODEL, WATCHING, RunSettings

READING = "Reading text (--input, --stream)"


@with_settings(
    *options(RunSettings),
    *options(ReadSettings, "text_field", "documents", panel=READING),
    panels=(DATA, READING, MODEL, LENGTH, LEARNING, MEMORY, WATCHING, KEEPING),
)
def train(
    out: Annotated[
        Path,
        Option("--out", "-o", "--model-name", metavar="RUN", shown=False, help="Folder for the run."),
    ],
    data: Annotated[
        list[str] | None, data_option(DATA, "DIR[=WEIGHT]", "; several are mixed in proportion to their weights")
    ] = None,
    input_: Annotated[
        list[str] | None,
        Option(
            "--input",
            "--input-file",
            metavar="FILE",
            panel=DATA,
            shown=False,
            help="Text file to prepare and train on; without --tokenizer it gets one: char up to 16 MB, BPE above.",
        ),
    ] = None,
    stream: Annotated[
        list[str] | None,
        Option(
            "--stream",
            "--dataset-id",
            metavar="SOURCE",
            panel=DATA,
            shown=False,
            help="Text to tokenize and train on while streaming (files, URLs, a Hugging Face dataset); needs "
            "--tokenizer.",
        ),
    ] = None,
    use_streaming: Annotated[bool, Option("--use-streaming", hidden=True)] = False,
    tokenizer: Annotated[
        str | None,
        Option(
            "--tokenizer",
            "-T",
            "--tokenization",
            metavar="TOKENIZER",
            panel=DATA,
            shown=False,
            help="gpt2, byte, char (not with --stream), a tokenizer file or folder, or a Hugging Face name; for "
            "--input and --stream.",
        ),
    ] = None,
    memory: DeviceMemory = "auto",
    host_memory: Annotated[
        str | None,
        Option(
            "--host-memory",
            metavar="SIZE",
            panel=MEMORY,
            shown="auto, 60% of free RAM",
            help="RAM budget when training on a GPU.",
        ),
    ] = None,
    threads: Threads = None,
    evals: Annotated[
        list[str] | None,
        Option(
            "--eval",
            "--eval-dataset-dir",
            metavar="[NAME=]DIR",
            panel=WATCHING,
            shown=False,
            help="Also evaluate on this dataset. NAME labels its scores, 'general' if none is given; may be given "
            "several times.",
        ),
    ] = None,
    resume: Annotated[
        bool | None,
        Option(
            "--resume/--no-resume",
            panel=KEEPING,
            shown="resume if all settings are the same, else an error",
            help="--resume continues the run in --out even if the number of steps or the learning rate changed; "
            "--no-resume starts over, and deletes the old run once the new one has a checkpoint.",
        ),
    ] = None,
    *,
    given: Given,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model within a memory budget.

    Give the data with one of --data, --input and --stream, and the model with --params, --config or --init-from.

    To fit the memory budget, batches are split into micro-batches; the batch size stays as it is given. After an
    interruption, run the same command again to resume.

      ramlet train --data data --out run --params 10M --memory 2GB

      ramlet train --input book.txt --out run --params 1M --max-steps 2000

      ramlet train --data law --init-from run --eval general=data --out run-law
    """
    reading: Given = {name: given.pop(name) for name in ("text_field", "documents") if name in given}
    settings = RunSettings(**given)
    if sum(bool(each) for each in (data, input_, stream)) != 1:
        raise SettingsError("give the training data with one of --data, --input and --stream")
    eval_sets = named_datasets("--eval", evals or [], "general")
    if settings.device == "cpu":
        # The first backward pass counts the GPUs, which loads the driver: 150 MB that a CPU run does not need.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    on_gpu = settings.device == "cuda"
    # Under torchrun only one process prints.
    first = is_first_process()
    silent = quiet or json or not first
    with Meter(Budget.parse(host_memory if on_gpu else memory)) as meter, Progress(meter, silent=silent) as bar:
        printer = _Printer(bar, quiet=silent)
        result = _train(
            settings,
            out,
            data=data,
            inputs=input_,
            stream=stream,
            tokenizer=tokenizer,
            reading=reading,
            evals=eval_sets,
            memory=memory,
            host_memory=host_memory,
            threads=threads,
            resume=resume,
            meter=meter,
            printer=printer,
        )
    if not first:
        return
    if json:
        print_json({"path": str(result.path), "already_done": result.already_done, **result.statistics})
        return
    if result.already_done:
        how = "give more steps" if resume else "use --resume"
        print(f"{result.path} already has this run, finished: nothing to do ({how} to train it for longer)")
        return
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    print(f"{plural(result.steps, 'step')}, {result.tokens:,} tokens{loss} in {result.path}")
    for line in _kept(result.statistics):
        print(line)
    rises = result.statistics.get("forgetting", {})
    for name, score in result.scores.items():
        print(f"  {format_score(name, score)}{_format_rise(rises.get(name))}")
    for name, rise in settings.forgotten(rises).items():
        print(f"the model forgot some of {name} ({rise:+.3f}): use a lower --lr, or mix in some of that data")
    predicted = f"predicted {format_bytes(result.predicted)}"
    allowed = format_bytes(result.statistics["memory"]["device_budget"])
    print(f"peak {format_bytes(result.peak)} of {allowed} ({predicted})")


def _train(
    settings: RunSettings,
    out: Path,
    *,
    data: list[str] | None,
    inputs: list[str] | None,
    tokenizer: str | None,
    reading: dict[str, Any],
    threads: int | None,
    meter: Meter,
    printer: _Printer,
    **rest: Any,
) -> Any:
    from dataclasses import asdict

    from ramlet.training.entry import train as run
    from ramlet.training.mix import parse_data

    source: Any = parse_data(data) if data else None
    if inputs:
        from ramlet.training.own_data import prepare_own

        settings.require_size()
        source = str(
            prepare_own(
                inputs,
                out,
                meter=meter,
                tokenizer=tokenizer,
                reading=reading,
                threads=threads,
                val_fraction=settings.val_fraction,
                progress=lambda stage, done, total: printer.bar.update(stage, done, total or None),
            )
        )
        tokenizer, reading = None, {}
    return run(
        source,
        out,
        tokenizer=tokenizer,
        reading=reading,
        threads=threads,
        meter=meter,
        listener=printer,
        **rest,
        **asdict(settings),
    )


def _kept(statistics: Mapping[str, Any]) -> Iterator[str]:
    """Which model was kept, if it is not that of the last step."""
    model, best = statistics["model"], statistics["best"]
    if model["averaged"]:
        without = "" if best["loss"] is None else f" (the best step without averaging: loss {best['loss']:.4f})"
        yield f"the model is the average of the last {model['averaged']} samples of the weights{without}"
    elif model["step"] != statistics["steps"]:
        last = ", ".join(f"{name} {score['loss']:.4f}" for name, score in statistics["last_scores"].items())
        yield f"the model is that of step {model['step']:,}, which had the lowest loss (after the last step: {last})"


def _format_rise(rise: float | None) -> str:
    return "" if rise is None else f" ({rise:+.4f} since the start)"


def _shared(plan: Any) -> str:
    """What the ranks divide among them."""
    if plan.world == 1:
        return ""
    divided = "" if plan.choice.shard == "none" else f", which divide {_DIVIDED[plan.choice.shard]}"
    return f", {plan.world} ranks{divided}"


_DIVIDED = {
    "states": "the optimizer's states",
    "gradients": "states and gradients",
    "weights": "states, gradients and weights",
}


class _Printer(Listener):
    """Prints what happens in a run."""

    def __init__(self, bar: Progress, *, quiet: bool) -> None:
        self.bar = bar
        self._quiet = quiet
        self._left: float | None = None

    def _line(self, line: str) -> None:
        if not self._quiet:
            self.bar.close()
            note(line)

    def noted(self, line: str) -> None:
        self._line(line)

    def warned(self, line: str) -> None:
        self._line(f"warning: {line}")

    def planned(self, plan: Any, resumed_at: int) -> None:
        shape, choice = plan.shape, plan.choice
        self._line(
            f"{shape.parameters:,} parameters: {plural(shape.layers, 'layer')} of {shape.width}, "
            f"{plural(shape.heads, 'head')}, feed-forward {shape.feed_forward}, {shape.vocab_size:,} tokens"
        )
        split = f" in {plan.accumulation} micro-batches of {choice.micro_batch}" if plan.accumulation > 1 else ""
        self._line(
            f"{plan.batch_size} x {plan.seq_len} tokens per step{split}, {choice.compute}, {choice.optimizer}"
            f"{', activation checkpointing' if choice.recompute else ''}{_shared(plan)}; predicted peak "
            f"{format_bytes(plan.peak)} of {format_bytes(plan.budget)}"
        )
        for line in plan.notes:
            self._line(f"note: {line}")
        if resumed_at:
            self._line(f"resuming from step {resumed_at:,}")

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, memory: int) -> None:
        detail = f"loss {loss:.4f}   {tokens_per_second:,.0f} tokens/s"
        self.bar.update("training", step, steps, "steps", detail, self._left)

    def expected(self, seconds: float) -> None:
        self._left = seconds

    def stopping(self) -> None:
        line = "stopping and saving a checkpoint (press Ctrl-C again to stop at once)"
        try:
            self._line(line)
        except RuntimeError:  # the signal came while a line was being written
            os.write(2, f"\n{line}\n".encode())

    def evaluating(self, name: str, done: int, total: int) -> None:
        self.bar.update(f"evaluating {name}", done, total, "tokens")

    def evaluated(self, step: int, scores: Mapping[str, Any], forgotten: Mapping[str, float]) -> None:
        self.bar.erase()
        for name, score in scores.items():
            rise = forgotten.get(name) if step else None
            self._line(f"step {step:,}: {format_score(name, score.to_dict())}{_format_rise(rise)}")

    def averaged(self, count: int, scores: Mapping[str, Any]) -> None:
        self.bar.erase()
        for name, score in scores.items():
            self._line(f"average of the last {count}: {format_score(name, score.to_dict())}")

    def sampled(self, step: int, text: str) -> None:
        self._line("\n".join([f"step {step:,} writes:", *passage(text)]))
