"""Files of a run that lack something, or have something odd in it: one sentence each, and never a traceback."""

from __future__ import annotations

import copy
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from oracles_training import assert_same_run, last_checkpoint, make_data, run, write_state
from ramlet.errors import Interrupted, ModelError, RamletError, SettingsError
from ramlet.training import checkpoint
from ramlet.training.evaluate_run import evaluate
from ramlet.training.listener import Listener
from ramlet.training.progress import Progress
from ramlet.training.run_folder import RunFolder

ODD = [None, True, -1, 1.5, "x", [], {}, [1], {"a": 1}, 10**30]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    run(data, data.parent / "whole", max_steps=4)
    return data.parent / "whole"


@pytest.fixture(scope="module")
def stopped(data: Path) -> Path:
    class Stop(Listener):
        def stepped(self, step: int, *_: Any) -> None:
            if step == 3:
                os.kill(os.getpid(), 2)

    with pytest.raises(Interrupted):
        run(data, data.parent / "stopped", max_steps=4, listener=Stop())
    return data.parent / "stopped"


def sentence(error: BaseException) -> str:
    assert isinstance(error, RamletError)
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["loss_scale"], ...),
        (["loss_scale", "loss_scale"], 0),
        (["progress"], ...),
        (["progress", "tokens"], ...),
        (["progress", "recent"], ["x"]),
        (["progress", "scores"], {"val": {"loss": 1.0, "bits_per_byte": 2.0, "tokens": 3}}),
        (["progress", "best_scores"], {"val": {"loss": "1.0", "perplexity": 2.7, "bits_per_byte": None, "tokens": 3}}),
        (["progress", "scores"], {"val": {"loss": 1.0, "perplexity": 2.7, "bips_per_byte": None, "tokens": 3}}),
        (["data"], []),
        (["data", "seed"], ...),
        (["data", "position"], "x"),
        (["data", "position"], -5),
        (["data", "epoch"], -1),
        (["data", "seed"], -1),
        (["data", "passed"], [-1, 0, 1]),
        (["journal"], -1),
        (["xxh64"], None),
    ],
    ids=repr,
)
def test_a_checkpoint(data: Path, stopped: Path, tmp_path: Path, keys: list[str], value: Any) -> None:
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    file = last_checkpoint(out) / "state.json"
    state = inner = json.loads(file.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    write_state(file, state)
    with pytest.raises(ModelError) as caught:
        run(data, out, max_steps=4)
    said = sentence(caught.value)
    assert str(file) in said
    assert keys[0] in said
    assert "remove" in said


def test_any_value_anywhere(stopped: Path, tmp_path: Path) -> None:
    """A state is refused in one sentence, or is one that a run can go on from."""
    good = json.loads((last_checkpoint(stopped) / "state.json").read_text())
    for key in good.keys() - {"crc32"}:
        for value in (*ODD, ...):
            state = copy.deepcopy(good)
            if value is ...:
                del state[key]
            else:
                state[key] = value
            write_state(tmp_path / "state.json", state)
            try:
                checkpoint.read_state(tmp_path)
            except ModelError as error:
                sentence(error)
    for key in good["progress"]:
        for value in (*ODD, ...):
            progress = dict(good["progress"])
            if value is ...:
                del progress[key]
            else:
                progress[key] = value
            try:
                made = Progress.from_dict(progress)
            except ValueError:
                continue
            assert json.loads(json.dumps(made.to_dict()))["step"] >= 1
    for text in ("", "[]", "7", "{", "[" * 100_000, '{"step": 1}'):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(ModelError, match=r"state\.json is damaged"):
            checkpoint.read_state(tmp_path)


def test_one_flipped_bit(stopped: Path, tmp_path: Path) -> None:
    file = last_checkpoint(stopped) / "state.json"
    content, good = file.read_bytes(), json.loads(file.read_text())
    del good["crc32"]
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 7
        (tmp_path / "state.json").write_bytes(flipped)
        state = good
        with suppress(ModelError):
            state = checkpoint.read_state(tmp_path)
        assert {**good, **state} == {**state, **good}, "only spaces, or the name of the checksum"


def test_a_checkpoint_that_knows_nothing_of_what_is_owed(
    data: Path, whole: Path, stopped: Path, tmp_path: Path
) -> None:
    """As earlier versions wrote it."""
    shutil.copytree(stopped, tmp_path / "out")
    file = last_checkpoint(tmp_path / "out") / "state.json"
    state = json.loads(file.read_text())
    assert state["progress"].pop("owed") == []
    write_state(file, state)
    run(data, tmp_path / "out", max_steps=4)
    assert_same_run(tmp_path / "out", whole)


def test_settings(whole: Path, tmp_path: Path) -> None:
    """Every part that is read, missing or of another kind."""
    out = tmp_path / "out"
    out.mkdir()
    read = yaml.safe_load((whole / "settings.yaml").read_text())
    # No more than is looked at: YAML is slow to read.
    job = {"shape": {"layers": 1}, "seq_len": read["job"]["seq_len"], "recipe": read["job"]["recipe"]}
    good = {"settings": {}, "data": [], "job": job, "plan": {"choice": read["plan"]["choice"]}}
    (out / "settings.yaml").write_text(yaml.safe_dump(good))
    assert RunFolder(out).noted() == good
    paths = [
        *(["settings"], ["data"], ["job"], ["plan"], ["job", "shape"], ["job", "seq_len"], ["plan", "choice"]),
        *(["plan", "choice", name] for name in good["plan"]["choice"]),
        *(["job", "recipe", name] for name in good["job"]["recipe"]),
    ]
    for keys in paths:
        for value in ("x", ..., None, -1):
            noted = inner = copy.deepcopy(good)
            for key in keys[:-1]:
                inner = inner[key]
            if value is ... and keys[-1] in ("held", "dropout", "shard", "keeps_qk"):
                continue  # which runs of before do not have
            if value is ...:
                del inner[keys[-1]]
            elif value == "x" and isinstance(inner[keys[-1]], str):
                continue
            else:
                inner[keys[-1]] = value
            (out / "settings.yaml").write_text(yaml.safe_dump(noted))
            with pytest.raises(SettingsError) as caught:
                RunFolder(out).noted()
            assert str(out / "settings.yaml") in sentence(caught.value)
    for text in ("", "- 1", "{", "[" * 400):
        (out / "settings.yaml").write_text(text)
        with pytest.raises(SettingsError, match=r"settings\.yaml"):
            RunFolder(out).noted()


def test_a_setting_of_another_kind(data: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    noted = yaml.safe_load((out / "settings.yaml").read_text())
    noted["settings"]["batch_size"] = "many"
    (out / "settings.yaml").write_text(yaml.safe_dump(noted))
    with pytest.raises(SettingsError) as caught:
        evaluate(out, data, device="cpu", memory="8GB", threads=1)
    sentence(caught.value)
    with pytest.raises(SettingsError, match="with batch_size many, not 6"):
        run(data, out, max_steps=4)


@pytest.mark.parametrize("text", ["[]", "{}", '{"steps": 4}', '{"steps": "x", "memory": {}}', "[" * 100_000, "\x00"])
def test_statistics_that_say_nothing_are_made_again(data: Path, whole: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(whole, tmp_path / "out")
    (tmp_path / "out" / "stats.json").write_text(text)
    done = run(data, tmp_path / "out", max_steps=4)
    assert (done.steps, done.already_done) == (4, False)
    assert_same_run(tmp_path / "out", whole)


def with_a_pipe(stopped: Path, copy: Path, name: str) -> Path:
    """No one reads it, and whoever opened it for writing would wait for good."""
    shutil.copytree(stopped, copy)
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    return copy


@pytest.mark.parametrize("name", ["stats.json", "config.json"])
def test_a_pipe_in_the_place_of_a_file_that_is_written_is_replaced(
    data: Path, stopped: Path, tmp_path: Path, name: str
) -> None:
    run(data, with_a_pipe(stopped, tmp_path / "run", name), max_steps=4)
    assert (tmp_path / "run" / name).is_file()


@pytest.mark.parametrize("name", ["settings.yaml", "metrics.jsonl"])
def test_a_pipe_in_the_place_of_a_file_that_is_read_is_refused(
    data: Path, stopped: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(RamletError) as raised:
        run(data, with_a_pipe(stopped, tmp_path / "run", name), max_steps=4)
    assert f"{name} is a device or a pipe" in sentence(raised.value)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_checkpoint_of_a_terabyte(data: Path, stopped: Path, tmp_path: Path, name: str) -> None:
    """Refused by its size: to read it, for its checksum, would take hours."""
    shutil.copytree(stopped, tmp_path / "run")
    with open(last_checkpoint(tmp_path / "run") / name, "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError) as raised:
        run(data, tmp_path / "run", max_steps=4)
    assert f"{name} is damaged, its header is invalid" in sentence(raised.value)
    assert "remove " in sentence(raised.value)
