"""What a run is evaluated on: the validation part of its own data, and sets by name.

What cannot be evaluated on is told before anything is written, not when the first evaluation comes. Only of a run's
own data a validation part that is too short is passed over, for no one asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramlet.errors import DatasetError, SettingsError, option
from ramlet.loading.tokens import Tokens, open_tokens

if TYPE_CHECKING:
    from ramlet.training.feed import Feed

__all__ = ["Named", "named_sets", "usable_split"]


@dataclass(frozen=True)
class Named:
    """A split of some data, under the name that its scores go by."""

    name: str
    data: str
    split: str
    count: int
    """Tokens that there are."""


def named_sets(feed: Feed, evals: Mapping[str, str], *, seq_len: int, val_fraction: float) -> list[Named]:
    """All sets of a run, each checked."""
    sets = []
    for name, data in feed.validation():
        tokens = open_tokens(data, "val", val_fraction)
        if _long_enough(tokens, seq_len):
            sets.append(Named(name, data, "val", tokens.count))
    for name, data in evals.items():
        if any(name == known.name for known in sets):
            raise SettingsError(f"{name} is the validation part of the data itself: give the set {data} another name")
        tokens = usable_split(data, seq_len=seq_len, val_fraction=val_fraction)
        _check_ids(tokens, feed)
        sets.append(Named(name, data, tokens.split, tokens.count))
    return sets


def usable_split(data: str, *, seq_len: int, val_fraction: float, split: str | None = None) -> Tokens:
    """The validation part; all of a set that is kept apart for evaluating, and has none."""
    tokens = None
    if split is None:
        try:
            found = open_tokens(data, "val", val_fraction)
            tokens = found if _long_enough(found, seq_len) else None
        except DatasetError:
            tokens = None  # what is wrong with the data itself is said of the other part as well
    if tokens is None:
        tokens = open_tokens(data, split or "train", val_fraction)
    if tokens.packed_length not in (None, seq_len):
        raise SettingsError(
            f"{data} is packed in sequences of {tokens.packed_length:,}, and the model is evaluated with {seq_len:,}: "
            f"prepare it without {option('pack')}, or with the same"
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
            f"{tokens.name} has {tokens.vocab_size():,} different tokens and the training data {feed.vocab_size:,}: "
            f"prepare it with the same {option('tokenizer')}"
        )
