"""What commands answer to machines and to mistakes: one key for the path, errors as JSON, names that are near."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from oracles_training import make_data, run, sentences
from ramlet.cli import main
from ramlet.errors import SettingsError
from ramlet.settings.names import check_names, nearest


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, two datasets and a run."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "text.txt").write_text(sentences(200))
    make_data(folder)
    make_data(folder, "other", seed=1)
    run(folder / "data", folder / "run", max_steps=2)
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def answer(capsys: pytest.CaptureFixture[str], command: str, *words: str) -> tuple[int, dict[str, Any], str]:
    code = main([*command.split(), *words, "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out), told.err


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("tokenizer train text.txt --vocab-size 270 --out tokenizer --memory 8GB", "tokenizer"),
        ("tokenizer encode text.txt --tokenizer byte --out ids.bin --memory 8GB", "ids.bin"),
        ("tokenizer show byte", "byte"),
        ("prepare text.txt --tokenizer byte --out made --memory 8GB", "made"),
        ("data inspect data", "data"),
        ("data verify data --memory 8GB", "data"),
        ("data merge data other --out merged --memory 8GB", "merged"),
        ("data export data --to nanogpt --out exported --memory 8GB", "exported"),
        ("generate run --prompt the -n 2 --device cpu --memory 8GB", "run"),
        ("eval run --data data --tokens 64 --device cpu --memory 8GB", "run"),
        ("export run model --memory 8GB", "model"),
        ("report run --out page.html --memory 8GB", "page.html"),
    ],
)
def test_every_object_has_its_path(command: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, _ = answer(capsys, command)
    assert (code, told["path"]) == (0, path)
    assert told.get("out") in (None, path)


@pytest.mark.parametrize(
    ("command", "code", "kind", "message"),
    [
        ("data inspect nowhere", 1, "DatasetError", "no such folder: nowhere"),
        ("prepare nothing.txt --out x", 1, "SourceError", "no such file or folder: nothing.txt"),
        ("train --bogus", 2, "UsageError", "unknown option --bogus: see ramlet train --help"),
        ("plan --memory 1MB --params 10M", 1, "BudgetError", None),
        ("generate nowhere --prompt x", 1, "ModelError", None),
    ],
)
def test_an_error_is_an_object_too(
    command: str, code: int, kind: str, message: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("wheel.log").touch()
    ended, told, errors = answer(capsys, command)
    assert (ended, list(told), told["error"]["type"]) == (code, ["error"], kind)
    assert errors == f"error: {told['error']['message']}\n"
    if message is not None:
        assert told["error"]["message"] == message
    assert main(command.split()) == code
    said = capsys.readouterr()
    # What this process has resident changes a little.
    assert (said.out, re.sub(r"[\d.]+", "N", said.err)) == ("", re.sub(r"[\d.]+", "N", errors))


def test_ctrl_c_is_an_object_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ramlet.dataset.inspect.figures", interrupted)
    code, told, errors = answer(capsys, "data inspect data")
    assert (code, told["error"]["type"]) == (130, "Interrupted")
    assert errors == f"{told['error']['message']}\n"


@pytest.mark.parametrize(
    ("word", "names", "meant"),
    [
        ("nowhere", ["wheel", "text"], None),
        ("bogus", ["out", "data"], None),
        ("corpsu", ["corpus", "core"], "corpus"),
        ("dta", ["data", "other"], "data"),
    ],
)
def test_only_near_names_are_meant(word: str, names: list[str], meant: str | None) -> None:
    assert nearest(word, names) == meant
    with pytest.raises(SettingsError, match=f"did you mean {meant}" if meant else "choose from "):
        check_names([word], names)


def test_where_a_folder_is_wanted_no_file_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    Path("dataa.log").touch()
    assert main(["data", "inspect", "dataa"]) == 1
    assert capsys.readouterr().err == "error: no such folder: dataa; did you mean data?\n"
    Path("notes.txt").touch()
    assert main(["data", "inspect", "notes"]) == 1
    assert capsys.readouterr().err == "error: no such folder: notes\n"


@pytest.mark.parametrize(("temperature", "seeded"), [("0", False), ("0.5", True)])
def test_a_seed_is_told_where_something_is_drawn(
    temperature: str, seeded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"generate run --prompt the -n 2 --device cpu --memory 8GB --temperature {temperature}"
    _, told, _ = answer(capsys, command)
    assert (told["samples"][0]["seed"] is not None) == seeded
    for more in ([], ["--num-samples", "2"]):
        assert main([*command.split(), *more]) == 0
        assert ("seed" in "".join(capsys.readouterr())) == seeded
