"""`ramlet.report`: one page from the folders that the stages wrote.

    ramlet.report("my-run")                              # my-run/report.html
    ramlet.report(["my-run", "my-dataset"], "page.html")

Needs no torch. In memory are the manifest of one dataset at a time and the curves, however long the run is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ramlet.errors import SettingsError, option
from ramlet.inputs.formats import first_bytes
from ramlet.inputs.paths import check_path, paths_of
from ramlet.reporting.found import Progress
from ramlet.reporting.lineage import Lineage, LineageFinder
from ramlet.reporting.page import BEGINNING, page
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.budget import Budget
from ramlet.runtime.folder_lock import hold, is_stream

NAME = "report.html"


def report(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None
) -> Path:
    """Writes a page about runs, datasets or tokenizers, to `out` or to report.html in the first of them.

    ramlet.report("my-run")  # my-run/report.html
    ramlet.report(["run-a", "run-b"], out="compared.html")
    """
    if out is not None:
        check_path(out)
    return write_report(paths_of(paths), out)[0]


def write_report(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[Path, list[Lineage]]:
    """The same; returns also what is on the page."""
    lineages = LineageFinder(progress, budget).find(paths)
    target = Path(out) if out is not None else Path(paths[0]) / NAME
    if target.is_dir():
        raise SettingsError(f"{target} is a folder: name a file for the page, as in {option('out', target / NAME)}")
    try:
        with hold(target, "report", makes_folder=False):
            # Now that nobody else writes it: another command may have written its own result there meanwhile.
            _refuse_others(target)
            with replacing(target, streams=True) as file:
                file.write(page(lineages))
    except OSError as error:
        if isinstance(error, SettingsError) or error.strerror is None:
            raise
        raise SettingsError(
            f"cannot write {target}: {error.strerror}; choose another file with {option('out')} FILE"
        ) from None
    return target, lineages


def _refuse_others(target: Path) -> None:
    if first_bytes(os.fspath(target), len(BEGINNING)) not in (b"", BEGINNING.encode()) and not is_stream(target):
        raise SettingsError(
            f"{target} is not a report, and would be replaced: choose another file with {option('out')}"
        )
