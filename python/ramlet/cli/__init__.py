"""The `ramlet` command: one file a command, and this one that runs them.

Only this package prints. Results go to standard output; progress, notes and errors to standard error.
What goes wrong is caught in `main`, and nowhere else, and told in one line:

    nothing                                                                   exit 0
    RamletError         error: the cause and the way out                      exit 1
    a check that fails  its findings on standard output: verify, doctor ...   exit 1
    wrong usage         error: the nearest option or command, or an example   exit 2
    Ctrl-C              interrupted; run the same command to go on            exit 130
    closed pipe         nothing (`ramlet ... | head`)                         exit 141
    anything else       error: what, and how to get the traceback             exit 1

With --json an error is also an object on standard output, in place of the result:

    {"error": {"type": "BudgetError", "message": "the cause and the way out", "needed": 438000000, ...}}

A command's file is loaded when the command is named, so that `ramlet tokenizer train` does not pay in
RSS for the others. It has `add_to(root)`, which adds it; see `options.py` for what commands share.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import typer

from ramlet.cli.color import colored, marked
from ramlet.cli.options import DEBUG, JSON, new_app, print_json
from ramlet.cli.usage import usage_sentence
from ramlet.cli.wording import sentence_of, speak_of
from ramlet.errors import Interrupted, PipelineError, RamletError

__all__ = ["main", "run"]

COMMANDS = {
    "demo": "ramlet.cli.demo",
    "init": "ramlet.cli.init",
    "run": "ramlet.cli.run",
    "tokenizer": "ramlet.cli.tokenizer",
    "prepare": "ramlet.cli.prepare",
    "data": "ramlet.cli.data",
    "plan": "ramlet.cli.plan",
    "train": "ramlet.cli.train",
    "eval": "ramlet.cli.eval",
    "generate": "ramlet.cli.generate",
    "export": "ramlet.cli.export",
    "report": "ramlet.cli.report",
    "doctor": "ramlet.cli.doctor",
    "completion": "ramlet.cli.completion",
}
"""By name; the order is that of the help."""

ABOUT = """Train a language model from raw text, in the RAM you have.

      ramlet demo
      ramlet init corpus/
      ramlet run pipeline.yaml
      ramlet generate my-model/run --prompt "Once upon a time"
"""

INTERRUPTED = "interrupted; run the same command to go on"


def main(arguments: Sequence[str] | None = None, *, told_to: Callable[[RamletError], None] | None = None) -> int:
    """Runs the command and returns its exit code; what goes wrong is printed, or `told_to` one who waits for it."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def failed(error: BaseException, *, mark: str = "error: ") -> None:
        if told_to is None:
            _tell_failure(error, as_json=JSON in words, mark=mark)
        else:
            told_to(error if isinstance(error, RamletError) else RamletError(sentence_of(error)))

    debug = False
    speak_of({})
    try:
        command = _root(words)
        if os.environ.get("_RAMLET_COMPLETE"):
            return _complete(command, words)
        with command.make_context("ramlet", words, color=colored(sys.stdout)) as context:
            try:
                command.invoke(context)
            finally:
                debug = bool(context.meta.get(DEBUG))
        sys.stdout.flush()
        return 0
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, Interrupted, typer.Abort) as stopped:
        told = stopped if isinstance(stopped, Interrupted) and stopped.sentence else Interrupted(INTERRUPTED)
        failed(told, mark="")
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except typer.TyperException as error:
        failed(UsageError(usage_sentence(error)))
        return error.exit_code
    except BaseException as error:
        # BaseException, for a panic of the native core is one. SystemExit is someone's own decision.
        if debug or isinstance(error, SystemExit):
            raise
        if _was_interrupted(error):
            failed(Interrupted(INTERRUPTED), mark="")
            return 130
        failed(error)
        return error.code if isinstance(error, PipelineError) else 1


def run(told_to: Callable[[RamletError], None] | None = None) -> NoReturn:
    """The process of the command: does what is asked for, and ends.

    Once torch was loaded it ends without taking torch's libraries down: that reads 200 MB of their files back into
    memory, and no budget would hold. All that matters is closed and on disk by then.
    """
    code = main(told_to=told_to)
    if "torch" in sys.modules:
        import atexit

        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _root(words: Sequence[str]) -> Any:
    """The command tree: the one command that is named, or all where the help or a typo needs them."""
    root = new_app(ABOUT, version=True)
    named = next((word for word in words if not word.startswith("-")), "")
    for name, module in COMMANDS.items():
        if named == name or named not in COMMANDS:
            import_module(module).add_to(root)
    made: Any = typer.main.get_command(root)
    # Typer puts commands before groups.
    made.commands = {name: made.commands[name] for name in COMMANDS if name in made.commands}
    return made


def _complete(command: Any, words: Sequence[str]) -> int:
    from ramlet.cli.completion import candidates

    for word, help_line in candidates(command, words):
        print(f"{word}\t{help_line}" if help_line else word)
    return 0


def _was_interrupted(error: BaseException) -> bool:
    """Whether it is a panic for Ctrl-C: the native core cannot go on where an import of its own is interrupted."""
    return type(error).__name__ == "PanicException" and "KeyboardInterrupt" in str(error)


class UsageError(RamletError):
    """Words that the command does not take."""


def _tell_failure(error: BaseException, *, as_json: bool, mark: str) -> None:
    """To people on standard error, and to a machine that waits for an object."""
    sentence = sentence_of(error)
    if as_json:
        facts = error.facts if isinstance(error, RamletError) else {}
        try:
            print_json({"error": {"type": type(error).__name__, "message": sentence, **facts}})
        except BrokenPipeError:
            _drop_output()
    _tell(mark + sentence)


def _tell(line: str) -> None:
    try:
        print(marked(line, sys.stderr), file=sys.stderr, flush=True)
    except BrokenPipeError:
        _drop_output()


def _drop_output() -> None:
    """No one reads any more: keeps the interpreter from saying so when it flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            os.dup2(nowhere, stream.fileno())
