"""Inputs that are no local files become local files: once, whole, and noticed when they change."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ramlet.errors import SettingsError, SourceError
from ramlet.inputs import sources
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging import Input, looks_remote, needs_staging, stage
from ramlet.inputs.staging_process import stage_in_subprocess
from staged_files import rows, state

READING = ReadSettings()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty."""
    fsspec = pytest.importorskip("fsspec", reason="addresses are read through fsspec, of the extra hf")
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


@pytest.mark.parametrize(
    ("name", "remote"),
    [
        ("s3://bucket/a.jsonl", True),
        ("https://example.org/a.txt?x=1", True),
        ("memory://a/*.txt", True),
        ("file:///a", True),
        ("simplecache::s3://bucket/a", True),
        ("hf://datasets/name", True),
        ("hf://datasets/org/name:test", True),
        ("hf://datasets/org/name@main", True),
        ("hf://datasets/org/name/data/*.parquet", True),
        ("org/name", True),
        ("org/name:validation", True),
        ("org/name/subset:test", True),
        ("there/name", False),
        ("org/a.jsonl", False),
        ("org/a.TXT", False),
        ("org/a.jsonl.gz", False),
        ("name", False),
        ("./org/name", False),
        ("../org/name", False),
        ("/org/name", False),
        ("~/name", False),
        ("org/*", False),
        ("org/name/", False),
        ("a/b/c/d", False),
        ("-", False),
        ("c:", False),
        ("", False),
    ],
)
def test_remote_is_told_from_the_name(here: Path, name: str, remote: bool) -> None:
    Path("there").mkdir()
    assert looks_remote(name) is remote
    assert needs_staging(name) is (remote or name == "-")


def test_what_is_there_is_local(here: Path) -> None:
    Path("org/name").mkdir(parents=True)
    Path("odd:").mkdir()
    Path("odd:/file").touch()
    assert not looks_remote("org/name")
    assert not looks_remote("odd://file")


def test_local_inputs_pass_as_they_are(here: Path) -> None:
    Path("a.txt").write_text("a")
    assert stage(["a.txt", Path("a.txt"), "*.txt", "missing.txt"], "staged", reading=READING) == [
        *("a.txt", "*.txt", "missing.txt")
    ]
    assert not Path("staged").exists()


def feed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_standard_input_is_copied_and_known_by_its_content(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "äöü\n".encode() * 700_000
    feed(monkeypatch, content)
    told: list[tuple[str, int, int]] = []
    [path] = stage(["-", "-"], "staged", reading=READING, progress=lambda *each: told.append(each))
    assert Path(path).read_bytes() == content
    assert path.endswith(".txt")
    assert told[-1] == ("staging", len(content), 0)
    before = sources.survey([path]).fingerprint
    feed(monkeypatch, content)
    assert sources.survey(stage(["-"], "staged", reading=READING)).fingerprint == before
    feed(monkeypatch, content[::-1])
    assert sources.survey(stage(["-"], "staged", reading=READING)).fingerprint != before
    feed(monkeypatch, b"{}")
    assert stage(["-"], "staged", reading=ReadSettings(format="jsonl"))[0].endswith(".jsonl")


def test_standard_input_that_is_needed_twice_is_read_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"some text")
    for _ in range(2):
        assert Path(*stage(["-"], "staged", reading=READING)).read_bytes() == b"some text"


def test_no_standard_input(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SourceError, match="no standard input"):
        stage(["-"], "staged", reading=READING)


def test_files_behind_an_address(here: Path, memory: Any) -> None:
    memory.pipe({"/data/b.jsonl.gz": b"bb", "/data/a.txt": b"a" * 3_000_000, "/data/c.csv": b"c"})
    inputs = ["memory://data/*.gz", "local.txt", "memory://data/a.txt"]
    told: list[tuple[str, int, int]] = []
    paths = stage(inputs, "staged", reading=READING, progress=lambda *each: told.append(each))
    assert [os.path.basename(path).split("-", 1)[-1] for path in paths] == ["b.jsonl.gz", "local.txt", "a.txt"]
    assert [Path(path).read_bytes() for path in (paths[0], paths[2])] == [b"bb", b"a" * 3_000_000]
    assert told[-1] == ("staging", 3_000_002, 3_000_002)
    before = state(Path("staged"))
    assert stage(inputs, "staged", reading=READING) == paths
    assert state(Path("staged")) == before
    memory.pipe("/data/b.jsonl.gz", b"BB")
    assert stage(inputs, "staged", reading=READING) == paths
    assert Path(paths[0]).read_bytes() == b"BB"
    assert state(Path("staged"))[paths[2]] == before[paths[2]]


def test_staged_anew_it_is_the_same_input(here: Path, memory: Any) -> None:
    memory.pipe("/a.txt", b"a")
    before = sources.survey(stage(["memory://a.txt"], "staged", reading=READING)).fingerprint
    for path in Path("staged").iterdir():
        path.unlink()
    assert sources.survey(stage(["memory://a.txt"], "staged", reading=READING)).fingerprint == before


def test_equal_names_in_two_folders(here: Path, memory: Any) -> None:
    memory.pipe({"/x/a.txt": b"1", "/y/a.txt": b"2"})
    paths = stage(["memory://**/a.txt"], "staged", reading=READING)
    assert [Path(path).read_bytes() for path in paths] == [b"1", b"2"]


def test_a_remote_folder_keeps_its_paths(here: Path, memory: Any) -> None:
    memory.pipe({"/f/z.txt": b"z", "/f/deep/a.txt": b"a", "/f/.hidden/b.txt": b"b", "/f/.c": b"c"})
    [folder] = stage(["memory://f"], "staged", reading=READING)
    found = [(os.path.relpath(each.path, folder), each.size) for each in sources.expand(folder)]
    assert found == [("deep/a.txt", 1), ("z.txt", 1)]
    memory.rm("/f/deep", recursive=True)
    assert stage(["memory://f/"], "staged2", reading=READING) != [folder]
    assert stage(["memory://f"], "staged", reading=READING) == [folder]
    assert [os.path.relpath(each.path, folder) for each in sources.expand(folder)] == ["z.txt"]


def test_file_addresses(here: Path) -> None:
    pytest.importorskip("fsspec", reason="addresses are read through fsspec, of the extra hf")
    Path("in").mkdir()
    Path("in/a b.txt").write_text("text")
    for address in (f"file://{here}/in/a b.txt", f"file://{here}/in/*.txt"):
        [path] = stage([address], "staged", reading=READING)
        assert Path(path).read_text() == "text"
        assert path.endswith("a_b.txt")
    before = state(Path("staged"))
    stage([f"file://{here}/in/a b.txt"], "staged", reading=READING)
    assert state(Path("staged")) == before
    Path("in/a b.txt").write_text("TEXT")
    os.utime("in/a b.txt", (1, 1))
    [path] = stage([f"file://{here}/in/a b.txt"], "staged", reading=READING)
    assert Path(path).read_text() == "TEXT"


def test_the_web(here: Path) -> None:
    pytest.importorskip("aiohttp", reason="the web is read through it, of the extra hf")
    Path("site").mkdir()
    content = "line\n" * 1_000_000
    Path("site/a.txt").write_text(content)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory="site")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = f"http://127.0.0.1:{server.server_port}"
        paths = stage([f"{site}/a.txt?of=today", f"{site}/*.txt"], "staged", reading=READING)
        assert [path.split("-", 1)[1] for path in paths] == ["a.txt", "a.txt"]
        assert [Path(path).read_text() for path in paths] == [content, content]
        with pytest.raises(SourceError, match=r"/b.txt does not exist, or cannot be reached"):
            stage([f"{site}/b.txt"], "staged", reading=READING)
        server.shutdown()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("memory://gone.txt", "memory://gone.txt does not exist, or cannot be reached: check the URL"),
        ("memory://gone/*.txt", "nothing matches memory://gone/*.txt: check the pattern"),
        ("unheard://of", "cannot read unheard://of (Protocol not known: unheard)"),
        ("file:///proc/1/mem", "no permission to read file:///proc/1/mem: check the credentials"),
    ],
)
def test_addresses_that_cannot_be_read(here: Path, memory: Any, address: str, words: str) -> None:
    if "proc" in address and (not sys.platform.startswith("linux") or os.geteuid() == 0):
        pytest.skip("a file that no one but root may read")
    with pytest.raises(SourceError) as caught:
        stage([address], "staged", reading=READING)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    assert not list(Path(".").rglob("*.ramlet-tmp"))


def test_a_transfer_that_breaks_leaves_nothing_and_goes_on(
    here: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe({"/a.txt": b"a", "/b.txt": b"b" * 5_000_000})
    opened = type(memory).open

    class Breaks(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 2_000_000:
                raise ConnectionResetError("the line\nbroke")
            return super().read(size)

    def breaking(system: Any, path: str, *rest: Any, **options: Any) -> Any:
        return opened(system, path, *rest, **options) if path.endswith("a.txt") else Breaks(b"b" * 5_000_000)

    with (
        monkeypatch.context() as patched,
        pytest.raises(SourceError, match=r"cannot read memory://\*.txt \(the line\)"),
    ):
        patched.setattr(type(memory), "open", breaking)
        stage(["memory://*.txt"], "staged", reading=READING)
    before = state(Path("staged"))
    assert [content for _, _, content in before.values()] == [b"a"]
    paths = stage(["memory://*.txt"], "staged", reading=READING)
    assert [Path(path).stat().st_size for path in paths] == [1, 5_000_000]
    assert before.items() <= state(Path("staged")).items()


def test_a_transfer_that_ends_early_is_noticed(here: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/a.txt", b"abc")
    monkeypatch.setattr(type(memory), "open", lambda *_, **__: io.BytesIO(b"ab"))
    with pytest.raises(SourceError, match="ended after 2 of 3 bytes"):
        stage(["memory://a.txt"], "staged", reading=READING)


@pytest.mark.parametrize(("library", "name"), [("fsspec", "s3://bucket/a"), ("datasets", "org/name")])
def test_a_missing_library_is_told(here: Path, monkeypatch: pytest.MonkeyPatch, library: str, name: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SettingsError, match=r"pip install 'ramlet\[hf\]'"):
        stage([name], "staged", reading=READING)


def test_a_text_column_of_its_own(here: Path) -> None:
    """Read by the native core, and written under the common name."""
    Path("a.jsonl").write_text('{"body": "äé \\"quoted\\"\\n"}\n{"body": "two"}\n', encoding="utf-8")
    Path("b.jsonl").write_text('{"text": "three"}\n')
    Path("c.txt").write_text("text has no columns")
    inputs = [Input("a.jsonl", text_field="body"), Input("b.jsonl", text_field="text"), Input("c.txt", text_field="x")]
    paths = stage(inputs, "staged", reading=READING)
    assert paths[1:] == ["b.jsonl", "c.txt"]
    assert rows(paths[:1]) == ['äé "quoted"\n', "two"]
    before = state(Path("staged"))
    assert stage(inputs, "staged", reading=READING) == paths
    assert state(Path("staged")) == before
    long = "x" * 5_000_000
    Path("a.jsonl").write_text(json.dumps({"body": long}) + '\n{"body": "b"}\n')
    assert rows(stage(inputs[:1], "staged", reading=READING)) == [long, "b"]


def test_a_text_column_of_its_own_behind_an_address(here: Path, memory: Any) -> None:
    memory.pipe("/a.jsonl", b'{"meta": {"body": "one"}}\n')
    reading = ReadSettings(text_field="a.b")
    paths = stage([Input("memory://a.jsonl", text_field="meta.body")], "staged", reading=reading)
    assert rows(paths, "a.b") == ["one"]
    # A dotted name is spelled out as one key, which the reader understands too.
    again = stage([Input(paths[0], text_field="a.b")], "staged", reading=READING)
    assert rows(again) == ["one"]


def test_plain_files_have_no_splits(here: Path) -> None:
    Path("a.jsonl").write_text('{"text": "one"}\n')
    assert stage([Input("a.jsonl", split="train")], "staged", reading=READING) == ["a.jsonl"]
    with pytest.raises(SettingsError, match="has no split 'test'"):
        stage([Input("a.jsonl", split="test")], "staged", reading=READING)


def test_nothing_heavy_is_loaded_for_local_files() -> None:
    code = (
        "import sys; from ramlet.inputs.staging import stage; from ramlet.inputs.settings import ReadSettings\n"
        "stage(['a/', 'b.txt'], 'staged', reading=ReadSettings())\n"
        "sys.exit(bool({'fsspec', 'datasets', 'pyarrow', 'huggingface_hub', 'numpy', 'hashlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_in_another_process(here: Path) -> None:
    pytest.importorskip("fsspec", reason="addresses are read through fsspec, of the extra hf")
    Path("a.txt").write_text("a" * 10_000_000)
    Path("b.txt").write_text("b")
    address = f"file://{here}/a.txt"
    told: list[tuple[str, int, int]] = []
    inputs = ["b.txt", address, Path("b.txt"), address]
    paths = stage_in_subprocess(inputs, "staged", reading=READING, progress=lambda *each: told.append(each))
    assert paths == stage(inputs, "staged", reading=READING)
    assert len(paths) == 2
    assert Path(paths[1]).stat().st_size == 10_000_000
    assert told[0][0] == "staging"
    assert 0 < told[0][1] < told[-1][1] <= told[-1][2] == 10_000_000


def test_errors_of_another_process(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec", reason="addresses are read through fsspec, of the extra hf")
    with pytest.raises(SourceError, match=f"file://{here}/gone.txt does not exist"):
        stage_in_subprocess([f"file://{here}/gone.txt"], "staged", reading=READING)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(SourceError, match="ended without a result"):
        stage_in_subprocess([f"file://{here}/gone.txt"], "staged", reading=READING)
