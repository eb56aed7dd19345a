"""Adding to a dataset, and what later runs know of earlier ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import oracles_prepare as oracle
from conftest import AMPLE
from ramlet.cli.wording import as_flag
from ramlet.cluster.parts import Slice
from ramlet.dataset.adopt import adopt
from ramlet.dataset.verify import verify
from ramlet.errors import DatasetError, RamletError, SettingsError, SourceError
from ramlet.preparing.entry import prepare
from ramlet.preparing.parts import prepare_stage
from ramlet.preparing.run import Prepared
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.tokenizer.tokenizer import Tokenizer


def write(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def run(inputs: Any, out: Path, **given: Any) -> Prepared:
    return prepare(inputs, out, **{"memory": AMPLE, "threads": 1, **given})


def texts(made: Prepared) -> list[str]:
    tokenizer = Tokenizer.load(made.path / "tokenizer.json")
    end = made.manifest["end_id"]
    found = []
    for split in oracle.SPLITS:
        for shard in oracle.shards_on_disk(made.path, made.manifest, split):
            found += [tokenizer.decode([one for one in ids if one != end]) for ids in shard]
    return found


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return write(tmp_path / "first.jsonl", "one text", "another text", "a third of us")


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return write(tmp_path / "second.jsonl", "a fourth text", "another text", "a fifth")


@pytest.mark.parametrize("given", [{}, {"pack": 16}, {"end_token": "none"}, {"tokenizer": "char"}])
def test_append(tmp_path: Path, first: Path, second: Path, given: dict[str, Any]) -> None:
    given = {"tokenizer": "gpt2", "val_fraction": 0, **given}
    before = run(first, tmp_path / "out", **given)
    kept = snapshot(before.path)
    more = {key: value for key, value in given.items() if key in ("pack",)}
    made = run(second, tmp_path / "out", append=True, unknown="error", **more)
    assert not made.already_done
    assert repr(made) == f"Prepared(path={made.path!r}, already_done=False)"
    assert texts(made) == ["one text", "another text", "a third of us", "a fourth text", "another text", "a fifth"]
    after = snapshot(made.path)
    shards = {name for name in kept if name.startswith(("train", "val", "tokenizer"))}
    assert {name: kept[name] for name in shards} == {name: after[name] for name in shards}
    for key in ("tokenizer", "end_id", "dtype", "vocab_size", "val_fraction"):
        assert made.manifest[key] == before.manifest[key], key
    assert [shard["run"] for shard in made.manifest["splits"]["train"]["shards"]] == [0, 1]
    assert made.manifest["ledger"]["documents"]["kept"] == 6
    assert (verify(made.path).problems, verify(made.path).notes) == ([], [])


def test_appending_the_same_again_does_nothing(tmp_path: Path, first: Path, second: Path) -> None:
    run(first, tmp_path / "out", tokenizer="byte")
    run(second, tmp_path / "out", append=True)
    before = snapshot(tmp_path / "out")
    assert run(second, tmp_path / "out", append=True).already_done
    assert run(first, tmp_path / "out", tokenizer="byte").already_done
    assert snapshot(tmp_path / "out") == before
    assert not (tmp_path / "out" / ".work").exists()


def refused(before: dict[str, Any], then: dict[str, Any], first: Path, second: Path, out: Path) -> str:
    run(first, out, **before)
    kept = snapshot(out)
    with pytest.raises(RamletError) as caught:
        run(second, out, append=True, **then)
    assert snapshot(out) == kept
    assert not (out / ".work").exists()
    return caught.value.render(as_flag)


@pytest.mark.parametrize(
    ("before", "then", "said"),
    [
        ({"tokenizer": "byte"}, {"tokenizer": "gpt2"}, "another tokenizer"),
        ({"tokenizer": "char"}, {"tokenizer": "char"}, "remove --tokenizer"),
        ({"tokenizer": "byte"}, {"tokenizer": "char"}, "remove --tokenizer"),
        ({"tokenizer": "gpt2"}, {"end_token": "none"}, "remove --end-token"),
        ({"tokenizer": "gpt2", "end_token": "none"}, {"end_token": "<|endoftext|>"}, "remove --end-token"),
        ({"tokenizer": "byte", "pack": 16}, {}, "packed in sequences of 16"),
        ({"tokenizer": "byte", "pack": 16}, {"pack": 32}, "packed in sequences of 16"),
        ({"tokenizer": "byte"}, {"pack": 16}, "not packed"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, first: Path, second: Path, before: dict[str, Any], then: dict[str, Any], said: str
) -> None:
    assert said in refused(before, then, first, second, tmp_path / "out")


def test_other_shard_sizes_and_limits_stay_sound(tmp_path: Path, first: Path, second: Path) -> None:
    run(first, tmp_path / "out", tokenizer="byte", tokens_per_shard=1000)
    made = run(second, tmp_path / "out", append=True, tokens_per_shard=8, max_tokens=6)
    assert (made.manifest["tokens_per_shard"], made.manifest["max_tokens"]) == (1000, 6)
    assert verify(made.path).problems == []


def test_a_dataset_from_elsewhere(tmp_path: Path, first: Path) -> None:
    with pytest.raises(SettingsError, match="no dataset"):
        run(first, tmp_path / "out", append=True)
    assert not (tmp_path / "out").exists()
    run(first, tmp_path / "out", tokenizer="byte")
    manifest = tmp_path / "out" / "dataset_metadata.json"
    sound = json.loads(manifest.read_text())
    for wrong, said in (
        ("[1]", "not written by ramlet"),
        ('{"version": 1}', "not written by ramlet"),
        (json.dumps({**sound, "version": 2}), "newer ramlet"),
        ("{", "not JSON"),
    ):
        manifest.write_text(wrong)
        for append in (False, True):
            with pytest.raises(RamletError, match=said):
                run(first, tmp_path / "out", append=append)
    assert manifest.read_text() == "{"


def test_shards_moved_in_by_hand_are_not_written_over(tmp_path: Path, first: Path, second: Path) -> None:
    made = run(first, tmp_path / "out", tokenizer="byte", val_fraction=0)
    for ending in ("bin", "idx"):
        shutil.copy(made.path / f"train/shard_00000.{ending}", made.path / f"train/shard_00001.{ending}")
    with pytest.raises(DatasetError, match="run data verify with adopt"):
        run(second, tmp_path / "out", append=True)
    shutil.rmtree(made.path / ".work", ignore_errors=True)
    for ending in ("bin", "idx"):
        (made.path / f"train/shard_00001.{ending}").unlink()
    assert verify(run(second, tmp_path / "out", append=True).path).problems == []


def test_shards_moved_in_while_an_append_is_unfinished(tmp_path: Path, first: Path, second: Path) -> None:
    made = run(first, tmp_path / "out", tokenizer="byte", val_fraction=0)
    settings = PrepareSettings(tokenizer="byte", val_fraction=0)
    for stage in ("plan", "scan", "settle", "write"):
        with Meter(Budget.parse(AMPLE)) as meter:
            prepare_stage([second], made.path, settings, stage, Slice(), meter=meter, append=True)
    for ending in ("bin", "idx"):
        shutil.copy(made.path / f"train/shard_00000.{ending}", made.path / f"train/shard_00001.{ending}")
    with Meter(Budget.parse(AMPLE)) as meter, pytest.raises(DatasetError, match="run data verify with adopt"):
        prepare_stage([second], made.path, settings, "layout", Slice(), meter=meter, append=True)
    third = write(tmp_path / "third.jsonl", "more")
    for inputs in (second, third):  # it would be written over, or removed
        with pytest.raises(DatasetError, match="run data verify with adopt"):
            run(inputs, made.path, append=True, tokenizer="byte", val_fraction=0)
    assert len(adopt(made.path).shards) == 1
    appended = run(second, made.path, append=True, tokenizer="byte", val_fraction=0)
    assert verify(made.path).problems == []
    assert [shard["run"] for shard in appended.manifest["splits"]["train"]["shards"]] == [0, 1, 2]


def test_shards_of_an_unfinished_append_are_not_adopted(tmp_path: Path, first: Path, second: Path) -> None:
    made = run(first, tmp_path / "out", tokenizer="byte")
    before = snapshot(made.path)
    stages = ["plan", "scan", "settle", "write", "layout", "assemble"]
    settings, whole = PrepareSettings(tokenizer="byte"), Slice()
    for stage in stages:
        with Meter(Budget.parse(AMPLE)) as meter:
            prepare_stage([second], made.path, settings, stage, whole, meter=meter, append=True)
    found = verify(made.path)
    assert (found.problems, found.adoptable) == ([], [])
    assert "train/shard_00001.bin: of the `ramlet prepare` that was interrupted" in found.notes
    with pytest.raises(DatasetError, match="run that again first"):
        adopt(made.path)
    assert before.items() <= snapshot(made.path).items()
    appended = run(second, made.path, append=True, tokenizer="byte")
    assert verify(made.path).problems == []
    assert len(appended.manifest["runs"]) == 2


@pytest.mark.parametrize("unit", ["doc", "line"])
def test_the_cache_over_two_runs(tmp_path: Path, first: Path, second: Path, unit: str) -> None:
    given = {"tokenizer": "byte", "dedup": unit, "dedup_cache": str(tmp_path / "cache"), "val_fraction": 0}
    assert texts(run(first, tmp_path / "a", **given)) == ["one text", "another text", "a third of us"]
    assert texts(run(second, tmp_path / "b", **given)) == ["a fourth text", "a fifth"]
    assert len(os.listdir(tmp_path / "cache")) == 2
    # Made anew, it is what it was: a run is not compared with itself, nor with what came after only by accident.
    shutil.rmtree(tmp_path / "b")
    assert texts(run(second, tmp_path / "b", **given)) == ["a fourth text", "a fifth"]
    assert len(os.listdir(tmp_path / "cache")) == 2
    # And to the dataset itself: everything is known by now but what is new.
    third = write(tmp_path / "third.jsonl", "one text", "new")
    made = run(third, tmp_path / "a", append=True, **{**given, "tokenizer": None})
    assert texts(made) == ["one text", "another text", "a third of us", "new"]
    assert made.manifest["ledger"]["documents"]["dropped"]["duplicate"] == 1


def test_caches_that_cannot_be_used(tmp_path: Path, first: Path, second: Path) -> None:
    given = {"tokenizer": "byte", "dedup_cache": str(tmp_path / "cache")}
    run(first, tmp_path / "a", **given)
    for other, said in (({"min_chars": 3}, "different cleaning"), ({"dedup": "line"}, "hashes of documents")):
        with pytest.raises(RamletError, match=said):
            run(second, tmp_path / "b", **given, **other)
    assert not (tmp_path / "b").exists()  # refused before any work was done
    (cache,) = (tmp_path / "cache").iterdir()
    cache.write_bytes(cache.read_bytes()[:-1] + b"x")
    with pytest.raises(RamletError, match="damaged"):
        run(second, tmp_path / "c", **given)
    with pytest.raises(SettingsError, match="is not a folder"):
        run(second, tmp_path / "e", tokenizer="byte", dedup_cache=str(second))
    assert not (tmp_path / "e").exists()
    # Without dedup there is nothing to compare, and nothing to remember.
    made = run(second, tmp_path / "d", **given, dedup="none")
    assert made.manifest["ledger"]["documents"]["kept"] == 3
    assert len(os.listdir(tmp_path / "cache")) == 1


def test_a_document_that_only_an_earlier_run_dropped_is_kept(tmp_path: Path, first: Path) -> None:
    given = {"tokenizer": "byte", "dedup_cache": str(tmp_path / "cache"), "min_tokens": 10}
    made = run(first, tmp_path / "a", **given)
    assert made.manifest["ledger"]["documents"]["dropped"]["too_few_tokens"] == 1
    for other in ({"min_tokens": 1}, {"max_tokens": 30, "long_documents": "drop"}):
        with pytest.raises(SettingsError, match="limits of tokens"):
            run(first, tmp_path / "b", **{**given, **other})
    with pytest.raises(SourceError, match="3 as duplicate"):  # as long as what is dropped is the same
        run(first, tmp_path / "b", **given)


def test_characters_that_the_dataset_lacks(tmp_path: Path, first: Path) -> None:
    more = write(tmp_path / "more.jsonl", "ÄÖ")
    run(first, tmp_path / "out", tokenizer="char")
    with pytest.raises(RamletError, match="not in this tokenizer"):
        run(more, tmp_path / "out", append=True)
    assert verify(tmp_path / "out").problems == []
    run(first, tmp_path / "known", tokenizer="char", unknown="unk")
    made = run(more, tmp_path / "known", append=True)
    assert made.manifest["ledger"]["documents"]["kept"] == 4
    assert verify(made.path).problems == []
