"""What earlier versions wrote opens today: the folders of `tests/fixtures`, one for each of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramlet
from conftest import AMPLE
from ramlet import Dataset, Loader, Tokenizer
from ramlet.dataset.export.run import export
from ramlet.dataset.manifest import Manifest
from ramlet.dataset.merge import merge
from ramlet.dataset.verify import verify
from ramlet.model.export import export_model

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = sorted(path.name for path in FIXTURES.iterdir() if (path / "expected.json").exists())
DATASETS = ("data", "packed")


@pytest.fixture(params=VERSIONS)
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a version wrote; also the current folder, for some of it was named from there."""
    copy = tmp_path / "made"
    shutil.copytree(FIXTURES / request.param, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def expected(made: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made / "expected.json").read_text())
    return found


def test_the_tokenizer_encodes_as_it_did(made: Path, expected: dict[str, Any]) -> None:
    for path in ("tokenizer", "data", "packed", "array.npy.tokenizer.json", "run", "stopped"):
        tokenizer = Tokenizer.load(made / path)
        assert tokenizer.fingerprint == expected["fingerprint"]
        for text, ids in expected["ids"]:
            assert tokenizer.encode(text) == ids
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_reads_and_verifies(made: Path, expected: dict[str, Any], name: str) -> None:
    dataset = Dataset(made / name)
    for split, of in expected["documents"][name].items():
        assert dataset.document_count(split) == of["documents"]
        assert dataset.document(split, 0).tolist() == of["first"]
    report = verify(made / name)
    assert (report.problems, report.notes) == ([], [])


@pytest.mark.parametrize("name", DATASETS)
def test_a_manifest_written_again_is_the_same_file(made: Path, name: str) -> None:
    before = (made / name / "dataset_metadata.json").read_bytes()
    Manifest.read(made / name).write(made / name)
    assert (made / name / "dataset_metadata.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("data", {"dedup": "doc", "dedup_cache": "cache", "min_chars": 5, "min_line_chars": 2, "max_line_chars": 250}),
        ("packed", {"dedup": "line", "pack": 64}),
    ],
)
def test_a_dataset_is_appended_to(made: Path, name: str, settings: dict[str, Any]) -> None:
    before = Manifest.read(made / name)
    known = json.loads((made / "text.jsonl").read_text().splitlines()[0])["text"]
    (made / "more.txt").write_text(f"{known}\n---\na document that came later")
    done = ramlet.prepare("more.txt", name, append=True, doc_separator="\n---\n", memory=AMPLE, threads=1, **settings)
    assert not done.nothing_new
    after = Manifest.read(made / name)
    assert len(after.runs) == 2
    assert [shard for shard in after.shards if shard.run == 0] == before.shards
    # The cache still knows what that version kept; without one nothing is compared with it.
    dropped = after.runs[1]["ledger"]["documents"]["dropped"]["duplicate"]
    assert dropped == (1 if "dedup_cache" in settings else 0)
    assert verify(made / name).problems == []


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_is_merged_and_exported(made: Path, name: str) -> None:
    shutil.copytree(name, "twin")
    merged = merge([name, "twin"], "merged").manifest
    assert verify("merged").problems == []
    alone = Manifest.read(name)
    assert merged.splits["train"].tokens == 2 * alone.splits["train"].tokens
    export(name, "npy", "exported")
    assert np.load("exported/train.npy").size == alone.splits["train"].tokens


@pytest.mark.parametrize("name", [*DATASETS, "array.npy"])
def test_data_is_loaded(made: Path, name: str) -> None:
    assert next(iter(Loader(name, seq_len=64, batch_size=2)))["targets"].shape == (2, 64)


def test_a_finished_run(made: Path, expected: dict[str, Any]) -> None:
    found = ramlet.evaluate("run", "data", tokens=320, device="cpu", precision="fp32", memory=AMPLE, threads=1)
    assert found["data"].loss == pytest.approx(expected["loss"], rel=1e-4)
    wrote = ramlet.generate("run", "the old", max_tokens=8, temperature=0.0, device="cpu", memory=AMPLE)
    assert wrote == expected["generated"]
    export_model("run", "exported", to="hf")
    assert (made / "exported/model.safetensors").stat().st_size > 0
    assert train(made, "run").already_done


def test_a_stopped_run_goes_on(made: Path) -> None:
    done = train(made, "stopped", optimizer="adamw8bit")
    assert done.steps == 6
    steps = [json.loads(line)["step"] for line in (made / "stopped/metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [1, 2, 3, 4, 5, 6]


def train(made: Path, out: str, **changes: Any) -> Any:
    """With the settings of make.py, which the run has noted."""
    import yaml

    noted = yaml.safe_load((made / out / "settings.yaml").read_text())["all_settings"]
    return ramlet.train("data", out, memory=AMPLE, threads=1, **{**noted, **changes})
