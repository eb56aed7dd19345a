"""Every part of a run is a plain function of the plan and an index: in any order, any number of times."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ramlet import Budget, Meter
from ramlet.preparing.run import prepare_to
from ramlet.preparing.settings import PrepareSettings
from ramlet.preparing.stages import run_part

SETTINGS = PrepareSettings(documents="line", dedup="line", near=0.6, tokens_per_shard=2_000)


STAGES = (("scan", "scan"), ("settle", "drops"), ("write", "tokens"), ("pair", "near_pairs"), ("near", "near"))


class Stop(Exception):
    pass


def prepared(inputs: Path, out: Path, progress: Any = None) -> None:
    with Meter(Budget.parse("8GB")) as meter:
        prepare_to([inputs], out, SETTINGS, meter=meter, threads=1, task_bytes=4_000, progress=progress)


def files(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if name != "stats.json"}


def test_parts_in_any_order_give_the_same_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(5)
    lines = [f"line {chosen.randrange(300)} of {chosen.randrange(4)} kinds" for _ in range(2_000)]
    inputs = tmp_path / "lines.txt"
    inputs.write_text("\n".join(lines))
    prepared(inputs, tmp_path / "whole")

    out = tmp_path / "parts"
    run_stage = "ramlet.preparing.run._Run._run_stage"
    for stage, folder in STAGES:

        def stop_before(self: Any, name: str, *_: object, at: str = stage, **__: object) -> None:
            if name == at:
                raise Stop

        with monkeypatch.context() as patched, pytest.raises(Stop):
            patched.setattr(run_stage, stop_before)
            prepared(inputs, out)
        plan = json.loads((out / ".work/plan.json").read_text())
        partitions = {"settle": plan["partitions"], "pair": plan["near"]["partitions"]}
        parts = list(range(partitions.get(stage, plan["tasks"])))
        assert len(parts) > 5 or stage in partitions
        if stage != "near":  # a document is compared with those before it that are kept
            chosen.shuffle(parts)
        for index in [*parts, parts[0]]:
            run_part(out, stage, index, memory="8GB")
        assert any((out / ".work" / folder).iterdir())
    prepared(inputs, out)
    assert files(out) == files(tmp_path / "whole")
