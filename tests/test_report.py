"""The page says what the files say, whatever they hold; what is missing or damaged is one sentence."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

import ramlet as library
from conftest import RunRamlet
from oracles_report import Outline, eval_line, sample_line, step_line, usual_lines, write_run
from oracles_training import make_data, sentences
from oracles_training import run as train_small
from ramlet.errors import BudgetError, DatasetError, ModelError, RamletError, SettingsError, TokenizerError
from ramlet.reporting import lengths
from ramlet.reporting.found import Finder
from ramlet.reporting.lineage import LineageFinder
from ramlet.runtime import small_files
from ramlet.runtime.budget import Budget
from ramlet.runtime.folder_lock import Lock, hold
from ramlet.runtime.meter import Meter
from ramlet.tokenizer.folder import train_to_folder
from ramlet.tokenizer.settings import TrainSettings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, a dataset and a run of it, as the stages leave them."""
    folder = tmp_path_factory.mktemp("made")
    lines = [sentences(4 + number % 9, number) for number in range(60)]
    lines += [lines[3], lines[4], "   "]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    with Meter(Budget.parse("8GB")) as meter:
        wanted = TrainSettings(vocab_size=300, special_tokens=("<|endoftext|>",))
        train_to_folder([folder / "text.jsonl"], folder / "tok", wanted, meter=meter, threads=1)
    library.prepare(
        [folder / "text.jsonl"], folder / "data", tokenizer=str(folder / "tok"), memory="8GB", threads=1, min_chars=5
    )
    train_small(folder / "data", folder / "run", sample_every=4, sample_prompt="the ", sample_tokens=8)
    return folder


def page_of(*paths: Path, out: Path) -> str:
    return library.report(list(paths), out).read_text(encoding="utf-8")


def said(page: str) -> str:
    """The page's words, without markup and with plain spaces."""
    return re.sub(r"\s+", " ", Outline(page).text)


def test_a_real_run_is_told_with_its_dataset_and_tokenizer(made: Path, tmp_path: Path) -> None:
    page = page_of(made / "run", out=tmp_path / "page.html")
    words = said(page)
    stats = json.loads((made / "run" / "stats.json").read_text())
    manifest = json.loads((made / "data" / "dataset_metadata.json").read_text())
    score = stats["scores"]["val"]
    for figure in (
        f"{stats['parameters']:,} parameters",
        f"{stats['tokens']:,} tokens",
        f"{score['loss']:.3f}",
        f"{score['bits_per_byte']:.3f} bits per byte",
        "12 steps",
        f"{manifest['ledger']['documents']['kept']}, ",
        f"{manifest['splits']['train']['tokens']:,}",
    ):
        assert figure in words
    heads = re.findall("<h2>(.*?)</h2>", page)
    assert heads == [
        "Learning",
        "Speed",
        "Memory",
        "Predicted and measured",
        "Where the data went",
        "Document lengths",
        "Samples",
        "Settings",
    ]
    for title in ("tokenizer train: tok", "prepare: data", "train: run", "Learning rate", "Gradient norm"):
        assert f"<figcaption>{title}</figcaption>" in page
    assert "not finished" not in words
    assert "<ul class=notes>" not in page


def test_the_same_files_give_the_same_page(made: Path, tmp_path: Path) -> None:
    assert page_of(made / "run", out=tmp_path / "a.html") == page_of(made / "run", out=tmp_path / "b.html")


def test_the_page_names_nothing_to_load(made: Path, tmp_path: Path) -> None:
    page = page_of(made / "run", out=tmp_path / "page.html")
    outline = Outline(page)
    assert not re.search(r"https?:|url\(|@import|//[a-z]", page)
    assert {tag for tag in outline.tags if tag in ("img", "iframe", "object", "form", "base", "image", "use")} == set()
    assert [value for _, name, value in outline.attributes if name in ("src", "href")] == ["data:,"]
    assert outline.tags.count("script") == 1


def test_every_chart_has_a_name_and_a_description(made: Path, tmp_path: Path) -> None:
    page = page_of(made / "run", out=tmp_path / "page.html")
    drawn = re.findall(r"<svg (.*?)</svg>", page, re.S)
    assert len(drawn) > 8
    for svg in drawn:
        assert 'role="img"' in svg
        assert re.search("<title>.+?</title><desc>.+?</desc>", svg)


def test_the_default_place_is_in_the_first_folder(made: Path, tmp_path: Path) -> None:
    for name in ("run", "data", "tok"):
        shutil.copytree(made / name, tmp_path / name)
        assert library.report(tmp_path / name) == tmp_path / name / "report.html"
    assert "A dataset of" in (tmp_path / "data" / "report.html").read_text()
    assert "A tokenizer" in (tmp_path / "tok" / "report.html").read_text()
    assert list(tmp_path.rglob("*ramlet-tmp")) == []


def test_only_a_page_is_replaced(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "data", tmp_path / "data")
    manifest = tmp_path / "data" / "dataset_metadata.json"
    before = manifest.read_bytes()
    with pytest.raises(SettingsError, match="is not a report, and would be replaced"):
        library.report(tmp_path / "data", manifest)
    assert manifest.read_bytes() == before
    page = tmp_path / "page.html"
    page.write_text("")
    for _ in range(2):
        library.report(tmp_path / "data", page)
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_what_another_command_has_just_written(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There was nothing when the report began, and a result of another command when its page was to be written."""
    target = tmp_path / "ids.npy"

    def hold_later(*given: Any, **options: Any) -> Lock:
        target.write_bytes(b"\x93NUMPY")
        return hold(*given, **options)

    monkeypatch.setattr("ramlet.reporting.entry.hold", hold_later)
    with pytest.raises(SettingsError, match="is not a report, and would be replaced"):
        library.report(made / "tok", target)
    assert target.read_bytes() == b"\x93NUMPY"


def test_a_dataset_and_a_tokenizer_alone(made: Path, tmp_path: Path) -> None:
    words = said(page_of(made / "data", out=tmp_path / "data.html"))
    assert "documents kept60" in words
    assert "duplicate 2, " in words
    assert "tokenizer train: tok" in words
    words = said(page_of(made / "tok", out=tmp_path / "tok.html"))
    assert "tokens in the vocabulary300" in words


def test_folders_that_were_moved_together_find_each_other(made: Path, tmp_path: Path) -> None:
    for name in ("run", "data", "tok"):
        shutil.copytree(made / name, tmp_path / "moved" / name)
    settings = (tmp_path / "moved/run/settings.yaml").read_text()
    (tmp_path / "moved/run/settings.yaml").write_text(settings.replace(str(made), "/gone"))
    manifest = (tmp_path / "moved/data/dataset_metadata.json").read_text()
    (tmp_path / "moved/data/dataset_metadata.json").write_text(manifest.replace(str(made), "/gone"))
    (lineage,) = LineageFinder().find([tmp_path / "moved/run"])
    assert [each.path.name for each in (*lineage.datasets, *lineage.tokenizers)] == ["data", "tok"]
    assert lineage.notes == []


def test_another_tokenizer_of_the_same_name_is_not_the_datasets(made: Path, tmp_path: Path) -> None:
    for name in ("data", "tok"):
        shutil.copytree(made / name, tmp_path / name)
    for file in (tmp_path / "data/dataset_metadata.json", tmp_path / "tok/stats.json"):
        file.write_text(file.read_text().replace(str(made), "/gone"))
    assert len(LineageFinder().find([tmp_path / "data"])[0].tokenizers) == 1
    stats = json.loads((tmp_path / "tok/stats.json").read_text())
    stats["tokenizer"]["fingerprint"] = "another"
    (tmp_path / "tok/stats.json").write_text(json.dumps(stats))
    assert LineageFinder().find([tmp_path / "data"])[0].tokenizers == []


def test_what_is_gone_or_another_is_left_out_with_a_word(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    text = (tmp_path / "run/settings.yaml").read_text()
    (tmp_path / "run/settings.yaml").write_text(text.replace(str(made), "/gone"))
    page = page_of(tmp_path / "run", out=tmp_path / "page.html")
    assert "Its data /gone/data no longer exists." in page
    assert "Where the data went" not in page
    # Named beside the run, it is told; a dataset that is not the run's own is known by its content.
    assert "Where the data went" in page_of(tmp_path / "run", made / "data", out=tmp_path / "page.html")
    other = make_data(tmp_path, "data")
    (tmp_path / "run/settings.yaml").write_text(text.replace(str(made / "data"), str(other)))
    assert "has changed since the run began" in page_of(tmp_path / "run", out=tmp_path / "page.html")


def test_a_damaged_index_leaves_out_the_lengths_alone(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "data", tmp_path / "data")
    index = tmp_path / "data/train/shard_00000.idx"
    index.write_bytes(index.read_bytes()[:-8])
    page = page_of(tmp_path / "data", out=tmp_path / "page.html")
    assert "Document lengths are not shown" in page
    assert "Where the data went" in page


def test_lengths_are_those_of_the_documents(tmp_path: Path) -> None:
    data = make_data(tmp_path, lines=500)
    dataset = library.Dataset(data)
    counted = lengths.count_lengths(dataset)
    for split in ("train", "val"):
        wanted: Counter[int] = Counter()
        for ids in dataset.documents(split):
            wanted[max(at for at, edge in enumerate(lengths.EDGES) if edge <= len(ids))] += 1
        assert {at: count for at, count in enumerate(counted.counts[split]) if count} == wanted
    assert lengths.EDGES[:8] == [1, 2, 3, 4, 6, 8, 12, 16]
    every = sorted(len(ids) for split in ("train", "val") for ids in dataset.documents(split))
    half = counted.quantile(0.5)
    assert half in lengths.EDGES
    assert sum(length < half for length in every) >= len(every) / 2


def test_an_unfinished_run_is_told_as_far_as_it_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    words = said(page_of(run, out=tmp_path / "page.html"))
    assert "20 of 100 steps so far. not finished" in words
    assert "train: run, so far" in words
    assert "validation loss4.5002.250 bits per byte" in words
    assert "law 6.000" in words
    assert "The plan predicted 280 MB before the first step. 250 MB was measured: the plan was 12% above that." in words


def test_a_finished_run_has_the_memory_of_every_stage(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", finished=True), out=tmp_path / "page.html")
    assert "260\u00a0MB" in page
    assert "<title>planning: up to 260\u00a0MB</title>" in page
    assert "budget 500\u00a0MB" in page


def test_forgetting_has_a_chart_of_its_own(tmp_path: Path) -> None:
    lines = [
        step_line(1, 4.0),
        eval_line(1, {"val": 4.0, "general": 3.0}, forgetting={"general": 0.05}),
        step_line(2, 3.9),
        eval_line(2, {"val": 3.9, "general": 3.2}, forgetting={"general": 0.25}),
    ]
    page = page_of(write_run(tmp_path / "run", lines), out=tmp_path / "page.html")
    assert "<figcaption>Forgetting</figcaption>" in page
    assert "Loss minus the loss before training: general +0.250" in page


MARKUP = "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)> \"'& "
HOSTILE = MARKUP + "\x00\x1b[31m\x7f\x85\u202e \ud800 é 漢\n\ttab"


def test_what_a_model_writes_stays_text(tmp_path: Path) -> None:
    lines = [*usual_lines(), sample_line(20, HOSTILE), eval_line(20, {HOSTILE: 3.0})]
    run = write_run(tmp_path / "run", lines, all_settings={"sample_prompt": MARKUP, "config": MARKUP})
    (run / "measures.json").write_text(
        json.dumps({"measures": [{"name": HOSTILE, "explanation": HOSTILE, "unit": HOSTILE, "points": [point()]}]})
    )
    page = page_of(run, out=tmp_path / "page.html")
    outline = Outline(page)
    assert outline.tags.count("script") == 1
    assert "img" not in outline.tags
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", page)
    assert "\u2400\u241b[31m\u2421\ufffd\ufffd ? é 漢\n\ttab" in page


def point(**changes: Any) -> dict[str, Any]:
    return {"label": "trained", "step": 3, "value": 61.5, **changes}


def test_the_first_the_middle_and_the_last_sample_are_open(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"), out=tmp_path / "page.html")
    samples = re.findall(r"<details class=sample data-key=sample-(\d+)( open)?>", page)
    assert samples == [("0", " open"), ("5", ""), ("10", " open"), ("15", ""), ("20", " open")]
    assert "<mark>Once</mark> 20" in page


def test_measures_are_bars_and_many_of_them_a_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    few = {"name": "lines that parse", "explanation": "by ast", "unit": "%", "points": [point(), point(step=None)]}
    many = {"name": "often", "explanation": "at every step", "unit": "", "points": [point(step=at) for at in range(20)]}
    (run / "measures.json").write_text(json.dumps({"measures": [few, many]}))
    page = page_of(run, out=tmp_path / "page.html")
    words = said(page)
    assert "<h2>Measures</h2>" in page
    assert "lines that parse by ast" in words.replace("parseby", "parse by")
    assert "trained (step 3)" in words
    assert words.count("61.5%") == 4  # two titles, two values
    assert '<figure class="chart labelled"><figcaption>often</figcaption>' in page


def test_several_runs_are_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("one", "two")]
    page = page_of(*runs, out=tmp_path / "page.html")
    assert "<h2>Runs compared</h2>" in page
    assert page.count("<article>") == 2
    assert re.findall(r'data-name="(one|two)"', page) == ["one", "two"]


def test_the_commands_to_repeat_it_are_ones_that_there_are(made: Path, tmp_path: Path) -> None:
    page = page_of(made / "run", out=tmp_path / "page.html")
    block = re.search("<pre class=code>(.*?)</pre>", page, re.S)
    assert block is not None
    told = [shlex.split(line) for line in html.unescape(block[1]).splitlines()]
    assert [line[1] for line in told] == ["tokenizer", "prepare", "train"]
    for words in told:
        command: Any = root_with(words[1])
        while hasattr(command, "commands"):
            words = words[1:]
            command = command.commands[words[0]]
        known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        flags = [word for word in words if word.startswith("--")]
        assert flags
        assert set(flags) <= known
    joined = shlex.join(told[2])
    for part in ("--params 40000", "--max-steps 12", "--lr 0.003", "--sample-prompt 'the '", f"--data {made}/data"):
        assert part in joined
    assert "--min-chars 5" in shlex.join(told[1])
    assert "--special-token '<|endoftext|>'" in shlex.join(told[0])


def root_with(name: str) -> click.Group:
    from ramlet.cli import _root

    return _root([name])


def damaged(folder: Path, name: str, content: str) -> Path:
    write_run(folder, finished=True)
    (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("settings.yaml", "a: [", "settings.yaml is damaged: it is not YAML"),
        ("settings.yaml", "a: 1", "settings.yaml is not from a run"),
        ("settings.yaml", "[1]", "settings.yaml is not from a run"),
        ("stats.json", "{", "stats.json is damaged: it is not JSON"),
        ("stats.json", "[]", "stats.json is damaged: it is not a JSON object"),
        ("measures.json", "{}", "measures.json is damaged: it is not"),
        ("measures.json", '{"measures": [{"name": "x", "points": [{"label": "a", "value": NaN}]}]}', "damaged"),
        ("metrics.jsonl", "nothing\n", "metrics.jsonl is damaged: none of its lines"),
        ("metrics.jsonl", "", "has no steps yet"),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    run = damaged(tmp_path / "run", name, content)
    with pytest.raises(ModelError) as told:
        library.report(run)
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)
    assert not (run / "report.html").exists()


INFINITE = '{"memory": {"timeline": [[0, 1, "a"], [1e999, 1, "a"], [2, 1e999, "a"], [3, 1, "b"]]}}'


@pytest.mark.parametrize(
    "content", ['{"memory": 1}', '{"memory": {"timeline": [[1], 2, [0, 1, 2]], "stages": {}}}', INFINITE]
)
def test_figures_that_are_missing_are_left_out(tmp_path: Path, content: str) -> None:
    run = damaged(tmp_path / "run", "stats.json", content)
    write = {"job": {}, "plan": {}, "data": 7, "all_settings": [1]}
    (run / "settings.yaml").write_text(json.dumps(write))
    words = said(page_of(run, out=tmp_path / "page.html"))
    assert "peak memory250 MB" in words
    assert "Predicted and measured" not in words


def test_folders_of_something_else_are_one_sentence(made: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "tokenizer.json").write_text("{}")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "dataset_metadata.json").write_text("{")
    cases: list[tuple[Path, type[RamletError], str]] = [
        (tmp_path / "nothing", SettingsError, "no such folder"),
        (tmp_path / "file", SettingsError, "is a file"),
        (tmp_path / "empty", SettingsError, "is neither a run nor a dataset nor a tokenizer"),
        (tmp_path / "foreign", TokenizerError, "has no stats.json"),
        (broken, DatasetError, "is damaged: it is not JSON"),
    ]
    for path, kind, sentence in cases:
        with pytest.raises(kind, match=sentence):
            library.report(path, tmp_path / "page.html")
    with pytest.raises(SettingsError, match="is a folder: name a file"):
        library.report(made / "run", tmp_path)
    with pytest.raises(SettingsError, match="cannot write"):
        library.report(made / "run", tmp_path / "no" / "page.html")
    with pytest.raises(SettingsError, match="name the folder"):
        library.report([])
    assert not (tmp_path / "page.html").exists()


def test_a_file_that_is_too_large_to_be_ours_is_not_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with open(run / "stats.json", "wb") as file:
        file.truncate(9_000_000)
    with pytest.raises(ModelError, match="larger than 1 MB"):
        Finder().find(run)


def test_a_list_of_shards_that_does_not_fit_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "UNCHECKED", 0)
    monkeypatch.setattr(small_files, "parsed_bytes", lambda text: 1_000_000 * len(text))
    assert LineageFinder().find([made / "data"])
    with pytest.raises(BudgetError, match=r"needs at least \d+MB: .* for reading"):
        LineageFinder(budget=Budget(2_000_000_000)).find([made / "data"])
    (lineage,) = LineageFinder(budget=Budget(2_000_000_000)).find([made / "run"])
    assert lineage.datasets == []
    assert lineage.notes[0].startswith("Its data is not shown: needs at least")


def test_the_command(made: Path, tmp_path: Path, ramlet: RunRamlet) -> None:
    write_run(tmp_path / "run")
    done = ramlet("report", "run")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "run/report.html"
    assert re.fullmatch(r"peak [\d.]+ MB of [\d.]+ [GM]B", done.stdout.splitlines()[1])
    assert "Its data /nowhere/data no longer exists." in done.stderr
    done = ramlet("report", "run", str(made / "data"), "--out", "x.html", "--json", "--memory", "256MB")
    told = json.loads(done.stdout)
    assert (told["out"], told["told"][0]["run"], told["told"][0]["finished"]) == ("x.html", "run", False)
    assert told["told"][0]["datasets"] == [str(made / "data")]
    assert told["bytes"] == (tmp_path / "x.html").stat().st_size
    assert told["memory"]["peak"] < 256e6
    for words, code, sentence in (
        (("nothing",), 1, "error: no such folder: nothing\n"),
        (("run", "--port", "80"), 1, "error: --port needs --watch: add --watch, or remove --port\n"),
        (("run", "--watch", "--out", "x"), 1, "--watch serves the page and writes no file"),
        (("run", "--memory", "20MB"), 1, "error: needs at least"),
        ((), 2, "is missing; for example: ramlet report my-run"),
    ):
        done = ramlet("report", *words)
        assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr


def test_numbers_of_hundreds_of_digits(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    path = tmp_path / "run" / "settings.yaml"
    path.write_text(re.sub(r"(?m)^( +\"?(?:context|width|layers)\"?: )\d+", r"\g<1>" + "1" * 400, path.read_text()))
    assert "1" * 400 in path.read_text()
    assert page_of(tmp_path / "run", out=tmp_path / "page.html")
