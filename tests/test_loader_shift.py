"""`shift`: each epoch after the first cuts the data into sequences at other places."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from oracles_dataset import write_dataset
from oracles_loading import SlowMix, key
from ramlet.errors import DatasetError
from ramlet.loading.loader import Loader

SEQ_LEN, SEED = 16, 9
OFFSET = 3
"""What the keys of offsets are derived with, in rust/loading/schedule.rs."""


@pytest.fixture(scope="module")
def ids() -> list[int]:
    chance = random.Random(4)
    return [chance.randrange(256) for _ in range(700)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, ids: list[int]) -> Path:
    return write_dataset(tmp_path_factory.mktemp("shift") / "d", [ids[:300], ids[300:]], [[1] * 40])


def rows(dataset: Path, **settings: Any) -> list[list[int]]:
    given = {"seq_len": SEQ_LEN, "batch_size": 4, "seed": SEED, "epochs": 3, "shift": True, **settings}
    with Loader(dataset, **given) as loader:
        return [
            [*inputs, targets[-1]]
            for batch in loader
            for inputs, targets in zip(batch.input_ids.tolist(), batch.targets.tolist())
        ]


def expected(flat: list[int], stride: int, epochs: int) -> list[list[int]]:
    examples = (len(flat) - 1 - SEQ_LEN) // stride + 1
    found = []
    for number, (_, example) in enumerate(SlowMix([examples], [1], SEED, True).samples(epochs * examples)):
        epoch = number // examples
        offset = key(SEED, OFFSET, 0, epoch) % stride if epoch and example + 1 < examples else 0
        start = example * stride + offset
        found.append(flat[start : start + SEQ_LEN + 1])
    return found


@pytest.mark.parametrize("stride", [None, 5, 1, 40])
def test_every_sequence_is_where_the_formula_says(dataset: Path, ids: list[int], stride: int | None) -> None:
    flat = [*ids[:300], 256, *ids[300:], 256]
    assert rows(dataset, stride=stride) == expected(flat, stride or SEQ_LEN, 3)


def test_the_first_epoch_is_as_without_it_and_all_are_as_long(dataset: Path) -> None:
    shifted, plain = rows(dataset), rows(dataset, shift=False)
    count = len(plain) // 3
    assert len(shifted) == len(plain) == 3 * count
    assert shifted[:count] == plain[:count]
    epochs = [{tuple(row) for row in shifted[at : at + count]} for at in (0, count, 2 * count)]
    assert all(len(one & other) == 1 for one, other in itertools.combinations(epochs, 2)), "only the last stays"


def test_max_examples_still_bounds_what_is_read(dataset: Path, ids: list[int]) -> None:
    shifted = rows(dataset, max_examples=5, epochs=20)
    first = ids[: 5 * SEQ_LEN + 1]
    assert all(any(first[at : at + SEQ_LEN + 1] == row for at in range(4 * SEQ_LEN + 1)) for row in shifted)
    assert len(rows(dataset, max_examples=1)) == 3


def test_ranks_and_resuming(dataset: Path) -> None:
    whole = rows(dataset)
    parts = [rows(dataset, rank=rank, world=2) for rank in (0, 1)]
    assert sorted(parts[0] + parts[1]) == sorted(whole)
    given: dict[str, Any] = {"seq_len": SEQ_LEN, "seed": SEED, "epochs": 3, "shift": True}
    with Loader(dataset, batch_size=4, **given) as loader:
        for _ in itertools.islice(loader, 15):
            pass
        state = loader.state()
    with Loader(dataset, batch_size=4, **given) as loader:
        loader.restore(state)
        rest = [inputs for batch in loader for inputs in batch.input_ids.tolist()]
    assert rest == [row[:-1] for row in whole[60:]]
    with (
        Loader(dataset, **{**given, "shift": False}) as loader,
        pytest.raises(DatasetError, match="saved with shift True, but now it is False"),
    ):
        loader.restore(state)


def test_a_state_from_before_is_one_without_it(dataset: Path) -> None:
    with Loader(dataset, seq_len=SEQ_LEN) as loader:
        state = {name: value for name, value in loader.state().items() if name != "shift"}
        loader.restore(state)
    with (
        Loader(dataset, seq_len=SEQ_LEN, shift=True) as loader,
        pytest.raises(DatasetError, match="saved with shift False, but now it is True"),
    ):
        loader.restore(state)
