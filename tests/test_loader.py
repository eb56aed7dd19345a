"""`ramlet.Loader` against the loader written out slowly: order, batches, ranks, resuming, mixes."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles_dataset import byte_tokenizer, write_dataset
from oracles_loading import IGNORED, SlowMix, global_batches, key, masked, slow_shuffle, windows
from ramlet import _native
from ramlet.errors import DatasetError, SettingsError
from ramlet.loading.batch import Batch, training_names
from ramlet.loading.division import Division
from ramlet.loading.loader import Loader

END = 256


def documents(seed: int, count: int, longest: int = 60) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(256) for _ in range(chance.randint(1, longest))] for _ in range(count)]


def flat(given: list[list[int]], end: bool = True) -> list[int]:
    return [one for document in given for one in [*document, *([END] if end else [])]]


def pairs(batch: Batch) -> list[tuple[list[int], list[int]]]:
    return list(zip(batch.input_ids.tolist(), batch.targets.tolist()))


def drawn(loader: Loader, count: int) -> list[tuple[list[int], list[int]]]:
    """The first samples of a loader of one rank."""
    rows: list[tuple[list[int], list[int]]] = []
    for batch in loader:
        rows += pairs(batch)
        if len(rows) >= count:
            break
    return rows[:count]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("loader") / "d", documents(1, 60), documents(2, 9))


def order_of(examples: list[Any], seed: int, count: int, shuffle: bool = True) -> list[Any]:
    mix = SlowMix([len(examples)], [1], seed, shuffle)
    return [examples[example] for _, example in mix.samples(count)]


class TestOrder:
    def schedule(self, length: int, seed: int, first: int, count: int) -> list[int]:
        spec = {
            "folder": "/",
            "shards": [],
            "header": 0,
            "dtype": "u2",
            "start": 0,
            "stride": 1,
            "examples": length,
            "weight": 1,
            "shifted": False,
            "pad_id": None,
            "end_id": None,
            "vocab_size": None,
        }
        order = _native.Windows([spec], seq_len=1, shuffle=True).schedule(first, 1, count, seed=seed)
        return [example for _, example in order]

    def test_it_is_the_permutation_that_is_written_down(self) -> None:
        for length in [*range(1, 70), 100, 255, 256, 257, 1000]:
            for epoch in (0, 1):
                wanted = slow_shuffle(length, key(7, 0, 0, epoch))
                assert sorted(wanted) == list(range(length))
                assert self.schedule(length, 7, epoch * length, length) == wanted

    @given(st.integers(1, 5000), st.integers(0, 2**64 - 1), st.integers(0, 2**30))
    def test_every_epoch_is_a_permutation(self, length: int, seed: int, epoch: int) -> None:
        assert sorted(self.schedule(length, seed, epoch * length, length)) == list(range(length))

    @given(st.integers(2**33, 2**50), st.integers(0, 2**64 - 1))
    def test_large_ones_do_not_repeat(self, length: int, seed: int) -> None:
        some = self.schedule(length, seed, length // 3, 500)
        assert len(set(some)) == 500
        assert max(some) < length

    def test_epochs_and_seeds_have_other_orders(self) -> None:
        orders = [tuple(self.schedule(50, seed, epoch * 50, 50)) for seed in (0, 1) for epoch in (0, 1)]
        assert len(set(orders)) == 4


class TestExamples:
    @pytest.mark.parametrize("stride", [None, 1, 7, 40])
    def test_windows_cross_shards(self, dataset: Path, stride: int | None) -> None:
        loader = Loader(dataset, seq_len=16, stride=stride, batch_size=5, shuffle=False, epochs=1)
        wanted = windows(flat(documents(1, 60)), 16, stride)
        assert len(loader.examples) == len(wanted)
        assert [row for batch in loader for row in pairs(batch)] == wanted
        assert pairs(loader.examples[-1]) == wanted[-1:]
        with pytest.raises(IndexError):
            loader.examples[len(wanted)]

    def test_shard_sizes_do_not_matter(self, tmp_path: Path) -> None:
        given = documents(3, 50)
        seen = []
        for size in (1, 30, 61, 500, 100_000):
            path = write_dataset(tmp_path / str(size), given, tokens_per_shard=size)
            seen.append(drawn(Loader(path, seq_len=13, batch_size=4), 200))
        assert all(one == seen[0] for one in seen)

    @pytest.mark.parametrize("large", [False, True])
    def test_ids_of_both_sizes(self, tmp_path: Path, large: bool) -> None:
        tokenizer = byte_tokenizer(large=large)
        given = [[tokenizer.vocab_size - 2] * 20, [1, 2, 3]]
        path = write_dataset(tmp_path / "d", given, tokenizer=tokenizer)
        loader = Loader(path, seq_len=22, shuffle=False)
        assert loader.vocab_size == tokenizer.vocab_size
        assert loader.end_id == tokenizer.end_of_text
        assert pairs(loader.examples[0]) == windows([*given[0], loader.end_id, 1, 2, 3, loader.end_id], 22)
        assert loader.examples[0].input_ids.dtype == np.int64

    def test_the_last_example_ends_with_the_last_id(self, tmp_path: Path) -> None:
        for length, count in ((20, 0), (21, 1), (40, 1), (41, 2)):
            path = write_dataset(tmp_path / str(length), [list(range(length))], end=False)
            if count:
                assert len(Loader(path, seq_len=20).examples) == count
            else:
                with pytest.raises(DatasetError, match=r"has 20 tokens in train, but one sequence needs 21: choose a"):
                    Loader(path, seq_len=20)

    def test_max_examples_are_the_first(self, dataset: Path) -> None:
        loader = Loader(dataset, seq_len=16, max_examples=7, epochs=1, batch_size=3)
        rows = drawn(loader, 100)
        assert len(loader.examples) == len(rows) == 7
        assert sorted(rows) == sorted(windows(flat(documents(1, 60)), 16)[:7])
        assert len(Loader(dataset, seq_len=16, max_examples=10**9).examples) == len(windows(flat(documents(1, 60)), 16))

    def test_the_other_split(self, dataset: Path) -> None:
        loader = Loader(dataset, split="val", seq_len=8, shuffle=False, epochs=1)
        assert drawn(loader, 10**6) == windows(flat(documents(2, 9)), 8)
        assert loader.tokens == len(flat(documents(2, 9)))

    def test_what_is_known(self, dataset: Path) -> None:
        loader = Loader(dataset, seq_len=16)
        tokens = len(flat(documents(1, 60)))
        assert (loader.tokens, loader.vocab_size, loader.end_id) == (tokens, 257, END)
        assert loader.tokenizer_fingerprint == byte_tokenizer().fingerprint
        assert loader.tokenizer_file == str(dataset / "tokenizer.json")
        in_all = tokens + len(flat(documents(2, 9)))
        assert loader.describe().splitlines() == [
            f"tokens in {dataset}: {in_all:,}",
            f"train portion: {tokens:,} tokens ({tokens / in_all:.1%})",
            f"sequences: {len(loader.examples):,} of 16 tokens",
        ]


class TestBatches:
    @given(
        seed=st.integers(0, 3),
        batch_size=st.integers(1, 40),
        shuffle=st.booleans(),
        epochs=st.integers(1, 3),
        world=st.integers(1, 5),
        micro_batch=st.none() | st.integers(1, 9),
        read_ahead=st.integers(0, 3),
    )
    def test_ranks_and_pieces_make_up_the_global_batches(
        self,
        dataset: Path,
        seed: int,
        batch_size: int,
        shuffle: bool,
        epochs: int,
        world: int,
        micro_batch: int | None,
        read_ahead: int,
    ) -> None:
        examples = windows(flat(documents(1, 60)), 32)
        wanted = global_batches(order_of(examples, seed, epochs * len(examples), shuffle), batch_size)
        for rank in range(world):
            loader = Loader(
                dataset,
                seq_len=32,
                batch_size=batch_size,
                seed=seed,
                shuffle=shuffle,
                epochs=epochs,
                rank=rank,
                world=world,
                micro_batch=micro_batch,
                read_ahead=read_ahead,
            )
            steps: list[list[Any]] = []
            for batch in loader:
                if batch.first_of_step:
                    steps.append([])
                assert batch.step_sequences == len(wanted[len(steps) - 1])
                assert batch.input_ids.shape == batch.targets.shape
                assert len(batch.input_ids) <= (micro_batch or batch_size)
                steps[-1] += pairs(batch)
                if batch.last_of_step:
                    assert steps[-1] == wanted[len(steps) - 1][rank::world]
                    assert loader.samples == batch.samples_done == sum(map(len, wanted[: len(steps)]))
            assert len(steps) == len(wanted)

    def test_without_epochs_there_is_no_end(self, dataset: Path) -> None:
        examples = windows(flat(documents(1, 60)), 32)
        count = 10 * len(examples) + 3
        assert drawn(Loader(dataset, seq_len=32, batch_size=7), count) == order_of(examples, 1, count)

    def test_a_batch_by_name(self, dataset: Path) -> None:
        batch = next(iter(Loader(dataset, seq_len=8, batch_size=3)))
        assert batch["input_ids"] is batch.input_ids
        assert list(dict(**batch)) == list(batch) == ["input_ids", "labels"]
        for name in ("position_ids", "step_sequences", "none"):
            with pytest.raises(KeyError):
                batch[name]
        masked_batch = next(iter(Loader(dataset, seq_len=8, document_mask=True)))
        assert list(masked_batch) == ["input_ids", "labels", "position_ids", "use_cache"]

    def test_tensors(self, dataset: Path) -> None:
        torch = pytest.importorskip("torch")
        arrays = next(iter(Loader(dataset, seq_len=8, batch_size=3, document_mask=True)))
        tensors = next(iter(Loader(dataset, seq_len=8, batch_size=3, document_mask=True, as_torch=True)))
        for name in (*training_names(document_mask=True), "labels"):
            assert tensors[name].dtype == torch.int64
            assert tensors[name].is_contiguous()
            assert tensors[name].tolist() == arrays[name].tolist()


class TestDocumentMask:
    @pytest.mark.parametrize("longest", [1, 5, 60])
    def test_it_is_the_slow_one(self, tmp_path: Path, longest: int) -> None:
        given = documents(longest, 100, longest)
        loader = Loader(write_dataset(tmp_path / "d", given), seq_len=24, document_mask=True, epochs=1, shuffle=False)
        rows = [
            row
            for batch in loader
            for row in zip(*(batch[name].tolist() for name in training_names(document_mask=True)))
        ]
        assert rows == [masked(example, END) for example in windows(flat(given), 24)]

    def test_it_needs_an_end_id(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", documents(1, 9), end=False)
        with pytest.raises(DatasetError, match=r"has no end id .* prepare it with an end_token, or train without"):
            Loader(path, seq_len=8, document_mask=True)


class TestResuming:
    @given(
        stop=st.integers(0, 30),
        batch_size=st.integers(1, 20),
        micro_batch=st.none() | st.integers(1, 5),
        worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        seed=st.integers(0, 5),
        read_ahead=st.integers(0, 3),
    )
    def test_it_is_as_if_it_had_never_stopped(
        self,
        dataset: Path,
        stop: int,
        batch_size: int,
        micro_batch: int | None,
        worlds: tuple[int, int],
        seed: int,
        read_ahead: int,
    ) -> None:
        examples = windows(flat(documents(1, 60)), 64)
        wanted = global_batches(order_of(examples, seed, 40 * batch_size), batch_size)
        given: dict[str, Any] = {"seq_len": 64, "batch_size": batch_size, "micro_batch": micro_batch}
        before = Loader(dataset, seed=seed, world=worlds[0], rank=worlds[0] - 1, read_ahead=read_ahead, **given)
        steps = 0
        for batch in itertools.islice(before, stop):
            steps += batch.last_of_step
        state = before.state()
        # The seed is the state's: that is what exact means.
        after = Loader(dataset, seed=99, world=worlds[1], rank=worlds[1] - 1, **given)
        after.restore(state)
        rows = []
        for batch in after:
            rows += pairs(batch)
            if batch.last_of_step:
                break
        assert rows == wanted[steps][worlds[1] - 1 :: worlds[1]]

    def test_another_batch_size_goes_on_with_the_next_sample(self, dataset: Path) -> None:
        examples = windows(flat(documents(1, 60)), 64)
        loader = Loader(dataset, seq_len=64, batch_size=5)
        drawn(loader, 10)
        other = Loader(dataset, seq_len=64, batch_size=3)
        other.restore(loader.state())
        assert drawn(other, 40) == order_of(examples, 1, 50)[10:]

    def test_the_state_is_json_and_says_epoch_and_position(self, dataset: Path) -> None:
        import json

        loader = Loader(dataset, seq_len=64, batch_size=10, seed=3)
        count = len(loader.examples)
        for batch in loader:
            if batch.samples_done >= 2 * count:
                break
        state = loader.state()
        assert json.loads(json.dumps(state)) == state
        assert (state["seed"], state["epoch"], state["position"]) == (3, 2, loader.samples - 2 * count)

    def test_a_second_loop_goes_on_and_rewinding_begins_anew(self, dataset: Path) -> None:
        wanted = order_of(windows(flat(documents(1, 60)), 32), 1, 30)
        loader = Loader(dataset, seq_len=32, batch_size=4, micro_batch=2)
        first = [row for batch in itertools.islice(loader, 3) for row in pairs(batch)]
        assert first == wanted[:6]
        # The third piece was the first half of a global batch: that comes again, whole.
        assert drawn(loader, 8) == wanted[4:12]
        loader.rewind()
        assert drawn(loader, 30) == wanted

    def test_what_does_not_fit_is_named(self, dataset: Path, tmp_path: Path) -> None:
        state = Loader(dataset, seq_len=16).state()
        for changes, sentence in (
            ({"seq_len": 17}, "saved with seq_len 16, but now it is 17: use the same, or start over"),
            ({"stride": 5}, "saved with stride 16, but now it is 5"),
            ({"shuffle": False}, "saved with shuffle True, but now it is False"),
            ({"max_examples": 5}, "saved with examples .*, but now it is 5"),
            ({"split": "val"}, "the data has changed since the state was saved"),
        ):
            with pytest.raises(DatasetError, match=sentence):
                Loader(dataset, **{"seq_len": 16, **changes}).restore(state)
        with pytest.raises(DatasetError, match="saved with seq_len None"):
            Loader(dataset, seq_len=16).restore({})
        changed = write_dataset(tmp_path / "d", [*documents(1, 59), [1]])
        with pytest.raises(DatasetError, match="the data has changed since the state"):
            Loader(changed, seq_len=16).restore(state)
        copy = write_dataset(tmp_path / "copy", documents(1, 60), documents(2, 9))
        Loader(copy, seq_len=16).restore(state)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("mix")
    return [write_dataset(folder / str(seed), documents(seed, 12 * seed)) for seed in (1, 2, 3)]


class TestMix:
    @pytest.mark.parametrize("weights", [(1, 1, 1), (0.7, 0.2, 0.1), (5, 1, 0.001)])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_it_is_the_slow_one(self, three: list[Path], weights: tuple[float, ...], shuffle: bool) -> None:
        examples = [windows(flat(documents(seed, 12 * seed)), 16) for seed in (1, 2, 3)]
        whole = [round(weight / sum(weights) * 10**9) for weight in weights]
        mix = SlowMix([len(each) for each in examples], whole, 5, shuffle)
        loader = Loader(list(zip(three, weights)), seq_len=16, seed=5, shuffle=shuffle, batch_size=50)
        assert len(loader.examples) == sum(map(len, examples))
        assert drawn(loader, 700) == [examples[dataset][example] for dataset, example in mix.samples(700)]

    def test_every_block_has_its_shares(self, three: list[Path]) -> None:
        loader = Loader(list(zip(three, (7, 2, 1))), seq_len=16)
        turns = [dataset for dataset, _ in loader._windows.schedule(0, 1, 256 * 400, seed=1)]
        for block in range(400):
            counts = [turns[: 256 * (block + 1)].count(dataset) for dataset in range(3)]
            for dataset, share in enumerate((0.7, 0.2, 0.1)):
                assert abs(counts[dataset] - share * 256 * (block + 1)) < dataset + 1
        assert turns[:256] != sorted(turns[:256])
        assert turns[:256] != turns[256:512]

    def test_resuming_and_epochs(self, three: list[Path]) -> None:
        data = list(zip(three, (3, 2, 1)))
        whole = drawn(Loader(data, seq_len=16, batch_size=8, epochs=2), 10**6)
        loader = Loader(data, seq_len=16, batch_size=8, epochs=2)
        assert len(whole) == 2 * len(loader.examples)
        half = drawn(loader, 48)
        other = Loader(data, seq_len=16, batch_size=8, epochs=2)
        other.restore(loader.state())
        assert half + drawn(other, 10**6) == whole
        with pytest.raises(DatasetError, match="the data has changed since the state"):
            Loader(list(zip(three, (3, 2, 2))), seq_len=16).restore(loader.state())

    def test_max_examples_are_shared(self, three: list[Path]) -> None:
        loader = Loader(list(zip(three, (2, 1, 1))), seq_len=16, max_examples=20)
        assert loader._counts == [10, 5, 5]
        assert "share of the mix: 50.0%" in loader.describe()

    def test_examples_one_dataset_after_the_other(self, three: list[Path]) -> None:
        loader = Loader(list(zip(three, (2, 1, 1))), seq_len=16)
        examples = [row for seed in (1, 2, 3) for row in windows(flat(documents(seed, 12 * seed)), 16)]
        assert [row for number in range(len(examples)) for row in pairs(loader.examples[number])] == examples

    def test_two_tokenizers_are_named(self, three: list[Path], tmp_path: Path) -> None:
        other = write_dataset(tmp_path / "other", documents(1, 12), tokenizer=byte_tokenizer(large=True))
        with pytest.raises(DatasetError) as error:
            Loader([(three[0], 1), (three[1], 1), (other, 1)], seq_len=16)
        assert f"{three[0]} and {other} were made with different tokenizers" in str(error.value)

    @pytest.mark.parametrize("data", [[], ["a", "b"], [("a", 1, 2)], [("a", 0)], [("a", -1)], [("a", float("nan"))]])
    def test_what_is_no_mix(self, data: Any) -> None:
        with pytest.raises(SettingsError, match=r"a mix|the weight of"):
            Loader(data)


class TestSettings:
    @pytest.mark.parametrize(
        ("wrong", "sentence"),
        [
            ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
            ({"micro_batch": 0}, "micro_batch must be at least 1, not 0"),
            ({"rank": 0, "world": 0}, "world must be at least 1, not 0"),
            ({"world": 2}, "give both rank and world, or neither to take those of torch.distributed"),
            ({"rank": 2, "world": 2}, "rank must be from 0 to 1 with world=2, not 2"),
            ({"seq_len": 0}, "seq_len must be at least 1, not 0"),
            ({"stride": 0}, "stride must be at least 1, not 0"),
            ({"epochs": 0}, "epochs must be at least 1, not 0"),
            ({"max_examples": 0}, "max_examples must be at least 1, not 0"),
            ({"read_ahead": -1}, "read_ahead must be at least 0, not -1"),
            ({"seed": -1}, "seed must be from 0 to 18446744073709551615, not -1"),
            ({"seed": 1 << 64}, "seed must be from 0 to 18446744073709551615, not 18446744073709551616"),
            ({"split": "test"}, "unknown split 'test'"),
            ({"seed": "1"}, "seed must be a whole number, not '1'"),
            ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
            ({"seed": None}, "seed must be a whole number, not None"),
            ({"rank": "0", "world": 2}, "rank must be a whole number, not '0'"),
            ({"read_ahead": 1.5}, "read_ahead must be a whole number, not 1.5"),
            ({"shuffle": "no"}, "shuffle and shift must be True or False, not 'no' and False"),
            ({"val_fraction": "0.1"}, "val_fraction must be at least 0 and below 1, not '0.1'"),
        ],
    )
    def test_what_makes_no_sense(self, dataset: Path, wrong: dict[str, Any], sentence: str) -> None:
        with pytest.raises(SettingsError, match=sentence):
            Loader(dataset, **wrong)

    def test_a_seed_of_numpy_is_an_ordinary_one(self, dataset: Path) -> None:
        loader = Loader(dataset, seq_len=4, seed=cast(int, np.int64(3)))
        assert json.loads(json.dumps(loader.state())) == Loader(dataset, seq_len=4, seed=3).state()

    @given(st.integers(1, 50), st.integers(1, 9), st.none() | st.integers(1, 60), st.integers(1, 200))
    def test_a_division_covers_everything(self, batch_size: int, world: int, micro: int | None, end: int) -> None:
        seen = []
        for rank in range(world):
            division = Division(batch_size=batch_size, rank=rank, world=world, micro_batch=micro)
            for piece in division.pieces(0, end):
                assert piece.count <= division.rows
                seen += [piece.first + number * world for number in range(piece.count)]
        assert sorted(seen) == list(range(end))


def test_labels_to_leave_out_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORED
