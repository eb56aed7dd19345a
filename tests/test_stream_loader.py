"""`ramlet.StreamLoader` against all of the text held in lists: every kind of source, ranks, resuming anywhere."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramlet
from oracles_dataset import byte_tokenizer
from oracles_loading import Example, global_batches, masked, slow_stream, windows
from ramlet.errors import BudgetError, DatasetError, SettingsError, SourceChanged, SourceError
from ramlet.loading import text_tokens
from ramlet.loading.batch import Batch, training_names
from ramlet.loading.loader import Loader
from ramlet.loading.stream_loader import StreamLoader

WORDS = ["stone", "river", "a", "the", "über", "漢字", "x1", "\n", "!", "  ", "tree's", "😀"]


def texts(seed: int, count: int, longest: int = 40) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, longest))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer() -> ramlet.Tokenizer:
    return ramlet.Tokenizer.train(
        texts=texts(0, 200), vocab_size=320, special_tokens=["<|endoftext|>"], memory="8GB", threads=1
    )


def ids_of(tokenizer: ramlet.Tokenizer, given: list[str]) -> list[int]:
    end = tokenizer.end_of_text
    return [one for text in given for one in [*tokenizer.encode(text), *([] if end is None else [end])]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of three kinds, 90 documents in all."""
    folder = tmp_path_factory.mktemp("stream") / "corpus"
    folder.mkdir()
    given = texts(1, 90)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in given[:40]))
    with gzip.open(folder / "b.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in given[40:88])
    (folder / "c.txt").write_text(given[88])
    (folder / "d.txt").write_text(given[89])
    return folder


@pytest.fixture(scope="module")
def examples(tokenizer: ramlet.Tokenizer) -> list[Example]:
    return windows(ids_of(tokenizer, texts(1, 90)), 16)


def pairs(batch: Batch) -> list[Example]:
    return list(zip(batch.input_ids.tolist(), batch.targets.tolist()))


def drawn(loader: StreamLoader | Loader, count: int) -> list[Example]:
    rows: list[Example] = []
    for batch in loader:
        rows += pairs(batch)
        if len(rows) >= count:
            break
    return rows[:count]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text a few bytes at a time, so that documents and pieces lie across many reads."""
    monkeypatch.setattr(text_tokens, "BLOCK_BYTES", 64)


class TestSamples:
    @pytest.mark.parametrize("shuffle_buffer", [1, 7, 100_000])
    @pytest.mark.parametrize("block_bytes", [16, 300, 1 << 18])
    def test_they_are_the_slow_ones(
        self,
        corpus: Path,
        tokenizer: ramlet.Tokenizer,
        examples: list[Example],
        monkeypatch: pytest.MonkeyPatch,
        shuffle_buffer: int,
        block_bytes: int,
    ) -> None:
        monkeypatch.setattr(text_tokens, "BLOCK_BYTES", block_bytes)
        loader = StreamLoader(
            corpus, tokenizer=tokenizer, seq_len=16, batch_size=5, shuffle_buffer=shuffle_buffer, seed=3, epochs=2
        )
        assert drawn(loader, 10**6) == slow_stream(examples, 3, shuffle_buffer, 2)
        assert loader.samples == 2 * len(examples)

    @pytest.mark.parametrize("stride", [1, 5, 16, 17, 40])
    @pytest.mark.parametrize("most", [None, 1, 10])
    @pytest.mark.usefixtures("small_blocks")
    def test_stride_and_max_examples(
        self, corpus: Path, tokenizer: ramlet.Tokenizer, stride: int, most: int | None
    ) -> None:
        wanted = windows(ids_of(tokenizer, texts(1, 90)), 16, stride)
        loader = StreamLoader(
            corpus, tokenizer=tokenizer, seq_len=16, stride=stride, max_examples=most, shuffle_buffer=4, epochs=2
        )
        assert drawn(loader, 10**6) == slow_stream(wanted, 1, 4, 2, most)

    def test_they_are_those_of_the_loader(self, corpus: Path, tokenizer: ramlet.Tokenizer, tmp_path: Path) -> None:
        """Prepared without cleaning, dedup and validation, the same files give the same examples."""
        tokenizer.save(tmp_path / "tokenizer.json")
        ramlet.prepare(
            corpus,
            tmp_path / "d",
            tokenizer=tmp_path / "tokenizer.json",
            filter=False,
            normalize=False,
            dedup="none",
            val_fraction=0.0,
            memory="8GB",
        )
        loader = Loader(tmp_path / "d", seq_len=16, shuffle=False, epochs=1)
        stream = StreamLoader(corpus, tokenizer=tmp_path / "tokenizer.json", seq_len=16, shuffle_buffer=1, epochs=1)
        assert drawn(loader, 10**6) == drawn(stream, 10**6)
        assert (stream.vocab_size, stream.end_id) == (loader.vocab_size, loader.end_id)
        assert stream.tokenizer_fingerprint == loader.tokenizer_fingerprint

    def test_reading_settings(self, tokenizer: ramlet.Tokenizer, tmp_path: Path) -> None:
        (tmp_path / "lines.txt").write_text("one fine line\n\nand another one\n")
        (tmp_path / "rows.jsonl").write_text('{"body": "one fine line"}\nbroken\n{"body": "and another one"}\n')
        (tmp_path / "parts.txt").write_text("one fine line<>and another one")
        wanted = windows(ids_of(tokenizer, ["one fine line", "and another one"]), 4)
        for name, reading in (
            ("lines.txt", {"documents": "line"}),
            ("rows.jsonl", {"text_field": "body", "on_error": "skip"}),
            ("parts.txt", {"doc_separator": "<>"}),
        ):
            loader = StreamLoader(
                tmp_path / name, tokenizer=tokenizer, seq_len=4, epochs=1, shuffle_buffer=1, **reading
            )
            assert drawn(loader, 10**6) == wanted

    @pytest.mark.usefixtures("small_blocks")
    def test_a_document_longer_than_any_block(self, tokenizer: ramlet.Tokenizer, tmp_path: Path) -> None:
        text = " ".join(texts(5, 400))
        (tmp_path / "a.txt").write_text(text)
        loader = StreamLoader(tmp_path / "a.txt", tokenizer=tokenizer, seq_len=32, shuffle_buffer=1, epochs=1)
        assert drawn(loader, 10**6) == windows(ids_of(tokenizer, [text]), 32)

    def test_a_document_mask(self, corpus: Path, tokenizer: ramlet.Tokenizer, examples: list[Example]) -> None:
        loader = StreamLoader(
            corpus, tokenizer=tokenizer, seq_len=16, shuffle_buffer=1, epochs=1, document_mask=True, as_torch=False
        )
        rows = [
            row
            for batch in loader
            for row in zip(*(batch[name].tolist() for name in training_names(document_mask=True)))
        ]
        assert rows == [masked(example, tokenizer.end_of_text or 0) for example in examples]

    def test_without_an_end_id(self, corpus: Path) -> None:
        tokenizer = ramlet.Tokenizer.load("byte")
        assert tokenizer.end_of_text is None
        loader = StreamLoader(corpus, tokenizer="byte", seq_len=16, shuffle_buffer=1, epochs=1)
        assert drawn(loader, 10**6) == windows(ids_of(tokenizer, texts(1, 90)), 16)
        with pytest.raises(SettingsError, match="a document mask needs an end-of-text token"):
            StreamLoader(corpus, tokenizer="byte", document_mask=True)

    def test_tensors(self, corpus: Path, tokenizer: ramlet.Tokenizer) -> None:
        torch = pytest.importorskip("torch")
        batch = next(iter(StreamLoader(corpus, tokenizer=tokenizer, seq_len=16, as_torch=True, document_mask=True)))
        for name in (*training_names(document_mask=True), "labels"):
            assert batch[name].dtype == torch.int64
            assert batch[name].shape == (8, 16)


class TestBatches:
    @given(
        batch_size=st.integers(1, 30),
        world=st.integers(1, 4),
        micro_batch=st.none() | st.integers(1, 9),
        shuffle_buffer=st.integers(1, 50),
        epochs=st.integers(1, 2),
        read_ahead=st.integers(0, 2),
    )
    def test_ranks_and_pieces_make_up_the_global_batches(
        self,
        corpus: Path,
        tokenizer: ramlet.Tokenizer,
        examples: list[Example],
        batch_size: int,
        world: int,
        micro_batch: int | None,
        shuffle_buffer: int,
        epochs: int,
        read_ahead: int,
    ) -> None:
        wanted = global_batches(slow_stream(examples, 1, shuffle_buffer, epochs), batch_size)
        for rank in range(world):
            loader = StreamLoader(
                corpus,
                tokenizer=tokenizer,
                seq_len=16,
                batch_size=batch_size,
                shuffle_buffer=shuffle_buffer,
                epochs=epochs,
                rank=rank,
                world=world,
                micro_batch=micro_batch,
                read_ahead=read_ahead,
            )
            steps: list[list[Example]] = []
            for batch in loader:
                if batch.first_of_step:
                    steps.append([])
                assert batch.step_sequences == len(wanted[len(steps) - 1])
                assert batch.input_ids.shape[1] == 16
                steps[-1] += pairs(batch)
                if batch.last_of_step:
                    assert loader.samples == batch.samples_done == sum(map(len, wanted[: len(steps)]))
            assert steps == [batch[rank::world] for batch in wanted]


class TestResuming:
    @given(
        stop=st.integers(0, 60),
        batch_size=st.integers(1, 20),
        micro_batch=st.none() | st.integers(1, 5),
        worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        shuffle_buffer=st.sampled_from([1, 3, 10, 64, 10_000]),
        block_bytes=st.sampled_from([24, 200, 1 << 18]),
        stride=st.sampled_from([3, 16, 50]),
    )
    def test_it_is_as_if_it_had_never_stopped(
        self,
        corpus: Path,
        tokenizer: ramlet.Tokenizer,
        stop: int,
        batch_size: int,
        micro_batch: int | None,
        worlds: tuple[int, int],
        shuffle_buffer: int,
        block_bytes: int,
        stride: int,
    ) -> None:
        examples = windows(ids_of(tokenizer, texts(1, 90)), 16, stride)
        samples = slow_stream(examples, 4, shuffle_buffer, 1 + 70 * batch_size // len(examples))
        wanted = global_batches(samples, batch_size)
        given: dict[str, Any] = {
            "tokenizer": tokenizer,
            "seq_len": 16,
            "stride": stride,
            "batch_size": batch_size,
            "micro_batch": micro_batch,
            "shuffle_buffer": shuffle_buffer,
        }
        usual = text_tokens.BLOCK_BYTES
        try:
            text_tokens.BLOCK_BYTES = block_bytes
            before = StreamLoader(corpus, seed=4, world=worlds[0], rank=worlds[0] - 1, **given)
            steps = sum(batch.last_of_step for batch in itertools.islice(before, stop))
            state = json.loads(json.dumps(before.state()))
            after = StreamLoader(corpus, seed=99, world=worlds[1], rank=worlds[1] - 1, **given)
            after.restore(state)
            assert after.state() == state
            rows: list[Example] = []
            done = 0
            for batch in after:
                rows += pairs(batch)
                done += batch.last_of_step
                if done == 2:
                    break
        finally:
            text_tokens.BLOCK_BYTES = usual
        rest = [row[worlds[1] - 1 :: worlds[1]] for row in wanted[steps : steps + 2]]
        assert rows == [row for step in rest for row in step]

    def test_to_the_end_and_beyond(self, corpus: Path, tokenizer: ramlet.Tokenizer, examples: list[Example]) -> None:
        given: dict[str, Any] = {"tokenizer": tokenizer, "seq_len": 16, "shuffle_buffer": 10}
        loader = StreamLoader(corpus, epochs=1, batch_size=len(examples), **given)
        assert len(drawn(loader, 10**6)) == len(examples)
        more = StreamLoader(corpus, epochs=2, **given)
        more.restore(loader.state())
        second = slow_stream(examples, 1, 10, 2)[len(examples) :]
        assert drawn(more, 10**6) == drawn(loader, 10**6) == second
        loader.rewind()
        assert drawn(loader, 5) == slow_stream(examples, 1, 10, 1)[:5]

    def test_after_a_kill(
        self, corpus: Path, tokenizer: ramlet.Tokenizer, examples: list[Example], tmp_path: Path
    ) -> None:
        tokenizer.save(tmp_path / "tokenizer.json")
        script = f"""
import json, os, signal
from ramlet.loading.stream_loader import StreamLoader
settings = dict(tokenizer={str(tmp_path / "tokenizer.json")!r}, seq_len=16, batch_size=6, shuffle_buffer=9)
loader = StreamLoader({str(corpus)!r}, **settings)
for count, batch in enumerate(loader, 1):
    if count == 11:
        print(json.dumps(loader.state()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        assert done.returncode == -9, done.stderr
        loader = StreamLoader(corpus, tokenizer=tokenizer, seq_len=16, batch_size=6, shuffle_buffer=9)
        loader.restore(json.loads(done.stdout))
        assert drawn(loader, 50) == slow_stream(examples, 1, 9, 3)[66:116]

    def test_what_does_not_fit_is_named(self, corpus: Path, tokenizer: ramlet.Tokenizer) -> None:
        given: dict[str, Any] = {"tokenizer": tokenizer, "seq_len": 16}
        state = StreamLoader(corpus, **given).state()
        for changes, error, sentence in (
            ({"seq_len": 17}, DatasetError, "saved with seq_len 16, but now it is 17: use the same, or start over"),
            ({"stride": 5}, DatasetError, "saved with stride 16"),
            ({"shuffle_buffer": 5}, DatasetError, "saved with shuffle_buffer 1000"),
            ({"max_examples": 5}, DatasetError, "saved with max_examples None"),
            ({"tokenizer": byte_tokenizer()}, DatasetError, "saved with tokenizer "),
            (
                {"documents": "line"},
                SourceChanged,
                "has changed since the state was saved, or is read with other",
            ),
        ):
            with pytest.raises(error, match=sentence):
                StreamLoader(corpus, **{**given, **changes}).restore(state)
        with pytest.raises(DatasetError, match="saved with seq_len None"):
            StreamLoader(corpus, **given).restore({})

    def test_a_source_that_changed(self, tokenizer: ramlet.Tokenizer, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text("some words " * 100)
        os.utime(path, (1, 1))
        loader = StreamLoader(path, tokenizer=tokenizer, seq_len=16, epochs=2)
        state = loader.state()
        path.write_text("more words " * 100)
        os.utime(path, (2, 2))
        with pytest.raises(SourceChanged, match=r"a\.txt changed since it was opened: do not change the files"):
            list(loader)
        with pytest.raises(SourceChanged, match=r"a\.txt has changed since the state was saved"):
            StreamLoader(path, tokenizer=tokenizer, seq_len=16, epochs=2).restore(state)


class TestSources:
    def test_what_has_to_be_staged(self, tokenizer: ramlet.Tokenizer, tmp_path: Path) -> None:
        """Standard input: a copy is made, which a state finds again in the same folder."""
        script = f"""
import json
from ramlet.loading.stream_loader import StreamLoader
settings = dict(tokenizer="byte", seq_len=8, epochs=2, shuffle_buffer=1, batch_size=1)
loader = StreamLoader("-", work_dir={str(tmp_path)!r}, **settings)
print(json.dumps([batch.input_ids.tolist()[0] for batch in loader]))
"""
        done = subprocess.run([sys.executable, "-c", script], input="some words, twice", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ids = list(b"some words, twice")
        assert json.loads(done.stdout) == [ids[:8], ids[8:16]] * 2

    def test_nothing_is_left_behind(self, corpus: Path, tokenizer: ramlet.Tokenizer) -> None:
        loader = StreamLoader(corpus, tokenizer=tokenizer, seq_len=16)
        folder = loader._files.folder
        next(iter(loader))
        assert folder.is_dir()
        del loader
        assert not folder.exists()
        assert not [thread for thread in threading.enumerate() if thread.name == "ramlet-read-ahead"]

    def test_too_little_text(self, tokenizer: ramlet.Tokenizer, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("few words")
        with pytest.raises(SourceError, match=r"a\.txt has less than one sequence of 1,024 tokens: choose a smaller"):
            next(iter(StreamLoader(tmp_path / "a.txt", tokenizer=tokenizer)))

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes a pipe")
    def test_pipes_are_refused(self, tokenizer: ramlet.Tokenizer, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(SourceError, match="can be read only once, but every epoch reads it again"):
            StreamLoader(tmp_path / "pipe", tokenizer=tokenizer)

    def test_broken_input_is_heard(self, tokenizer: ramlet.Tokenizer, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"text": "' + "word " * 100 + '"}\n{broken\n')
        with pytest.raises(ramlet.BrokenInput, match=r"a\.jsonl:2"):
            list(StreamLoader(tmp_path / "a.jsonl", tokenizer=tokenizer, seq_len=8, epochs=1))

    @pytest.mark.usefixtures("small_blocks")
    @pytest.mark.parametrize("part", [7, 50, 1_000_000])
    def test_tokenizers_of_other_families(
        self, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, part: int
    ) -> None:
        """They get whole documents, the longest in parts, and resume just as exactly."""
        tokenizers = pytest.importorskip("tokenizers")
        model = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({"[UNK]": 0, "stone": 1, "river": 2}, unk_token="[UNK]")
        )
        model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        model.add_special_tokens(["</s>"])
        model.save(str(tmp_path / "tokenizer.json"))
        tokenizer = ramlet.Tokenizer.load(tmp_path / "tokenizer.json")
        assert tokenizer.kind == "hf"
        monkeypatch.setattr(text_tokens, "PART_CHARACTERS", part)
        given: dict[str, Any] = {"tokenizer": tokenizer, "seq_len": 8, "batch_size": 3, "shuffle_buffer": 5}
        whole = drawn(StreamLoader(corpus, epochs=1, **given), 10**6)
        if part == 1_000_000:
            assert whole == slow_stream(windows(ids_of(tokenizer, texts(1, 90)), 8), 1, 5, 1)
        for stop in range(0, len(whole) // 3, 7):
            before = StreamLoader(corpus, epochs=1, **given)
            first = [row for batch in itertools.islice(before, stop) for row in pairs(batch)]
            after = StreamLoader(corpus, epochs=1, **given)
            after.restore(before.state())
            assert first + drawn(after, 10**6) == whole


class TestMemory:
    def test_it_limits_the_cache_and_changes_nothing(
        self, corpus: Path, tokenizer: ramlet.Tokenizer, tmp_path: Path
    ) -> None:
        tokenizer.save(tmp_path / "tokenizer.json")
        given: dict[str, Any] = {"tokenizer": tmp_path / "tokenizer.json", "seq_len": 16, "epochs": 1}
        small, large = (StreamLoader(corpus, memory=memory, **given) for memory in ("20MB", "1GB"))
        assert small.memory() <= 20e6 < large.memory()
        assert drawn(small, 10**6) == drawn(large, 10**6)
        with pytest.raises(BudgetError, match=r"needs at least .*MB: the blocks, the batches and the text"):
            StreamLoader(corpus, memory="1MB", **given)

    def test_a_bigger_buffer_takes_more(self, corpus: Path, tokenizer: ramlet.Tokenizer) -> None:
        given: dict[str, Any] = {"tokenizer": tokenizer, "seq_len": 16}
        smaller = StreamLoader(corpus, shuffle_buffer=10, **given).memory()
        assert StreamLoader(corpus, shuffle_buffer=1010, **given).memory() - smaller == 3 * 1000 * 16 * 2

    def test_describe(self, corpus: Path, tokenizer: ramlet.Tokenizer) -> None:
        lines = StreamLoader(corpus, tokenizer=tokenizer, seq_len=16, max_examples=7).describe().splitlines()
        size = sum(path.stat().st_size for path in corpus.iterdir())
        assert lines == [
            f"text in {corpus}: {size:,} bytes in 4 files, tokenized on the fly",
            "sequences: of 16 tokens, shuffled in blocks of 1,000",
            "epochs: at most 7 sequences",
        ]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"seq_len": 0}, "seq_len must be at least 1, not 0"),
        ({"shuffle_buffer": 0}, "shuffle_buffer must be at least 1, not 0"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"seed": -1}, "seed must be from 0 to 18446744073709551615, not -1"),
        ({"read_ahead": -1}, "read_ahead must be at least 0, not -1"),
        ({"rank": 1, "world": 1}, "rank must be from 0 to 0 with world=1, not 1"),
        ({"documents": "word"}, "documents must be one of file, line, not 'word'"),
        ({"seq_len": None}, "seq_len must be a whole number, not None"),
        ({"source": 5}, "a path must be text or a path object, not 5"),
        ({"source": ["a.txt", None]}, "a path must be text or a path object, not None"),
    ],
)
def test_settings_that_make_no_sense(
    corpus: Path, tokenizer: ramlet.Tokenizer, wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence):
        StreamLoader(**{"source": corpus, "tokenizer": tokenizer, **wrong})
