"""What can be wrong with a run: one sentence that names it and the way out, and nothing lost or half-made."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ramlet
from oracles_training import assert_same_run, losses, make_data, refused, run, steps_kept
from ramlet.errors import (
    BudgetError,
    DatasetError,
    DiskFull,
    Interrupted,
    ModelError,
    SettingsError,
    SourceChanged,
    SourceError,
    TrainingStopped,
)
from ramlet.training import checkpoint, journal, loop
from ramlet.training.listener import Listener


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def data(shared: Path) -> Path:
    return make_data(shared)


@pytest.fixture(scope="module")
def whole(data: Path, shared: Path) -> Path:
    run(data, shared / "whole")
    return shared / "whole"


@pytest.fixture(scope="module")
def other_tokenizer(shared: Path) -> Path:
    """The same kind of text, as characters."""
    return make_data(shared, "characters", tokenizer="char")


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Where the run would be; a run that is refused leaves nothing there."""
    yield tmp_path / "out"
    assert not (tmp_path / "out").exists(), sorted((tmp_path / "out").rglob("*"))


# -- data


def test_less_than_a_sequence(data: Path, shared: Path, out: Path) -> None:
    tiny = make_data(shared, "tiny", lines=1, val_fraction=0.0)
    refused(DatasetError, str(tiny), "one sequence needs 65", "smaller --seq-len", data=tiny, out=out, seq_len=64)


def test_a_stream_of_less_than_a_sequence(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("only forty bytes or so are in this text.")
    given = {"data": None, "stream": tmp_path / "tiny.txt", "tokenizer": "byte", "out": tmp_path / "out"}
    refused(SourceError, "less than one sequence of 64", "tiny.txt", "--seq-len", **given, seq_len=64)
    # It was found out after the run had begun, and stands in no one's way.
    assert run(**given, seq_len=16).steps == 12


@pytest.mark.parametrize("how", ["missing", "short", "ids"])
def test_a_shard_that_is_not_as_it_should_be(data: Path, tmp_path: Path, how: str) -> None:
    """Named, and never passed over; what was learned before is there."""
    broken = tmp_path / "broken"
    shutil.copytree(data, broken)
    shard = sorted(broken.glob("train/*.bin"))[-1]
    if how == "missing":
        shard.unlink()
    elif how == "short":
        shard.write_bytes(shard.read_bytes()[:-2])
    else:
        ids = np.fromfile(shard, "<u2")
        ids[:] = 999
        shard.write_bytes(ids.tobytes())
    with pytest.raises(DatasetError) as caught:
        run(broken, tmp_path / "out", max_steps=100)
    assert str(shard.relative_to(broken)) in str(caught.value)
    shutil.copyfile(data / shard.relative_to(broken), shard)
    assert run(broken, tmp_path / "out", max_steps=100, eval_every=50, checkpoint_every=50).steps == 100


def test_ids_of_an_array_that_the_model_has_no_place_for(data: Path, whole: Path, tmp_path: Path, out: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([5, 300] * 400, dtype=np.uint16))
    refused(
        ModelError, "the data has a vocabulary of 301", data=tmp_path / "ids.npy", out=out, init_from=str(whole),
        params=None, seq_len=None,
    )  # fmt: skip
    refused(DatasetError, "ids.npy", "301", data=data, out=out, evals={"array": tmp_path / "ids.npy"})


def test_two_tokenizers(data: Path, other_tokenizer: Path, whole: Path, out: Path) -> None:
    """Both are named, wherever they meet."""
    names = [json.loads((each / "dataset_metadata.json").read_text())["tokenizer"]["fingerprint"][:12]
             for each in (data, other_tokenizer)]  # fmt: skip
    start = {"init_from": str(whole), "params": None, "seq_len": None}
    refused(DatasetError, *names, str(whole), "--tokenizer", data=other_tokenizer, out=out, **start)
    refused(DatasetError, *names, "--tokenizer", data=data, out=out, evals={"general": other_tokenizer})
    refused(DatasetError, *names, data=[(data, 1.0), (other_tokenizer, 1.0)], out=out)


def test_text_without_its_ids(tmp_path: Path, out: Path) -> None:
    (tmp_path / "book.txt").write_text("some text")
    refused(DatasetError, "book.txt is text", "--output-format npy", data=tmp_path / "book.txt", out=out)


def test_an_evaluation_set_that_cannot_be_used(data: Path, shared: Path, tmp_path: Path, out: Path) -> None:
    """Told before the first step, not when it is first evaluated."""
    refused(DatasetError, "no such file or folder", data=data, out=out, evals={"general": tmp_path / "no"})
    tiny = make_data(tmp_path, "tiny", lines=1, val_fraction=0.0)
    refused(DatasetError, "tiny", "one sequence needs 129", data=data, out=out, evals={"tiny": tiny}, seq_len=128)
    packed = make_data(tmp_path, "packed", pack=16)
    refused(SettingsError, "packed in sequences of 16", data=data, out=out, evals={"packed": packed})


def test_nothing_or_too_much_to_train_on(data: Path, out: Path) -> None:
    refused(SettingsError, "give either a dataset or a stream", data=None, out=out)
    refused(SettingsError, "give either a dataset or a stream", data=data, stream="x.txt", tokenizer="byte", out=out)
    refused(SettingsError, "give a --tokenizer", data=None, stream="x.txt", out=out)
    refused(SettingsError, "the model's size is missing", data=data, out=out, params=None)
    refused(SettingsError, "--max-steps", data=data, out=out, max_steps="many")


def test_a_stream_that_is_refused_leaves_nothing(tmp_path: Path, out: Path) -> None:
    (tmp_path / "text.txt").write_text("some text. " * 200)
    given = {"data": None, "stream": tmp_path / "text.txt", "tokenizer": "byte", "out": out}
    refused(
        SettingsError, "a char tokenizer must read all of the text first", "--input", **{**given, "tokenizer": "char"}
    )
    refused(BudgetError, "needs at least", **given, memory="20MB")
    refused(SourceError, "no such file", **{**given, "stream": tmp_path / "no.txt"})


# -- the machine


def test_a_budget_too_small_names_the_smallest(data: Path, out: Path) -> None:
    said = refused(BudgetError, "needs at least", "the budget is 50.0 MB", data=data, out=out, memory="50MB")
    for _ in range(4):
        enough = int(said.split("needs at least ")[1].split("MB")[0])
        try:
            assert run(data, out, memory=f"{enough + 20}MB", max_steps=2).steps == 2
            break
        except BudgetError as error:
            said = str(error)  # this process has grown since: in one of its own the first is enough
    shutil.rmtree(out)


def test_no_gpu(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(SettingsError, "PyTorch finds no GPU", "--device cpu", data=data, out=out, device="cuda")
    refused(SettingsError, "fp16 needs a GPU", data=data, out=out, precision="fp16")


def test_loggers_that_are_not_installed(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    refused(SettingsError, "W&B is not installed: pip install wandb", data=data, out=out, wandb=True)
    monkeypatch.setitem(__import__("sys").modules, "ramlet.training.board", None)
    refused(SettingsError, "TensorBoard is not installed", data=data, out=out, tensorboard=True)


# -- the folder


def test_a_folder_of_something_else(data: Path, tmp_path: Path) -> None:
    for name in ("mine", "file"):
        (tmp_path / name).mkdir() if name == "mine" else (tmp_path / name).write_text("x")
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    stream = {"data": None, "stream": data.with_suffix(".txt"), "tokenizer": "byte"}
    for source in ({"data": data}, stream):
        refused(
            SettingsError, "mine is not empty and not a run", "thesis.tex", "--out", out=tmp_path / "mine", **source
        )
        refused(SettingsError, "file is a file", out=tmp_path / "file", **source)
        assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_run_of_other_settings_or_data(data: Path, shared: Path, whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    refused(SettingsError, "a run with seed 5, not 6", "choose another --out", data=data, out=whole, seed=6)
    refused(SettingsError, "a run with lr 0.003, not 0.1", "--resume", data=data, out=whole, lr=0.1)
    refused(SettingsError, "with batch_size 6, not 8", data=data, out=whole, batch_size=8, resume=True)
    more = make_data(shared, "more", seed=9)
    refused(SettingsError, "was trained on other data", str(data), data=more, out=whole)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before
    shutil.copytree(data, shared / "grows")
    run(shared / "grows", shared / "out", max_steps=3)
    ramlet.prepare(
        [data.with_suffix(".txt")], shared / "grows", append=True, documents="line", dedup="none", memory="8GB"
    )
    refused(SettingsError, "grows has changed since", "--init-from", data=shared / "grows", out=shared / "out")
    # What decides nothing may be another.
    assert run(data, whole, log_every=7, keep=9, micro_batch=1, memory="7GB").already_done


def test_a_path_written_in_another_way(data: Path, whole: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"params": None, "max_steps": 2}
    run(data, tmp_path / "out", init_from=str(whole), **given)
    assert run(data, tmp_path / "out", init_from=f"{whole.parent}/./{whole.name}/", **given).already_done


def test_a_config_that_has_changed(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "model.yaml"
    config.write_text("layers: 1\nwidth: 32\nheads: 2\n")
    given = {"params": None, "config": str(config), "max_steps": 4, "checkpoint_every": 2}
    run(data, tmp_path / "out", **given)
    config.write_text("layers: 2\nwidth: 32\nheads: 2\n")
    refused(SettingsError, "out", "another shape", data=data, out=tmp_path / "out", resume=True, **given)


def test_settings_that_cannot_be_read(data: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    (tmp_path / "out" / "settings.yaml").write_text("a: [")
    refused(SettingsError, "settings.yaml cannot be read", data=data, out=tmp_path / "out")
    (tmp_path / "out" / "settings.yaml").write_text("just: this")
    refused(SettingsError, "settings.yaml is not that of a run", data=data, out=tmp_path / "out")


def test_a_finished_run_without_its_checkpoints_is_not_begun_anew(data: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    assert run(data, tmp_path / "out").already_done
    refused(SettingsError, "no checkpoints any more", "--init-from", data=data, out=tmp_path / "out",
            max_steps=20, resume=True)  # fmt: skip
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_two_runs_in_one_folder(data: Path, tmp_path: Path) -> None:
    class Second(Listener):
        said = ""

        def saved(self, step: int, path: Path) -> None:
            if step == 3:
                self.said = refused(SettingsError, "another ramlet (train, pid", data=data, out=tmp_path / "out")

    listener = Second()
    assert run(data, tmp_path / "out", listener=listener).steps == 12
    assert listener.said
    assert os.listdir(tmp_path) == ["out"]


# -- checkpoints


@pytest.fixture
def stopped(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with checkpoints at 3, 4, 6 and 7, of which the last two and the best are kept."""

    class Stop(Listener):
        def stepped(self, step: int, *_: Any) -> None:
            if step == 7:
                os.kill(os.getpid(), 2)

    with pytest.raises(Interrupted):
        run(data, tmp_path / "out", listener=Stop())
    assert steps_kept(tmp_path / "out") == [4, 6, 7]
    return tmp_path / "out"


@pytest.mark.parametrize("how", ["bit", "cut", "missing", "state", "no-state"])
def test_a_damaged_checkpoint(data: Path, whole: Path, stopped: Path, how: str) -> None:
    last = stopped / "checkpoints" / "step_000007"
    if how == "bit":
        raw = bytearray((last / "optimizer.safetensors").read_bytes())
        raw[-9] ^= 1
        (last / "optimizer.safetensors").write_bytes(raw)
        words = ["optimizer.safetensors is damaged", "checksum"]
    elif how == "cut":
        raw = bytearray((last / "model.safetensors").read_bytes())
        (last / "model.safetensors").write_bytes(raw[:-5])
        words = ["model.safetensors is damaged"]
    elif how == "missing":
        (last / "model.safetensors").unlink()
        words = ["model.safetensors is missing"]
    elif how == "state":
        (last / "state.json").write_text('{"step": 7,')
        words = ["state.json is damaged", "not JSON"]
    else:
        (last / "state.json").unlink()  # as a removal that was killed leaves it: no checkpoint, and no error
        words = []
    if words:
        refused(ModelError, str(last), *words, f"remove {last} to resume from step_000006", data=data, out=stopped)
        assert last.exists()
        shutil.rmtree(last)
    run(data, stopped)
    assert_same_run(stopped, whole)


def test_the_only_checkpoint_damaged(data: Path, stopped: Path) -> None:
    for step in (4, 6):
        shutil.rmtree(stopped / "checkpoints" / f"step_{step:06}")
    (stopped / "checkpoints" / "step_000007" / "model.safetensors").write_bytes(b"nothing")
    refused(ModelError, "to start over, because there is no other", data=data, out=stopped)


def test_a_full_disk_leaves_the_last_checkpoint_whole(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    written = 0
    real = checkpoint.write_tensors

    def filling(path: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal written
        written += 1
        if written == 4:
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", full)
                return real(path, *arguments, **options)
        return real(path, *arguments, **options)

    monkeypatch.setattr(checkpoint, "write_tensors", filling)
    refused(DiskFull, "no space left to write", "free some", data=data, out=tmp_path / "out")
    assert steps_kept(tmp_path / "out") == [3]
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["step_000003"]
    run(data, tmp_path / "out")
    assert_same_run(tmp_path / "out", whole)


def test_a_disk_full_of_lines(data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = json.dump

    def full(value: Any, *arguments: Any, **options: Any) -> None:
        if value.get("step") == 5 and "loss" in value:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(value, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(journal.json, "dump", full)
        refused(DiskFull, "no space left to write", "metrics.jsonl", data=data, out=tmp_path / "out")
    run(data, tmp_path / "out")
    assert_same_run(tmp_path / "out", whole)


# -- the loss


def test_a_loss_that_is_no_number(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop._one_step

    def poisoned(state: Any, batches: Any) -> Any:
        figures = real(state, batches)
        if figures.step == 8:
            figures.loss = torch.tensor(float("nan"))
        return figures

    with monkeypatch.context() as patched:
        patched.setattr(loop, "_one_step", poisoned)
        refused(TrainingStopped, "became NaN or infinite at step 8", "last good checkpoint is", "step_000006", "--lr",
                data=data, out=tmp_path / "out")  # fmt: skip
    assert steps_kept(tmp_path / "out") == [4, 6]
    # The checkpoint that was named is one to start from.
    start = str(tmp_path / "out" / "checkpoints" / "step_000006")
    better = run(data, tmp_path / "better", init_from=start, params=None, seq_len=None, lr=1e-4, max_steps=2)
    assert better.loss < losses(tmp_path / "out")[0]


def test_a_checkpoint_of_weights_that_are_no_numbers_is_not_good(data: Path, tmp_path: Path) -> None:
    """The loss of a step is that of the weights before it."""
    given = {"lr": 1e38, "warmup": 0, "clip": 0, "checkpoint_every": 1, "eval_every": 0}
    refused(TrainingStopped, "NaN or infinite at step 2", "no good checkpoint", "--no-resume and a lower --lr",
            data=data, out=tmp_path / "out", **given)  # fmt: skip
    assert steps_kept(tmp_path / "out") == [1]
    assert run(data, tmp_path / "out", max_steps=2, resume=False).steps == 2


def test_gradients_that_are_no_numbers(data: Path, tmp_path: Path) -> None:
    said = refused(TrainingStopped, "at step", "there is no checkpoint before it", data=data, out=tmp_path / "out",
                   lr=1e38, warmup=0, clip=0, checkpoint_every=0, eval_every=0)  # fmt: skip
    assert "NaN or infinite" in said
    assert said.endswith("run it again with a lower --lr"), "there is nothing to go on from, and --spike is no remedy"
    assert steps_kept(tmp_path / "out") == []
    assert run(data, tmp_path / "out", max_steps=2).steps == 2


def test_a_spike(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SPIKE_WINDOW", 6)
    real = loop._one_step

    def jumping(state: Any, batches: Any) -> Any:
        figures = real(state, batches)
        if figures.step == 10:
            figures.loss = figures.loss + 5.5
        return figures

    monkeypatch.setattr(loop, "_one_step", jumping)
    refused(
        TrainingStopped, "the loss jumped to", "at step 10", "step_000008", "--spike 0", data=data, out=tmp_path / "out"
    )
    assert run(data, tmp_path / "calm", spike=0.0).steps == 12
    assert run(data, tmp_path / "wide", spike=6.5).steps == 12


# -- streams


def test_a_stream_that_changed(data: Path, tmp_path: Path) -> None:
    class Stop(Listener):
        def stepped(self, step: int, *_: Any) -> None:
            if step == 4:
                os.kill(os.getpid(), 15)

    text = tmp_path / "text.txt"
    text.write_text("some text that is long enough. " * 200)
    given = {"data": None, "stream": text, "tokenizer": "byte", "out": tmp_path / "out"}
    with pytest.raises(Interrupted):
        run(**given, listener=Stop())
    text.write_text("another text, of another kind. " * 200)
    refused(SourceChanged, "text.txt has changed since the state was saved", "use the same files", **given)


def test_evaluation_that_fails_names_the_shard(data: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(data, broken)
    shard = next(iter(broken.glob("val/*.bin")))
    shard.unlink()
    with pytest.raises(DatasetError) as caught:
        run(broken, tmp_path / "out")
    assert str(shard.relative_to(broken)) in str(caught.value)
    assert not (tmp_path / "out").exists()  # it is seen before the first step
