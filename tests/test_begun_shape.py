"""A run keeps the shape that it was begun with, even if this version would choose another one for a new run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ramlet.model.sizing import shape_for
from ramlet.training.job import begun_shape
from ramlet.training.settings import RunSettings

VOCAB, LENGTH = 8192, 256


class Feed:
    vocab_size = VOCAB


def begun(**changes: Any) -> tuple[RunSettings, dict[str, Any]]:
    """The settings, and the settings.yaml of a run of an earlier version, with heads of 64."""
    settings = RunSettings(params=60_000_000, seq_len=LENGTH)
    shape = shape_for(60_000_000, vocab_size=VOCAB, context=LENGTH, qk_norm=True)
    earlier = dataclasses.replace(shape, heads=shape.width // 64, kv_heads=shape.width // 64, head_width=64)
    assert earlier != shape
    noted = {"settings": dataclasses.asdict(settings), "job": {"shape": {**earlier.to_dict(), **changes}}}
    return settings, noted


def test_the_same_settings_have_the_same_shape() -> None:
    settings, noted = begun()
    found = begun_shape(settings, Feed(), LENGTH, noted)  # type: ignore[arg-type]
    assert found is not None
    assert found.to_dict() == noted["job"]["shape"]


@pytest.mark.parametrize(
    "change", [{"params": 50_000_000}, {"kv_groups": 2}, {"tied": False}, {"qk_norm": False}, {"seq_len": 128}]
)
def test_other_settings_do_not(change: dict[str, Any]) -> None:
    settings, noted = begun()
    settings = dataclasses.replace(settings, **change)
    assert begun_shape(settings, Feed(), settings.seq_len or 0, noted) is None  # type: ignore[arg-type]


def test_nor_does_a_shape_that_cannot_be_read() -> None:
    for change in ({"unknown": 1}, {"width": -1}):
        settings, noted = begun(**change)
        assert begun_shape(settings, Feed(), LENGTH, noted) is None  # type: ignore[arg-type]
    assert begun_shape(settings, Feed(), LENGTH, None) is None  # type: ignore[arg-type]
