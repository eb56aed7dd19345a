"""Inputs -> files: folders, globs, suffixes, duplicates, and a sentence for each thing that can be wrong."""

from __future__ import annotations

import glob
import os
import sys
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramlet.errors import RamletError, SettingsError, SourceError
from ramlet.inputs.sources import Source, expand, survey
from ramlet.inputs.walk import Excluded, Walk


def make(root: Path, *names: str, content: bytes = b"text") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def paths(inputs: str | Iterable[str], **options: object) -> list[str]:
    return [source.path for source in expand(inputs, **options)]  # type: ignore[arg-type]


def fingerprint(inputs: str | Iterable[str], **options: str) -> str:
    return survey(inputs, **options).fingerprint


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "form", "compression"),
        [
            ("a.txt", "text", ""),
            ("a", "text", ""),
            ("a.unheard-of", "text", ""),
            ("a.json", "text", ""),
            ("a.jsonl", "jsonl", ""),
            ("a.ndjson", "jsonl", ""),
            ("a.parquet", "parquet", ""),
            ("A.JSONL", "jsonl", ""),
            ("a.txt.gz", "text", "gz"),
            ("a.gz", "text", "gz"),
            ("a.jsonl.gz", "jsonl", "gz"),
            ("a.jsonl.zst", "jsonl", "zst"),
            ("a.jsonl.xz", "jsonl", "xz"),
            ("a.parquet.bz2", "parquet", "bz2"),
            ("a.JSONL.GZ", "jsonl", "gz"),
            ("a.b.c.txt.zstd", "text", "zst"),
            # Named outright it is read, whatever its suffix says.
            ("a.png", "text", ""),
        ],
    )
    def test_suffixes_say_how_to_read(self, here: Path, name: str, form: str, compression: str) -> None:
        make(here, name, content=b"12345")
        (source,) = expand(name)
        assert (source.path, source.format, source.compression, source.size) == (name, form, compression, 5)
        assert source.modified == os.stat(name).st_mtime_ns
        assert source.spec() == (name, form, compression, 5, source.modified)

    def test_format_overrides_the_suffix_and_not_the_compression(self, here: Path) -> None:
        make(here, "a.json", "b.txt.gz")
        assert [(s.format, s.compression) for s in expand(["a.json", "b.txt.gz"], format="jsonl")] == [
            ("jsonl", ""),
            ("jsonl", "gz"),
        ]

    def test_standard_input(self) -> None:
        assert list(expand("-")) == [Source("-", "text", "", None)]
        assert next(expand("-", format="jsonl")).spec() == ("-", "jsonl", "", -1, 0)

    def test_a_pipe_has_no_size(self, here: Path) -> None:
        os.mkfifo("pipe")
        assert [source.spec() for source in expand("pipe")] == [("pipe", "text", "", -1, 0)]

    def test_paths_and_iterators_are_inputs_too(self, here: Path) -> None:
        make(here, "a.txt", "b.txt")
        assert [source.path for source in expand(here / "a.txt")] == [str(here / "a.txt")]
        assert paths(name for name in ["b.txt", "a.txt"]) == ["b.txt", "a.txt"]

    def test_a_name_with_wildcards_that_exists_is_that_file(self, here: Path) -> None:
        make(here, "a[1].txt", "a1.txt")
        assert paths("a[1].txt") == ["a[1].txt"]

    def test_a_name_that_is_not_utf8(self, here: Path) -> None:
        name = os.fsdecode(b"caf\xe9.txt")
        make(here, name)
        assert paths(".") == [f"./{name}"]
        assert len(fingerprint(".")) == 32


class TestFolders:
    def test_all_the_way_down_in_the_order_of_paths(self, here: Path) -> None:
        make(here, "d/b.txt", "d/a.txt", "d/sub/x.md", "d/c/y.rst", "d/B.txt", "d/sub.txt")
        expected = ["d/B.txt", "d/a.txt", "d/b.txt", "d/c/y.rst", "d/sub.txt", "d/sub/x.md"]
        assert paths("d") == paths("d/") == expected == sorted(expected)

    def test_source_code_and_files_without_a_suffix_are_text(self, here: Path) -> None:
        names = ["d/Makefile", "d/index.html", "d/main.c", "d/main.py", "d/odd.suffix", "d/t.1.gz"]
        make(here, *names)
        assert paths("d") == names

    def test_hidden_binary_and_special_files_are_counted_and_passed_over(self, here: Path) -> None:
        make(here, "d/a.txt", "d/.hidden", "d/.git/config", "d/p.png", "d/src.tar.gz", "d/m.safetensors")
        make(here, "d/core", content=b"ELF\0\1")
        os.mkfifo("d/pipe")
        os.symlink("nowhere", "d/dangling")
        skipped: dict[str, int] = {}
        assert paths("d", skipped=skipped) == ["d/a.txt"]
        assert skipped == {"hidden": 2, "binary": 4, "special": 2}

    def test_a_nul_tells_only_where_the_suffix_does_not(self, here: Path) -> None:
        make(here, "d/a.txt", "d/b.parquet", "d/c.jsonl.gz", "d/d.weird", content=b"\0")
        assert paths("d") == ["d/a.txt", "d/b.parquet", "d/c.jsonl.gz"]
        assert paths("d", format="parquet") == ["d/a.txt", "d/b.parquet", "d/c.jsonl.gz", "d/d.weird"]

    def test_linked_files_are_read_and_linked_folders_are_not(self, here: Path) -> None:
        make(here, "d/a.txt", "other/b.txt")
        os.symlink("../other/b.txt", "d/link.txt")
        os.symlink("../other", "d/folder")
        os.symlink("..", "d/loop")
        assert paths("d") == ["d/a.txt", "d/link.txt"]

    def test_empty_files_are_files(self, here: Path) -> None:
        make(here, "d/a.txt", "d/noname", content=b"")
        assert [source.size for source in expand("d")] == [0, 0]


class TestGlobs:
    @pytest.fixture(autouse=True)
    def tree(self, here: Path) -> None:
        make(here, "d/a.txt", "d/b.log", "d/.h.txt", "d/x/c.txt", "d/x/y/e.txt", "d/x/.z/f.txt", "d/p.png", "top.txt")

    @pytest.mark.parametrize(
        ("pattern", "matches"),
        [
            ("*.txt", ["top.txt"]),
            ("d/*.txt", ["d/a.txt"]),
            ("d/?.*", ["d/a.txt", "d/b.log"]),
            ("d/[ab].*", ["d/a.txt", "d/b.log"]),
            ("d/[!a].*", ["d/b.log"]),
            ("d/[a-c]*", ["d/a.txt", "d/b.log"]),
            ("d/**/*.txt", ["d/a.txt", "d/x/c.txt", "d/x/y/e.txt"]),
            ("**/*.txt", ["d/a.txt", "d/x/c.txt", "d/x/y/e.txt", "top.txt"]),
            ("**/x/**/*.txt", ["d/x/c.txt", "d/x/y/e.txt"]),
            ("d/**", ["d/a.txt", "d/b.log", "d/x/c.txt", "d/x/y/e.txt"]),
            ("d/**/*", ["d/a.txt", "d/b.log", "d/x/c.txt", "d/x/y/e.txt"]),
            # As a shell would expand it: the file, and the folder with what is in it.
            ("d/*", ["d/a.txt", "d/b.log", "d/x/c.txt", "d/x/y/e.txt"]),
            ("*/x", ["d/x/c.txt", "d/x/y/e.txt"]),
            ("*/x/", ["d/x/c.txt", "d/x/y/e.txt"]),
            ("./d/*.log", ["./d/b.log"]),
            ("d/.*.txt", ["d/.h.txt"]),
            ("d/x/.z/*", ["d/x/.z/f.txt"]),
            # The suffix is written out, so it is meant.
            ("d/*.png", ["d/p.png"]),
        ],
    )
    def test_matches_in_order(self, pattern: str, matches: list[str]) -> None:
        assert paths(pattern) == matches

    def test_absolute(self, here: Path) -> None:
        assert paths(f"{here}/d/**/*.txt") == [f"{here}/d/a.txt", f"{here}/d/x/c.txt", f"{here}/d/x/y/e.txt"]

    def test_two_double_stars_match_a_file_once(self, here: Path) -> None:
        make(here, "n/n/n/a.txt")
        assert paths("**/n/**/*.txt") == ["n/n/n/a.txt"]

    def test_a_link_back_up_does_not_loop(self) -> None:
        os.symlink("..", "d/x/up")
        assert paths("d/**/*.txt") == ["d/a.txt", "d/x/c.txt", "d/x/y/e.txt"]

    @settings(max_examples=300)
    @given(
        st.lists(st.text("ab.*?[]!-^\\", min_size=1, max_size=5), min_size=1, max_size=3),
        st.lists(st.text("ab.-^\\]", min_size=1, max_size=4), min_size=1, max_size=4),
    )
    def test_one_part_matches_as_the_glob_module_does(self, parts: list[str], name: list[str]) -> None:
        """Checked against fnmatch part by part; a name with a leading dot needs the dot written out."""
        import fnmatch
        import re

        pattern, path = "*" + "/".join(parts), "/".join(name)
        if "**" in pattern.split("/") or any(part in (".", "..") for part in name):
            return
        try:
            ours = bool(Walk.of_glob(pattern, None, Excluded(())).path.fullmatch(path))
            theirs = self.as_shell(pattern.split("/"), name, fnmatch.fnmatchcase)
        except re.error:
            return
        assert ours == theirs

    @staticmethod
    def as_shell(pattern: list[str], name: list[str], match: object) -> bool:
        if len(name) < len(pattern):
            return False
        for want, part in zip(pattern, name):
            if part.startswith(".") and want[0] in "*?[":
                return False
            if not match(part, want):  # type: ignore[operator]
                return False
        return not any(part.startswith(".") for part in name[len(pattern) :])

    def test_simple_patterns_agree_with_the_standard_library(self, here: Path) -> None:
        for pattern in ("d/*.txt", "d/**/*.txt", "**/*.txt", "*/x/*", "d/?.*"):
            known = [path for path in glob.glob(pattern, recursive=True) if path.endswith((".txt", ".log"))]
            assert [path for path in paths(pattern) if path in known] == sorted(known), pattern


class TestSameFileTwice:
    @pytest.fixture(autouse=True)
    def tree(self, here: Path) -> None:
        make(here, "d/a.txt", "d/x/b.txt", "d/.h.txt", "d/p.png", "c.txt")

    @pytest.mark.parametrize(
        ("inputs", "expected", "repeated"),
        [
            (["c.txt", "c.txt"], ["c.txt"], 1),
            (["c.txt", "./c.txt"], ["c.txt"], 1),
            (["d/a.txt", "d"], ["d/a.txt", "d/x/b.txt"], 1),
            (["d", "d/a.txt"], ["d/a.txt", "d/x/b.txt"], 1),
            (["d", "d/x"], ["d/a.txt", "d/x/b.txt"], 1),
            (["d/x", "d"], ["d/x/b.txt", "d/a.txt"], 1),
            (["d", "d/**/*.txt"], ["d/a.txt", "d/x/b.txt"], 2),
            (["d/**/*.txt", "d"], ["d/a.txt", "d/x/b.txt"], 2),
            (["*.txt", "c.txt"], ["c.txt"], 1),
            (["d/*", "d/x/b.txt"], ["d/a.txt", "d/x/b.txt"], 1),
            (["-", "-"], ["-"], 1),
            # What the folder passes over is there when it is named.
            (["d", "d/.h.txt", "d/p.png"], ["d/a.txt", "d/x/b.txt", "d/.h.txt", "d/p.png"], 0),
            (["d/*.txt", "d"], ["d/a.txt", "d/x/b.txt"], 1),
        ],
    )
    def test_is_read_once_where_it_comes_first(self, inputs: list[str], expected: list[str], repeated: int) -> None:
        skipped: dict[str, int] = {}
        assert paths(inputs, skipped=skipped) == expected
        assert skipped.get("repeated", 0) == repeated

    def test_by_real_path(self, here: Path) -> None:
        os.symlink("d", "link")
        os.symlink("c.txt", "c-link.txt")
        assert paths(["link", "d"]) == ["link/a.txt", "link/x/b.txt"]
        assert paths(["c-link.txt", "c.txt", str(here / "c.txt")]) == ["c-link.txt"]

    def test_a_pipe_in_a_folder_is_not_waited_for(self) -> None:
        os.mkfifo("d/pipe")
        assert paths(["d", "d/pipe"]) == ["d/a.txt", "d/x/b.txt", "d/pipe"]

    def test_folders_whose_names_begin_alike_are_two(self, here: Path) -> None:
        make(here, "dd/a.txt")
        assert paths(["d", "dd"]) == ["d/a.txt", "d/x/b.txt", "dd/a.txt"]


class TestErrors:
    """All are raised by the call itself, before any file is handed out."""

    @pytest.mark.parametrize(
        ("inputs", "sentence"),
        [
            ([], "no input: give a file, a folder, a glob, or - for standard input"),
            ([""], "an input is empty: give a file, a folder, a glob, or - for standard input"),
            (["zzz"], "no such file or folder: zzz"),
            (["corpus/boks.txt"], "no such file or folder: corpus/boks.txt; did you mean corpus/books.txt?"),
            (["corpus/nope.txt"], "no such file or folder: corpus/nope.txt"),
            (["corpus/books.jsonl"], "no such file or folder: corpus/books.jsonl; did you mean corpus/books.txt?"),
            (["all.tar.zst"], "no such file or folder: all.tar.zst; did you mean all.tar.gz?"),
            (["corpsu/books.txt"], "no such file or folder: corpsu/books.txt; did you mean corpus?"),
            (["corpus/books.txt/x"], "no such file or folder: corpus/books.txt/x; did you mean corpus/books.txt?"),
            (["empty"], "no text in the folder empty: all in it is hidden, binary or made by ramlet"),
            (["pictures"], "no text in the folder pictures: all in it is hidden, binary or made by ramlet"),
            (["corpus/*.csv"], "nothing matches corpus/*.csv: check the pattern"),
            (["nowhere/**/*.txt"], "nothing matches nowhere/**/*.txt: check the pattern"),
            (["corpus/[z-a].txt"], "cannot read corpus/[z-a].txt as a pattern: check its [...]"),
            (["all.tar.gz"], "all.tar.gz is an archive: unpack it and give the folder"),
            (["all.zip"], "all.zip is an archive: unpack it and give the folder"),
            (["hf://org/set"], "cannot read hf://org/set from the hub: download it and give the folder"),
            (["corpus", "zzz"], "no such file or folder: zzz"),
        ],
    )
    def test_one_sentence_each(self, here: Path, inputs: list[str], sentence: str) -> None:
        make(here, "corpus/books.txt", "pictures/a.png", "pictures/.b.txt", "all.tar.gz", "all.zip")
        (here / "empty" / "deeper").mkdir(parents=True)
        with pytest.raises(SourceError) as caught:
            expand(inputs)
        assert str(caught.value) == sentence

    @pytest.mark.parametrize(
        ("content", "refused"),
        [
            (b"\x7fELF\0\0", True),
            (b"a" * 1023 + b"\0", True),
            (b"a" * 1024 + b"\0", False),
            (b"", False),
            ("marked".encode("utf-16"), False),
            ("marked".encode("utf-32"), False),
            ("no mark".encode("utf-16-le"), True),
        ],
    )
    def test_a_program_in_the_place_of_text(self, here: Path, content: bytes, refused: bool) -> None:
        """What has a mark of its encoding is named by the reader, which knows it."""
        (here / "it.txt").write_bytes(content)
        if refused:
            with pytest.raises(SourceError, match=r"^it.txt is not text, it has NUL bytes: give another"):
                expand("it.txt")
        else:
            assert [source.path for source in expand("it.txt")] == ["it.txt"]
        assert [source.path for source in expand("it.txt", format="text")] == ["it.txt"]
        (here / "it.txt").rename("it.parquet")
        assert [source.format for source in expand("it.parquet")] == ["parquet"]

    def test_what_ramlet_wrote_itself(self, here: Path) -> None:
        make(
            here, "d/dataset_metadata.json", "d/train/x.bin", "r/metrics.jsonl", "r/settings.yaml", "log/metrics.jsonl"
        )
        with pytest.raises(SourceError, match=r"^d is a dataset, not text: train on it as data"):
            expand("d")
        with pytest.raises(SourceError, match=r"^r is a run, not text: "):
            expand(["log", "r"])
        assert [source.path for source in expand("log")] == ["log/metrics.jsonl"]

    @pytest.mark.parametrize("name", [".", "**", "**/*.txt", "*"])
    def test_what_ramlet_wrote_inside_of_a_folder_is_skipped(self, here: Path, name: str) -> None:
        make(here, "a.txt", "new/d/dataset_metadata.json", "new/d/readme.txt", "new/r/metrics.jsonl")
        make(here, "new/r/settings.yaml", "new/z.txt", "new/r/samples/s.txt")
        skipped: dict[str, int] = {}
        found = [os.path.normpath(source.path) for source in expand(name, skipped=skipped)]
        assert (found, skipped["result"]) == (["a.txt", "new/z.txt"], 2)
        assert paths("new/*") == ["new/z.txt"]
        assert paths("new/*/readme.txt") == ["new/d/readme.txt"]
        # Unless it is named.
        found = [os.path.normpath(source.path) for source in expand([name, "new/d/readme.txt"])]
        assert found == ["a.txt", "new/z.txt", "new/d/readme.txt"]

    def test_unknown_format(self) -> None:
        with pytest.raises(SettingsError, match=r"unknown format 'csv': use text, jsonl, parquet"):
            expand("-", format="csv")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_unreadable(self, here: Path) -> None:
        make(here, "secret.txt", "d/locked/a.txt", "d/a.txt")
        os.chmod("secret.txt", 0)
        with pytest.raises(SourceError, match=r"^cannot read secret.txt: no permission$"):
            expand("secret.txt")
        os.chmod("d/locked", 0)
        try:
            with pytest.raises(SourceError, match=r"^cannot read the folder d/locked/: Permission denied$"):
                list(expand("d"))
        finally:
            os.chmod("d/locked", 0o700)

    def test_unreadable_as_any_user(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make(here, "secret.txt")
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(SourceError, match=r"^cannot read secret.txt: no permission$"):
            expand("secret.txt")

    def test_a_file_that_vanishes_during_the_walk(self, here: Path) -> None:
        make(here, "d/a.txt", "d/b.txt")
        files = expand("d")
        assert next(files).path == "d/a.txt"
        (here / "d/b.txt").unlink()
        with pytest.raises(SourceError, match=r"^cannot read d/b.txt: No such file or directory$"):
            list(files)

    def test_a_folder_that_vanishes_during_the_walk(self, here: Path) -> None:
        make(here, "d/a.txt", "d/b/c.txt")
        files = expand("d")
        assert next(files).path == "d/a.txt"
        (here / "d/b/c.txt").unlink()
        (here / "d/b").rmdir()
        with pytest.raises(RamletError, match=r"^cannot read the folder d/b/: No such file or directory$"):
            list(files)


class TestFingerprint:
    def test_moves_with_every_change_and_only_then(self, here: Path) -> None:
        make(here, "d/a.txt", "d/b.jsonl")
        os.utime("d/a.txt", ns=(5, 5))
        first = fingerprint("d")
        assert fingerprint(["d"]) == fingerprint(["./d/"]) == fingerprint([str(here / "d")]) == first
        seen = {first}

        def moved(now: str) -> None:
            assert now not in seen
            seen.add(now)

        os.utime("d/a.txt", ns=(5, 6))
        moved(fingerprint("d"))
        make(here, "d/a.txt", content=b"longer text")
        os.utime("d/a.txt", ns=(5, 5))
        moved(fingerprint("d"))
        make(here, "d/c.txt")
        moved(fingerprint("d"))
        os.rename("d/c.txt", "d/e.txt")
        moved(fingerprint("d"))
        moved(fingerprint("d", format="text"))
        os.unlink("d/e.txt")
        make(here, "d/a.txt", content=b"text")
        os.utime("d/a.txt", ns=(5, 5))
        assert fingerprint("d") == first

    def test_order_counts(self, here: Path) -> None:
        make(here, "a.txt", "b.txt")
        assert fingerprint(["a.txt", "b.txt"]) != fingerprint(["b.txt", "a.txt"])

    def test_standard_input(self) -> None:
        assert fingerprint("-") == fingerprint("-")


def test_many_files_in_little_time_and_memory(here: Path) -> None:
    """A tenth of the 100,000 files that must take less than 2 s, in folders of 500."""
    for folder in range(20):
        (here / f"d/{folder}").mkdir(parents=True)
        for name in range(500):
            os.close(os.open(f"d/{folder}/{name}" + (".txt" if name % 2 else ""), os.O_CREAT | os.O_WRONLY))
    best = min(_seconds() for _ in range(5))
    assert best < 0.2
    tracemalloc.start()
    try:
        count = sum(1 for _ in expand("d"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 10_000
    # The names of one folder and of its parent; a list of all files would take 2 MB.
    assert peak < 150_000


def _seconds() -> float:
    # Of this process alone: the machine may be busy.
    began = time.process_time()
    for _ in expand("d"):
        pass
    return time.process_time() - began


@pytest.mark.skipif(sys.platform == "win32", reason="file names there hold no such characters")
def test_odd_names(here: Path) -> None:
    names = ["d/ leading", "d/new\nline.txt", "d/ünïcode.txt", "d/日本.jsonl", "d/a b.txt", "d/[x].txt"]
    make(here, *names)
    assert sorted(paths("d")) == sorted(names)
    assert sorted(paths("d/*")) == sorted(names)
