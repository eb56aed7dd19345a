"""`ramlet train` and `ramlet eval` as a user types them: flags, what is printed and how they end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oracles_training import make_data, metrics, sentences, slow_loss, steps_kept, stored_ids
from ramlet.cli import main
from ramlet.cli import train as command
from ramlet.cli.progress import Progress
from ramlet.engines import opening
from ramlet.engines.torch.model_files import load_model
from ramlet.errors import BudgetError
from ramlet.runtime.meter import Meter
from ramlet.tokenizer.tokenizer import Tokenizer
from ramlet.training.evaluate_run import evaluate
from ramlet.training.settings import RunSettings

FEW = (
    *("--params", "40k", "--seq-len", "32", "--batch-size", "6", "--max-steps", "6", "--device", "cpu"),
    *("--precision", "fp32", "--lr", "3e-3", "--memory", "8GB", "--threads", "1", "--eval-tokens", "500"),
)


class Said:
    """What the command printed, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `ramlet ARGUMENTS` in this process: loading torch takes seconds."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Said:
        code = main(list(arguments))
        read = capsys.readouterr()
        return Said(code, read.out, read.err)

    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("cli"))


def test_one_layer_is_no_layers(capsys: pytest.CaptureFixture[str]) -> None:
    shape = SimpleNamespace(parameters=9, layers=1, width=64, heads=1, feed_forward=8, vocab_size=257)
    choice = SimpleNamespace(compute="fp32", optimizer="adamw", recompute=False)
    plan = SimpleNamespace(
        shape=shape,
        choice=choice,
        accumulation=1,
        batch_size=2,
        world=1,
        seq_len=8,
        peak=1,
        budget=2,
        notes=(),
    )
    with Meter(None) as meter, Progress(meter, silent=True) as bar:
        command._Printer(bar, quiet=False).planned(plan, 0)
    assert capsys.readouterr().err.startswith("9 parameters: 1 layer of 64, 1 head, feed-forward 8, 257 tokens\n")


def chosen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Trains nothing: keeps what the command would have trained with."""
    kept: dict[str, Any] = {}

    def keep(settings: RunSettings, out: Path, **rest: Any) -> Any:
        kept.update({**asdict(settings), "out": str(out), **rest})
        raise BudgetError("enough")

    monkeypatch.setattr(command, "_train", keep)
    return kept


# -- flags


def test_help_lists_everything(ran: Any) -> None:
    said = ran("train", "--help")
    assert said.code == 0
    for name in vars(RunSettings()):
        assert f"--{name.replace('_', '-')}" in said.out, name
    for flag in ("--data", "--input", "--stream", "--tokenizer", "--eval", "--memory", "--host-memory", "--resume"):
        assert flag in said.out, flag
    assert "train" in ran("--help").out


def test_the_words_of_other_guides(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Underscores are hyphens, and the names that people know from elsewhere are understood."""
    kept = chosen(monkeypatch)
    said = ran(
        *("train", "--dataset_dir", "d", "--model_name", "m", "--max_iters", "70", "--learning_rate", "0.01"),
        *("--use-8bit-optimizer", "--target-params", "1000000", "--init_from_model", "base", "--batch_size", "4"),
        *("--shuffle-buffer-size", "50", "--eval_dataset_dir", "general", "--gradient_accumulation_steps", "3"),
        *("--use_mixed_precision", "--eval_every", "5", "--weight_decay", "0.2", "--warmup", "7"),
    )
    assert said.err == "error: enough\n"
    wanted = {
        "data": ["d"],
        "out": "m",
        "max_steps": 70,
        "lr": 0.01,
        "optimizer": "adamw8bit",
        "params": 1_000_000,
        "init_from": "base",
        "batch_size": 4,
        "shuffle_buffer": 50,
        "evals": {"general": "general"},
        "gradient_accumulation_steps": 3,
        "precision": "bf16",
        "eval_every": 5,
        "weight_decay": 0.2,
        "warmup": 7,
    }
    assert {name: kept[name] for name in wanted} == wanted


def test_amounts_and_names(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = chosen(monkeypatch)
    ran(
        "train",
        "-d",
        "a=0.7",
        "-d",
        "b=0.3",
        "-o",
        "m",
        "-p",
        "12.5M",
        "--tokens",
        "1.5B",
        "--eval",
        "x=c",
        "--eval",
        "y=d",
    )
    assert (kept["params"], kept["tokens"]) == (12_500_000, 1_500_000_000)
    assert kept["evals"] == {"x": "c", "y": "d"}
    assert kept["data"] == ["a=0.7", "b=0.3"]
    assert kept["resume"] is None
    ran("train", "-d", "a", "-o", "m", "--no-resume")
    assert kept["resume"] is False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--params", "1M"], "give the training data with one of --data, --input and --stream"),
        (["--data", "d", "--input", "f.txt"], "give the training data with one of --data, --input and --stream"),
        (["--data", "d", "--max-steps", "many"], "--max-steps must be a number like 2048, 32k or 10M"),
        (["--data", "d", "--max-steps", "0"], "--max-steps must be at least 1, not 0"),
        (["--data", "d", "--max-steps", "5", "--epochs", "1"], "--max-steps and --epochs both say when to stop"),
        (["--data", "d", "--use-8bit-optimizer", "--optimizer", "adamw"], "use only one of them"),
        (["--data", "d", "--eval", "=x"], "give each dataset its own name"),
        (["--data", "d", "--eval", "a=x", "--eval", "a=y"], "give each dataset its own name"),
        (["--data", "d=heavy"], "the weight after = must be a number, as in d=0.5"),
        (["--data", "d", "--memory", "much"], "cannot read 'much' as memory"),
        (["--data", "none-here"], "no such file or folder: none-here"),
        (["--data", "d", "--docs", "line"], "--docs is for text: a dataset was tokenized when it was prepared"),
        (["--data", "d", "--tokenizer", "byte"], "--tokenizer is for text: a dataset was tokenized when it was"),
        (
            ["--stream", "none.txt"],
            "a stream is tokenized during training: give a --tokenizer",
        ),
        (["--input", "none.txt"], "the model's size is missing"),
        (["--input", "none.txt", "--params", "1M"], "no such file or folder: none.txt"),
        (["--data", "d", "--no-such-flag"], "unknown option --no-such-flag: see ramlet train --help"),
    ],
)
def test_one_sentence_for_each_mistake(ran: Any, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    said = ran("train", "--out", "out", *arguments)
    assert said.code in (1, 2)
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


def test_input_into_a_folder_of_something_else(ran: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.md").write_text("mine")
    (tmp_path / "text.txt").write_text(sentences(50))
    said = ran("train", "--input", "text.txt", "--out", "mine", *FEW)
    assert (said.code, said.err) == (
        1,
        "error: mine is not empty and not a run (it has notes.md): choose another --out, or an empty folder\n",
    )
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.md"]


# -- a run


def test_what_is_printed(ran: Any, data: Path, tmp_path: Path) -> None:
    said = ran("train", "--data", str(data), "--out", "out", *FEW)
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert re.fullmatch(r"6 steps, 1,152 tokens, loss \d\.\d{4} in out", lines[0])
    assert re.fullmatch(r"  val: loss \d\.\d{4}, perplexity [\d.]+, \d\.\d{3} bits per byte", lines[1])
    assert re.fullmatch(r"peak .* of 8\.00 GB \(predicted .*\)", lines[2])
    assert "40,160 parameters" in said.err
    assert "6 x 32 tokens per step" in said.err
    assert "step 6: val: loss" in said.err
    assert "step 6 writes:" in said.err
    again = ran("train", "--data", str(data), "--out", "out", *FEW)
    assert (again.code, again.err) == (0, "")
    assert again.out == "out already has this run, finished: nothing to do (use --resume to train it for longer)\n"
    again = ran("train", "--data", str(data), "--out", "out", *FEW, "--resume")
    assert again.out == "out already has this run, finished: nothing to do (give more steps to train it for longer)\n"
    other = ran("train", "--data", str(data), "--out", "out", *FEW, "--seed", "9")
    assert other.code == 1
    assert other.err.startswith("error: out has a run with seed 1, not 9: choose another --out")
    more = ran("train", "--data", str(data), "--out", "out", *FEW, "--resume", "--max-steps", "8")
    assert "from step 3, before the learning rate decayed" in more.err
    assert more.out.startswith("8 steps")


def test_json_is_one_object_and_quiet(ran: Any, data: Path) -> None:
    said = ran("train", "--data", str(data), "--out", "out", *FEW, "--json", "--eval", f"more={data}")
    assert (said.code, said.err) == (0, "")
    told = json.loads(said.out)
    assert (told["path"], told["steps"], told["already_done"]) == ("out", 6, False)
    assert set(told["scores"]) == {"val", "more"}
    assert 0 < told["memory"]["device_peak"] < 8 * 10**9
    assert json.loads(ran("train", "--data", str(data), "--out", "out", *FEW, "--json").out)["already_done"] is True
    quiet = ran("train", "--data", str(data), "--out", "quiet", *FEW, "--quiet")
    assert quiet.err == ""
    assert len(quiet.out.splitlines()) == 3


def test_a_text_file_of_characters(ran: Any, tmp_path: Path) -> None:
    """From a text to a model of its characters, and back to text."""
    text = sentences(300) + "\nÄpfel & Öl\n"
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    given = ("train", "--input", "book.txt", "--out", "out", *FEW, "--sample-every", "3")
    said = ran(*given)
    assert said.code == 0, said.err
    tokenizer = Tokenizer.load(tmp_path / "out" / "tokenizer.json")
    assert tokenizer.vocab_size == len(set(text)) + 1
    assert tokenizer.decode(tokenizer.encode(text)) == text
    kept = stored_ids(tmp_path / "out" / "data" / "dataset", "train") + stored_ids(
        tmp_path / "out" / "data" / "dataset", "val"
    )
    read = tokenizer.decode(kept).replace("<|endoftext|>", "\n").splitlines()
    assert sorted(filter(None, read)) == sorted(text.splitlines())
    samples = [line["sample"] for line in metrics(tmp_path / "out") if "sample" in line]
    assert set("".join(samples)) <= set(text)
    assert "val" in json.loads((tmp_path / "out" / "stats.json").read_text())["scores"], "some of it is kept back"
    assert "nothing to do" in ran(*given).out


def test_a_stream(ran: Any, tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"body": line}) for line in sentences(300).splitlines()))
    given = ("train", "--stream", "text.jsonl", "-T", "byte", "--text-field", "body", "--out", "out", *FEW)
    said = ran(*given)
    assert said.code == 0, said.err
    assert said.out.startswith("6 steps, 1,152 tokens")
    assert "nothing to do" in ran(*given).out


# -- ended from outside


def test_ended_by_a_signal(data: Path, tmp_path: Path) -> None:
    """As a process of its own: exit code 130, a sentence, a checkpoint, and never over its budget."""
    arguments = ["train", "--data", str(data), "--out", "out", *FEW, "--max-steps", "100k", "--memory", "700MB"]
    command = [sys.executable, "-m", "ramlet", *arguments, "--checkpoint-every", "50000", "--eval-every", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        lines = tmp_path / "out" / "metrics.jsonl"
        while process.poll() is None and not (lines.exists() and lines.read_text().count("\n") >= 3):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == ""
    found = re.fullmatch(
        r"interrupted at step ([\d,]+) of 100,000, and saved: run the same command to resume", err.splitlines()[-1]
    )
    assert found, err
    assert steps_kept(tmp_path / "out") == [int(found[1].replace(",", ""))]
    assert max(json.loads(line).get("memory", 0) for line in lines.read_text().splitlines()) < 700_000_000


LAUNCH = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "ramlet", *sys.argv[1:]])
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
"""A small process in between: the kernel counts what a process was before it became another."""


@pytest.mark.parametrize(
    "words", [("train", "--out", "out", *FEW), ("eval", "run", "--seq-len", "16")], ids=["train", "eval"]
)
@pytest.mark.parametrize(("engine", "budget"), [("native", 64), ("torch", 500)])
def test_the_budget_holds_to_the_end_of_the_process(
    data: Path, run: Path, tmp_path: Path, words: tuple[str, ...], engine: str, budget: int
) -> None:
    """As the kernel counted, also while the interpreter and the engine's libraries are taken down."""
    (tmp_path / "run").symlink_to(run)
    arguments = [*words, "--data", str(data), "--memory", f"{budget}MB", "--threads", "1", "--quiet"]
    arguments += ["--engine", engine]
    command = [sys.executable, "-c", LAUNCH, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    code, peak = done.stdout.splitlines()[-1].split()
    assert (code, done.stderr) == ("0", "")
    assert re.search(rf"^peak [\d.]+ MB of {budget}(\.0)? MB", done.stdout, re.MULTILINE)
    assert int(peak) < budget * 10**6


def test_no_torch(ran: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra one sentence says how to get it."""
    monkeypatch.setattr(opening, "has_torch", lambda: False)
    said = ran("train", "--data", str(data), "--out", "out", *FEW, "--engine", "torch")
    way_out = "pip install 'ramlet[torch]', or use --engine native"
    assert (said.code, said.err) == (1, f"error: PyTorch is not installed: {way_out}\n")
    assert list(tmp_path.iterdir()) == []


# -- ramlet eval


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    assert main(["train", "--data", str(data), "--out", str(data.parent / "run"), *FEW, "--quiet"]) == 0
    return data.parent / "run"


def test_eval(ran: Any, data: Path, run: Path) -> None:
    """The figures are those of the slow way, and those that training told."""
    model, ids = load_model(run), stored_ids(data, "val")
    total, count = slow_loss(model, [ids[start : start + 33] for start in range(0, len(ids) - 32, 32)])
    scores = evaluate(run, {"mine": data}, tokens="all", memory="8GB", threads=1)
    assert scores["mine"].tokens == count
    assert scores["mine"].loss == pytest.approx(total / count, rel=1e-5)
    few = evaluate(run, data, tokens=500, memory="8GB")["data"]
    trained = json.loads((run / "stats.json").read_text())["scores"]["val"]
    assert few.to_dict() == pytest.approx(trained, rel=1e-4)
    said = ran("eval", str(run), "--data", str(data), "--data", f"x={data}", "--tokens", "500", "--memory", "8GB", "-q")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == (
        f"data: loss {few.loss:.4f}, perplexity {few.perplexity:.2f}, {few.bits_per_byte:.3f} bits per byte, 480 tokens"
    )
    assert lines[1] == lines[0].replace("data:", "x:")
    assert re.fullmatch(r"peak .* of 8\.00 GB", lines[2])


def test_eval_json_and_other_parts(ran: Any, data: Path, run: Path) -> None:
    said = ran("eval", str(run), "-d", str(data), "--split", "train", "--seq_len", "16", "-m", "8GB", "--json")
    told = json.loads(said.out)
    ids = stored_ids(data, "train")
    assert told["scores"]["data"]["tokens"] == (len(ids) - 1) // 16 * 16
    checkpoint = ran("eval", str(run / "checkpoints" / "step_000006"), "-d", str(data), "-m", "8GB", "--json")
    last = ran("eval", str(run), "-d", str(data), "-m", "8GB", "--json")
    assert json.loads(checkpoint.out)["scores"] == json.loads(last.out)["scores"]


def test_eval_mistakes(ran: Any, data: Path, run: Path) -> None:
    other = make_data(data.parent, "characters", tokenizer="char")
    for arguments, sentence in (
        ([str(data), "-d", str(data)], "is not a model"),
        (["nowhere", "-d", str(data)], "there is no folder nowhere"),
        ([str(run), "-d", "nowhere"], "no such file or folder: nowhere"),
        ([str(run), "-d", str(other)], "another tokenizer"),
        ([str(run), "-d", str(data), "--seq-len", "33"], "must be between 1 and the model's context of 32"),
        ([str(run), "-d", str(data), "--tokens", "some"], "must be a number like 2048, 32k or 10M"),
        ([str(run), "-d", str(data), "--tokens", "0"], "tokens must be a number of at least 1, or all"),
        ([str(run), "-d", str(data), "--split", "test"], "unknown split 'test': use train or val"),
        ([str(run), "-d", str(data), "-d", str(data)], "give each dataset its own name"),
        ([str(run), "-d", str(data), "--memory", "60MB"], "needs at least"),
        ([str(run), "-d", str(data), "--device", "npu"], "device must be one of auto, cpu, cuda, tpu"),
    ):
        said = ran("eval", *arguments)
        assert (said.code, said.out) == (2 if "some" in arguments else 1, "")
        assert sentence in said.err
        assert said.err.count("\n") == 1
