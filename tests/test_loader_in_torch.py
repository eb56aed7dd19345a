"""Loaders as torch's datasets: in a DataLoader with workers, forked or spawned, with their state and their length."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import ramlet
from oracles_training import make_data, sentences
from ramlet.engines.torch import datasets
from ramlet.errors import DatasetError, SettingsError

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets")
    make_data(folder, lines=60)
    (folder / "stream.txt").write_text(sentences(40))
    return folder


@pytest.fixture(params=["loader", "stream"])
def make(request: pytest.FixtureRequest, home: Path) -> Make:
    common: dict[str, Any] = {"seq_len": 32, "batch_size": 6, "epochs": 1}
    if request.param == "loader":
        return lambda **given: ramlet.Loader(home / "data", **{**common, **given})
    tokenizer = ramlet.Tokenizer.load(home / "data" / "tokenizer.json")
    common |= {"tokenizer": tokenizer, "documents": "line", "shuffle_buffer": 20}
    return lambda **given: ramlet.StreamLoader(home / "stream.txt", **{**common, **given})


def ids(batches: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in batches]


def as_worker(monkeypatch: pytest.MonkeyPatch, number: int, workers: int) -> None:
    """As if this process were a worker of a DataLoader."""
    monkeypatch.setattr(datasets, "worker", lambda: (number, workers))


class TestDatasets:
    def test_they_are_what_torch_asks_for(self, make: Make) -> None:
        loader = make(as_torch=True)
        assert isinstance(loader, IterableDataset)
        assert isinstance(loader, (ramlet.Loader, ramlet.StreamLoader))
        assert type(loader).__name__ in ("Loader", "StreamLoader")
        assert type(loader).__module__.partition(".")[0] == "ramlet"
        assert type(make()) is type(loader)

    def test_numpy_alone_loads_no_torch(self, home: Path) -> None:
        program = f"""
import ramlet, sys
loader = ramlet.Loader({str(home / "data")!r}, seq_len=32, epochs=1)
rows = sum(len(batch.input_ids) for batch in loader)
assert rows == len(loader.examples) and loader.state_dict()["epoch"] == 1
assert "torch" not in sys.modules
from torch.utils.data import IterableDataset
assert not isinstance(loader, IterableDataset)
assert isinstance(ramlet.Loader({str(home / "data")!r}), IterableDataset)
"""
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_pickled_and_copied_they_continue_where_they_are(self, make: Make) -> None:
        whole = ids(make())
        loader = make()
        list(itertools.islice(loader, 3))
        for again in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
            assert type(again) is type(loader)
            assert ids(again) == whole[3:]
        assert loader.samples == 18

    def test_a_pickled_one_keeps_its_rank(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        """The process that is spawned knows nothing of torch.distributed."""
        monkeypatch.setattr(datasets, "rank_and_world", lambda: (1, 2))
        loader = make()
        sent = pickle.dumps(loader)
        wanted = ids(loader)
        monkeypatch.undo()
        assert ids(pickle.loads(sent)) == wanted == ids(make(rank=1, world=2))

    def test_the_rank_is_that_of_torch_distributed(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        loader = make()  # before the group exists
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
        assert ids(loader) == ids(make(rank=1, world=3))
        accelerate = type("Fake", (), {"is_initialized": staticmethod(lambda: True)})
        monkeypatch.setitem(sys.modules, "accelerate.state", accelerate)  # which divides what a DataLoader yields
        assert ids(make()) == ids(make(rank=0, world=1))


class TestWorkers:
    @pytest.mark.parametrize(("workers", "way"), [(1, "fork"), (2, "fork"), (1, "spawn")])
    def test_the_order_is_that_of_no_workers(self, make: Make, workers: int, way: str, home: Path) -> None:
        for micro in (None, 4) if way == "fork" else (4,):
            loader = make(micro_batch=micro, as_torch=True)
            next(iter(loader))  # a thread that reads ahead is running when the workers are forked
            loader.rewind()
            batches = DataLoader(loader, batch_size=None, num_workers=workers, multiprocessing_context=way)
            assert ids(batches) == ids(make(micro_batch=micro))

    def test_rows_for_a_dataloader_that_makes_batches(self, make: Make) -> None:
        whole = list(make())
        batches = list(DataLoader(make(as_rows=True), batch_size=6, num_workers=2))
        assert ids(batches) == ids(whole)
        assert [batch["labels"].tolist() for batch in batches] == [batch["labels"].tolist() for batch in whole]
        row = next(iter(make(as_rows=True, document_mask=True)))
        assert {name: array.shape for name, array in row.items()} == dict.fromkeys(
            ("input_ids", "labels", "position_ids"), (32,)
        )
        with pytest.raises(SettingsError, match="a loader of rows has no batches: use torch's DataLoader"):
            make(as_rows=True).dataloader()

    @pytest.mark.parametrize("workers", [0, 2])
    def test_the_state_follows_what_was_taken(self, make: Make, workers: int) -> None:
        whole = [ids(make(micro_batch=4)), []]
        loader = make(micro_batch=4, as_torch=True)
        taken = iter(loader.dataloader(num_workers=workers))
        first = [next(taken) for _ in range(5)]
        assert isinstance(first[0], ramlet.Batch)
        state = json.loads(json.dumps(loader.dataloader().state_dict()))
        # The fifth is the first of two in its global batch, which comes again, whole.
        again = make(micro_batch=4, as_torch=True)
        batches = again.dataloader(num_workers=workers)
        batches.load_state_dict(state)
        assert ids(first)[:4] + ids(batches) == whole[0]
        second = ids(batches)
        loader.rewind()
        list(loader)
        assert second == ids(loader) != whole[0]

    @pytest.mark.parametrize("rows", [False, True])
    def test_a_worker_resumes_with_its_next_batch(
        self, make: Make, rows: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As torchdata's StatefulDataLoader does: a state of each worker, after what was taken of it."""
        given = {"micro_batch": 4, "as_rows": rows}
        for number in range(3):
            as_worker(monkeypatch, number, 3)
            whole = ids(make(**given))
            for stop in (0, 1, 2, 5):
                loader = make(**given)
                running: Iterator[Any] = iter(loader)
                taken = ids(itertools.islice(running, stop))
                state = json.loads(json.dumps(loader.state_dict()))
                again = make(**given)
                again.load_state_dict(state)
                assert taken + ids(again) == whole
        again.load_state_dict(state)
        as_worker(monkeypatch, 0, 2)
        with pytest.raises(SettingsError, match=r"that of a DataLoader with num_workers=3, not 2: use the same"):
            iter(again)

    def test_torchdata(self, make: Make) -> None:
        torchdata = pytest.importorskip("torchdata.stateful_dataloader")
        given: dict[str, Any] = {"batch_size": None, "num_workers": 2}
        one = torchdata.StatefulDataLoader(make(), **given)
        taken = ids(itertools.islice(iter(one), 3))
        two = torchdata.StatefulDataLoader(make(), **given)
        two.load_state_dict(one.state_dict())
        assert taken + ids(two) == ids(make())

    def test_persistent_workers(self, make: Make) -> None:
        """They would go on behind what they had read ahead when a loop was left."""
        with pytest.raises(SettingsError, match="create the dataloader without persistent_workers"):
            make().dataloader(num_workers=1, persistent_workers=True)


class TestEpochs:
    def test_the_next_loop_is_the_next_epoch(self, make: Make) -> None:
        endless = make(epochs=None, batch_size=1)
        loader = make(batch_size=1)
        first, second = ids(loader), ids(loader)
        assert ids(itertools.islice(endless, len(first) * 2)) == first + second
        assert sorted(first) == sorted(second)
        loader.set_epoch(0)
        assert ids(loader) == first
        loader.set_epoch(0)
        assert ids(loader) == first
        assert ids(loader) == second

    def test_the_end_of_an_epoch_is_not_the_beginning_of_the_next(self, make: Make) -> None:
        """A checkpoint after the last batch of an epoch: what is left of that epoch is nothing."""
        loader = make()
        for _ in loader:
            before = loader.state()
        after = loader.state()
        again = make()
        again.restore(before)
        assert list(again) == []
        second = ids(again)
        again.restore(after)
        assert ids(again) == second == ids(loader)

    def test_set_epoch_keeps_a_position_in_that_epoch(self, make: Make) -> None:
        loader = make()
        whole = [ids(loader), ids(loader)]
        for epoch in (0, 1):
            loader.rewind()
            loader.set_epoch(epoch)
            list(itertools.islice(loader, 2))
            loader.set_epoch(epoch)
            assert ids(loader) == whole[epoch][2:]
        endless = make(epochs=None)
        next(iter(endless))
        endless.set_epoch(7)
        assert endless.samples == 6

    def test_set_epoch_keeps_a_position_within_a_batch(self, make: Make) -> None:
        """Without `epochs` there is one loop only, whatever a framework counts."""
        whole = [row["input_ids"].tolist() for row in itertools.islice(make(epochs=None, as_rows=True), 8)]
        rows = make(epochs=None, as_rows=True)
        list(itertools.islice(rows, 3))
        rows.set_epoch(1)
        assert [row["input_ids"].tolist() for row in itertools.islice(rows, 5)] == whole[3:]

    @pytest.mark.parametrize("name", ["seed", "epoch", "position", "passed"])
    @pytest.mark.parametrize("value", [None, "x", -1, 1e300, [1], {}])
    def test_a_damaged_state(self, make: Make, name: str, value: Any) -> None:
        """It is refused, and changes nothing."""
        loader = make()
        taken = ids(itertools.islice(loader, 2))
        state = {**loader.state(), name: value}
        if value is None:
            state.pop(name)
        for wrong in (state, [state]):
            if wrong == loader.state():
                continue  # it needs no such value
            with pytest.raises(DatasetError, match="this is not the state of a loader, or it is damaged"):
                loader.restore(wrong)
        assert taken + ids(loader) == ids(make())


class TestLength:
    @pytest.mark.parametrize("epochs", [1, 2])
    @pytest.mark.parametrize("micro", [None, 1, 4])
    def test_it_is_what_a_loop_yields(self, home: Path, epochs: int, micro: int | None) -> None:
        for world, most in itertools.product((1, 2, 5), (13, 14, 24)):
            for rank in range(world):
                given: dict[str, Any] = {"rank": rank, "world": world, "max_examples": most, "micro_batch": micro}
                for rows in (False, True):
                    loader = ramlet.Loader(
                        home / "data", seq_len=8, batch_size=6, epochs=epochs, as_rows=rows, read_ahead=0, **given
                    )
                    assert len(loader) == len(list(loader))

    def test_where_it_is_not_known(self, home: Path, make: Make) -> None:
        endless = ramlet.Loader(home / "data", seq_len=8)
        with pytest.raises(TypeError, match="endless and has no length: create it with epochs=1"):
            len(endless)
        assert endless
        stream = ramlet.StreamLoader(home / "stream.txt", tokenizer="byte", seq_len=8, epochs=1)
        with pytest.raises(TypeError, match="a stream has no known length"):
            len(stream)


def test_a_batch_that_is_taken_apart_is_a_dict(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers and accelerate make `type(batch)({...})` of its parts."""
    batch = next(iter(ramlet.Loader(home / "data", seq_len=8, as_torch=True)))
    made = type(batch)({name: value[:2] for name, value in batch.items()})
    assert type(made) is dict
    assert made["labels"].shape == (2, 8)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # which needs a GPU
    pinned = batch.pin_memory()
    assert isinstance(pinned, ramlet.Batch)
    assert pinned.input_ids is not batch.input_ids
    assert torch.equal(pinned.targets, batch.targets)
    arrays = next(iter(ramlet.Loader(home / "data", seq_len=8)))
    with pytest.raises(SettingsError, match="NumPy arrays cannot be pinned: create the loader with as_torch=True"):
        arrays.pin_memory()
    assert np.array_equal(arrays.row(1)["input_ids"], arrays.input_ids[1])
