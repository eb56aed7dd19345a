"""Paths as users write them: impossible ones refused, and the nearest existing one for a typo."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ramlet.errors import SettingsError
from ramlet.inputs.formats import split_suffixes, stem
from ramlet.settings.names import nearest


def check_path(name: Any) -> None:
    """Refuses what is no path, and what no system accepts as one."""
    if not isinstance(name, (str, os.PathLike)):
        raise SettingsError(f"a path must be text or a path object, not {name!r}")
    if "\0" in os.fsdecode(os.fspath(name)):
        raise SettingsError(f"{os.fspath(name)!r} is not a path: it contains a NUL character")


def paths_of(given: Any) -> list[str | os.PathLike[str]]:
    """One path or several, checked."""
    several = isinstance(given, Iterable) and not isinstance(given, (str, os.PathLike))
    paths = list(given) if several else [given]
    for path in paths:
        check_path(path)
    return paths


def nearest_path(name: str, *, folder_wanted: bool = False) -> str:
    """`; did you mean X?` if a similar name exists, where two names are not similar because both end in `.txt`."""
    folder, last = os.path.split(name.rstrip("/"))
    while folder and not os.path.isdir(folder):
        folder, last = os.path.split(folder)
    try:
        # If two have the same stem, the one with the same suffix wins, which comes last.
        found = sorted(os.listdir(folder or "."), key=lambda each: split_suffixes(each)[0] == split_suffixes(last)[0])
    except OSError:
        found = []
    if folder_wanted:
        found = [each for each in found if os.path.isdir(os.path.join(folder, each))]
    # An entry with exactly this name is a broken link.
    by_stem = {stem(each): each for each in found if each != last or os.path.exists(os.path.join(folder, each))}
    near = nearest(stem(last), by_stem)
    return f"; did you mean {os.path.join(folder, by_stem[near])}?" if near else ""
