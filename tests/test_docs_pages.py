"""The pages for users say what is true: their commands run, their Python too, their flags exist."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import ramlet
from documented import ROOT, blocks, commands, make_checkout, run_all
from ramlet.cli import main
from ramlet.cli.wording import as_flag

DOCS = ROOT / "docs"
COMMANDS = (
    *("train", "plan", "eval", "generate", "export", "prepare"),
    *(f"tokenizer {name}" for name in ("train", "encode", "decode", "show", "compare")),
    *(f"data {name}" for name in ("inspect", "verify", "merge", "export")),
)
NEW = [
    DOCS / name
    for name in ("tokenizers.md", "moving-from-other-tools.md", "troubleshooting.md", "api.md", "evaluating.md")
]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_checkout(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(block: str) -> None:
    exec(compile(block.replace('"1GB"', '"8GB"').replace("1_000", "300"), "a page's block", "exec"), {})


def test_tokenizers(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = DOCS / "tokenizers.md"
    found = commands(page)
    assert len(found) == 10
    run_all(found, capsys)
    for block in blocks(page, "python"):
        run_python(block)


def test_what_tokenizers_shows_is_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--text", "Hello, world"], "15496 11 995"),
        (["--text", "a<|endoftext|>b", "--allow-special", "<|endoftext|>"], "64 50256 65"),
    ):
        assert main(["tokenizer", "encode", "--tokenizer", "gpt2", *words]) == 0
        assert capsys.readouterr().out.strip() == said
    main(["tokenizer", "encode", "--tokenizer", "gpt2", "--text", "a<|endoftext|>b"])
    assert len(capsys.readouterr().out.split()) == 9


def test_moving(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page from top to bottom, with files as the other tools write them."""
    import datasets
    import numpy as np

    page = DOCS / "moving-from-other-tools.md"
    text = (checkout / "docs" / "text.txt").read_text()
    rows = [{"text": line} for line in text.splitlines()]
    (checkout / "input.txt").write_text(text * 4)
    (checkout / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (checkout / "shape.json").write_text('{"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32}')
    (checkout / "config.yaml").write_text(
        "sequence_len: 64\nhub_tokenizer_id: tokenizer\ndataset_prepared_path: krilled\npreprocess_chunk_size: 100\n"
        "datasets:\n  - {path: corpus.jsonl, split: train, text_column: text}\n"
    )
    datasets.Dataset.from_list(rows).save_to_disk("saved")
    (checkout / "tokens").mkdir()
    np.array([464, 1468, 50256, 1097, 50256], "<u2").tofile("tokens/000_00000.ds")
    np.array([3, 5], "<u8").tofile("tokens/000_00000.ds.index")
    capsys.readouterr()

    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S):
        if language == "python":
            if "from transformers" not in block:  # takes ten seconds to load; test_model_files.py opens runs with it
                run_python(block)
            continue
        for line in block.splitlines():
            words = shlex.split(line)
            if words[0] == "cp":
                shutil.copy(words[1], words[2])
            else:
                assert words[0] == "ramlet", line
                run_all([words[1:]], capsys)
    assert main(["data", "verify", "dataset"]) == 0
    shards = json.loads((checkout / "dataset/dataset_metadata.json").read_text())["splits"]["train"]["shards"]
    written = {(shard["tokens"], shard["documents"]) for shard in shards}
    assert len(shards) == 5, "one of its own, of nanoGPT, datatrove, Megatron and llm.c"
    assert (5, 2) in written, "datatrove's documents are where its index says"


@pytest.mark.parametrize("page", [page for page in NEW if page.exists()], ids=lambda page: page.name)
def test_flags_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a page calls an option of ramlet is one. Those of other tools are in the left columns of tables."""
    known = {"--nproc-per-node", "--nproc_per_node", "--standalone"}
    for command in COMMANDS:
        main([*command.split(), "--help"])
        known |= set(re.findall(r"--[a-z0-9][a-z0-9-]+", capsys.readouterr().out))
    lines = page.read_text().splitlines()
    ours = "\n".join(line.split(" | ", 1)[-1] if line.startswith("| ") else line for line in lines)
    named = set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9_-]+", ours))
    assert named - known <= {"--train-data-path", "--valid-data-path", "--outfile"}


def test_evaluating_and_running_elsewhere(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands and the Python of both pages, with a run and the items that they show."""
    for name in ("law-dataset", "other-dataset"):
        run_all([["prepare", "docs/", "--tokenizer", "byte", "--out", name]], capsys)
    run_all([["train", "--data", "law-dataset", "--out", "RUN", "--params", "40k", "--max-steps", "4"]], capsys)
    asked, pairs = blocks(DOCS / "evaluating.md", "json")
    (checkout / "questions.jsonl").write_text(asked)
    (checkout / "pairs.jsonl").write_text(pairs)
    for page in ("evaluating.md", "running-elsewhere.md"):
        run_all(commands(DOCS / page), capsys)
    assert (checkout / "my-gguf" / "Modelfile").exists()
    for block in blocks(DOCS / "evaluating.md", "python"):
        run_python(block)


def test_troubleshooting_quotes_what_is_said() -> None:
    """Of each message on the page, what does not depend on the case stands in the code."""
    sources = [*(ROOT / "python").rglob("*.py"), *(ROOT / "rust").rglob("*.rs")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    code = re.sub(r'"\s*\n\s*f?"', "", code).replace('\\"', '"')  # strings that go over several lines
    code = re.sub(r"\{option\('(\w+)'(?:, '?([\w.]+)'?)?\)\}", lambda found: as_flag(found[1], found[2]), code)
    text = (DOCS / "troubleshooting.md").read_text()
    for phrase in (
        "give more, or use a smaller model, a shorter --seq-len",
        "the machine is out of memory: use a smaller --memory, or close other programs",
        "or a smaller --micro-batch",
        "; the last checkpoint is complete",
        "activation checkpointing",
        "so the run was stopped; ",
        "there is no checkpoint before it: run it again with a lower --lr",
        "continue from it with --init-from and a lower --lr",
        ": free some and run the same again",
        ": choose another --out, or give the same",
        "or --resume to continue it",
        " has changed since ",
        "holds a dataset from other inputs or settings: --append adds to it, or choose another folder",
        " is being written by another ramlet",
        ": wait for it, or choose another ",
        "has no checkpoints any more, so it cannot be resumed: choose another --out, with --init-from ",
        "PyTorch finds no GPU here: use --device cpu",
        " processes need a GPU each, and there are ",
        "the validation split is empty",
        "the tokenizer has no end-of-text token",
        "is not in this tokenizer's vocabulary",
        "was trained with another tokenizer (",
        "no such file or folder: ",
        " here, and it cannot be read from the hub",
        "is text, and there is no ",
        "is not a dataset: it has no ",
        "is not finished: run the same",
    ):
        assert phrase in text, phrase
        assert phrase in code, phrase


def sections() -> dict[str, str]:
    """api.md by the names that its headings have."""
    found = re.split(r"^## (\w+)$", (DOCS / "api.md").read_text(), flags=re.M)
    return dict(zip(found[1::2], found[2::2]))


@pytest.mark.parametrize("name", ramlet.__all__)
def test_api_has_every_name_and_parameter(name: str) -> None:
    value = getattr(ramlet, name)
    if name == "__version__" or issubclass(value if isinstance(value, type) else object, BaseException):
        assert f"`{name}`" in (DOCS / "api.md").read_text()
        return
    text = sections()[name]
    missing = [word for word in described(value) if re.search(rf"\b{word}\b", text) is None]
    assert missing == []


def described(value: Any) -> set[str]:
    """The words that a reader would look for: parameters, and of a class its public names with theirs."""
    if not isinstance(value, type):
        return set(inspect.signature(value).parameters)
    words = {name for name in vars(value) if not name.startswith("_")} - {"engine"}
    made_by_users = value not in (ramlet.Tokenizer, ramlet.Prepared, ramlet.TrainResult, ramlet.Batch, ramlet.Listener)
    words |= set(inspect.signature(value).parameters) if made_by_users else set()
    for name in list(words):
        found = inspect.getattr_static(value, name, None)
        method = found.__func__ if isinstance(found, classmethod) else found
        words |= set(inspect.signature(method).parameters) if inspect.isfunction(method) else set()
    return words - {"self", "cls"}


def test_api_examples(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks(DOCS / "api.md", "python"):
        small = block.replace('"1GB"', '"8GB"').replace("1_000", "300").replace('"300k"', '"40k", device="cpu"')
        exec(compile(small, "docs/api.md", "exec"), names)
    assert "no such file or folder: nowhere/" in capsys.readouterr().out
