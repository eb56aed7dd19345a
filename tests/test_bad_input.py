"""Input as it comes: broken, cut off, changing, empty, hostile. One clear sentence, or handled and counted."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import RunRamlet
from oracles import LONGEST_PIECE, count_pieces, merges_of, native_train, text_file, train, undisputed
from ramlet._native import least_memory, pattern_regex
from ramlet.errors import BrokenInput, RamletError, SourceChanged, SourceError

SKIP = {"skip_broken": True}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.compress,
}


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(path: Path) -> tuple[str, str, str, int]:
    return text_file(path, form="jsonl")


def left_in(folder: Path) -> list[str]:
    """What could be taken for a result, or for half of one."""
    return [name for name in os.listdir(folder) if not name.endswith(".run") and name not in ("lock", "counts.json")]


# Bytes that are no text


PARTS = (b"a", b" ", b"\n", b"\x00", "é".encode(), "中".encode(), "中".encode()[:2], b"\xff", b"\xf0\x9f", b"\x80")


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=300) | st.lists(st.sampled_from(PARTS)).map(b"".join))
@example(content=b"\x00\x00\x00\x00\x00\x80a\xc3\x80")
def test_invalid_utf8_is_replaced_and_counted(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    # A mark of another encoding is another matter.
    content = b"x" + content
    path = write(tmp_path_factory.mktemp("utf8") / "text.txt", content)
    text = content.decode("utf-8", errors="replace")
    if text != undisputed(text):
        return
    trained = native_train(files=[text_file(path)], tokens=270, memory=least_memory(1, 270))
    pieces = count_pieces([text], pattern_regex("gpt2"))
    assert merges_of(trained) == train(pieces, 270)
    assert trained["pieces"] == pieces.total()
    # Python replaces as the standard recommends: one U+FFFD for each sequence that is cut off.
    assert trained["read"]["invalid_utf8"] == text.count("\ufffd") - content.count("\ufffd".encode())
    assert trained["read"]["text_bytes"] == len(text.encode())


@pytest.mark.parametrize("size", [1 << 16, 200_001])
def test_invalid_utf8_at_the_edge_of_a_block(tmp_path: Path, size: int) -> None:
    # Characters cut off at every place around where blocks of every size end.
    content = b"".join(("é中😀 ".encode() * (size // 10))[: size - n] + b"\xf0\x9f" for n in range(12))
    path = write(tmp_path / "text.txt", content)
    text = content.decode("utf-8", errors="replace")
    pieces = count_pieces([text], pattern_regex("gpt2"), cap=None)
    for memory in (least_memory(2, 256), 64 << 20):
        trained = native_train(files=[text_file(path)], threads=2, memory=memory)
        assert (trained["pieces"], trained["distinct_pieces"]) == (pieces.total(), len(pieces))
        assert trained["read"]["invalid_utf8"] == text.count("\ufffd")


def test_nul_bytes_are_characters(tmp_path: Path) -> None:
    text = "a\x00b\x00\x00 \x00" * 5000
    trained = native_train(files=[text_file(write(tmp_path / "nul.txt", text))], tokens=270)
    assert merges_of(trained) == train(count_pieces([text], pattern_regex("gpt2"), cap=None), 270)
    assert any(b"\x00" in left + right for left, right in merges_of(trained))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_another_encoding_is_named(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "wide.txt", "some text".encode(encoding))
    with pytest.raises(BrokenInput, match=f"wide.txt.*{encoding.upper()}"):
        native_train(files=[text_file(path)])
    other = write(tmp_path / "other.txt", "words here")
    trained = native_train(files=[text_file(path), text_file(other)], read=SKIP)
    assert trained["read"]["broken_files"] == 1
    assert trained["pieces"] == 2


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "mark.txt", b"\xef\xbb\xbfword")
    assert native_train(files=[text_file(path)])["read"]["text_bytes"] == 4


# Nothing


def test_empty_files_are_documents_without_text(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.txt", "") for n in range(5)] + [write(tmp_path / "one.txt", "word")]
    trained = native_train(files=map(text_file, paths), threads=2)
    assert trained["read"]["files"] == 6
    assert trained["read"]["documents"] == 6
    assert trained["pieces"] == 1


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_an_empty_corpus_learns_nothing(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "empty", "")
    trained = native_train(files=[text_file(path, form=form)], tokens=300, threads=2)
    assert (trained["merges"], trained["pieces"], len(trained["tokens"])) == ([], 0, 256)
    assert native_train([], tokens=300)["merges"] == []
    assert native_train(files=[], tokens=300)["merges"] == []
    assert native_train(["", "", "a"], tokens=300)["merges"] == []


def test_the_command_says_that_there_is_no_text(tmp_path: Path, ramlet: RunRamlet) -> None:
    write(tmp_path / "empty.txt", "")
    done = ramlet("tokenizer", "train", "empty.txt", "--vocab-size", "300", "--out", "out")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "no text" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_an_empty_compressed_file_is_broken(tmp_path: Path) -> None:
    for packer in PACKERS:
        path = write(tmp_path / f"empty.{packer}", b"")
        with pytest.raises(BrokenInput, match="is empty, so it is not a"):
            native_train(files=[text_file(path, packer)])


# Files that change


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    path = write(tmp_path / "gone.txt", "text")
    file = text_file(path)
    path.unlink()
    with pytest.raises(SourceChanged, match=r"gone\.txt does not exist anymore"):
        native_train(files=[file])


@pytest.mark.parametrize("change", [-5, 5])
def test_a_file_of_another_size(tmp_path: Path, change: int) -> None:
    path = write(tmp_path / "text.txt", "some text")
    name, form, compression, size, modified = text_file(path)
    with pytest.raises(SourceChanged, match="shrunk" if change > 0 else "grown"):
        native_train(files=[(name, form, compression, size + change, modified)])


def trained_on(files: Iterator[Any]) -> dict[str, Any] | None:
    """What was read; None where a file was not there any more."""
    try:
        read: dict[str, Any] = native_train(files=files, threads=2, memory=least_memory(2, 256))["read"]
    except SourceChanged:
        return None
    return read


@pytest.mark.parametrize("packer", ["", "gz"])
@pytest.mark.parametrize("change", ["shrink", "grow", "vanish"])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, packer: str, change: str) -> None:
    size = 3_000_000
    content = random.Random(1).randbytes(size // 2).hex().encode()
    path = write(tmp_path / "text.txt", PACKERS[packer](content) if packer else content)
    whole, before = path.read_bytes(), text_file(path, packer)

    def files() -> Iterator[Any]:
        yield before
        # The other thread asks for the next file while the first one has its file open.
        if change == "vanish":
            path.unlink()
        else:
            os.truncate(path, before[3] // 2 if change == "shrink" else before[3] + 100_000)

    if change == "vanish":
        # An open file stays whole: nothing is wrong. Once more, where the first thread had not opened it yet.
        while not (read := trained_on(files())):
            path.write_bytes(whole)
        assert read["text_bytes"] == len(content)
        return
    with pytest.raises(SourceChanged, match=r"text\.txt"):
        # Once more, where the first thread had read all of it before the other was given any time.
        while native_train(files=files(), threads=2, memory=least_memory(2, 256)):
            path.write_bytes(whole)
            before = text_file(path, packer)


def test_an_unreadable_file(tmp_path: Path) -> None:
    # Root may read every file; a folder in the place of a file cannot be read by anyone.
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(SourceError, match=r"folder\.txt"):
        native_train(files=[(str(tmp_path / "folder.txt"), "text", "", -1, 0)])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = write(tmp_path / "secret.txt", "text")
    file = text_file(path)
    path.chmod(0)
    with pytest.raises(SourceError, match=r"secret\.txt"):
        native_train(files=[file])


# Compressed


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.999])
def test_a_truncated_archive(tmp_path: Path, packer: str, part: float) -> None:
    whole = PACKERS[packer](random.Random(2).randbytes(300_000).hex().encode())
    path = write(tmp_path / f"cut.txt.{packer}", whole[: int(len(whole) * part)])
    with pytest.raises(BrokenInput, match=rf"cut\.txt\.{packer} "):
        native_train(files=[text_file(path, packer)])
    trained = native_train(files=[text_file(path, packer)], read=SKIP)
    assert trained["read"]["broken_files"] == 1
    assert "cut.txt" in trained["read"]["examples"][0]


@pytest.mark.parametrize("packer", PACKERS)
def test_a_flipped_bit_and_a_wrong_suffix(tmp_path: Path, packer: str) -> None:
    whole = bytearray(PACKERS[packer](random.Random(3).randbytes(50_000).hex().encode()))
    whole[len(whole) // 2] ^= 16
    if packer != "zst":  # written without a checksum, it may not notice
        with pytest.raises(BrokenInput):
            native_train(files=[text_file(write(tmp_path / "flipped", bytes(whole)), packer)])
    with pytest.raises(BrokenInput, match="plain"):
        native_train(files=[text_file(write(tmp_path / "plain", "just text " * 100), packer)])


@pytest.mark.parametrize("memory", [least_memory(1, 256), 64 << 20])
def test_what_precedes_the_damage_does_not_depend_on_the_budget(tmp_path: Path, memory: int) -> None:
    whole = gzip.compress(b"".join(b"%d words " % n for n in range(300_000)))
    path = write(tmp_path / "cut.gz", whole[: len(whole) // 2])
    expected = native_train(files=[text_file(path, "gz")], read=SKIP, memory=1 << 30)
    trained = native_train(files=[text_file(path, "gz")], read=SKIP, memory=memory)
    assert trained["read"] == expected["read"]
    assert trained["pieces"] == expected["pieces"] > 100_000


# jsonl


BROKEN = {
    "{": "JSON",
    '{"text": "a"': "JSON",
    '{"text": "a" "b"}': "JSON",
    "plain words": "JSON",
    '{"text": "\\x"}': "JSON",
    '{"text": "a"} {"text": "b"}': "JSON",
    "[1]": "JSON",
    '{"text": 5}': "does not have a string",
    '{"text": null}': "does not have a string",
    '{"text": ["a"]}': "does not have a string",
    '{"other": "a"}': 'no field "text"',
    "{}": 'no field "text"',
}


@pytest.mark.parametrize(("line", "reason"), BROKEN.items())
@pytest.mark.parametrize("before", [0, 3, 5000])
def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path, line: str, reason: str, before: int) -> None:
    good = '{"text": "good words"}\n'
    path = write(tmp_path / "lines.jsonl", good * before + line + "\n" + good * 4)
    with pytest.raises(BrokenInput, match=f"lines.jsonl:{before + 1} .*{reason}") as raised:
        native_train(files=[jsonl(path)], threads=2, memory=least_memory(2, 256))
    assert 'on_error="skip"' in str(raised.value)
    trained = native_train(files=[jsonl(path)], threads=2, memory=least_memory(2, 256), read=SKIP)
    assert trained["read"]["documents"] == before + 4
    assert trained["pieces"] == 2 * (before + 4)
    kinds = ("broken_json", "missing_field", "not_a_string")
    assert sum(trained["read"][kind] for kind in kinds) == 1
    assert f"lines.jsonl:{before + 1}" in trained["read"]["examples"][0]


def test_every_broken_line_is_counted_once(tmp_path: Path) -> None:
    lines = ['{"text": "good"}', *BROKEN, "", "   ", '{"text": ""}', '{"text": "\\ud800"}'] * 3000
    path = write(tmp_path / "lines.jsonl", "\n".join(lines))
    for threads in (1, 2, 5):
        trained = native_train(files=[jsonl(path)], threads=threads, memory=least_memory(threads, 256), read=SKIP)
        read = trained["read"]
        assert (read["broken_json"], read["missing_field"], read["not_a_string"]) == (21_000, 6_000, 9_000)
        assert read["documents"] == 9_000
        assert read["lone_surrogates"] == 3_000
        assert len(read["examples"]) == 8


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=30).map(undisputed), max_size=20),
    ascii_only=st.booleans(),
    ends=st.sampled_from(["\n", "\r\n"]),
)
def test_jsonl_reads_what_json_reads(
    texts: list[str], ascii_only: bool, ends: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [json.dumps({"id": 1, "text": text, "more": {"text": "no"}}, ensure_ascii=ascii_only) for text in texts]
    path = write(tmp_path_factory.mktemp("json") / "a.jsonl", ends.join(lines))
    trained = native_train(files=[jsonl(path)], memory=least_memory(1, 256))
    pieces = count_pieces(texts, pattern_regex("gpt2"))
    assert (trained["pieces"], trained["distinct_pieces"]) == (pieces.total(), len(pieces))
    assert trained["read"]["documents"] == len(texts)
    assert trained["read"]["text_bytes"] == sum(len(text.encode()) for text in texts)


def test_a_parquet_file_that_is_none_and_one_without_the_column(tmp_path: Path) -> None:
    path = write(tmp_path / "not.parquet", "PAR1 nothing of the kind PAR1")
    with pytest.raises(BrokenInput, match=r"not\.parquet"):
        native_train(files=[text_file(path, form="parquet")])
    pyarrow.parquet.write_table(pyarrow.table({"body": ["a b", None, "c"], "id": [1, 2, 3]}), tmp_path / "t.parquet")
    file = text_file(tmp_path / "t.parquet", form="parquet")
    with pytest.raises(BrokenInput, match=r't\.parquet has no field "text" \(it has body, id\)'):
        native_train(files=[file])
    with pytest.raises(RamletError, match="id"):
        native_train(files=[file], read={"text_field": "id"})
    trained = native_train(files=[file], read={"text_field": "body"})
    assert (trained["read"]["documents"], trained["read"]["null_text"], trained["pieces"]) == (2, 1, 3)


def test_a_broken_file_among_good_ones_leaves_nothing_behind(tmp_path: Path) -> None:
    good = [write(tmp_path / f"{n}.txt", f"words {n} " * 20_000) for n in range(4)]
    bad = write(tmp_path / "bad.jsonl", '{"text": "a"}\n{')
    work = tmp_path / "work"
    with pytest.raises(BrokenInput, match=r"bad\.jsonl:2"):
        native_train(files=[*map(text_file, good), jsonl(bad)], work_dir=work, threads=2, memory=least_memory(2, 256))
    assert left_in(work) == []


def test_the_command_stops_at_a_broken_line_or_skips_it(tmp_path: Path, ramlet: RunRamlet) -> None:
    write(tmp_path / "a.jsonl", '{"text": "low lower lowest"}\nnot json\n{"text": "low"}\n{"body": "x"}\n')
    command = ("tokenizer", "train", "a.jsonl", "--vocab-size", "260", "--out", "out")
    done = ramlet(*command)
    assert done.returncode == 1
    assert "a.jsonl:2" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    done = ramlet(*command, "--on-error", "skip")
    assert done.returncode == 0, done.stderr
    stats = (tmp_path / "out" / "stats.json").read_text()
    assert '"broken_json": 1' in stats
    assert '"missing_field": 1' in stats


# No place to cut


ENDLESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from oracles import native_train, text_file
import psutil
native_train(["warm up"], tokens=260)
path, form, memory = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
before = psutil.Process().memory_info().rss
Path("/proc/self/clear_refs").write_text("5")
total = (before + memory) * 32 // 31
trained = native_train(files=[text_file(path, form=form)], tokens=260, memory=memory, resident_limit=total)
peak = [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(json.dumps([peak, total, trained["pieces"], trained["cut_pieces"]]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
@pytest.mark.parametrize("unit", ["a", "é", " ", "1"])
@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_line_without_a_space_is_cut_in_flat_memory(tmp_path: Path, unit: str, form: str) -> None:
    size = 48 << 20
    content = unit.encode() * (size // len(unit.encode()))
    path = write(tmp_path / "line", b'{"text": "' + content + b'"}\n' if form == "jsonl" else content)
    command = [sys.executable, "-c", ENDLESS, str(Path(__file__).parent), str(path), form, str(least_memory(1, 260))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    peak, total, pieces, cut = json.loads(done.stdout)
    assert pieces == size // LONGEST_PIECE
    assert pieces * 0.9 < cut <= pieces
    assert peak <= total, f"{(peak - total) >> 10} KB too much"


# Vocabularies


def test_a_vocabulary_larger_than_the_corpus_can_fill(tmp_path: Path, ramlet: RunRamlet) -> None:
    trained = native_train(["abc abc"], tokens=50_000)
    assert [left + right for left, right in merges_of(trained)] == [b"ab", b"abc", b" abc"]
    write(tmp_path / "a.txt", "abc abc")
    done = ramlet("tokenizer", "train", "a.txt", "--vocab-size", "50000", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "259" in done.stdout + done.stderr


def test_a_vocabulary_too_small_for_the_bytes(tmp_path: Path, ramlet: RunRamlet) -> None:
    write(tmp_path / "a.txt", "abc abc")
    done = ramlet("tokenizer", "train", "a.txt", "--vocab-size", "257", "-s", "<a>", "-s", "<b>", "--out", "out")
    assert done.returncode == 1
    assert "258" in done.stderr
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_a_budget_below_the_floor(tmp_path: Path, ramlet: RunRamlet) -> None:
    write(tmp_path / "a.txt", "abc abc")
    done = ramlet("tokenizer", "train", "a.txt", "--vocab-size", "300", "--memory", "1MB", "--out", "out")
    assert done.returncode == 1
    assert "needs at least" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_with_no_text(tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "picture.png", b"\x89PNG")
    done = ramlet("tokenizer", "train", "folder", "--vocab-size", "300", "--out", "out")
    assert done.returncode == 1
    assert "no text in the folder" in done.stderr


def test_text_that_is_no_unicode_is_an_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        native_train(["fine", "a\ud800"])
    with pytest.raises(TypeError):
        native_train(["fine", b"bytes"])  # type: ignore[list-item]
