"""Folders as the stages write them, made by hand: input for a report without training anything."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "data", "overhead")
_EMPTY = {"meta", "link", "br", "rect", "path", "polyline", "polygon", "img"}


def settings(**changes: Any) -> dict[str, Any]:
    """As in settings.yaml."""
    return {
        "settings": {"params": 1000, "init_from": None},
        "data": [{"path": "/nowhere/data", "weight": 1.0, "fingerprint": "00"}],
        "job": {"shape": {"layers": 2, "width": 16, "heads": 2}, "parameters": 1234, "steps": 100, "seq_len": 8},
        "plan": {
            "device": "cpu",
            "budget": 500_000_000,
            "peak": 280_000_000,
            "parts": dict.fromkeys(PARTS, 40000000),
        },
        "all_settings": {"params": 1000, "sample_prompt": "Once"},
        **changes,
    }


def step_line(step: int, loss: float, **changes: Any) -> str:
    record = {
        "step": step,
        "tokens": step * 64,
        "loss": loss,
        "lr": 0.001,
        "grad_norm": 1.0,
        "tokens_per_second": 1000 + step,
        "memory": 250_000_000,
        "seconds": step * 0.1,
        **changes,
    }
    return json.dumps(record) + "\n"


def eval_line(step: int, losses: dict[str, float], **more: Any) -> str:
    scores = {
        name: {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / 2, "tokens": 640}
        for name, loss in losses.items()
    }
    return json.dumps({"step": step, "eval": scores, **more}) + "\n"


def sample_line(step: int, text: str) -> str:
    return json.dumps({"step": step, "sample": text}) + "\n"


def usual_lines(steps: int = 20) -> list[str]:
    lines = [sample_line(0, "Once nothing")]
    for step in range(1, steps + 1):
        lines.append(step_line(step, 5 - step / steps))
        if step % 5 == 0:
            lines += [eval_line(step, {"val": 5.5 - step / steps, "law": 6.0}), sample_line(step, f"Once {step}")]
    return lines


def write_run(folder: Path, lines: list[str] | None = None, *, finished: bool = False, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "settings.yaml", "w") as file:
        yaml.safe_dump(settings(**changes), file)
    (folder / "metrics.jsonl").write_text("".join(usual_lines() if lines is None else lines))
    if finished:
        (folder / "stats.json").write_text(json.dumps({"steps": 20, "memory": memory(peak=260_000_000)}))
    return folder


def memory(peak: int = 90_000_000, budget: int = 500_000_000) -> dict[str, Any]:
    """As every stats.json has it."""
    return {
        "budget": budget,
        "peak": peak,
        "device_peak": peak,
        "stages": {"planning": {"seconds": 1.0, "peak": peak // 2}, "training": {"seconds": 2.0, "peak": peak}},
        "timeline": [
            [0.0, peak // 3, ""],
            [0.5, peak // 2, "planning"],
            [1.0, peak, "training"],
            [4801.0, peak, "training"],
        ],
    }


class Outline(HTMLParser):
    """The structure of a page; fails if a tag is not closed properly."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        # SVG's <path> and <rect> have end tags if they contain a title.
        if tag in _EMPTY:
            return
        assert self._open[-1] == tag, (self._open[-3:], tag, self.getpos())
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["script"], ["style"]):
            self.text += data
