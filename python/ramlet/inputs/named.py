"""What an input is, told from its name and from what lies on disk; nothing is fetched to find out."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from ramlet.errors import SettingsError

__all__ = ["HubName", "Input", "as_input", "hub_dataset", "looks_remote", "needs_staging", "saved_dataset"]


@dataclass(frozen=True)
class Input:
    """An input, with what a config may say of it alone."""

    path: str
    """A file, a folder, a glob, an address, a name on the hub, or `-`."""

    split: str | None = None
    """Of a dataset; `train` where it is not said."""

    subset: str | None = None
    """Of a dataset on the hub that has several."""

    text_field: str | None = None
    """The column that holds the text, where it is another than that of the other inputs."""


def as_input(given: str | os.PathLike[str] | Input) -> Input:
    """The same for all that a caller may name an input by."""
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


_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*:(?://|:\w)")
"""`s3://bucket/...`, or a chain of fsspec, `zip::s3://bucket/...`."""

_WORD = r"[\w-][\w.-]*"
_SPLIT = r"(?::(?P<split>[\w.+-]+))?"
_HUB_ADDRESS = re.compile(rf"hf://datasets/(?P<repository>{_WORD}(?:/{_WORD})?)(?:@(?P<revision>[\w.-]+))?{_SPLIT}/?")
_HUB_NAME = re.compile(rf"(?P<repository>{_WORD}/{_WORD})(?:/(?P<subset>{_WORD}))?{_SPLIT}")

_OF_A_FILE = re.compile(
    r"\.(?:txt|md|json|jsonl|ndjson|parquet|pq|csv|tsv|html?|xml|log|gz|zstd?|xz|bz2|zip|tar)$", re.I
)


def looks_remote(name: str) -> bool:
    """Whether this is an address or a name on the hub, not a path: asked before the inputs are walked.

    A bare name, or a name in a folder that is there, is more often a mistyped path; `hf://datasets/NAME`
    always means the hub.
    """
    return _is_address(name) or hub_dataset(Input(name)) is not None


def needs_staging(given: str | os.PathLike[str] | Input) -> bool:
    """Whether `stage` would give another path; not asked of local files with a text column of their own."""
    given = as_input(given)
    return given.path == "-" or looks_remote(given.path) or saved_dataset(given) is not None


def _is_address(name: str) -> bool:
    return _ADDRESS.match(name) is not None and not os.path.lexists(name)


def hub_dataset(given: Input) -> HubName | None:
    """The dataset that is meant, if one is."""
    name = given.path
    match = _HUB_ADDRESS.fullmatch(name)
    if match is None:
        if os.path.lexists(name) or os.path.lexists(name.split("/")[0]) or name.startswith("~"):
            return None
        match = _HUB_NAME.fullmatch(name)
        if match is None or _OF_A_FILE.search(name):
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
    """The input with its split apart, if it is a folder that save_to_disk made."""
    if _is_saved(given.path):
        return given
    folder, colon, split = given.path.rpartition(":")
    if colon and not os.path.lexists(given.path) and _is_saved(folder):
        return replace(given, path=folder, split=_one("split", given.path, split, given.split))
    return None


def _is_saved(folder: str) -> bool:
    def holds(name: str) -> bool:
        return os.path.isfile(os.path.join(folder, name))

    return holds("dataset_dict.json") or (holds("state.json") and holds("dataset_info.json"))


def _one(what: str, name: str, written: str | None, given: str | None) -> str | None:
    if written and given and written != given:
        raise SettingsError(f"{name} names the {what} {written!r}, and {given!r} is given beside it: leave one out")
    return written or given
