"""`ramlet init`: a file for the text and the machine at hand, that `ramlet run` takes as it is."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from oracles_training import sentences
from ramlet.cli import main
from ramlet.errors import BudgetError, SettingsError, SourceError
from ramlet.pipeline import init, looking
from ramlet.pipeline.file import load
from ramlet.pipeline.looking import look_at_text
from ramlet.pipeline.run import run_pipeline
from ramlet.training.course import MOST_EPOCHS
from ramlet.training.machine import Machine

PLAN = init._plan


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, and a machine whose speed need not be measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init, "open_engine", lambda **_: None)
    monkeypatch.setattr(init, "_plan", lambda *_: None)
    machine = Machine("cpu", 2, 8 * 10**9, 200e9, "fp32")
    monkeypatch.setattr(init, "look", lambda engine: machine)
    monkeypatch.setattr(init, "free_memory", lambda: 8 * 10**9)
    return tmp_path


def proposed(*inputs: str, **given: Any) -> init.Proposal:
    """And what the file says is what was proposed."""
    proposal = init.propose_pipeline(list(inputs), out=given.pop("out", "pipeline.yaml"), force=True, **given)
    init.write(proposal, force=True)
    pipeline = load(proposal.out)
    assert pipeline.learned is not None
    assert pipeline.trained is not None
    assert pipeline.learned.settings.vocab_size == proposal.vocab_size
    settings = pipeline.trained.settings
    course = proposal.course
    assert settings.params == proposal.params
    assert (settings.max_steps, settings.batch_size, settings.seq_len) == (
        course.steps,
        course.sequences,
        course.seq_len,
    )
    return proposal


def words(count: int, seed: int = 0) -> str:
    """Text of many different words."""
    chance = random.Random(seed)
    known = ["".join(chance.choice("abcdefghijklmnopqrst") for _ in range(chance.randint(2, 9))) for _ in range(3000)]
    return " ".join(chance.choice(known) for _ in range(count))


# -- text of several kinds


def test_a_folder_of_text(place: Path) -> None:
    (place / "corpus" / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.md", "sub/c.txt"):
        (place / "corpus" / name).write_text(words(20_000))
    (place / "corpus" / "picture.png").write_bytes(b"\x89PNG\0\0")
    found = proposed("corpus")
    assert (found.text.files, found.text.formats) == (3, ("text",))
    assert found.text.text_bytes == sum(path.stat().st_size for path in (place / "corpus").rglob("*.[tm]*"))
    assert 1.5 < found.bytes_per_token < 5
    assert found.vocab_size == 1000
    text = Path("pipeline.yaml").read_text()
    assert "memory: 4GB" in text
    # Each value says why.
    for line in text.splitlines():
        if ": " in line and not line.lstrip().startswith("#"):
            assert "  # " in line, line


def test_a_budget_that_was_asked_for(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "a.txt").write_text(sentences(50))
    assert main(["init", "a.txt", "--memory", "600MB"]) == 0
    assert "memory: 600MB  # as given" in Path("pipeline.yaml").read_text()
    assert main(["init", "a.txt", "--memory", "much", "--force"]) == 1
    assert "cannot read 'much' as memory" in capsys.readouterr().err


def test_one_short_file_is_cut_for_validation(place: Path) -> None:
    (place / "book.txt").write_text(sentences(2000))
    assert proposed("book.txt").document_bytes == 1024
    pipeline = load("pipeline.yaml")
    assert pipeline.prepared is not None
    assert pipeline.prepared.settings.document_bytes == 1024


@pytest.mark.parametrize("packed", [False, True])
def test_jsonl_with_a_field_of_its_own(place: Path, packed: bool) -> None:
    lines = "".join(json.dumps({"id": "7", "body": line, "n": 3}) + "\n" for line in sentences(500).splitlines())
    path = place / ("a.jsonl.gz" if packed else "a.jsonl")
    path.write_bytes(gzip.compress(lines.encode()) if packed else lines.encode())
    found = proposed(path.name)
    assert (found.text.text_field, found.document_bytes) == ("body", None)
    assert load("pipeline.yaml").reading.text_field == "body"
    assert found.bytes_per_token > 1


def test_the_text_of_this_folder(place: Path) -> None:
    """Results will lie beside it, so it is named entry by entry, without what is not text."""
    (place / "book.txt").write_text(sentences(50))
    (place / "notes").mkdir()
    (place / "notes" / "n.md").write_text("note")
    (place / "image.png").write_bytes(b"\0")
    (place / ".hidden").write_text("no")
    (place / "pipeline.yaml").write_text("old")
    (place / "my-model").mkdir()
    (place / "my-model" / "stats.json").write_text("{}")
    assert proposed().text.inputs == ("book.txt", "notes")
    assert proposed(".").text.inputs == ("book.txt", "notes")
    assert run_pipeline("pipeline.yaml", dry_run=True).stages[0].what == "due"


def test_a_file_elsewhere_names_text_from_there(place: Path) -> None:
    (place / "sub").mkdir()
    (place / "b k.txt").write_text(sentences(50))
    proposed("b k.txt", out="sub/p.yaml")
    assert [each.path for each in load("sub/p.yaml").text] == ["b k.txt"]
    assert '"../b k.txt"' in Path("sub/p.yaml").read_text()


def test_every_file_has_results_of_its_own(place: Path) -> None:
    """Two files that were written into one folder would move each other's results aside."""
    (place / "tales").mkdir()
    (place / "tales" / "a.txt").write_text(sentences(50))
    for out, work in (("pipeline.yaml", "my-model"), ("tales.yaml", "tales-model"), ("0.5.yaml", "0.5-model")):
        proposed("tales", out=out)
        assert load(out).work == work
        assert f"to look at: {work}/report.html" in Path(out).read_text()
        # Also where the text has the file's name.
        assert run_pipeline(out, dry_run=True).stages[0].what == "due"


def test_results_of_another_file_are_no_text(place: Path) -> None:
    (place / "book.txt").write_text(sentences(50))
    (place / "my-model").mkdir()
    for name in ("pipeline.json", "notes.txt"):
        (place / "my-model" / name).write_text("{}")
    assert proposed(out="other.yaml").text.inputs == ("book.txt",)


def test_text_that_is_elsewhere(place: Path) -> None:
    found = proposed("org/name:train")
    assert (found.tokens, found.vocab_size) == (0, 4000)  # by the size that an hour is enough for
    assert "unknown until it is fetched" in Path("pipeline.yaml").read_text()


@pytest.mark.parametrize(
    ("inputs", "error", "sentence"),
    [
        (["nowhere"], SourceError, "no such file or folder: nowhere"),
        (["-"], SettingsError, "reads its text more than once"),
        ([], SourceError, "no text in the folder"),
        ([".."], SettingsError, "would be inside .., among the text"),
    ],
)
def test_refused(place: Path, inputs: list[str], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        init.propose_pipeline(inputs, out="pipeline.yaml")
    with pytest.raises(SettingsError, match="there is no folder"):
        init.propose_pipeline(inputs, out="gone/pipeline.yaml")


def test_many_files_are_looked_at_in_part(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "MOST_FILES", 8)
    monkeypatch.setattr(looking, "SAMPLE_BYTES", 8000)
    (place / "many").mkdir()
    for number in range(60):
        (place / "many" / f"{number:03}.txt").write_text(f"{number} " * 500)
    found = look_at_text(["many"])
    assert found.files == 60
    assert sum(map(len, found.sample)) < 30_000
    firsts = {each.split()[0] for each in found.sample}
    assert len(firsts) >= 4
    assert {"0", "32"} <= firsts


# -- sizes


def test_size_follows_text_time_and_memory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "a.txt").write_text("x")

    def sized(text_bytes: int, seconds: float = 1e9) -> init.Proposal:
        found = looking.TextFound(("a.txt",), 1, text_bytes, text_bytes, 1000, ("text",))
        monkeypatch.setattr(init, "look_at_text", lambda inputs: found)
        return proposed("a.txt", seconds=seconds)

    by_text = [sized(size) for size in (100_000, 5_000_000, 10**8, 10**9, 10**10)]
    assert [each.vocab_size for each in by_text] == [1000, 2000, 8000, 16_000, 32_000]
    assert sorted(each.params for each in by_text) == [each.params for each in by_text]
    assert by_text[0].params == 100_000
    assert by_text[-1].params == 350_000_000
    for each in by_text[1:]:
        assert each.epochs <= MOST_EPOCHS * 1.05
    quick, slow = sized(10**10, 600), sized(10**10, 36_000)
    assert quick.params < slow.params
    assert quick.seconds < 600 * 1.05
    assert slow.seconds < 36_000 * 1.05
    monkeypatch.setattr(init, "_plan", PLAN)

    def plan(params: int, *given: Any) -> None:
        if params > most:
            raise BudgetError("needs at least 900MB")

    monkeypatch.setattr(init, "_plan", plan)
    most = 3_000_000
    assert sized(10**10).params == 3_000_000
    most = 0
    with pytest.raises(BudgetError, match="needs at least 900MB"):
        sized(10**10)


def test_a_budget_that_no_model_fits_is_refused_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what `ramlet run` keeps for itself named: the sum works."""
    monkeypatch.undo()
    monkeypatch.chdir(place)
    (place / "a.txt").write_text(sentences(500))
    with pytest.raises(
        BudgetError, match=r"needs at least \d+MB.*; and 32.0 MB for the pipeline's own process"
    ) as refused:
        init.propose_pipeline(["a.txt"], out="p.yaml", memory=50_000_000)
    least = int(re.findall(r"needs at least (\d+)MB", str(refused.value))[0]) + 41
    assert init.propose_pipeline(["a.txt"], out="p.yaml", memory=least * 10**6).params >= 100_000
    assert main(["init", "a.txt", "--memory", "50MB"]) == 1
    assert not (place / "pipeline.yaml").exists()


def test_a_text_of_a_few_words_has_short_sequences(place: Path) -> None:
    (place / "a.txt").write_text("the cat sat on the mat and the dog sat on the cat, " * 3)
    found = proposed("a.txt")
    assert found.course.seq_len <= found.tokens // 4
    (place / "a.txt").write_text("a")
    found = proposed("a.txt")
    assert (found.tokens, found.params) == (1, init.SIZES[0])
    (place / "a.txt").write_text("")
    with pytest.raises(SourceError, match=r"no text in a\.txt, every file is empty"):
        proposed("a.txt")


def test_a_size_that_was_asked_for(place: Path) -> None:
    (place / "a.txt").write_text(sentences(500))
    assert proposed("a.txt", params=1_000_000).params == 1_000_000
    with pytest.raises(SettingsError, match="too few for a vocabulary of 1,000"):
        init.propose_pipeline(["a.txt"], out="p.yaml", params=1000)


# -- the command


def test_an_engine_that_was_asked_for(place: Path) -> None:
    (place / "a.txt").write_text(words(2000))
    proposed("a.txt", engine="native")
    trained = load("pipeline.yaml").trained
    assert trained is not None
    assert trained.settings.engine == "native"
    assert "engine" not in proposed("a.txt").yaml()


def test_text_whose_name_is_not_utf8(place: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (place / name).write_text(words(500))
    with pytest.raises(SettingsError, match=r"caf.* is not UTF-8, so no config file can have it: rename it"):
        init.write(proposed(name))
    assert not list(place.glob("*.yaml"))


def test_never_written_over(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "a.txt").write_text(sentences(50))
    (place / "pipeline.yaml").write_text("mine")
    assert main(["init", "a.txt"]) == 1
    assert (
        capsys.readouterr().err == "error: pipeline.yaml already exists: --force replaces it, or give another --out\n"
    )
    assert (place / "pipeline.yaml").read_text() == "mine"
    assert main(["init", "a.txt", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["params"] == 100_000
    assert main(["init", "a.txt", "--out", "other.yaml", "--time", "soon"]) == 1
    assert "--time must be a time like 20min, 1h or 2d, not 'soon'" in capsys.readouterr().err
    assert not (place / "other.yaml").exists()


def test_init_and_run(tmp_path: Path, ramlet: Any) -> None:
    """On the machine as it is: the two commands of a newcomer."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text(sentences(300))
    told = ramlet("init", "corpus", "--threads", "1", "--time", "1min")
    assert told.returncode == 0, told.stderr
    assert "then  ramlet run pipeline.yaml" in told.stdout
    written = tmp_path / "pipeline.yaml"
    written.write_text(re.sub(r"max_steps: \d+", "max_steps: 5", written.read_text()))
    done = ramlet("run", "pipeline.yaml")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my-model" / "run" / "model.safetensors").is_file()
    assert "val: loss" in done.stdout
    # The last line is the next command, as it is typed.
    last = done.stdout.splitlines()[-1]
    assert last == 'now  ramlet generate my-model/run --prompt "Once upon a time"'
    told = ramlet(*shlex.split(last)[2:], "--max-tokens", "3")
    assert told.returncode == 0, told.stderr
    again = ramlet("run", "pipeline.yaml")
    assert again.stdout.count("nothing changed") == len(again.stdout.splitlines())
    quiet = ramlet("run", "pipeline.yaml", "--force", "training", "--quiet")
    assert quiet.returncode == 0, quiet.stderr
    assert "ramlet generate" not in quiet.stdout
