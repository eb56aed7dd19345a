"""`ramlet demo`: from raw text to a model that writes, using the commands that a user would run.

Each command is a separate process, so its own output is shown, and its memory is released before the next one begins.
This process measures the memory of all of them together.
"""

from __future__ import annotations

import json as json_text
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from ramlet.cli.color import bold
from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import Json, Quiet, Threads, memory_option, print_json
from ramlet.cli.parameters import Option
from ramlet.cli.passage import passage
from ramlet.cli.plan import show_plan
from ramlet.engines.opening import choose_engine
from ramlet.errors import Interrupted, RamletError
from ramlet.runtime.budget import Budget
from ramlet.runtime.folder_lock import hold
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural
from ramlet.runtime.progress import format_duration
from ramlet.runtime.settled import settled_memory, waiting_memory
from ramlet.settings.declared import options
from ramlet.training.settings import RunSettings

NEXT = """
the same with your own text:

  ramlet init YOUR-TEXT/                # looks at the text and the machine, writes pipeline.yaml
  ramlet run pipeline.yaml              # tokenizer, dataset, model and report"""


@with_settings(*options(RunSettings, "engine", panel=""))
def demo(
    out: Annotated[
        Path | None,
        Option(
            "--out",
            "-o",
            metavar="DIR",
            shown="ramlet-demo, or ramlet-demo-quick",
            help="Folder for all results.",
        ),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Train a smaller model on less text, in under a minute.")] = False,
    memory: Annotated[str, memory_option("Memory budget for each stage", default="1GB")] = "1GB",
    threads: Threads = None,
    *,
    given: Given,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go from raw text to a model that generates text, in a few minutes.

    The text is Python's own standard library, which every machine has. Each command is shown before it is run, so you
    can reuse them for your own text.

      ramlet demo
      ramlet demo --quick --memory 200MB --out /tmp/demo
    """
    engine = given.get("engine", "auto")
    choose_engine(engine, "cpu")
    from ramlet.demo.script import FULL, QUICK, STAGE_BYTES, Script, begun_steps, refuse_foreign, steps_in
    from ramlet.demo.stdlib_text import gather

    budget = Budget.parse(memory)
    size = QUICK if quick else FULL
    out = out or Path("ramlet-demo-quick" if quick else "ramlet-demo")
    own = waiting_memory()
    # Now, not at the first stage for which it is too small.
    budget.require(
        own + STAGE_BYTES, {"the largest of the stages": STAGE_BYTES, "the process that waits for them": own}
    )
    script = Script(out, size, f"{(budget.total - own) // 10**6}MB", threads, engine)
    began = time.monotonic()
    show = _Runner(silent=json or quiet)
    with hold(out, "demo"), Meter(budget) as meter:
        refuse_foreign(out)
        out.mkdir(parents=True, exist_ok=True)
        show.heading("1  Text: the source code of Python's standard library")
        gathered = gather(script.text, size.text)
        show.line(f"{plural(gathered.files, 'file')}, {gathered.size / 1e6:.1f} MB in {script.text}")
        show.heading("2  A tokenizer trained on it")
        show.run(script.tokenizer)
        show.heading("3  A clean dataset of its tokens")
        show.run(script.prepare)
        show.heading("4  The memory that training will need")
        planned = show.run_json(script.plan)
        if not show.silent:
            show_plan(planned)
        # The measured speed varies, so a demo that is resumed keeps the number of steps it began with.
        steps = begun_steps(script.run) or steps_in(size, planned["tokens_per_second"])
        show.heading("5  Training; the model writes at the start, in the middle and at the end")
        show.run(script.train(steps))
        show.heading("6  How much of what it writes is Python?")
        judged = _judge(script, show)
        show.heading("7  The report")
        show.run(script.report)
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
    show.heading(f"Done in {format_duration(seconds)}")
    print(f"open {script.page} in a browser")
    print(f"{meter.closing_line()}, all stages together")
    show.line(NEXT)


class _Runner:
    """Shows commands, and runs them."""

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent

    def line(self, text: str) -> None:
        if not self.silent:
            print(text, flush=True)

    def heading(self, text: str) -> None:
        self.line(f"\n{bold(text, sys.stdout)}")

    def run(self, words: list[str]) -> None:
        self._run(words, words, stdout=subprocess.DEVNULL if self.silent else None)

    def run_json(self, words: list[str]) -> dict[str, Any]:
        """The JSON output of a command."""
        answer: dict[str, Any] = json_text.loads(self._run(words, [*words, "--json"], stdout=subprocess.PIPE))
        return answer

    def _run(self, shown: list[str], words: list[str], *, stdout: int | None) -> Any:
        self.line(f"$ ramlet {shlex.join(shown)}")
        return self.wait_for([sys.executable, "-m", "ramlet", *words], stdout=stdout)

    @staticmethod
    def wait_for(command: list[str], *, stdout: int | None) -> Any:
        """The output of a process; it prints its own errors."""
        settled_memory()  # the memory of all processes counts, and this one only waits
        done = subprocess.run(command, stdout=stdout, text=True)
        if done.returncode in (130, -2):
            raise Interrupted("interrupted; run the demo again to resume")
        if done.returncode:  # the command has printed its own error
            raise RamletError("the command above failed: fix the problem and run the demo again to resume")
        return done.stdout


def _judge(script: Any, show: _Runner) -> dict[str, Any]:
    """In a process of its own, like every stage."""
    from ramlet.demo.judge import PROMPT, Judged

    words = [sys.executable, "-m", "ramlet.demo.judge", json_text.dumps(script.judged)]
    result = Judged.from_dict(json_text.loads(show.wait_for(words, stdout=subprocess.PIPE)))
    judged = {"untrained": result.untrained, "trained": result.trained, "real": result.real}
    labels = {"untrained": "the untrained model", "trained": "the trained model", "real": "code it has not seen"}
    for name, one in judged.items():
        show.line(f"{labels[name]:<22} {one.share:>6.1%} of {plural(one.lines, 'line')}")
    show.line("(lines of statements that Python can parse, each statement by itself, without docstrings)")
    show.line(f"\nfor the prompt {' ... '.join(PROMPT.split())!r} it writes:\n")
    for line in passage(result.sample, most=20):
        show.line(line)
    return judged
