"""`ramlet generate`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import MEMORY, DeviceMemory, Json, Quiet, Threads, note, print_json
from ramlet.cli.parameters import Argument, Option
from ramlet.cli.progress import Progress
from ramlet.engines.opening import OF_WEIGHTS
from ramlet.errors import RamletError, SettingsError
from ramlet.generation.settings import SAMPLING, TEXT, SampleSettings
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural
from ramlet.settings.declared import options
from ramlet.settings.kinds import Choice
from ramlet.training.settings import RunSettings

if TYPE_CHECKING:
    from ramlet.generation.writer import Writer, Writing

PROMPT_BYTES = 16 << 20
"""Longer standard input is an error."""

GREETING = """\
The model continues what you type; it was not trained to answer. Each line is a new prompt.
:set temperature 0.5 changes a setting, :settings shows all, :quit or Ctrl-D exits, Ctrl-C stops the text."""

_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
"""A model may write any character, including those that would move a terminal's cursor or change its title."""


@with_settings(
    *options(SampleSettings),
    *options(RunSettings, "device", "engine"),
    *options(
        RunSettings,
        "precision",
        kind=Choice(OF_WEIGHTS),
        help="Dtype of the weights; auto: fp32 on a CPU, else bf16 or fp16, in half the memory.",
        stands_for={},
    ),
    panels=(TEXT, SAMPLING, MEMORY),
)
def generate(
    run: Annotated[
        Path | None,
        Argument(
            metavar="RUN",
            shown=False,
            needed=True,
            help="A run, one of its checkpoints, or the folder of a Llama or Qwen3 model.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            shown="standard input, or an interactive prompt on a terminal",
            panel=TEXT,
            help="The text to continue; may be empty.",
        ),
    ] = None,
    echo: Annotated[
        bool,
        Option("--echo/--no-echo", panel=TEXT, help="Print the prompt before the generated text."),
    ] = True,
    threads: Threads = None,
    memory: DeviceMemory = "auto",
    model_name: Annotated[Path | None, Option("--model-name", hidden=True)] = None,
    *,
    given: Given,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate text with a trained model.

    The text continues the prompt and is printed token by token. It may be longer than the model's context: when
    the context is full, its older half is dropped and generation goes on.

      ramlet generate RUN --prompt "Once upon a time" --max-tokens 300

      echo "Once upon a time" | ramlet generate RUN --num-samples 3 --seed 1

      ramlet generate RUN
    """
    from ramlet.generation.entry import load

    if (run is None) == (model_name is None):
        raise SettingsError("give one model: a run, one of its checkpoints, a Llama or a Qwen3 folder")
    device, precision = given.pop("device", "auto"), given.pop("precision", "auto")
    engine = given.pop("engine", "auto")
    settings = SampleSettings(**given)
    interactive = prompt is None and sys.stdin.isatty()
    if prompt is None and not interactive:
        prompt = _from_stdin()
    if interactive and json:
        raise SettingsError("--json needs a prompt: give --prompt, or text on standard input")
    budget = Budget.parse(memory) if device == "cpu" else None  # otherwise its meaning depends on the device
    with Meter(budget) as meter:
        meter.stage("loading")
        writer = load(
            run or model_name or "",
            settings,
            prompt=prompt,
            device=device,
            engine=engine,
            precision=precision,
            memory=budget or memory,
            threads=threads,
            meter=meter,
        )
        if writer.engine.kind == "cpu":
            meter.budget = writer.budget
        meter.stage("writing")
        if interactive:
            _interact(writer, settings, quiet)
        else:
            path = str(run or model_name)
            _generate(writer, settings, prompt or "", meter, path, json=json, echo=echo, quiet=quiet)
    if not json:
        note(_closing_line(writer, meter), quiet=quiet)


def _from_stdin() -> str:
    text = sys.stdin.buffer.read(PROMPT_BYTES + 1)
    if len(text) > PROMPT_BYTES:
        raise SettingsError(f"standard input has more than {format_bytes(PROMPT_BYTES)}: give a shorter prompt")
    # Without the newline that `echo` adds.
    return text.decode("utf-8", "replace").removesuffix("\n")


def _generate(
    writer: Writer,
    settings: SampleSettings,
    prompt: str,
    meter: Meter,
    path: str,
    *,
    json: bool,
    echo: bool,
    quiet: bool,
) -> None:
    if prompt.endswith(" ") and writer.tokenizer.kind == "bpe" and not json:
        note("note: the prompt ends with a space, but tokens begin with their own: remove it", quiet=quiet)
    began = time.monotonic()
    writing = writer.write(prompt, settings)
    seed = _seed(writing, settings)
    if json or settings.num_samples > 1:
        with Progress(meter, silent=json or quiet) as bar:
            texts = _texts(writing, bar, settings.max_tokens)
            bar.erase()
        if json:
            print_json(
                {
                    "path": path,
                    "prompt": prompt,
                    "samples": [
                        {"text": text, "tokens": tokens, "seed": None if seed is None else seed + sample}
                        for sample, (text, tokens) in enumerate(zip(texts, writing.tokens))
                    ],
                    "seconds": round(time.monotonic() - began, 3),
                    "device": writer.engine.name,
                    "precision": writer.precision,
                    "memory": meter.summary(),
                }
            )
            return
        _print_all(texts, seed, prompt if echo else "")
    else:
        _print_stream(writing, prompt if echo else "")
    note(_speed(writing, seed, time.monotonic() - began), quiet=quiet)


def _seed(writing: Writing, settings: SampleSettings) -> int | None:
    """The seed that reproduces the text; None if sampling is greedy."""
    return writing.seed if settings.temperature else None


def _texts(writing: Writing, bar: Progress, max_tokens: int) -> list[str]:
    texts: list[list[str]] = [[] for _ in writing.tokens]
    for sample, piece in writing:
        texts[sample].append(piece)
        bar.update("writing", sum(writing.tokens), len(texts) * max_tokens, "tokens")
    return ["".join(pieces) for pieces in texts]


def _print_all(texts: list[str], seed: int | None, prompt: str) -> None:
    for sample, text in enumerate(texts):
        seeded = "" if seed is None else f", seed {seed + sample}"
        print(f"--- {sample + 1} of {len(texts)}{seeded} ---")
        print(prompt + _displayed(text))


def _print_stream(writing: Writing, prompt: str) -> None:
    """Prints the text as it is generated, with a newline at the end, also after Ctrl-C."""
    last = prompt
    try:
        print(prompt, end="", flush=True)
        for _, piece in writing:
            print(_displayed(piece), end="", flush=True)
            last = piece
    except KeyboardInterrupt:
        print(flush=True)
        raise
    if not last.endswith("\n"):
        print(flush=True)


def _displayed(text: str) -> str:
    return text.translate(_CONTROL_PICTURES) if sys.stdout.isatty() else text


def _speed(writing: Writing, seed: int | None, seconds: float) -> str:
    tokens = sum(writing.tokens)
    rate = f", {tokens / seconds:,.1f} per second" if seconds > 0 else ""
    return f"{plural(tokens, 'token')}{rate}{'' if seed is None else f', seed {seed}'}"


def _closing_line(writer: Writer, meter: Meter) -> str:
    if writer.engine.kind == "cpu":
        return meter.closing_line()
    peak = format_bytes(writer.engine.peak(meter))
    return f"peak {peak} of {writer.budget} on the device, {format_bytes(meter.peak)} in the process"


def _interact(writer: Writer, settings: SampleSettings, quiet: bool) -> None:
    """One prompt per line, until the end of input."""
    from contextlib import suppress

    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() a history and line editing
    note(GREETING, quiet=quiet)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if line.strip() in (":quit", ":q", ":exit"):
            return
        try:
            if line.startswith(":"):
                settings = _command(line, settings)
                continue
            writing = writer.write(line, settings)
            if settings.num_samples > 1:
                with Progress(silent=quiet) as bar:
                    texts = _texts(writing, bar, settings.max_tokens)
                    bar.erase()
                _print_all(texts, _seed(writing, settings), line)
            else:
                _print_stream(writing, line)
        except RamletError as error:
            note(f"error: {error}")
        except KeyboardInterrupt:
            continue


def _command(line: str, settings: SampleSettings) -> SampleSettings:
    word, _, rest = line.strip().partition(" ")
    if word == ":set":
        name, _, value = rest.strip().replace("=", " ", 1).partition(" ")
        if not value.strip():
            raise SettingsError("give a name and a value, as in :set temperature 0.5")
        return settings.changed(name, value)
    if word == ":settings":
        for name, value in vars(settings).items():
            note(f"{name} {value if value not in (None, ()) else 'none'}")
        return settings
    raise SettingsError(f"unknown command {word}: choose from :set NAME VALUE, :settings and :quit")
