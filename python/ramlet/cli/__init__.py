"""The `ramlet` command: one file a command, and this one that runs them.

Only this package prints. Results go to standard output; progress, notes and errors to standard error.
What goes wrong is caught in `main`, and nowhere else:

    RamletError         error: one sentence                                   exit 1
    wrong usage         error: one sentence, and where the help is            exit 2
    Ctrl-C              interrupted; run the same command to go on            exit 130
    closed pipe         nothing (`ramlet ... | head`)                         exit 141
    anything else       error: one sentence, and how to get the traceback     exit 1

A command's file is loaded when the command is named, so that `ramlet tokenizer train` does not pay in
RSS for the others. It has `add_to(root)`, which adds it; see `options.py` for what commands share.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import typer

from ramlet.cli.options import DEBUG, new_app
from ramlet.errors import Interrupted, RamletError

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
}
"""By name; the order is that of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = False
    try:
        command = typer.main.get_command(_root(words))
        with command.make_context("ramlet", words) as context:
            try:
                command.invoke(context)
            finally:
                debug = bool(context.meta.get(DEBUG))
        sys.stdout.flush()
        return 0
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, Interrupted, typer.Abort) as stopped:
        told = str(stopped) if isinstance(stopped, Interrupted) else ""
        _tell(told or "interrupted; run the same command to go on")
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except typer.TyperException as error:
        _tell(f"error: {_usage_sentence(error)}")
        return error.exit_code
    except BaseException as error:
        # BaseException, for a panic of the native core is one. SystemExit is someone's own decision.
        if debug or isinstance(error, SystemExit):
            raise
        _tell(f"error: {_sentence(error)}")
        return 1


def run() -> NoReturn:
    """The process of the command: does what is asked for, and ends.

    Once torch was loaded it ends without taking torch's libraries down: that reads 200 MB of their files back into
    memory, and no budget would hold. All that matters is closed and on disk by then.
    """
    code = main()
    if "torch" in sys.modules:
        import atexit
        import os

        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _root(words: Sequence[str]) -> typer.Typer:
    """The command tree: the one command that is named, or all where the help or a typo needs them."""
    root = new_app("Train a language model from raw text, in the RAM you have.", version=True)
    named = next((word for word in words if not word.startswith("-")), "")
    for name, module in COMMANDS.items():
        if named == name or named not in COMMANDS:
            import_module(module).add_to(root)
    return root


def _sentence(error: BaseException) -> str:
    if isinstance(error, RamletError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "the machine is out of memory: give a smaller --memory, or free some"
    reason = f"{type(error).__name__}: {error}".replace("\n", " ")
    return f"{reason}; this is a defect of ramlet, run it again with --debug to see where"


def _usage_sentence(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ramlet"
    near = getattr(error, "possibilities", None)
    if near:
        sentence = f"no such option: {getattr(error, 'option_name', '')}; did you mean {near[0]}?"
    else:
        sentence = error.format_message()
        sentence = sentence[:1].lower() + sentence[1:].rstrip(".").replace(". Did you", "; did you")
    return f"{sentence}\n  {path} --help tells what there is"


def _tell(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _drop_output()


def _drop_output() -> None:
    """No one reads any more: keeps the interpreter from saying so when it flushes at exit."""
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            os.dup2(nowhere, stream.fileno())
