"""A run that was begun with one engine continues with the other: the same files, names, shapes and types."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles_training import losses, make_data, run
from ramlet.model.tensor_file import read_header
from ramlet.training import checkpoint


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("together"))


def described(out: Path) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
    """The tensors of the last checkpoint."""
    last = checkpoint.latest(out)
    assert last is not None
    return {
        name: {key: (entry.dtype, entry.shape) for key, entry in read_header(last / name).tensors.items()}
        for name in ("model.safetensors", "optimizer.safetensors")
    }


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit", "muon", "muon8bit"])
def test_a_run_continues_with_the_other_engine(data: Path, tmp_path: Path, optimizer: str) -> None:
    given = {"optimizer": optimizer, "precision": "fp32", "sample_every": 0}
    for first, second in (("torch", "native"), ("native", "torch")):
        run(data, tmp_path / first, engine=first, max_steps=2, **given)
        before = described(tmp_path / first)
        run(data, tmp_path / first, engine=second, max_steps=4, resume=True, **given)
        assert described(tmp_path / first) == before
        assert len(losses(tmp_path / first)) == 4
        assert losses(tmp_path / first)[-1] < losses(tmp_path / first)[0] + 0.2
    assert described(tmp_path / "torch") == described(tmp_path / "native")
