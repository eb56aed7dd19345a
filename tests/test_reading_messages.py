"""What is said where reading or writing fails for a reason that is easily taken for another."""

from __future__ import annotations

import gzip
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import RunRamlet
from ramlet.errors import BrokenInput, SettingsError, SourceError
from ramlet.inputs.paths import nearest_path
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.sources import expand
from ramlet.settings.yaml_nodes import compose
from ramlet.tokenizer.encode import encode_files
from ramlet.tokenizer.tokenizer import Tokenizer


def decoded(path: Path, **settings: str) -> str:
    tokenizer = Tokenizer.load("byte")
    batches = encode_files(tokenizer, [path], ReadSettings(**settings), path.parent, threads=1, block_bytes=1 << 16)
    return tokenizer.decode([number for ids, _ in batches for number in ids.tolist()])


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    link = tmp_path / "text.txt"
    link.symlink_to("nowhere.txt")
    with pytest.raises(SourceError, match=r"text\.txt is a link to nowhere\.txt, which does not exist") as raised:
        expand(link)
    assert "did you mean" not in str(raised.value)
    assert nearest_path(str(link)) == ""


def test_a_link_that_leads_to_itself_blocks_no_folder(tmp_path: Path) -> None:
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "a.txt").write_text("some text")
    skipped: dict[str, int] = {}
    assert [source.path for source in expand(tmp_path, skipped=skipped)] == [f"{tmp_path}/a.txt"]
    assert skipped == {"special": 1}
    with pytest.raises(SourceError, match=r"cannot read .*loop\.txt: Too many levels"):
        expand(tmp_path / "loop.txt")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_a_device_has_no_end(device: str) -> None:
    with pytest.raises(SourceError, match=f"{device} is a device or a socket, which has no end"):
        expand(device)


def test_something_behind_a_gzip_stream(tmp_path: Path) -> None:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"some text") + b"\0\0something else")
    with pytest.raises(BrokenInput, match=r"text\.txt\.gz is a valid gzip file, but other data follows its end"):
        decoded(path)
    assert decoded(path, on_error="skip") == "some text"


@pytest.mark.parametrize("length", [10, 200_000])
def test_of_a_key_that_comes_twice_the_last_counts(tmp_path: Path, length: int) -> None:
    """As in Python, jq and pandas; also in lines that are longer than a block."""
    path = tmp_path / "rows.jsonl"
    first, second = "a" * length, "b" * length
    path.write_text(f'{{"text": "{first}", "x": 1, "text": "{second}"}}\n')
    assert json.loads(path.read_text())["text"] == second
    assert decoded(path) == second


def test_two_documents_in_a_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("out: a\n---\nout: b\n")
    with pytest.raises(SettingsError, match=r"c\.yaml, line 2: a second document begins with ---"):
        compose(str(tmp_path / "c.yaml"))


def limited(kind: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (most, most))


def test_a_limit_on_the_size_of_files(tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "a.txt").write_text("some words of text\n" * 2000)
    few = limited(resource.RLIMIT_FSIZE, 2048)
    done = ramlet("tokenizer", "encode", "a.txt", "-T", "byte", "-o", "ids.bin", preexec_fn=few)
    assert done.returncode == 1
    assert "raise the limit on file size (ulimit -f)" in done.stderr
    assert not (tmp_path / "ids.bin").exists()


def test_a_limit_on_open_files(tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "a.txt").write_text("some words of text\n" * 2000)
    few = limited(resource.RLIMIT_NOFILE, 9)
    done = ramlet("prepare", "a.txt", "-o", "out", "-T", "byte", "--memory", "300MB", preexec_fn=few)
    if done.returncode:
        assert "ulimit -n" in done.stderr
        assert "Traceback" not in done.stderr


def test_what_is_lost_is_told_though_quiet(tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "latin.txt").write_bytes("café au lait, déjà vu\n".encode("latin-1") * 10)
    done = ramlet("tokenizer", "encode", "latin.txt", "-T", "byte", "-o", "ids.bin", "-q")
    assert done.returncode == 0
    assert "invalid UTF-8 sequences were replaced" in done.stderr
    assert os.path.getsize(tmp_path / "ids.bin")
