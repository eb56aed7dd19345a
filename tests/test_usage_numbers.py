"""A number that cannot be parsed is wrong usage: exit code 2, with the option and what it expects."""

from __future__ import annotations

import json

import pytest

from ramlet.cli import main


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --data d --out r --lr high", "--lr must be a number like 0.1, not 'high'"),
        ("train --data d --out r --keep some", "--keep must be a number like 2048, 32k or 10M, not 'some'"),
        ("train --data d --out r --params many", "--params must be a number like 2048, 32k or 10M, not 'many'"),
        ("train --data d --out r --threads two", "--threads: 'two' is not a whole number (see ramlet train --help)"),
        ("prepare t.txt --out d --val-fraction half", "--val-fraction must be a number like 0.1, not 'half'"),
        (
            "prepare t.txt --out d --document-bytes big",
            "--document-bytes must be a size like 200MB or 64KiB, not 'big'",
        ),
        ("tokenizer train t.txt -o t -v many", "--vocab-size must be a number like 2048, 32k or 10M, not 'many'"),
        ("generate r -p x --max-new-tokens all", "--max-tokens must be a number like 2048, 32k or 10M, not 'all'"),
        ("plan --vocab-size many", "--vocab-size must be a number like 2048, 32k or 10M, not 'many'"),
        ("eval r -d d --seq-len long", "--seq-len must be a number like 2048, 32k or 10M, not 'long'"),
        ("eval r -d d --tokens some", "--tokens must be a number like 2048, 32k or 10M, not 'some'; or use all"),
        ("init --params many", "--params must be a number like 2048, 32k or 10M, not 'many'"),
        ("report r --watch --port http", "--port: 'http' is not a whole number (see ramlet report --help)"),
    ],
)
def test_not_a_number(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")
    assert main([*command.split(), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["type"], error["message"]) == ("UsageError", message)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --data d --out r --max-steps 0", "--max-steps must be at least 1, not 0"),
        ("train -d d -o r --schedule step", "--schedule must be one of cosine, linear, constant, wsd, not 'step'"),
        ("generate r -p x --top-p 2", "--top-p must be above 0 and at most 1, not 2"),
    ],
)
def test_a_number_out_of_range_or_a_wrong_choice_is_a_settings_error(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 1
    assert capsys.readouterr() == ("", f"error: {message}\n")
