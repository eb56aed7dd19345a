"""What kind of input a name means, from the name and what is on disk; nothing is fetched to find out."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from ramlet.errors import SettingsError
from ramlet.inputs.formats import COMPRESSION_OF, FORMAT_OF


@dataclass(frozen=True)
class Input:
    """An input, with the settings that a config file may give for it alone."""

    path: str
    """A file, a folder, a glob, a URL, a name on the hub, or `-`."""

    split: str | None = None
    """Of a dataset; `train` if not given."""

    subset: str | None = None
    """Of a dataset on the hub with several."""

    text_field: str | None = None
    """The column with the text, if it differs from that of the other inputs."""


def as_input(given: str | os.PathLike[str] | Input) -> Input:
    """An Input from whatever a caller may pass."""
    return given if isinstance(given, Input) else Input(os.fspath(given))


@dataclass(frozen=True)
class HubName:
    """A dataset on the hub."""

    shown: str
    repository: str
    revision: str | None
    subset: str | None
    split: str
    text_field: str | None


_URL = re.compile(r"[A-Za-z][\w+.-]*:(?://|:\w)")
"""`s3://bucket/...`, or chained fsspec URLs, `zip::s3://bucket/...`."""

_WORD = r"[\w-][\w.-]*"
_SPLIT = r"(?::(?P<split>[\w.+-]+))?"
_HUB_URL = re.compile(rf"hf://datasets/(?P<repository>{_WORD}(?:/{_WORD})?)(?:@(?P<revision>[\w.-]+))?{_SPLIT}/?")
_HUB_NAME = re.compile(rf"(?P<repository>{_WORD}/{_WORD})(?:/(?P<subset>{_WORD}))?{_SPLIT}")

_FILE_SUFFIXES = (
    *FORMAT_OF,
    *COMPRESSION_OF,
    *[".txt", ".md", ".json", ".csv", ".tsv", ".html", ".htm", ".xml", ".log", ".zip", ".tar"],
)
"""A name with one of these is a file, not a dataset on the hub."""


def looks_remote(name: str) -> bool:
    """Whether this is a URL or a name on the hub, not a path: checked before the inputs are walked.

    A bare name, or a name in an existing folder, is more often a mistyped path; `hf://datasets/NAME` always means the
    hub.
    """
    return (_URL.match(name) is not None and not os.path.lexists(name)) or hub_dataset(Input(name)) is not None


def needs_staging(given: str | os.PathLike[str] | Input) -> bool:
    """Whether `stage` would return another path; local files with their own text column are not considered."""
    given = as_input(given)
    return given.path == "-" or looks_remote(given.path) or saved_dataset(given) is not None


def hub_dataset(given: Input) -> HubName | None:
    """The dataset on the hub that the input means, if any."""
    name = given.path
    match = _HUB_URL.fullmatch(name)
    if match is None:
        if os.path.lexists(name) or os.path.lexists(name.split("/")[0]) or name.startswith("~"):
            return None
        match = _HUB_NAME.fullmatch(name)
        if match is None or name.lower().endswith(_FILE_SUFFIXES):
            return None
    found = match.groupdict()
    return HubName(
        shown=name,
        repository=found["repository"],
        revision=found.get("revision"),
        subset=_one("subset", name, found.get("subset"), given.subset),
        split=_one("split", name, found["split"], given.split) or "train",
        text_field=given.text_field,
    )


def saved_dataset(given: Input) -> Input | None:
    """The input with its split separated, if it is a folder written by save_to_disk."""
    if _is_saved(given.path):
        return given
    folder, colon, split = given.path.rpartition(":")
    if colon and not os.path.lexists(given.path) and _is_saved(folder):
        return replace(given, path=folder, split=_one("split", given.path, split, given.split))
    return None


def _is_saved(folder: str) -> bool:
    files = (("dataset_dict.json",), ("state.json", "dataset_info.json"))
    return any(all(os.path.isfile(os.path.join(folder, name)) for name in names) for names in files)


def _one(what: str, name: str, written: str | None, given: str | None) -> str | None:
    if written and given and written != given:
        raise SettingsError(f"{name} names the {what} {written!r}, but {what} is {given!r}: remove one of the two")
    return written or given
