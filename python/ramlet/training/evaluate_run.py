"""`ramlet.evaluate`: evaluates a trained model on any dataset with its tokenizer.

    scores = ramlet.evaluate("my-run", {"law": "law-data", "general": "data"}, tokens="all", memory="1GB")
    scores["law"].loss, scores["law"].perplexity, scores["law"].bits_per_byte

The sequences are those of the evaluations during training, so the scores can be compared. Errors in the arguments are
reported before the engine is loaded, and a budget that is too small before any weight is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet.engines.opening import check_hardware
from ramlet.errors import DatasetError, ModelError, SettingsError, option
from ramlet.inputs.paths import paths_of
from ramlet.loading.division import check_counts
from ramlet.loading.tokens import Tokens
from ramlet.model.folder import ModelFolder, find_model
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.threads import check_threads
from ramlet.training.eval_sets import own_sets, usable_split
from ramlet.training.open_model import Opening
from ramlet.training.run_files import SETTINGS
from ramlet.training.run_folder import RunFolder
from ramlet.training.settings import EVAL_TOKENS, RunSettings

if TYPE_CHECKING:
    from ramlet.training.evaluate import Score

EVERYTHING = 1 << 62


def evaluate(
    run: str | os.PathLike[str],
    data: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None,
    *,
    split: str | None = None,
    tokens: int | str = EVAL_TOKENS,
    seq_len: int | None = None,
    device: str | None = "auto",
    engine: str | None = "auto",
    precision: str | None = "auto",
    memory: Budget | str | int | None = "auto",
    threads: int | None = None,
    meter: Meter | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Score]:
    """The scores of a model by the name of the set; a single dataset has the name of its folder.

        scores = ramlet.evaluate("my-run", {"general": "my-dataset", "law": "law-dataset"}, tokens="all")
        scores["law"].loss, scores["law"].perplexity

    `run` is a run, one of its checkpoints or a Llama or Qwen3 folder of transformers; `data` one dataset, or several
    by name [default: the validation split of the data that the run was trained on]. `split` is val or train [default:
    val, or all of a dataset that has none]. `tokens` is the number of tokens to evaluate, or "all"; `seq_len` the
    sequence length [default: that of the training, else the context, up to 4096]. `progress` is called with the set,
    the tokens done so far, and the total.
    """
    check_hardware(device, precision, engine)
    check_threads(threads)
    check_counts(seq_len=seq_len)
    count = EVERYTHING if tokens == "all" else tokens
    if not isinstance(count, int) or count < 1:
        raise SettingsError(f"tokens must be a number of at least 1, or all, not {tokens!r}")
    found = find_model(run)
    shape = found.shape()
    learned = _learned_with(found)
    length = seq_len or learned.seq_len or shape.usual_length
    if data is None:
        named: dict[str, str | os.PathLike[str]] = {**own_sets(found.described, split, seq_len=length)}
        split = split or "val"  # never the data that it was trained on instead
    elif isinstance(data, (str, os.PathLike)):
        named = {Path(data).name: data}
    elif isinstance(data, Mapping):
        named = dict(data)
    else:
        raise SettingsError(f"{option('data')} must be a dataset, or several by name, as in {{'law': 'law-data'}}")
    if not named:
        raise SettingsError("give at least one dataset to evaluate on")
    paths_of(named.values())
    if not 1 <= length <= shape.context:
        raise SettingsError(
            f"{option('seq_len', length)} must be between 1 and the model's context of {shape.context:,}"
        )
    sets = {
        name: usable_split(os.fspath(path), seq_len=length, val_fraction=learned.val_fraction, split=split)
        for name, path in named.items()
    }
    tokenizer = _tokenizer(found, shape, sets)
    opening = Opening(
        found,
        document_mask=learned.document_mask,
        device=device or "auto",
        engine=engine or "auto",
        precision=precision or "auto",
        memory=memory,
        threads=threads,
        meter=meter,
    )
    division = opening.division(length)
    model = opening.load(length, division)
    from ramlet.training.evaluate import EvalSet, byte_lengths, evaluate_model

    lengths = byte_lengths(tokenizer) if tokenizer is not None else None
    scores: dict[str, Score] = {}
    for name, found_tokens in sets.items():
        report = partial(progress, name) if progress is not None else lambda done, total: None
        scores[name] = evaluate_model(
            model,
            EvalSet(
                name=name,
                data=named[name],
                split=found_tokens.split,
                seq_len=length,
                micro_batch=division.micro_batch,
                tokens=count,
                lengths=lengths,
                val_fraction=learned.val_fraction,
                document_mask=learned.document_mask and found_tokens.end_id is not None,
            ),
            report,
        )
        if not math.isfinite(scores[name].loss):
            raise ModelError(
                f"the loss of {run} on {name} is NaN or infinite: its weights are damaged, or need "
                f"{option('precision', 'fp32')}"
            )
    return scores


@dataclass(frozen=True)
class _Learned:
    """How the model was trained; the defaults are for a model from elsewhere."""

    seq_len: int | None = None
    document_mask: bool = False
    val_fraction: float = RunSettings().val_fraction


def _learned_with(found: ModelFolder) -> _Learned:
    if not (found.described / SETTINGS).is_file():
        return _Learned()
    noted = RunFolder(found.described, only_read=True).noted() or {}
    settings = RunSettings.from_dict(noted["settings"])
    return _Learned(noted["job"]["seq_len"], settings.document_mask, settings.val_fraction)


def _tokenizer(found: ModelFolder, shape: Shape, sets: Mapping[str, Tokens]) -> Any:
    """The model's tokenizer, which must be that of all sets; None if it has none."""
    from ramlet.tokenizer.tokenizer import Tokenizer

    file = found.described / "tokenizer.json"
    tokenizer = Tokenizer.load(file) if file.is_file() else None
    for tokens in sets.values():
        theirs = tokens.tokenizer_fingerprint
        if tokenizer is not None and theirs not in (None, tokenizer.fingerprint):
            raise DatasetError(
                f"{tokens.name} was made with another tokenizer ({theirs[:12]}) than the model's "
                f"({tokenizer.fingerprint[:12]}): prepare it with {option('tokenizer', file)}"
            )
        if tokens.vocab_size() > shape.vocab_size:
            raise ModelError(
                f"{tokens.name} has a vocabulary of {tokens.vocab_size():,}, the model one of {shape.vocab_size:,}: "
                "prepare it with the model's own tokenizer"
            )
    return tokenizer
