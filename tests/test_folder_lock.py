"""One writer for each result: who is refused, what is told, and what is left behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from oracles_dataset import write_dataset
from ramlet import Tokenizer
from ramlet.dataset.adopt import adopt
from ramlet.dataset.export.run import export
from ramlet.dataset.manifest import Manifest
from ramlet.dataset.merge import merge
from ramlet.errors import DatasetError, RamletError, SettingsError
from ramlet.reporting.entry import report
from ramlet.runtime import folder_lock
from ramlet.runtime.atomic_files import is_temporary, remove_left, remove_leftovers, replacing
from ramlet.runtime.folder_lock import alone, hold, share, writer_of

REFUSED = (
    r"^{} is being written by another ramlet \(prepare, pid {}, since \d\d:\d\d\): wait for it, or choose another "
)


def refused(name: str) -> str:
    return REFUSED.format(name, os.getpid())


class TestHolding:
    @pytest.mark.parametrize("kind", ["folder", "file", "nothing"])
    def test_the_second_is_told_who_holds_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        monkeypatch.chdir(tmp_path)
        if kind == "folder":
            Path("out").mkdir()
        elif kind == "file":
            Path("out").touch()
        before = os.listdir()
        with hold("out", "prepare"):
            with pytest.raises(SettingsError, match=refused("out") + "out$"):
                hold("out", "train")
            assert writer_of("out") == f"prepare, pid {os.getpid()}, {_since('out')}"
        assert os.listdir() == before
        assert writer_of("out") is None
        hold("out", "train").release()

    def test_another_path_to_the_same_folder(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        (tmp_path / "above").symlink_to(tmp_path)
        with hold(tmp_path / "real", "prepare"):
            for path in (tmp_path / "link", tmp_path / "above" / "real", tmp_path / "real" / ".." / "real"):
                with pytest.raises(SettingsError, match="being written"):
                    hold(path, "train")

    def test_folders_made_for_it_go_again(self, tmp_path: Path) -> None:
        with hold(tmp_path / "a" / "b" / "out", "prepare"):
            assert (tmp_path / "a" / "b").is_dir()
        assert os.listdir(tmp_path) == []
        with hold(tmp_path / "a" / "b" / "out", "prepare"):
            (tmp_path / "a" / "b" / "out").touch()
        assert os.listdir(tmp_path / "a" / "b") == ["out"]

    def test_the_root_of_the_file_system_has_no_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder_lock, "_opened", lambda path: (_ for _ in ()).throw(OSError(errno.EROFS, path)))
        with pytest.raises(SettingsError, match=r"^cannot write into /: /.ramlet-lock; choose another out$"):
            hold("/", "prepare")

    def test_a_killed_holder_holds_no_one_up(self, tmp_path: Path) -> None:
        code = "import os, signal, sys; from ramlet.runtime.folder_lock import hold; hold(sys.argv[1], 'train')"
        killed = f"{code}; os.kill(os.getpid(), signal.SIGKILL)"
        subprocess.run([sys.executable, "-c", killed, str(tmp_path / "out")])
        assert os.listdir(tmp_path) == [".out.ramlet-lock"]
        assert all(map(is_temporary, os.listdir(tmp_path)))
        hold(tmp_path / "out", "prepare").release()
        assert os.listdir(tmp_path) == []

    def test_a_lock_that_is_removed_while_one_waits_for_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second has opened the first's file when the first removes it: it must not hold what has no name."""
        first = hold(tmp_path / "out", "prepare")
        seen = []

        def late(handle: int, *, shared: bool = False) -> bool | None:
            if not seen:
                seen.append(handle)
                first.release()
            return lock(handle, shared=shared)

        lock = folder_lock.lock_file
        monkeypatch.setattr(folder_lock, "lock_file", late)
        with hold(tmp_path / "out", "train"), pytest.raises(SettingsError, match=r"another ramlet \(train"):
            hold(tmp_path / "out", "report")
        assert os.listdir(tmp_path) == []

    def test_a_folder_in_one_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The lock is inside then."""
        (tmp_path / "out").mkdir()

        def opened(path: Path) -> tuple[int, bool]:
            if path.parent == tmp_path:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return really(path)

        really = folder_lock._opened
        monkeypatch.setattr(folder_lock, "_opened", opened)
        with hold(tmp_path / "out", "prepare"):
            assert os.listdir(tmp_path / "out") == [".ramlet-lock"]
            assert writer_of(tmp_path / "out")
            with pytest.raises(SettingsError, match="being written"):
                hold(tmp_path / "out", "train")
        assert os.listdir(tmp_path / "out") == []
        with pytest.raises(SettingsError, match=r"^cannot write into .*new: Permission denied; choose another out$"):
            hold(tmp_path / "new", "prepare")

    def test_a_file_system_without_locks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def flock(handle: int, how: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", flock)
        for _ in range(2):
            said = r"another ramlet \(prepare.*or one was killed.*remove .*-lock"
            with hold(tmp_path / "out", "prepare"), pytest.raises(SettingsError, match=said):
                hold(tmp_path / "out", "train")
            assert os.listdir(tmp_path) == []
        with replacing(tmp_path / "file") as file:
            file.write("whole")
        assert os.listdir(tmp_path) == ["file"]

    def test_many_at_once_and_one_at_a_time(self, tmp_path: Path) -> None:
        inside, most, refusals = 0, 0, 0

        def work() -> None:
            nonlocal inside, most, refusals
            for _ in range(60):
                try:
                    lock = hold(tmp_path / "new" / "out", "prepare")
                except SettingsError:
                    refusals += 1
                    continue
                inside += 1
                most = max(most, inside)
                inside -= 1
                lock.release()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == 1
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def _since(name: str) -> str:
    told = json.loads(Path(f".{name}.ramlet-lock").read_text())
    assert told.keys() == {"pid", "command", "host", "since"}
    return str(writer_of(name)).split(", ")[-1]


class TestEveryWriter:
    """Commands and calls that write, on a result that another is writing."""

    def test_datasets(self, tmp_path: Path) -> None:
        first, other = (write_dataset(tmp_path / name, [[1, 2, 3], [4]]) for name in "ab")
        with hold(tmp_path / "out", "prepare"), hold(first, "prepare"):
            with pytest.raises(SettingsError, match="out is being written"):
                merge([first, other], tmp_path / "out")
            for to in ("nanogpt", "npy", "hf"):
                with pytest.raises(SettingsError, match="out is being written"):
                    export(first, to, tmp_path / "out")
            with pytest.raises(SettingsError, match=r"a is being written.*choose another dataset"):
                adopt(first)

    def test_a_page_and_a_tokenizer(self, tmp_path: Path) -> None:
        dataset = write_dataset(tmp_path / "a", [[1, 2, 3], [4]])
        with hold(tmp_path / "page.html", "report"), pytest.raises(SettingsError, match=r"page.html is being written"):
            report(dataset, tmp_path / "page.html")
        tokenizer = Tokenizer.from_merges({at: bytes([at]) for at in range(256)}, [])
        with hold(tmp_path / "vocab", "Tokenizer.save"), pytest.raises(SettingsError, match="vocab is being written"):
            tokenizer.save(tmp_path / "vocab", format="vocab")

    def test_a_dataset_that_is_not_there_yet(self, tmp_path: Path) -> None:
        (tmp_path / "out" / ".work").mkdir(parents=True)
        with hold(tmp_path / "out", "prepare"), pytest.raises(DatasetError, match=r"out is being written \(prepare, "):
            Manifest.read(tmp_path / "out")
        with pytest.raises(DatasetError, match="out is not finished"):
            Manifest.read(tmp_path / "out")


def made_anew(dataset: Path) -> None:
    shutil.rmtree(dataset)
    write_dataset(dataset, [[9, 9, 9], [4]], run="another")


class TestDatasetsThatChange:
    def test_merged_while_made_anew(self, tmp_path: Path) -> None:
        first, other = (write_dataset(tmp_path / name, [[1, 2, 3], [4]]) for name in "ab")

        with pytest.raises(DatasetError, match=r"^.*b was changed while it was read: run the same again"):
            merge([first, other], tmp_path / "out", progress=lambda *_: made_anew(other))
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]

    def test_exported_while_made_anew(self, tmp_path: Path) -> None:
        dataset = write_dataset(tmp_path / "a", [[1, 2, 3], [4]])
        with pytest.raises(DatasetError, match=r"^.*a was changed while it was read"):
            export(
                dataset,
                "nanogpt",
                tmp_path / "out",
                progress=lambda *_: made_anew(dataset),
            )
        assert os.listdir(tmp_path) == ["a"]


class TestTemporaryFiles:
    def test_two_writers_of_one_file_never_mix(self, tmp_path: Path) -> None:
        with replacing(tmp_path / "file") as first:
            first.write("a" * 10)
            with replacing(tmp_path / "file") as second:
                second.write("b")
            assert (tmp_path / "file").read_text() == "b"
            first.write("a" * 10)
        assert (tmp_path / "file").read_text() == "a" * 20
        assert os.listdir(tmp_path) == ["file"]

    def test_what_a_killed_writer_left_goes_and_a_living_one_stays(self, tmp_path: Path) -> None:
        for name in (".file.0a1b2c3d.ramlet-tmp", ".other.0a1b2c3d.ramlet-tmp"):
            (tmp_path / name).write_text("half")
        with replacing(tmp_path / "file") as living:
            living.write("whole")
            remove_leftovers(tmp_path / "file")
        assert (tmp_path / "file").read_text() == "whole"
        assert sorted(os.listdir(tmp_path)) == [".other.0a1b2c3d.ramlet-tmp", "file"]

    def test_a_folder_that_a_killed_part_left_goes_and_one_in_use_stays(self, tmp_path: Path) -> None:
        left, used, unknown = (tmp_path / f".00000{n}.run.0a1b2c3d.ramlet-tmp" for n in range(3))
        for folder in (left, used, unknown):
            folder.mkdir()
            (folder / "000000.run").write_text("half")
        for folder in (left, used):
            (folder / "lock").touch()
        with (used / "lock").open("r+") as living:
            fcntl.flock(living, fcntl.LOCK_EX)
            remove_left(tmp_path)
            assert not left.exists()
            assert sorted(os.listdir(used)) == ["000000.run", "lock"]
            assert unknown.exists()
        remove_left(tmp_path)
        assert not used.exists()

    def test_where_folders_exist_but_no_file_can_be_created(self) -> None:
        """As in /proc, whose error is that of a folder which another process has just removed."""
        with pytest.raises(SettingsError, match="cannot write into /proc/x: No such file or directory; choose another"):
            hold("/proc/x", "prepare")

    def test_a_name_as_long_as_names_may_be(self, tmp_path: Path) -> None:
        with hold(tmp_path / ("ü" * 127), "prepare"), replacing(tmp_path / ("ü" * 127)) as file:
            file.write("whole")
        assert os.listdir(tmp_path) == ["ü" * 127]

    def test_a_pipe_is_written_to_and_not_replaced(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        read: list[str] = []
        reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
        reader.start()
        with hold(tmp_path / "pipe", "tokenizer encode"), replacing(tmp_path / "pipe", streams=True) as file:
            file.write("ids")
        reader.join()
        assert read == ["ids"]
        assert (tmp_path / "pipe").is_fifo()
        assert os.listdir(tmp_path) == ["pipe"]

    def test_a_pipe_where_a_file_of_ours_should_be_is_replaced(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "stats.json")
        (tmp_path / "linked.json").symlink_to("/dev/full")
        for name in ("stats.json", "linked.json"):
            with replacing(tmp_path / name) as file:
                file.write("{}")
            assert not (tmp_path / name).is_symlink()
            assert (tmp_path / name).read_text() == "{}"

    def test_a_folder_is_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        with pytest.raises(RamletError, match="is a folder, not a file: choose another path"), replacing(tmp_path):
            pytest.fail("it would be written in vain")
        assert list(tmp_path.iterdir()) == []

    def test_a_device_is_never_replaced(self) -> None:
        with pytest.raises(RamletError, match="/dev/null is a device"), replacing("/dev/null") as file:
            file.write("x")
        assert Path("/dev/null").is_char_device()


class TestParts:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder_lock, "PATIENCE", 0.0)

    def test_many_share_what_one_has_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "parts"
        with alone(path, tmp_path / "out"):
            for _ in range(2):
                with pytest.raises(SettingsError, match="is being begun or finished by another ramlet: wait for it"):
                    share(path)
                with pytest.raises(SettingsError, match=r"other processes are running parts of .*out: wait for them"):
                    alone(path, tmp_path / "out")
        with share(path), share(path), pytest.raises(SettingsError, match="other processes are running parts of"):
            alone(path, tmp_path / "out")
        alone(path, tmp_path / "out").release()

    def test_only_who_begins_a_job_creates_it(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            share(tmp_path / "parts")
        alone(tmp_path / "parts", tmp_path / "out").release()
        share(tmp_path / "parts").release()

    def test_a_job_that_is_removed_while_someone_waits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A lock on a file that is gone would keep nobody from the next job in the same place."""
        path = tmp_path / "parts"
        path.touch()
        lock = folder_lock.lock_file

        def removed(handle: int, *, shared: bool = False) -> bool | None:
            path.unlink()
            return lock(handle, shared=shared)

        monkeypatch.setattr(folder_lock, "lock_file", removed)
        with pytest.raises(FileNotFoundError):
            share(path)

    def test_a_file_system_without_locks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder_lock, "lock_file", lambda *_, **__: None)
        with alone(tmp_path / "parts", tmp_path / "out"), share(tmp_path / "parts"):
            pass
