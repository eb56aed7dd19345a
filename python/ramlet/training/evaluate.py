"""Evaluates a model: loss, perplexity and bits per byte over a fixed number of tokens.

The sequences are the same every time, spread over the whole split by the loader's permutation with a fixed seed, so
that all evaluations, of any run, use the same text. Bits per byte do not depend on the tokenizer and can be compared
between models with different ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramlet.engines import Model, training_names
from ramlet.errors import SettingsError
from ramlet.training.settings import is_validation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ramlet.tokenizer.tokenizer import Tokenizer

EVAL_SEED = 271_828


@dataclass(frozen=True)
class Score:
    """On one set."""

    loss: float
    """Mean over the tokens, in nats."""
    tokens: int
    bits_per_byte: float | None
    """None if the tokenizer does not know the length of its tokens."""

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    def to_dict(self) -> dict[str, Any]:
        return {
            "loss": round(self.loss, 6),
            "perplexity": round(self.perplexity, 4),
            "bits_per_byte": None if self.bits_per_byte is None else round(self.bits_per_byte, 6),
            "tokens": self.tokens,
        }


@dataclass
class EvalSet:
    """A split to evaluate on: its data, and the length of each token in bytes."""

    name: str
    data: Any
    split: str
    seq_len: int
    micro_batch: int
    tokens: int
    lengths: npt.NDArray[np.int64] | None
    fingerprint: str = ""
    """Of the data."""
    val_fraction: float = 0.1
    document_mask: bool = False

    def batches(self, progress: Callable[[int, int], None]) -> Iterator[Mapping[str, Any]]:
        """`progress` is called with the tokens requested so far, and the total."""
        from ramlet.loading.loader import Loader

        with Loader(
            self.data,
            split=self.split,
            seq_len=self.seq_len,
            batch_size=self.micro_batch,
            seed=EVAL_SEED,
            epochs=1,
            rank=0,
            world=1,
            val_fraction=self.val_fraction,
            document_mask=self.document_mask,
            read_ahead=1,
        ) as loader:
            whole = left = min(max(1, self.tokens // self.seq_len), len(loader.examples))
            for batch in loader:
                progress((whole - left) * self.seq_len, whole * self.seq_len)
                rows = min(left, len(batch["input_ids"]))
                yield {name: batch[name][:rows] for name in training_names(self.document_mask)}
                left -= rows
                if not left:
                    return


def evaluate_model(
    model: Model, wanted: EvalSet, progress: Callable[[int, int], None] = lambda done, total: None
) -> Score:
    """The model's score on the set; `progress` is called with the tokens done so far, and the total."""
    total, tokens, size = 0.0, 0, 0
    for batch in wanted.batches(progress):
        for row in model.token_losses(batch):
            total += math.fsum(row)  # exact, so the number of rows in a batch does not matter
        targets = batch["targets"].reshape(-1)
        targets = targets[targets >= 0]
        tokens += len(targets)
        if wanted.lengths is not None:
            size += int(wanted.lengths[targets].sum())
    bits = total / math.log(2) / size if size else None
    return Score(total / max(1, tokens), tokens, bits)


def judged_by(scores: Mapping[str, Score], *, continued: bool) -> Score | None:
    """The score by which the models of a run are compared: that of the validation split, or of several together.

    Without one it is that of the first other set; but not if the run started from another model (`continued`), because
    then the other sets measure what it forgets, and the first model would always be the best.
    """
    own = [scores[name] for name in judging(scores, continued=continued)]
    if len(own) < 2:
        return own[0] if own else None
    tokens = sum(score.tokens for score in own)
    return Score(math.fsum(score.loss * score.tokens for score in own) / max(1, tokens), tokens, None)


def judging(names: Iterable[str], *, continued: bool) -> list[str]:
    """The sets whose scores `judged_by` takes."""
    listed = list(names)
    own = [name for name in listed if is_validation(name)]
    return own if own or continued else listed[:1]


def byte_lengths(tokenizer: Tokenizer) -> npt.NDArray[np.int64] | None:
    """Bytes of text by id, 0 for special tokens; None if the tokenizer does not know."""
    try:
        vocabulary = tokenizer.vocabulary
    except SettingsError:
        return None
    import numpy as np

    lengths = np.zeros(tokenizer.vocab_size, np.int64)
    specials = set(tokenizer.special_tokens.values())
    for number, token in vocabulary.items():
        if number not in specials:
            lengths[number] = len(token)
    return lengths
