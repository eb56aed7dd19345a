"""What no one may give passes no border: sizes, threads, memory, paths, shapes; and no panic reaches Python."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramlet
from ramlet import _native
from ramlet.errors import BudgetError, DatasetError, InternalError, ModelError, RamletError, SettingsError
from ramlet.inputs.sources import expand
from ramlet.model.hf_config import hf_config, shape_from_hf
from ramlet.model.shape import Shape
from ramlet.model.sizing import shape_for


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_panic_is_an_error_that_asks_for_a_report(threads: int, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with pytest.raises(InternalError, match=r"a bug in ramlet, please report it .*guard\.rs:\d+.*on purpose"):
            _native.panic_on_purpose(threads)
    assert capfd.readouterr().err == ""
    assert issubclass(InternalError, RamletError)


@pytest.mark.parametrize("batch_size", [10**10, 10**12])
def test_a_batch_that_no_machine_holds(tmp_path: Path, batch_size: int) -> None:
    np.save(tmp_path / "ids.npy", np.arange(4000, dtype=np.uint16))
    with (
        ramlet.Loader(tmp_path / "ids.npy", seq_len=1024, batch_size=batch_size) as loader,
        pytest.raises(RamletError, match=r"lower batch_size|at most"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("name", ["batch_size", "micro_batch", "world", "stride", "max_examples", "epochs", "seq_len"])
@pytest.mark.parametrize("value", [0, -1, 10**30, 1.5, math.nan, True, "8"])
def test_counts_of_the_loader(tmp_path: Path, name: str, value: Any) -> None:
    np.save(tmp_path / "ids.npy", np.arange(4000, dtype=np.uint16))
    with pytest.raises(SettingsError, match=name):
        ramlet.Loader(tmp_path / "ids.npy", **{"seq_len": 16, name: value})


@pytest.mark.parametrize("memory", [math.nan, math.inf, 2.5e9, -1, 0, True, [], "9" * 400 + "GB", "nan", "-2GB"])
def test_memory_that_is_none(memory: Any) -> None:
    with pytest.raises(BudgetError):
        ramlet.Budget.parse(memory)


@pytest.mark.parametrize("threads", [-1, 0, 10**9, 1.5, True])
def test_threads_that_are_none(tmp_path: Path, threads: Any) -> None:
    (tmp_path / "a.txt").write_text("some text")
    for call in (
        lambda: ramlet.Tokenizer.load("byte").encode_batch(["a"], threads=threads),
        lambda: ramlet.Tokenizer.train(tmp_path / "a.txt", vocab_size=300, threads=threads),
        lambda: ramlet.prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer="byte", threads=threads),
        lambda: ramlet.train(tmp_path / "a.txt", tmp_path / "run", threads=threads),
        lambda: ramlet.StreamLoader(tmp_path / "a.txt", tokenizer="byte", threads=threads),
    ):
        with pytest.raises(SettingsError, match="threads"):
            call()
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_nul_in_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    for call in (
        lambda: list(expand("a\0b")),
        lambda: ramlet.prepare(tmp_path / "a.txt", "a\0b", tokenizer="byte"),
        lambda: ramlet.train(tmp_path / "a.txt", "a\0b"),
        lambda: ramlet.Tokenizer.load("a\0b"),
        lambda: ramlet.Dataset("a\0b"),
        lambda: ramlet.report("a\0b"),
        lambda: ramlet.Loader("a\0b"),
        lambda: ramlet.generate("a\0b", "x"),
    ):
        with pytest.raises(RamletError):
            call()


def test_folders_nested_deeper_than_python_calls(tmp_path: Path) -> None:
    depth = 1_500
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
        Path("a.txt").write_text("some text")
        os.chdir(tmp_path)
        (found,) = expand(".")
        assert found.path.count("/d") == depth
        (found,) = expand("**/*.txt")
        assert found.path.count("d/") == depth
    finally:
        os.chdir(here)
        top = tmp_path / "d"
        for _ in range(depth):  # shutil.rmtree calls itself too
            inner = top / "d"
            if inner.exists():
                inner.rename(tmp_path / "next")
            for name in os.listdir(top):
                (top / name).unlink()
            top.rmdir()
            if (tmp_path / "next").exists():
                (tmp_path / "next").rename(top)


SOUND = Shape(vocab_size=64, context=16, layers=1, width=8, heads=2)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("rope_theta", [0, -1.0, math.nan, math.inf, "10000", True]),
        ("rms_norm_eps", [0.0, -1e-5, math.nan, math.inf, "small", False]),
        *[
            (key, [0, -2, 1.5, math.nan, math.inf, 10**20, "8", True, [8]])
            for key in ("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads")
        ],
        ("max_position_embeddings", [0, -2, 1.5, math.nan, 10**20, "8"]),
        ("num_key_value_heads", [-2, 1.5, math.nan, 10**20, "1"]),
        ("intermediate_size", [-8, 1.5, math.inf, 10**20, "8"]),
    ],
)
def test_shapes_that_are_none(key: str, values: list[Any]) -> None:
    sound = hf_config(SOUND, dtype="float32", end_id=0)
    assert shape_from_hf(sound, "config.json") == SOUND
    for value in values:
        broken = {**sound, key: value, "head_dim": None}
        if key == "rope_theta":
            broken["rope_parameters"] = None
        with pytest.raises(ModelError, match=r"config\.json"):
            shape_from_hf(broken, "config.json")


def test_a_model_that_no_machine_trains() -> None:
    with pytest.raises(SettingsError, match="params must be at most"):
        shape_for(10**23, vocab_size=300, context=16)


def test_the_header_of_an_array_that_does_not_end(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(40, dtype=np.uint16))
    content = (tmp_path / "ids.npy").read_bytes()
    (tmp_path / "ids.npy").write_bytes(content.replace(b"(40,)", b"((40,"))
    with pytest.raises(DatasetError, match=r"ids\.npy is not a readable \.npy file"):
        ramlet.Loader(tmp_path / "ids.npy", seq_len=4)
