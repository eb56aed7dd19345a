"""The `ramlet` command: this file runs it, and each command has a file of its own.

Only this package prints: results to standard output; progress, notes and errors to standard error. Errors are caught in
`main` and nowhere else, and shown in one line:

    nothing                                                                   exit 0
    RamletError         error: the cause, and what to do                      exit 1
    a failed check      its findings on standard output: verify, doctor ...   exit 1
    wrong usage         error: the nearest option or command, or an example   exit 2
    Ctrl-C              interrupted; run the same command to resume           exit 130
    closed pipe         nothing (`ramlet ... | head`)                         exit 141
    anything else       error: what, and how to get the traceback             exit 1

With --json an error is also printed to standard output as an object, instead of the result:

    {"error": {"type": "BudgetError", "message": "the cause, and what to do", "needed": 438000000, ...}}

A command's module is imported only if the command is named, so `ramlet tokenizer train` does not pay for the others in
RSS. `options.py` has what commands share.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from ramlet.cli.color import colored, marked
from ramlet.cli.help_page import DEBUG, SETTINGS
from ramlet.cli.options import JSON, new_app, print_json
from ramlet.cli.usage import UsageError, usage_sentence
from ramlet.cli.wording import sentence_of
from ramlet.errors import Interrupted, PipelineError, RamletError
from ramlet.runtime.ending import end_process

__all__ = ["main", "run"]

COMMANDS = {
    "demo": "ramlet.cli.demo:demo",
    "init": "ramlet.cli.init:init",
    "run": "ramlet.cli.run:run",
    "tokenizer": "ramlet.cli.tokenizer:app",
    "prepare": "ramlet.cli.prepare:prepare",
    "data": "ramlet.cli.data:app",
    "plan": "ramlet.cli.plan:plan",
    "train": "ramlet.cli.train:train",
    "eval": "ramlet.cli.eval:evaluate",
    "generate": "ramlet.cli.generate:generate",
    "export": "ramlet.cli.export:export",
    "report": "ramlet.cli.report:report",
    "doctor": "ramlet.cli.doctor:doctor",
    "completion": "ramlet.cli.completion:completion",
}
"""The function or app of each command, in the order of the help."""

ABOUT = """Train a language model from raw text, in the RAM you have.

      ramlet demo
      ramlet init corpus/
      ramlet run pipeline.yaml
      ramlet generate my-model/run --prompt "Once upon a time"
"""

INTERRUPTED = "interrupted; run the same command to resume"


def main(arguments: Sequence[str] | None = None, *, on_error: Callable[[RamletError], None] | None = None) -> int:
    """Runs a command and returns its exit code; an error is printed, or passed to `on_error`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    meta: Mapping[str, Any] = {}

    def failed(error: BaseException, *, prefix: str = "error: ") -> None:
        sentence = sentence_of(error, meta.get(SETTINGS, {}))
        if on_error is None:
            _print_error(error, sentence, prefix=prefix, as_json=JSON in words)
        else:
            on_error(error if isinstance(error, RamletError) else RamletError(sentence))

    try:
        command = _root(words)
        if os.environ.get("_RAMLET_COMPLETE"):
            return _complete(command, words)
        with command.make_context("ramlet", words, color=colored(sys.stdout)) as context:
            meta = context.meta
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, Interrupted, click.Abort) as stopped:
        shown = stopped if isinstance(stopped, Interrupted) and stopped.sentence else Interrupted(INTERRUPTED)
        failed(shown, prefix="")
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except click.ClickException as error:
        failed(UsageError(usage_sentence(error)))
        return error.exit_code
    except BaseException as error:
        # BaseException, because a panic of the native core is one. SystemExit is deliberate.
        if meta.get(DEBUG) or isinstance(error, SystemExit):
            raise
        if _was_interrupted(error):
            failed(Interrupted(INTERRUPTED), prefix="")
            return 130
        failed(error)
        return error.code if isinstance(error, (PipelineError, UsageError)) else 1


def run(on_error: Callable[[RamletError], None] | None = None) -> NoReturn:
    """Runs the command and ends the process."""
    _open_closed_streams()
    _accept_every_character()
    end_process(main(on_error=on_error))


def _open_closed_streams() -> None:
    """Opens standard streams that are closed (`<&-`) on nothing: the next file to be opened would get the number of
    one, and would be read as standard input, or have messages written into it."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the smallest number that is free
            if handle == number:
                os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, mode))


def _accept_every_character() -> None:
    """Standard output also takes characters that its encoding lacks, and names of files that are not valid UTF-8."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        in_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if in_utf8 else "replace")


def _root(words: Sequence[str]) -> click.Group:
    """The command tree: only the command that is named, or all of them for the help or a typo."""
    root = new_app(ABOUT, version=True)
    named = next((word for word in words if not word.startswith("-")), "")
    for name, where in COMMANDS.items():
        if named == name or named not in COMMANDS:
            module, _, attribute = where.partition(":")
            command = getattr(import_module(module), attribute)
            if isinstance(command, click.Command):
                root.add_command(command, name)
            else:
                root.add(command, name)
    return root


def _complete(command: Any, words: Sequence[str]) -> int:
    from ramlet.cli.completion import candidates

    for word, help_line in candidates(command, words):
        print(f"{word}\t{help_line}" if help_line else word)
    return 0


def _was_interrupted(error: BaseException) -> bool:
    """Whether it was caused by Ctrl-C: the native core panics if one of its imports is interrupted, and Python 3.11
    turns an interruption of some imports into a RuntimeError."""
    if isinstance(error.__cause__, KeyboardInterrupt):
        return True
    return type(error).__name__ == "PanicException" and "KeyboardInterrupt" in str(error)


def _print_error(error: BaseException, sentence: str, *, prefix: str, as_json: bool) -> None:
    """To standard error, and with --json also as an object to standard output."""
    facts = error.facts if isinstance(error, RamletError) else {}
    try:
        if as_json:
            print_json({"error": {"type": type(error).__name__, "message": sentence, **facts}})
    except OSError:
        _drop_output()
    try:
        print(marked(prefix + sentence, sys.stderr), file=sys.stderr, flush=True)
    except OSError:
        _drop_output()
    _drop_output()  # of a full disk, for example


def _drop_output() -> None:
    """Keeps the interpreter from complaining when it flushes at exit what cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
