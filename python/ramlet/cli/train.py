"""`ramlet train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ramlet.cli.color import marked
from ramlet.cli.options import Debug, Json, Quiet
from ramlet.cli.passage import passage
from ramlet.cli.progress import Progress, format_perplexity
from ramlet.cli.tokenizer.options import Threads, plural, print_json
from ramlet.errors import SettingsError
from ramlet.runtime.budget import Budget, Meter, format_bytes
from ramlet.settings import values as config_values
from ramlet.training.listener import Listener
from ramlet.training.settings import RunSettings, help_text

MODEL, DATA, LENGTH, RATE, MEMORY, WATCH, KEEP = (
    *("Model", "Data", "How long", "Learning", "Memory and speed", "Evaluation and samples", "Checkpoints and logs"),
)
AMOUNTS = (
    *("params", "tokens", "tokens_per_step", "batch_size", "max_steps", "seq_len", "max_examples", "eval_tokens"),
    *("eval_every", "checkpoint_every", "sample_every", "log_every", "warmup", "shuffle_buffer", "micro_batch"),
)
DEFAULTS = RunSettings()


def _option(name: str, panel: str, *flags: str, metavar: str | None = None) -> Any:
    """An option that stands for the setting of this name."""
    default = getattr(DEFAULTS, name)
    shown = False if default is None or default is False or default is True or default == "" else str(default)
    written = flags or (f"--{name.replace('_', '-')}",)
    return typer.Option(*written, metavar=metavar, help=help_text(name), rich_help_panel=panel, show_default=shown)


def train(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", "--model-name", metavar="RUN", show_default=False, help="Folder for the run."),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            "-d",
            "--dataset-dir",
            metavar="DIR[=WEIGHT]",
            rich_help_panel=DATA,
            show_default=False,
            help="A dataset of `ramlet prepare`, or a .npy file; several are mixed by weight.",
        ),
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "--input-file",
            metavar="FILE",
            rich_help_panel=DATA,
            show_default=False,
            help="Text instead, prepared first: as characters up to 16 MB, with a tokenizer of its own above.",
        ),
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            "--stream",
            "--dataset-id",
            metavar="SOURCE",
            rich_help_panel=DATA,
            show_default=False,
            help="Text instead, tokenised while it is trained on and never stored; with --tokenizer.",
        ),
    ] = None,
    use_streaming: Annotated[bool, typer.Option("--use-streaming", hidden=True)] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            "-T",
            "--tokenization",
            metavar="X",
            rich_help_panel=DATA,
            show_default=False,
            help="For --stream and --input.",
        ),
    ] = None,
    text_field: Annotated[
        str,
        typer.Option(
            "--text-field", metavar="NAME", rich_help_panel=DATA, help="Of --stream: the field that holds the text."
        ),
    ] = "text",
    docs: Annotated[
        str, typer.Option("--docs", metavar="file|line", rich_help_panel=DATA, help="Of --stream: what a document is.")
    ] = "file",
    stride: Annotated[int | None, _option("stride", DATA, metavar="N")] = None,
    max_examples: Annotated[str | None, _option("max_examples", DATA, metavar="N")] = None,
    document_mask: Annotated[bool, _option("document_mask", DATA)] = False,
    val_fraction: Annotated[float, _option("val_fraction", DATA, metavar="F")] = DEFAULTS.val_fraction,
    shuffle_buffer: Annotated[
        str, _option("shuffle_buffer", DATA, "--shuffle-buffer", "--shuffle-buffer-size", metavar="N")
    ] = str(DEFAULTS.shuffle_buffer),
    params: Annotated[str | None, _option("params", MODEL, "--params", "-p", "--target-params", metavar="N")] = None,
    config: Annotated[str | None, _option("config", MODEL, "--config", "--config-file", metavar="FILE")] = None,
    init_from: Annotated[
        str | None, _option("init_from", MODEL, "--init-from", "--init-from-model", metavar="RUN")
    ] = None,
    seq_len: Annotated[str | None, _option("seq_len", MODEL, metavar="T")] = None,
    kv_groups: Annotated[int, _option("kv_groups", MODEL, metavar="N")] = DEFAULTS.kv_groups,
    tied: Annotated[bool, _option("tied", MODEL, "--tied/--untied")] = True,
    max_steps: Annotated[str | None, _option("max_steps", LENGTH, "--max-steps", "--max-iters", metavar="N")] = None,
    epochs: Annotated[float | None, _option("epochs", LENGTH, metavar="N")] = None,
    tokens: Annotated[str | None, _option("tokens", LENGTH, metavar="N")] = None,
    batch_size: Annotated[str, _option("batch_size", LENGTH, metavar="B")] = str(DEFAULTS.batch_size),
    gradient_accumulation_steps: Annotated[int, _option("gradient_accumulation_steps", LENGTH, metavar="N")] = 1,
    tokens_per_step: Annotated[str | None, _option("tokens_per_step", LENGTH, metavar="N")] = None,
    lr: Annotated[float | None, _option("lr", RATE, "--lr", "--learning-rate", metavar="F")] = None,
    min_lr: Annotated[float | None, _option("min_lr", RATE, metavar="F")] = None,
    warmup: Annotated[str | None, _option("warmup", RATE, metavar="STEPS")] = None,
    schedule: Annotated[str, _option("schedule", RATE, metavar="cosine|linear|constant")] = DEFAULTS.schedule,
    weight_decay: Annotated[float, _option("weight_decay", RATE, metavar="F")] = DEFAULTS.weight_decay,
    beta1: Annotated[float, _option("beta1", RATE, metavar="F")] = DEFAULTS.beta1,
    beta2: Annotated[float, _option("beta2", RATE, metavar="F")] = DEFAULTS.beta2,
    eps: Annotated[float, _option("eps", RATE, metavar="F")] = DEFAULTS.eps,
    clip: Annotated[float, _option("clip", RATE, metavar="F")] = DEFAULTS.clip,
    seed: Annotated[int, _option("seed", RATE, metavar="S")] = DEFAULTS.seed,
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            "-m",
            metavar="SIZE",
            rich_help_panel=MEMORY,
            help="Never hold more than this, of the device on a GPU: 512MB, 2GB, 50% or auto.",
        ),
    ] = "auto",
    host_memory: Annotated[
        str | None,
        typer.Option(
            "--host-memory",
            metavar="SIZE",
            rich_help_panel=MEMORY,
            show_default="auto",
            help="On a GPU: the same for RAM.",
        ),
    ] = None,
    device: Annotated[str, _option("device", MEMORY, metavar="auto|cpu|cuda")] = DEFAULTS.device,
    precision: Annotated[str, _option("precision", MEMORY, metavar="auto|bf16|fp16|fp32")] = DEFAULTS.precision,
    mixed: Annotated[
        bool, typer.Option("--use-mixed-precision", rich_help_panel=MEMORY, help="The same as --precision bf16.")
    ] = False,
    optimizer: Annotated[str, _option("optimizer", MEMORY, metavar="auto|adamw|adamw8bit")] = DEFAULTS.optimizer,
    eight_bit: Annotated[
        bool, typer.Option("--use-8bit-optimizer", rich_help_panel=MEMORY, help="The same as --optimizer adamw8bit.")
    ] = False,
    weights: Annotated[str, _option("weights", MEMORY, metavar="auto|fp32|bf16")] = DEFAULTS.weights,
    micro_batch: Annotated[str | None, _option("micro_batch", MEMORY, metavar="N")] = None,
    recompute: Annotated[bool | None, _option("recompute", MEMORY, "--recompute/--no-recompute")] = None,
    threads: Threads = None,
    evals: Annotated[
        list[str] | None,
        typer.Option(
            "--eval",
            "--eval-dataset-dir",
            metavar="NAME=DIR",
            rich_help_panel=WATCH,
            show_default=False,
            help="Evaluate on this dataset as well; may be given again.",
        ),
    ] = None,
    eval_every: Annotated[str | None, _option("eval_every", WATCH, metavar="STEPS")] = None,
    eval_tokens: Annotated[str | None, _option("eval_tokens", WATCH, metavar="N")] = None,
    forgetting: Annotated[float, _option("forgetting", WATCH, metavar="F")] = DEFAULTS.forgetting,
    sample_every: Annotated[str | None, _option("sample_every", WATCH, metavar="STEPS")] = None,
    sample_prompt: Annotated[str, _option("sample_prompt", WATCH, metavar="TEXT")] = "",
    sample_tokens: Annotated[int, _option("sample_tokens", WATCH, metavar="N")] = DEFAULTS.sample_tokens,
    checkpoint_every: Annotated[str | None, _option("checkpoint_every", KEEP, metavar="STEPS")] = None,
    keep: Annotated[int, _option("keep", KEEP, metavar="N")] = DEFAULTS.keep,
    log_every: Annotated[str, _option("log_every", KEEP, metavar="STEPS")] = str(DEFAULTS.log_every),
    spike: Annotated[float, _option("spike", KEEP, metavar="F")] = DEFAULTS.spike,
    tensorboard: Annotated[bool, _option("tensorboard", KEEP)] = False,
    wandb: Annotated[bool, _option("wandb", KEEP)] = False,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume",
            rich_help_panel=KEEP,
            show_default=False,
            help="Go on with the run in --out, also to another end; or begin anew. Left out: go on if all is the same.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a model, within a memory budget.

    The budget decides how a step is divided, never how large it is. Interrupted, the same command goes on where it was.

      ramlet train --data data --out run --params 10M --memory 2GB

      ramlet train --input book.txt --out run --params 1M --max-steps 2000

      ramlet train --data law --init-from run --eval general=data --out run-law
    """
    given = dict(locals())
    chosen = {name: given[name] for name in vars(DEFAULTS)}
    for name in AMOUNTS:
        if isinstance(chosen[name], str):
            try:
                chosen[name] = config_values.count(chosen[name])
            except ValueError as error:
                raise SettingsError(f"--{name.replace('_', '-')} {error}") from None
    if mixed:
        chosen["precision"] = _agreed("--use-mixed-precision", "precision", precision, "bf16")
    if eight_bit:
        chosen["optimizer"] = _agreed("--use-8bit-optimizer", "optimizer", optimizer, "adamw8bit")
    settings = RunSettings(**chosen)
    if sum(bool(each) for each in (data, input_, stream)) != 1:
        raise SettingsError("name what to train on with one of --data, --input and --stream")
    named = _evals(evals or [])
    if settings.device == "cpu":
        # The first step back asks how many GPUs there are, which wakes the driver: 150 MB that no CPU run needs.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    on_gpu = settings.device == "cuda"
    # Under torchrun one process speaks for all.
    first = os.environ.get("RANK", "0") == "0"
    silent = quiet or json or not first
    with Meter(Budget.parse(host_memory if on_gpu else memory)) as meter, Progress(meter, silent=silent) as bar:
        shown = _Shown(bar, quiet=silent)
        result = _train(
            settings,
            out,
            data=data,
            inputs=input_,
            stream=stream,
            tokenizer=tokenizer,
            reading={"text_field": text_field, "documents": docs},
            evals=named,
            memory=memory,
            host_memory=host_memory,
            threads=threads,
            resume=resume,
            meter=meter,
            shown=shown,
        )
    if not first:
        return
    if json:
        print_json({"path": str(result.path), "already_done": result.already_done, **result.statistics})
        return
    if result.already_done:
        print(f"{result.path} holds this run, finished: nothing to do (--resume with a later end goes on)")
        return
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    print(f"{plural(result.steps, 'step')}, {result.tokens:,} tokens{loss} in {result.path}")
    rises = result.statistics.get("forgetting", {})
    for name, score in result.scores.items():
        print(f"  {_score_words(name, score)}{_rise_words(rises.get(name))}")
    for name, rise in settings.forgotten(rises).items():
        print(f"the model forgot some of {name} ({rise:+.3f}): a lower --lr, or some of that data mixed in, keeps more")
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
    threads: int | None,
    meter: Meter,
    shown: _Shown,
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
                threads=threads,
                val_fraction=settings.val_fraction,
                progress=lambda stage, done, total: shown.bar.update(stage, done, total or None),
            )
        )
    return run(
        source, out, tokenizer=tokenizer, threads=threads, meter=meter, listener=shown, **rest, **asdict(settings)
    )


def _agreed(flag: str, name: str, given: str, meant: str) -> str:
    if given not in ("auto", meant):
        raise SettingsError(f"{flag} and --{name} {given} say different things: leave one out")
    return meant


def _evals(words: list[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for word in words:
        name, mark, path = word.partition("=")
        if not mark:
            name, path = "general" if "general" not in named else Path(word).name, word
        if not name or not path or name in named:
            raise SettingsError(f"--eval {word}: give each set a name of its own, as in --eval general={path or 'DIR'}")
        named[name] = path
    return named


def _score_words(name: str, score: Mapping[str, Any]) -> str:
    bits = "" if score["bits_per_byte"] is None else f", {score['bits_per_byte']:.3f} bits per byte"
    return f"{name}: loss {score['loss']:.4f}, perplexity {format_perplexity(score['perplexity'])}{bits}"


def _rise_words(rise: float | None) -> str:
    return "" if rise is None else f" ({rise:+.4f} since the start)"


class _Shown(Listener):
    """A run as lines on a terminal."""

    def __init__(self, bar: Progress, *, quiet: bool) -> None:
        self.bar = bar
        self._quiet = quiet
        self._left: float | None = None

    def _line(self, line: str) -> None:
        if not self._quiet:
            self.bar.close()
            print(marked(line, sys.stderr), file=sys.stderr, flush=True)

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
        divided = f" in {plan.accumulation} parts of {choice.micro_batch}" if plan.accumulation > 1 else ""
        self._line(
            f"{plan.batch_size} x {plan.seq_len} tokens a step{divided}, {choice.compute}, {choice.optimizer}"
            f"{', layers made again on the way back' if choice.recompute else ''}; predicted peak "
            f"{format_bytes(plan.peak)} of {format_bytes(plan.budget)}"
        )
        for line in plan.notes:
            self._line(f"note: {line}")
        if resumed_at:
            self._line(f"going on from step {resumed_at:,}")

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, memory: int) -> None:
        detail = f"loss {loss:.4f}   {tokens_per_second:,.0f} tokens/s"
        self.bar.update("training", step, steps, "steps", detail, self._left)

    def expected(self, seconds: float) -> None:
        self._left = seconds

    def stopping(self) -> None:
        line = "stopping, and saving what was learned so far (Ctrl-C again stops at once)"
        try:
            self._line(line)
        except RuntimeError:  # the signal came in the middle of a line, which cannot be written into
            os.write(2, f"\n{line}\n".encode())

    def evaluating(self, name: str, done: int, total: int) -> None:
        self.bar.update(f"evaluating {name}", done, total, "tokens")

    def evaluated(self, step: int, scores: Mapping[str, Any], forgotten: Mapping[str, float]) -> None:
        self.bar.erase()
        for name, score in scores.items():
            rise = forgotten.get(name) if step else None
            self._line(f"step {step:,}: {_score_words(name, score.to_dict())}{_rise_words(rise)}")

    def sampled(self, step: int, text: str) -> None:
        self._line("\n".join([f"step {step:,} writes:", *passage(text)]))


def add_to(root: typer.Typer) -> None:
    """Adds the command."""
    root.command("train")(train)
