"""Standard input -> a file, because inputs are read more than once."""

from __future__ import annotations

import os
import sys
from typing import Any

from ramlet.errors import SourceError
from ramlet.inputs.formats import FORMATS
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging_folder import StagingFolder
from ramlet.runtime.digest import new_hash

CHUNK = 1 << 20
_copied: dict[str, Any] = {}
"""By the path of a copy, the stream it is of: a stream can be read once, and a command may need its text again."""


class StandardInput:
    """Copied once in every run, because only its content, once read, shows whether it is the same."""

    size = None

    def __init__(self, reading: ReadSettings) -> None:
        self._name = "input" + (FORMATS[reading.format or "text"].suffixes or (".txt",))[0]

    def stage(self, folder: StagingFolder) -> list[str]:
        content = new_hash()
        if sys.stdin is None or sys.stdin.closed:
            raise SourceError("there is no standard input to read: give a file instead of -")
        stream: Any = sys.stdin.buffer
        path = folder.place("standard", self._name)
        copy = os.path.abspath(path)
        if _copied.get(copy) is sys.stdin and path.exists():
            return [str(path)]
        with folder.writing(path, content.hexdigest) as file:
            while True:
                try:
                    chunk = stream.read1(CHUNK)
                except OSError as error:
                    raise SourceError(f"cannot read standard input: {error.strerror}") from None
                if not chunk:
                    break
                content.update(chunk)
                file.write(chunk)
                folder.report(len(chunk))
        _copied[copy] = sys.stdin
        return [str(path)]
