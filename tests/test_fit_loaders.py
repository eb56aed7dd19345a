"""The loaders that `ramlet.fit` takes: ramlet's own, as they are and in a DataLoader, and those that end too soon.

Whatever a loader is wrapped in, the run is the same: its batches in its order, another one in each epoch, and the same
batches in every evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

import ramlet
from oracles_training import TIMES, make_data
from test_fit import StopAt, assert_same, classifier, fit, logged, pairs

BATCH = 16
Make = Callable[..., Any]


def of_rows(make: Make) -> DataLoader[Any]:
    rows = make(as_rows=True)
    return DataLoader(rows, batch_size=rows.batch_size)


KINDS: dict[str, Callable[[Make], Any]] = {
    "loader": lambda make: make(),
    "dataloader": lambda make: make().dataloader(),
    "dataloader with a worker": lambda make: make().dataloader(num_workers=1),
    "torch": lambda make: DataLoader(make(), batch_size=None),
    "torch with a worker": lambda make: DataLoader(make(), batch_size=None, num_workers=1),
    "torch of rows": of_rows,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("fit"), lines=80, val_fraction=0.2)


def loader(data: Path, **given: Any) -> ramlet.Loader:
    return ramlet.Loader(data, **{"seq_len": 32, "batch_size": BATCH, "epochs": 1, **given})


def validation(data: Path, **given: Any) -> ramlet.Loader:
    return loader(data, split="val", batch_size=2, epochs=None, **given)


def bigram() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(nn.Embedding(257, 4), nn.Dropout(0.1), nn.Linear(4, 257))


def next_token(module: nn.Module, batch: Any) -> Tensor:
    logits = module(batch["input_ids"][:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())


def lines(out: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMES} for line in logged(out)]


def settings(data: Path, kind: str) -> dict[str, Any]:
    """Two epochs and a half, with evaluations of a part of the set."""
    steps = len(loader(data)) * 5 // 2
    evals = KINDS[kind](partial(validation, data))
    return {"loss": next_token, "max_steps": steps, "evals": evals, "eval_batches": 2, "eval_every": 3}


@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_is_lost_and_every_epoch_has_its_order(kind: str, data: Path, tmp_path: Path) -> None:
    seen: list[Any] = []

    def watched(module: nn.Module, batch: Any) -> Tensor:
        seen.append(batch["input_ids"].tolist())
        return next_token(module, batch)

    own = loader(data)
    epochs = [[batch["input_ids"].tolist() for batch in own] for _ in range(2)]
    assert epochs[0] != epochs[1]
    steps = 2 * len(own)
    fit(
        bigram(), KINDS[kind](partial(loader, data)), tmp_path / "run", loss=watched, micro_batch=BATCH, max_steps=steps
    )
    assert seen[-steps:] == epochs[0] + epochs[1]  # before them, the trial


@pytest.fixture(scope="module")
def usual(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, list[dict[str, Any]]]:
    """The run with a loader as it is."""
    out, module = tmp_path_factory.mktemp("usual") / "run", bigram()
    fit(module, loader(data), out, **settings(data, "loader"))
    return module, lines(out)


@pytest.mark.parametrize("kind", KINDS)
def test_resumes_in_the_second_epoch(
    kind: str, data: Path, usual: tuple[nn.Module, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """To the same bits and scores as the run that was not interrupted, with a loader as it is."""
    for stop in (len(loader(data)) + 2, None):
        module = bigram()
        given = {**settings(data, kind), **({} if stop is None else {"listener": StopAt(stop)})}
        try:
            fit(module, KINDS[kind](partial(loader, data)), tmp_path / "run", **given)
            assert stop is None
        except ramlet.Interrupted:
            assert stop is not None
    assert_same(module, usual[0])
    assert lines(tmp_path / "run") == usual[1]


@pytest.fixture
def stream(data: Path) -> Make:
    tokenizer = ramlet.Tokenizer.load(data / "tokenizer.json")
    given: dict[str, Any] = {"tokenizer": tokenizer, "seq_len": 32, "batch_size": 4}
    return partial(ramlet.StreamLoader, data.with_suffix(".txt"), **given)


def test_a_stream_resumes_in_the_second_epoch(stream: Make, tmp_path: Path) -> None:
    given: dict[str, Any] = {"loss": next_token, "max_steps": 16}
    whole, parts = bigram(), bigram()
    fit(whole, stream(epochs=1, max_examples=26), tmp_path / "whole", **given)
    with pytest.raises(ramlet.Interrupted):
        fit(parts, stream(epochs=1, max_examples=26), tmp_path / "parts", listener=StopAt(9), **given)
    parts = bigram()
    fit(parts, stream(epochs=1, max_examples=26).dataloader(), tmp_path / "parts", **given)
    assert_same(parts, whole)


def test_a_dataloader_has_the_length_of_its_loader(data: Path, tmp_path: Path) -> None:
    """Also without `epochs`: a run has an epoch, and an evaluation goes through the set once."""
    scores = {}
    for kind in ("loader", "dataloader"):
        given: dict[str, Any] = {"max_steps": None, "evals": KINDS[kind](partial(validation, data))}
        result = fit(
            bigram(), KINDS[kind](partial(loader, data, epochs=None)), tmp_path / kind, loss=next_token, **given
        )
        assert result.steps == len(loader(data))
        scores[kind] = result.scores
    assert scores["loader"] == scores["dataloader"]
    assert scores["loader"]["val"]["tokens"] >= len(validation(data).examples) * 32


def test_evaluations_without_an_end(data: Path, stream: Make, tmp_path: Path) -> None:
    given: dict[str, Any] = {"loss": next_token, "max_steps": 2}
    for evals in (stream(), stream().dataloader(), DataLoader(validation(data, as_rows=True), batch_size=4)):
        with pytest.raises(ramlet.SettingsError, match="the evaluation set val has no end: give eval_batches"):
            fit(bigram(), loader(data), tmp_path / "run", evals=evals, **given)
        assert not (tmp_path / "run").exists()
    result = fit(bigram(), loader(data), tmp_path / "some", evals={"few": stream()}, eval_batches=3, **given)
    assert result.scores["few"]["tokens"] == 3 * 4 * 32
    result = fit(bigram(), loader(data), tmp_path / "all", evals=stream(epochs=1, max_examples=7), **given)
    assert result.scores["val"]["tokens"] == 7 * 32


def test_evaluations_with_the_loader_of_the_training(data: Path, tmp_path: Path) -> None:
    batches = loader(data)
    for evals in (batches, DataLoader(batches, batch_size=None)):
        with pytest.raises(ramlet.SettingsError, match="set val is the loader of the training, which has one position"):
            fit(bigram(), batches, tmp_path / "run", loss=next_token, evals=evals, eval_batches=2)
    assert not (tmp_path / "run").exists()


def test_persistent_workers(data: Path, tmp_path: Path) -> None:
    batches = DataLoader(loader(data), batch_size=None, num_workers=1, persistent_workers=True)
    with pytest.raises(ramlet.SettingsError, match="loader has persistent workers"):
        fit(bigram(), batches, tmp_path / "run", loss=next_token)
    with pytest.raises(ramlet.SettingsError, match="evals has persistent workers"):
        fit(bigram(), loader(data), tmp_path / "run", loss=next_token, evals=batches)


def test_a_shorter_loader_than_before(tmp_path: Path) -> None:
    batches = list(pairs(shuffle=False))
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss()}
    with pytest.raises(ramlet.Interrupted):
        fit(classifier(), batches, tmp_path / "run", listener=StopAt(4), **given)
    with pytest.raises(ramlet.SettingsError, match="ended after 2 batches, but the run had read 4 of its epoch: give"):
        fit(classifier(), batches[:2], tmp_path / "run", **given)


def test_loaders_with_a_state_of_their_own(tmp_path: Path) -> None:
    """They lose no batch either; one without that state, but with the same batches, continues the run, and reverse."""
    batches = list(pairs(batch_size=4, shuffle=False))

    class Counting:
        """A loader with a state."""

        def __init__(self) -> None:
            self.done = 0

        def __len__(self) -> int:
            return len(batches)

        def __iter__(self) -> Iterator[Any]:
            for batch in batches[self.done :]:
                self.done += 1
                yield batch
            self.done = 0

        def state_dict(self) -> dict[str, Any]:
            return vars(self)

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.done = state["done"]

    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "max_steps": 14}
    whole = classifier()
    fit(whole, batches, tmp_path / "whole", **given)
    for name, before, after in (("one", batches, Counting()), ("other", Counting(), batches)):
        module = classifier()
        with pytest.raises(ramlet.Interrupted):
            fit(module, before, tmp_path / name, listener=StopAt(12), **given)
        fit(module, after, tmp_path / name, **given)
        assert_same(module, whole)
