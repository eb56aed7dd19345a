"""`ramlet generate`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import MEMORY, Debug, Json, Memory, Quiet
from ramlet.cli.tokenizer.options import Threads, note, plural, print_json
from ramlet.errors import RamletError, SettingsError
from ramlet.generation.settings import SAMPLING, TEXT, SampleSettings
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter
from ramlet.settings.declared import options

if TYPE_CHECKING:
    from ramlet.generation.writer import Writer, Writing

PROMPT_BYTES = 16 << 20
"""More than this on standard input is no prompt."""

GREETING = """\
The model goes on from what you type; it was not taught to answer. Each line begins anew.
:set temperature 0.5 changes a setting, :settings shows them all, :quit or Ctrl-D leaves, Ctrl-C stops a text."""

_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
"""A model may write any character, also those that would move a terminal's cursor or change its title."""


@with_settings(*options(SampleSettings), panels=(TEXT, SAMPLING, MEMORY))
def generate(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", show_default=False, help="A run, one of its checkpoints, or a Llama for transformers."
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            show_default=False,
            rich_help_panel=TEXT,
            help="What to go on from; empty: a new text. Left out: standard input, or a dialogue on a terminal.",
        ),
    ] = None,
    echo: Annotated[
        bool,
        typer.Option("--echo/--no-echo", rich_help_panel=TEXT, help="Print the prompt before what comes after it."),
    ] = True,
    device: Annotated[
        str, typer.Option("--device", metavar="auto|cpu|cuda", rich_help_panel=MEMORY, help="Where to work.")
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            metavar="auto|fp32|bf16|fp16",
            rich_help_panel=MEMORY,
            help="How weights are held: bf16 and fp16 take half of the memory.",
        ),
    ] = "auto",
    threads: Threads = None,
    memory: Memory = "auto",
    model_name: Annotated[Path | None, typer.Option("--model-name", hidden=True)] = None,
    *,
    given: Given,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write text with a trained model.

    The text goes on from the prompt and is printed as it comes. Texts may be longer than the model's context: when it
    is full, the last half is read again. On a GPU --memory is that of the device.

      ramlet generate RUN --prompt "Once upon a time" --max-tokens 300

      echo "Once upon a time" | ramlet generate RUN --num-samples 3 --seed 1

      ramlet generate RUN
    """
    from ramlet.generation.entry import load

    if (run is None) == (model_name is None):
        raise SettingsError("name one model: a run, one of its checkpoints, or a folder for transformers")
    settings = SampleSettings(**given)
    talk = prompt is None and sys.stdin.isatty()
    if prompt is None and not talk:
        prompt = _from_stdin()
    if talk and json:
        raise SettingsError("--json needs a prompt: give --prompt, or text on standard input")
    budget = Budget.parse(memory) if device == "cpu" else None  # elsewhere the device decides what it means
    with Meter(budget) as meter:
        meter.stage("loading")
        writer = load(
            run or model_name or "",
            settings,
            prompt=prompt,
            device=device,
            precision=precision,
            memory=budget or memory,
            threads=threads,
        )
        if writer.engine.kind == "cpu":
            meter.budget = writer.budget
        meter.stage("writing")
        if talk:
            _talk(writer, settings, quiet)
        else:
            path = str(run or model_name)
            _once(writer, settings, prompt or "", meter, path, json=json, echo=echo, quiet=quiet)
    if not json:
        note(_closing_line(writer, meter), quiet=quiet)


def _from_stdin() -> str:
    given = sys.stdin.buffer.read(PROMPT_BYTES + 1)
    if len(given) > PROMPT_BYTES:
        raise SettingsError(f"there is more than {format_bytes(PROMPT_BYTES)} on standard input: give a shorter prompt")
    # The line's end that `echo` adds is not meant.
    return given.decode("utf-8", "replace").removesuffix("\n")


def _once(
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
        note("note: the prompt ends with a space, and words bring their own: leave it out", quiet=quiet)
    began = time.monotonic()
    writing = writer.write(prompt, settings)
    seed = _seed(writing, settings)
    if json or settings.num_samples > 1:
        texts = _texts(writing)
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
    """What would give the same text again; None where nothing is drawn."""
    return writing.seed if settings.temperature else None


def _texts(writing: Writing) -> list[str]:
    texts: list[list[str]] = [[] for _ in writing.tokens]
    for sample, piece in writing:
        texts[sample].append(piece)
    return ["".join(pieces) for pieces in texts]


def _print_all(texts: list[str], seed: int | None, prompt: str) -> None:
    for sample, text in enumerate(texts):
        told = "" if seed is None else f", seed {seed + sample}"
        print(f"--- {sample + 1} of {len(texts)}{told} ---")
        print(prompt + _shown(text))


def _print_stream(writing: Writing, prompt: str) -> None:
    """As it comes; the last line is ended even where the text does not, and where Ctrl-C ends it."""
    last = prompt
    try:
        print(prompt, end="", flush=True)
        for _, piece in writing:
            print(_shown(piece), end="", flush=True)
            last = piece
    except KeyboardInterrupt:
        print(flush=True)
        raise
    if not last.endswith("\n"):
        print(flush=True)


def _shown(text: str) -> str:
    return text.translate(_PICTURES) if sys.stdout.isatty() else text


def _speed(writing: Writing, seed: int | None, seconds: float) -> str:
    tokens = sum(writing.tokens)
    rate = f", {tokens / seconds:,.1f} a second" if seconds > 0 else ""
    return f"{plural(tokens, 'token')}{rate}{'' if seed is None else f', seed {seed}'}"


def _closing_line(writer: Writer, meter: Meter) -> str:
    if writer.engine.kind == "cpu":
        return meter.closing_line()
    peak = format_bytes(writer.engine.peak(meter))
    return f"peak {peak} of {writer.budget} on the device, {format_bytes(meter.peak)} of the process"


def _talk(writer: Writer, settings: SampleSettings, quiet: bool) -> None:
    """A prompt a line, until the end of input."""
    from contextlib import suppress

    with suppress(ImportError):
        import readline  # noqa: F401 - input() gets a history and editing
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
                _print_all(_texts(writing), _seed(writing, settings), line)
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
            raise SettingsError("say what to set to what, as in :set temperature 0.5")
        return settings.changed(name, value)
    if word == ":settings":
        for name, value in vars(settings).items():
            note(f"{name} {value if value not in (None, ()) else 'none'}")
        return settings
    raise SettingsError(f"there is no command {word}: there are :set NAME VALUE, :settings and :quit")


def add_to(root: typer.Typer) -> None:
    root.command()(generate)
