"""`ramlet tokenizer decode` of more ids than it decodes at once."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from conftest import RunRamlet
from ramlet.cli.tokenizer import decode


@pytest.mark.parametrize("longest", [2, 3, 7, 64])
def test_lines_in_parts(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "LONGEST_LINE", longest)
    for text in ("", "1", "1 2,3\n", "[10, 20,30]\n\n4\n 5", "12\t34\r\n5 6"):
        parts = list(decode._in_parts(io.StringIO(text, newline="")))
        assert "".join(parts) == text
        assert [number for ids in decode._from_words(iter(parts)) for number in ids] == [
            number for ids in decode._from_words(iter([text])) for number in ids
        ]
        assert all(len(part) <= longest + 3 for part in parts)


def test_a_number_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "LONGEST_LINE", 10)
    assert max(map(len, decode._in_parts(io.StringIO("1" * 95)))) <= 20


def test_tokens_of_hf_have_a_space_between_all_of_them(tmp_path: Path, ramlet: RunRamlet) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "word": 1}, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "hf.json"))
    count = 300_000
    np.full(count, 1, "<u2").tofile(tmp_path / "ids.bin")
    done = ramlet("tokenizer", "decode", "ids.bin", "-T", "hf.json")
    assert done.stdout == " ".join(["word"] * count)
