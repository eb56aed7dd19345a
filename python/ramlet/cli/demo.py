"""`ramlet demo`: from raw text to a model that writes, by the commands that a user would give.

Each command is a process of its own, so what is seen is what the commands themselves print, and what one of them held
is gone before the next begins. This process measures the memory of all of them together.
"""

from __future__ import annotations

import importlib.util
import json as json_text
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ramlet.cli.color import colored
from ramlet.cli.options import Debug, Json, Quiet
from ramlet.cli.passage import passage
from ramlet.cli.plan import show_plan
from ramlet.cli.progress import format_duration
from ramlet.cli.tokenizer.options import Threads, print_json
from ramlet.errors import Interrupted, RamletError, SettingsError
from ramlet.runtime.budget import Budget
from ramlet.runtime.folder_lock import hold
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural

OWN_MEMORY = 64_000_000
"""What is kept of the budget for this process while a command runs."""


def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            show_default="ramlet-demo, or ramlet-demo-quick",
            help="A folder for all that is made.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller model of less text, in under a minute.")] = False,
    memory: Annotated[
        str, typer.Option("--memory", "-m", metavar="SIZE", help="Never hold more than this, in all stages together.")
    ] = "1GB",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Go from raw text to a model that writes, in under five minutes.

    The text is Python's own standard library, which every machine has. The commands are shown as they are run:
    take them over with a text of yours.

      ramlet demo
      ramlet demo --quick --memory 700MB --out /tmp/demo
    """
    if importlib.util.find_spec("torch") is None:
        raise SettingsError("the demo trains a model, which needs PyTorch: pip install 'ramlet[train]'")
    from ramlet.demo.script import FULL, QUICK, Script, begun_steps, steps_in
    from ramlet.demo.stdlib_text import gather

    budget = Budget.parse(memory)
    size = QUICK if quick else FULL
    out = out or Path("ramlet-demo-quick" if quick else "ramlet-demo")
    script = Script(out, size, f"{(budget.total - OWN_MEMORY) // 10**6}MB", threads)
    began = time.monotonic()
    told = _Told(silent=json or quiet)
    with hold(out, "demo"), Meter(budget) as meter:
        out.mkdir(parents=True, exist_ok=True)
        told.heading("1  Text: the sources of Python's standard library")
        gathered = gather(script.text, size.text)
        told.line(f"{plural(gathered.files, 'file')}, {gathered.size / 1e6:.1f} MB in {script.text}")
        told.heading("2  A tokenizer learned from it")
        told.run(script.tokenizer)
        told.heading("3  A clean dataset of its tokens")
        told.run(script.prepare)
        told.heading("4  What training will take, before it is begun")
        planned = told.asked(script.plan)
        told.plan(planned)
        # The speed is measured, so it differs from time to time: a demo that goes on keeps the steps it began with.
        steps = begun_steps(script.run) or steps_in(size, planned["tokens_per_second"])
        told.heading("5  Training; the model writes at the start, in the middle and at the end")
        told.run(script.train(steps))
        told.heading("6  How much of what it writes is Python?")
        judged = _judged(script, budget, told)
        told.heading("7  The report")
        told.run(script.report)
    seconds = time.monotonic() - began
    if json:
        shares = {name: vars(one) | {"share": one.share} for name, one in judged.items()}
        print_json(
            {
                "path": str(out),
                "report": str(script.page),
                "steps": steps,
                "seconds": round(seconds, 1),
                "python_lines": shares,
                "memory": meter.summary(),
            }
        )
        return
    told.heading(f"Done in {format_duration(seconds)}")
    print(f"open {script.page} in a browser")
    print(f"{meter.closing_line()}, all stages together")
    told.line("\nthe same with a text of yours:\n")
    for words in _yours():
        told.line(f"  {words}")


class _Told:
    """Shows what is done, and does it."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._bold = ("\033[1m", "\033[0m") if colored(sys.stdout) and not silent else ("", "")

    def line(self, text: str) -> None:
        if not self._silent:
            print(text, flush=True)

    def heading(self, text: str) -> None:
        self.line(f"\n{self._bold[0]}{text}{self._bold[1]}")

    def plan(self, planned: dict[str, Any]) -> None:
        if not self._silent:
            show_plan(planned)

    def run(self, words: list[str]) -> None:
        self.line(f"$ ramlet {shlex.join(words)}")
        _finished(subprocess.run(_command(words), stdout=subprocess.DEVNULL if self._silent else None))

    def asked(self, words: list[str]) -> dict[str, Any]:
        """What a command says as JSON."""
        self.line(f"$ ramlet {shlex.join(words)}")
        done = subprocess.run(_command([*words, "--json"]), stdout=subprocess.PIPE, text=True)
        _finished(done)
        answer: dict[str, Any] = json_text.loads(done.stdout)
        return answer


def _command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "ramlet", *words]


def _finished(done: subprocess.CompletedProcess[Any]) -> None:
    """The command has said itself what went wrong."""
    if done.returncode in (130, -2):
        raise Interrupted("ramlet demo goes on from here when it is run again")
    if done.returncode:
        raise RamletError("the demo ends here, for the command above has failed; run it again when that is mended")


def _judged(script: Any, budget: Budget, told: _Told) -> dict[str, Any]:
    from ramlet.demo.judge import PROMPT, judge

    size = script.size
    result = judge(
        script.run,
        script.dataset,
        untrained=script.untrained,
        samples=size.samples,
        tokens=size.sample_tokens,
        memory=budget,
    )
    judged = {"untrained": result.untrained, "trained": result.trained, "real": result.real}
    words = {"untrained": "the untrained model", "trained": "the trained model", "real": "code it has not seen"}
    for name, one in judged.items():
        told.line(f"{words[name]:<22} {one.share:>6.1%} of {plural(one.lines, 'line')}")
    told.line("(lines of statements that Python's parser takes, each statement alone; docstrings are not counted)")
    told.line(f"\nbegun with {' ... '.join(PROMPT.split())!r}, it goes on:\n")
    for line in passage(result.sample, most=20):
        told.line(line)
    return judged


def _yours() -> list[str]:
    return [
        "ramlet init YOUR-TEXT/                # looks at the text and the machine, writes pipeline.yaml",
        "ramlet run pipeline.yaml              # tokenizer, dataset, model and report",
    ]


def add_to(root: typer.Typer) -> None:
    """Adds the command."""
    root.command()(demo)
