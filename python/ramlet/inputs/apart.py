"""Staging in a process of its own, so that the libraries it takes do not stay in the memory of the caller.

    paths = stage_apart(["org/name:train", "corpus/"], "OUT/.work/staged", reading=settings)

The other process gets the task as one line of JSON and answers in lines of JSON:

    {"progress": ["staging", 1000000, 0]}    as often as there is something to tell
    {"paths": ["OUT/.work/staged/..."]}      the end
    {"error": "SourceError", "sentence": "there is no s3://..."}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, fields

from ramlet import errors
from ramlet.inputs.named import as_input
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.shelf import Progress
from ramlet.inputs.staging import Input, needs_staging, stage

__all__ = ["stage_apart"]


def stage_apart(
    inputs: Iterable[str | os.PathLike[str] | Input],
    folder: str | os.PathLike[str],
    *,
    reading: ReadSettings,
    progress: Progress | None = None,
) -> list[str]:
    """As `stage`; what takes no library, standard input included, is done here."""
    paths: list[str] = []
    for given in dict.fromkeys(map(as_input, inputs)):
        if given.path == "-" or not needs_staging(given):
            paths += stage([given], folder, reading=reading, progress=progress)
        else:
            paths += _in_another_process(given, folder, reading, progress)
    return list(dict.fromkeys(paths))


def _in_another_process(
    given: Input, folder: str | os.PathLike[str], reading: ReadSettings, progress: Progress | None
) -> list[str]:
    common = {each.name: getattr(reading, each.name) for each in fields(ReadSettings)}
    task = {"input": asdict(given), "folder": os.fspath(folder), "reading": common}
    # It must find the ramlet that is running here, wherever that was imported from.
    home = os.path.dirname(os.path.dirname(os.path.abspath(errors.__file__)))
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "ramlet.inputs.apart"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError):  # it is gone already: told below
            process.stdin.write(json.dumps(task).encode())
            process.stdin.close()
        for line in process.stdout:
            answer = json.loads(line)
            if "progress" in answer:
                if progress is not None:
                    progress(*answer["progress"])
            elif "error" in answer:
                raise getattr(errors, answer["error"])(answer["sentence"])
            else:
                return list(answer["paths"])
    finally:
        # Of no use any more, whatever happened; what it had finished has its name.
        process.kill()
        process.stdout.close()
        process.wait()
    raise errors.SourceError(f"staging {given.path} ended without a result: run the same again")


def _answer(**words: object) -> None:
    _OUT.write(json.dumps(words) + "\n")
    _OUT.flush()


def _main() -> None:
    task = json.loads(sys.stdin.buffer.read())
    told = 0

    def tell(stage_name: str, done: int, total: int) -> None:
        nonlocal told
        if done - told >= 1 << 22:
            told = done
            _answer(progress=[stage_name, done, total])

    try:
        paths = stage([Input(**task["input"])], task["folder"], reading=ReadSettings(**task["reading"]), progress=tell)
    except errors.RamletError as error:
        _answer(error=type(error).__name__, sentence=str(error))
    except KeyboardInterrupt:
        sys.exit(130)  # the caller hears Ctrl-C itself
    else:
        _answer(paths=paths)


if __name__ == "__main__":
    # Libraries may print; the answers must not mix with that.
    _OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _main()
