"""Files that are written to while they are read: every reader says so, and none takes two contents for one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from oracles import native_train, text_file
from ramlet import Loader, Tokenizer, _native
from ramlet.errors import DatasetError, SourceChanged
from ramlet.inputs.settings import ReadSettings
from ramlet.tokenizer.encode import encode_files

LINE = "some words of a line that is read\n"


def overwrite(path: Path) -> None:
    """In place, as long as it was, with its time set back: as an editor or a copy may leave it."""
    found = path.stat()
    time.sleep(0.03)  # the clock of files is a coarse one
    with open(path, "r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"X" * 1000)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    os.replace(new, path)


CHANGES: list[Callable[[Path], None]] = [overwrite, touch, append, replace]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(LINE * 30_000)
    os.utime(path, ns=(10**18, 10**18))
    return path


@pytest.mark.parametrize("change", CHANGES)
def test_encode(text: Path, change: Callable[[Path], None], tmp_path: Path) -> None:
    batches = encode_files(Tokenizer.load("byte"), [text], ReadSettings(), tmp_path, threads=1, block_bytes=1 << 16)
    next(batches)
    change(text)
    with pytest.raises(SourceChanged, match=r"text\.txt (was|has grown).*do not change the inputs while"):
        list(batches)


@pytest.mark.parametrize("change", CHANGES)
def test_what_tokenizer_train_reads_with(text: Path, change: Callable[[Path], None], tmp_path: Path) -> None:
    """The same reader, alone: two threads would leave it to chance whether the file is still open."""
    reader = _native.Reader(
        iter([text_file(text)]),
        ReadSettings().reading(),
        encoder=None,
        block_bytes=1 << 16,
        window_bytes=8 << 20,
        spill_dir=str(tmp_path),
    )
    assert reader.next_batch()
    change(text)
    with pytest.raises(SourceChanged, match=r"text\.txt"):
        while reader.next_batch() is not None:
            pass


@pytest.mark.parametrize("change", [touch, append, replace])
def test_a_file_that_changed_between_the_listing_and_the_reading(text: Path, change: Callable[[Path], None]) -> None:
    listed = text_file(text)
    change(text)
    with pytest.raises(SourceChanged, match=r"text\.txt .* since the run began"):
        native_train(files=[listed])


def test_new_names_and_permissions_change_nothing(text: Path, tmp_path: Path) -> None:
    batches = encode_files(Tokenizer.load("byte"), [text], ReadSettings(), tmp_path, threads=1, block_bytes=1 << 16)
    count = len(next(batches)[0])
    os.link(text, tmp_path / "link")
    text.chmod(0o600)
    assert count + sum(len(ids) for ids, _ in batches) == len(LINE) * 30_000


def test_a_dataset_that_is_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(4000, dtype=np.uint16))
    os.utime(path, ns=(10**18, 10**18))
    with Loader(path, seq_len=16, batch_size=2, shuffle=False) as loader:
        batches = iter(loader)
        next(batches)
        np.save(path, np.arange(4000, dtype=np.uint16)[::-1])
        # What is read ahead may meet it half written.
        with pytest.raises(DatasetError, match=r"ids\.npy (was written to|has shrunk|has grown|is damaged)"):
            list(zip(range(100), batches))


def test_files_of_the_kernel_are_read_like_pipes(tmp_path: Path) -> None:
    if not os.path.exists("/proc/cpuinfo"):
        pytest.skip("no /proc")
    ids = [
        count
        for batch, _ in encode_files(Tokenizer.load("byte"), ["/proc/cpuinfo"], ReadSettings(), tmp_path, threads=1)
        for count in batch
    ]
    assert len(ids) > 100
