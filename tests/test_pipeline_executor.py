"""A pipeline with another executor, and the memory it reports if training runs on a GPU."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import AMPLE
from oracles_training import sentences
from ramlet.cli import main
from ramlet.errors import PipelineError
from ramlet.pipeline import run as spine
from ramlet.pipeline.executor import StageExit
from ramlet.pipeline.run import run_pipeline
from ramlet.pipeline.stages import Stage

DONE = {
    "tokenizer": ("tokenizer.json", "stats.json"),
    "prepare": ("dataset_metadata.json",),
    "train": ("stats.json", "model.safetensors"),
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spine, "waiting_memory", lambda: 32_000_000)
    (tmp_path / "corpus.txt").write_text(sentences(120))

    def write_file(**changes: Any) -> str:
        content = {"memory": "900MB", "threads": 1, "work": "model", "text": "corpus.txt", "docs": "line", **changes}
        content |= {"report": False, "tokenizer": {"vocab_size": 280, "special_tokens": ["<|endoftext|>"]}}
        Path("pipeline.yaml").write_text(json.dumps(content))
        return "pipeline.yaml"

    return write_file


def in_this_process(argv: list[str], *, captured: bool) -> StageExit:
    """All that a new executor is."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = main(argv)
    return StageExit(code, output.getvalue(), None, False)


def test_an_executor_in_this_process(write: Any) -> None:
    result = run_pipeline(write(), memory=AMPLE, executor=in_this_process)
    assert [(stage.name, stage.what) for stage in result.stages] == [("tokenizer", "made"), ("data", "made")]
    assert result.stages[0].figures["tokenizer"]["vocab_size"] == 280
    assert [stage.what for stage in run_pipeline("pipeline.yaml").stages] == ["kept", "kept"]


def test_an_executor_that_fails(write: Any) -> None:
    with pytest.raises(PipelineError, match="tokenizer: it ended with exit code 3 and no message"):
        run_pipeline(write(), executor=lambda argv, captured: StageExit(3, "", None, False))


def pretended(argv: list[str], *, captured: bool) -> StageExit:
    out = Path(argv[argv.index("--out") + 1])
    out.mkdir(parents=True)
    for name in DONE[argv[0]]:
        (out / name).touch()
    return StageExit(0, "{}", None, False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    real = spine.stages

    def on_gpu(pipeline: Any) -> Iterator[Stage]:
        for stage in real(pipeline):
            yield replace(stage, on_gpu=stage.name == "training")

    monkeypatch.setattr(spine, "stages", on_gpu)
    monkeypatch.setattr(spine, "run_stage", pretended)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("host", "limit"), [(None, None), ("2GB", 2 * 10**9), ("500MB", 9 * 10**8)])
def test_on_a_gpu_ram_is_compared_with_the_budget_for_ram(
    write: Any, capsys: pytest.CaptureFixture[str], host: str | None, limit: int | None
) -> None:
    """`memory` is the device's for training, but RAM for the stages before it."""
    training = {"max_steps": 2, **({} if host is None else {"host_memory": host})}
    path = write(model={"params": "40k", "seq_len": 32}, training=training)
    assert main(["run", path]) == 0
    closing = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("peak "))
    assert closing.endswith("B, over all stages")
    assert (" of " in closing) == (limit is not None)
    again = run_pipeline(path, force="training")
    assert again.budget == (None if host is None else int(host[:-2]) * 10 ** {"GB": 9, "MB": 6}[host[-2:]])
    assert run_pipeline(path, force=["data", "training"]).budget == limit
    assert run_pipeline(path, only="data", force="data").budget == 9 * 10**8
