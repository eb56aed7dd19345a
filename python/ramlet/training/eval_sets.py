"""The evaluation sets of a run: the validation split of its own data, and other datasets by name.

A set that cannot be used is an error before anything is written, not at the first evaluation. Only a validation split
of the run's own data that is too short is skipped, because nobody asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramlet.errors import DatasetError, SettingsError, option
from ramlet.loading.tokens import Tokens, open_tokens

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


def named_sets(feed: Feed, evals: Mapping[str, str], *, seq_len: int, val_fraction: float) -> list[Named]:
    """All sets of a run, each checked."""
    sets = []
    for name, data in feed.validation():
        tokens = open_tokens(data, "val", val_fraction)
        if _long_enough(tokens, seq_len):
            sets.append(Named(name, data, "val", tokens.count))
    for name, data in evals.items():
        if any(name == known.name for known in sets):
            raise SettingsError(f"{name} is the validation split of the data itself: give the set {data} another name")
        tokens = usable_split(data, seq_len=seq_len, val_fraction=val_fraction)
        _check_ids(tokens, feed)
        sets.append(Named(name, data, tokens.split, tokens.count))
    return sets


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
