"""`ramlet.evaluate`: how well a trained model foretells any dataset that its tokenizer made.

    scores = ramlet.evaluate("my-run", {"law": "law-data", "general": "data"}, tokens="all", memory="1GB")
    scores["law"].loss, scores["law"].perplexity, scores["law"].bits_per_byte

The same sequences as in the evaluations of a run, so the figures can be compared. What does not fit together is told
before torch is loaded, and a budget too small before a weight is read: it needs what is resident then, the weights, and
one micro-batch on its way through the widest layer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet.engines.torch.order import unit_rows
from ramlet.errors import DatasetError, ModelError, SettingsError, option
from ramlet.loading.tokens import Tokens
from ramlet.model.folder import ModelFolder, find_model
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget, with_reserve
from ramlet.runtime.memory import resident_memory
from ramlet.training.eval_sets import usable_split
from ramlet.training.run_files import SETTINGS
from ramlet.training.run_folder import RunFolder
from ramlet.training.settings import DEVICES, EVAL_TOKENS, PRECISIONS, RunSettings

if TYPE_CHECKING:
    from ramlet.training.evaluate import Score

__all__ = ["evaluate"]

FAST_TOKENS = 2048
FAST_CHUNK, LEAST_CHUNK = 512, 64
LIBRARIES = 64 << 20
"""What torch and its libraries take when the first products are made, and the buffer that weights are read through."""
TOKEN_BYTES = 200
"""What a token takes while its bytes are looked up."""
EVERYTHING = 1 << 62


@dataclass(frozen=True)
class _Fit:
    """How a step through the model is divided, and what it takes."""

    micro_batch: int
    chunk: int
    parts: dict[str, int]

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


def evaluate(
    run: str | os.PathLike[str],
    data: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    *,
    split: str | None = None,
    tokens: int | str = EVAL_TOKENS,
    seq_len: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    memory: Budget | str | int | None = "auto",
    threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Score]:
    """The scores of a model, by the name of the set; data without a name goes by that of its folder.

        scores = ramlet.evaluate("my-run", {"general": "my-dataset", "law": "law-dataset"}, tokens="all")
        scores["law"].loss, scores["law"].perplexity

    `run` is a run, one of its checkpoints or a Llama for transformers. `split` is val or train; left out: val, or
    all of a set that has none. `tokens` is how many are looked at, or "all"; `seq_len` is that of the training where
    nothing is said. `progress` is told the set, and how many of how many tokens are done.
    """
    for name, value, known in (("device", device, DEVICES), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise SettingsError(f"{name} is one of {', '.join(known)}, not {value!r}")
    count = EVERYTHING if tokens == "all" else tokens
    if not isinstance(count, int) or count < 1:
        raise SettingsError(f"tokens is a number of at least 1, or all, not {tokens!r}")
    named = {Path(data).name: data} if isinstance(data, (str, os.PathLike)) else dict(data)
    if not named:
        raise SettingsError("name at least one dataset to evaluate on")
    found = find_model(run)
    shape = found.shape()
    learned = _learned_with(found)
    length = seq_len or learned.seq_len or shape.context
    if not 1 <= length <= shape.context:
        raise SettingsError(
            f"{option('seq_len', length)} is not within the model's context of {shape.context:,}: give less"
        )
    sets = {
        name: usable_split(os.fspath(path), seq_len=length, val_fraction=learned.val_fraction, split=split)
        for name, path in named.items()
    }
    tokenizer = _tokenizer(found, shape, sets)
    from ramlet.engines.torch.base_memory import keep_large_blocks, load_torch

    load_torch(threads)
    # A heap has gaps, up to 90 MB of them here; an evaluation is too short for the time that it saves.
    keep_large_blocks(False)
    from ramlet.engines.torch.device import choose_device
    from ramlet.engines.torch.model_files import load_model
    from ramlet.engines.torch.weights import DTYPES
    from ramlet.training.evaluate import EvalSet, byte_lengths, evaluate_model

    place = choose_device(device)
    if precision == "auto":
        precision = "fp32" if place.kind == "cpu" else place.precision("auto")
    budget = place.budget(memory)
    place.cap(budget)
    lengths = byte_lengths(tokenizer) if tokenizer is not None else None
    base = resident_memory() if place.kind == "cpu" else 0
    fit = _fit(shape, length, precision, base, budget, masked=learned.document_mask)
    model = load_model(found, device=place.name, dtype=DTYPES[precision], chunk=fit.chunk)
    scores: dict[str, Score] = {}
    for name, found_tokens in sets.items():
        told = partial(progress, name) if progress is not None else lambda done, total: None
        scores[name] = evaluate_model(
            model,
            EvalSet(
                name=name,
                data=named[name],
                split=found_tokens.split,
                seq_len=length,
                micro_batch=fit.micro_batch,
                tokens=count,
                lengths=lengths,
                val_fraction=learned.val_fraction,
                document_mask=learned.document_mask and found_tokens.end_id is not None,
            ),
            told,
        )
    return scores


@dataclass(frozen=True)
class _Learned:
    """How the model saw its data; of a model from elsewhere nothing is known."""

    seq_len: int | None = None
    document_mask: bool = False
    val_fraction: float = RunSettings().val_fraction


def _learned_with(found: ModelFolder) -> _Learned:
    if not (found.described / SETTINGS).is_file():
        return _Learned()
    noted = RunFolder(found.described).noted() or {}
    settings = RunSettings.from_dict(noted["settings"])
    return _Learned(noted["job"]["seq_len"], settings.document_mask, settings.val_fraction)


def _tokenizer(found: ModelFolder, shape: Shape, sets: Mapping[str, Tokens]) -> Any:
    """The model's, which must be that of all sets; None where there is none."""
    from ramlet.tokenizer.tokenizer import Tokenizer

    file = found.described / "tokenizer.json"
    tokenizer = Tokenizer.load(file) if file.is_file() else None
    for tokens in sets.values():
        theirs = tokens.tokenizer_fingerprint
        if tokenizer is not None and theirs not in (None, tokenizer.fingerprint):
            raise DatasetError(
                f"{tokens.name} was made with another tokenizer ({theirs[:12]}) than the model learned with "
                f"({tokenizer.fingerprint[:12]}): prepare it with {option('tokenizer', file)}"
            )
        if tokens.vocab_size() > shape.vocab_size:
            raise ModelError(
                f"the model knows {shape.vocab_size:,} tokens and {tokens.name} has {tokens.vocab_size():,}: "
                "prepare it with the model's own tokenizer"
            )
    return tokenizer


def _fit(shape: Shape, seq_len: int, precision: str, base: int, budget: Budget, *, masked: bool) -> _Fit:
    """The fastest way that fits; the error names the smallest budget for the slowest."""
    tried = None
    for tried in _ways(shape, seq_len, precision, base, masked=masked):
        if tried.peak <= budget.total - budget.reserve:
            return tried
    assert tried is not None
    budget.require(with_reserve(tried.peak), tried.parts, measured=base)
    return tried


def _ways(shape: Shape, seq_len: int, precision: str, base: int, *, masked: bool) -> Iterator[_Fit]:
    item = 4 if precision == "fp32" else 2
    filled = (shape.padded_vocab - shape.vocab_size) * shape.width * (1 if shape.tied else 2)
    micro_batch = max(1, FAST_TOKENS // seq_len)
    chunk = min(FAST_CHUNK, micro_batch * seq_len)
    while True:
        tokens = micro_batch * seq_len
        # The widest moment of a layer: the stream and its norm; queries, keys and values, turned and not; or gate, up
        # and their product. All in fp32 while they are reckoned.
        layer = tokens * (4 * shape.width + max(2 * shape.qkv_width + 2 * shape.width, 4 * shape.feed_forward)) * 4
        mask = tokens * seq_len * (1 + item * shape.heads * 2) if masked else 0
        yield _Fit(
            micro_batch,
            chunk,
            {
                "Python and PyTorch": base,
                "the weights": (shape.parameters + filled) * item + shape.context * shape.head_width * 4,
                "a micro-batch on its way": layer + mask + tokens * 8 * 16,
                "logits": chunk * shape.padded_vocab * (item + 4),
                "tokens' lengths": shape.vocab_size * TOKEN_BYTES,
                "libraries": LIBRARIES,
            },
        )
        if micro_batch // 2 >= unit_rows(seq_len):
            micro_batch //= 2
            chunk = min(chunk, micro_batch * seq_len)
        elif chunk > LEAST_CHUNK:
            chunk = max(LEAST_CHUNK, chunk // 2)
        else:
            return
