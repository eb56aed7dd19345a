"""Staging in a separate process, so that its libraries do not stay in the memory of the caller.

    paths = stage_in_subprocess(["org/name:train", "corpus/"], "OUT/.work/staged", reading=settings)

The process gets its task as one line of JSON and answers in lines of JSON:

    {"progress": ["staging", 1000000, 0]}    any number of times
    {"paths": ["OUT/.work/staged/..."]}      at the end, or:
    {"error": {"type": "SourceError", "sentence": "s3://... does not exist, or ...", "facts": {}}}
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
from ramlet.inputs.staging import Input, needs_staging, stage
from ramlet.inputs.staging_folder import Progress


def stage_in_subprocess(
    inputs: Iterable[str | os.PathLike[str] | Input],
    folder: str | os.PathLike[str],
    *,
    reading: ReadSettings,
    progress: Progress | None = None,
) -> list[str]:
    """As `stage`; inputs that need no library, standard input included, are staged in this process."""
    paths: list[str] = []
    for given in dict.fromkeys(map(as_input, inputs)):
        if given.path == "-" or not needs_staging(given):
            paths += stage([given], folder, reading=reading, progress=progress)
        else:
            paths += _run(given, folder, reading, progress)
    return list(dict.fromkeys(paths))


def _run(given: Input, folder: str | os.PathLike[str], reading: ReadSettings, progress: Progress | None) -> list[str]:
    common = {each.name: getattr(reading, each.name) for each in fields(ReadSettings)}
    task = {"input": asdict(given), "folder": os.fspath(folder), "reading": common}
    # It must import the same ramlet as this process.
    home = os.path.dirname(os.path.dirname(os.path.abspath(errors.__file__)))
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "ramlet.inputs.staging_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError):  # it has ended already: reported below
            process.stdin.write(json.dumps(task).encode())
            process.stdin.close()
        for line in process.stdout:
            answer = json.loads(line)
            if "progress" in answer:
                if progress is not None:
                    progress(*answer["progress"])
            elif "error" in answer:
                raise errors.from_json(answer["error"])
            else:
                return list(answer["paths"])
    finally:
        # Whatever happened, it is not needed any more; files that it has finished have their names.
        process.kill()
        process.stdout.close()
        process.wait()
    raise errors.SourceError(f"staging {given.path} ended without a result: run the same command again")


def _answer(**answer: object) -> None:
    _OUT.write(json.dumps(answer) + "\n")
    _OUT.flush()


def _main() -> None:
    task = json.loads(sys.stdin.buffer.read())
    reported = 0

    def report(stage_name: str, done: int, total: int) -> None:
        nonlocal reported
        if done - reported >= 1 << 22:
            reported = done
            _answer(progress=[stage_name, done, total])

    reading = ReadSettings(**task["reading"])
    try:
        paths = stage([Input(**task["input"])], task["folder"], reading=reading, progress=report)
    except errors.RamletError as error:
        _answer(error=error.as_json())
    except KeyboardInterrupt:
        sys.exit(130)  # the caller gets Ctrl-C itself
    else:
        _answer(paths=paths)


if __name__ == "__main__":
    # Libraries may print to stdout, which must not mix with the answers.
    _OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _main()
