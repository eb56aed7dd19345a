"""The evaluation sets of a run: the validation split of its own data, and other datasets by name.

A set that cannot be used is an error before anything is written, not at the first evaluation. Only a validation split
of the run's own data that is too short is skipped, because nobody asked for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramlet.errors import DatasetError, SettingsError, option
from ramlet.loading.tokens import Tokens, open_tokens
from ramlet.training.run_files import SETTINGS
from ramlet.training.run_folder import RunFolder
from ramlet.training.settings import RunSettings

if TYPE_CHECKING:
    from ramlet.training.feed import Feed


@dataclass(frozen=True)
class Named:
    """A split of a dataset, with the name of its scores."""

    name: str
    data: str
    split: str
    count: int
    """Tokens in the split."""
    fingerprint: str
    has_ends: bool
    """Whether its documents end with a token, by which a document mask tells them apart."""


def named_sets(feed: Feed, evals: Mapping[str, str], *, seq_len: int, val_fraction: float) -> list[Named]:
    """All sets of a run, each checked."""
    sets = []
    for name, data in feed.validation():
        tokens = open_tokens(data, "val", val_fraction)
        if _long_enough(tokens, seq_len):
            sets.append(Named(name, data, "val", tokens.count, tokens.fingerprint, tokens.end_id is not None))
    for name, data in evals.items():
        if any(name == known.name for known in sets):
            raise SettingsError(f"{name} is the validation split of the data itself: give the set {data} another name")
        tokens = usable_split(data, seq_len=seq_len, val_fraction=val_fraction)
        _check_ids(tokens, feed)
        sets.append(Named(name, data, tokens.split, tokens.count, tokens.fingerprint, tokens.end_id is not None))
    return sets


def validation_sets(data: Sequence[str], val_fraction: float) -> dict[str, str]:
    """The datasets of a run that have a validation split, by the names of its scores."""
    found: dict[str, str] = {}
    for number, path in enumerate(data, 1):
        try:
            tokens = open_tokens(path, "val", val_fraction)
        except DatasetError:
            continue  # an array without a validation split
        if tokens.count > 1:
            _add(found, "val" if len(data) == 1 else f"val_{Path(path).stem}", number, path)
    return found


def _add(found: dict[str, str], name: str, number: int, path: str) -> None:
    """By its name, or with its number if another dataset has the same name."""
    found[f"{name}_{number}" if name in found else name] = path


def own_sets(run: Path, split: str | None, *, seq_len: int) -> dict[str, str]:
    """The data that a run was trained on, by the names of its scores, if it is still the same.

    As in training, without validation splits that are shorter than a sequence, if others are not.
    """
    noted = RunFolder(run, only_read=True).noted() if (run / SETTINGS).is_file() else None
    if noted is None:
        raise SettingsError(f"{run} does not say which data it was trained on: give a dataset as {option('data')}")
    if any("path" not in each for each in noted["data"]):
        raise SettingsError(
            f"{run} was trained on a stream, which has no validation split: give a dataset as {option('data')}"
        )
    val_fraction = RunSettings.from_dict(noted["settings"]).val_fraction
    paths = []
    for each in noted["data"]:
        # Text that the run itself prepared moves with it.
        inside = run / "data" / "dataset"
        path = each["path"] if os.path.exists(each["path"]) or not inside.exists() else str(inside)
        if not os.path.exists(path):
            raise DatasetError(
                f"{run} was trained on {path}, which is not there any more: give the dataset as {option('data')}"
            )
        if open_tokens(path, "train", val_fraction).fingerprint != each["fingerprint"]:
            raise DatasetError(
                f"{path} is not the data that {run} was trained on any more: give {option('data', path)} to "
                "evaluate on it anyway"
            )
        paths.append(path)
    if split == "train":
        found: dict[str, str] = {}
        for number, path in enumerate(paths, 1):
            _add(found, Path(path).name, number, path)
        return found
    if not (found := validation_sets(paths, val_fraction)):
        raise DatasetError(
            f"the data of {run} has no validation split: give another dataset as {option('data')}, or "
            f"{option('split', 'train')}"
        )
    usable = {
        name: path for name, path in found.items() if _long_enough(open_tokens(path, "val", val_fraction), seq_len)
    }
    return usable or found


def usable_split(data: str, *, seq_len: int, val_fraction: float, split: str | None = None) -> Tokens:
    """The validation split, or all of a dataset that has none."""
    tokens = None
    if split is None:
        try:
            found = open_tokens(data, "val", val_fraction)
            tokens = found if _long_enough(found, seq_len) else None
        except DatasetError:
            tokens = None  # errors in the data itself are raised for the other split as well
    if tokens is None:
        tokens = open_tokens(data, split or "train", val_fraction)
    if tokens.packed_length not in (None, seq_len):
        raise SettingsError(
            f"{data} is packed in sequences of {tokens.packed_length:,} tokens, but the model is evaluated with "
            f"{seq_len:,}: prepare it without {option('pack')}, or with the same length"
        )
    tokens.examples(seq_len, seq_len)  # for its error
    return tokens


def _long_enough(tokens: Tokens, seq_len: int) -> bool:
    return tokens.count >= seq_len if tokens.packed_length == seq_len else tokens.count > seq_len


def _check_ids(tokens: Tokens, feed: Feed) -> None:
    theirs = tokens.tokenizer_fingerprint
    if feed.fingerprint is not None and theirs not in (None, feed.fingerprint):
        raise DatasetError(
            f"{tokens.name} was made with another tokenizer ({theirs[:12]}) than the training data "
            f"({feed.fingerprint[:12]}): prepare it with the same {option('tokenizer')}"
        )
    if tokens.vocab_size() > feed.vocab_size:
        raise DatasetError(
            f"{tokens.name} has a vocabulary of {tokens.vocab_size():,}, the training data one of {feed.vocab_size:,}: "
            f"prepare it with the same {option('tokenizer')}"
        )
