"""In a notebook `ramlet.prepare` and `ramlet.train` show their progress, unasked; everywhere else they are silent."""

from __future__ import annotations

import re
import sys
import xml.dom.minidom
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import ramlet
from oracles_training import make_data, run, sentences
from ramlet.notebook import display, in_notebook
from ramlet.notebook.curve import POINTS, Curve, svg
from ramlet.preparing import entry
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter


class Notebook:
    """What stands in for IPython: the outputs of a cell, each redrawn in place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shell: str = "ZMQInteractiveShell") -> None:
        self.outputs: list[list[str]] = []
        ipython: Any = ModuleType("IPython")
        ipython.get_ipython = lambda: type("Shell", (type(shell, (), {}),), {})()  # a subclass, as Colab's
        ipython.display = ModuleType("IPython.display")
        ipython.display.HTML = lambda page: page
        ipython.display.display = self._display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
        monkeypatch.setattr(display, "REDRAW_SECONDS", 0.0)

    def _display(self, page: str, *, display_id: bool) -> Any:
        assert display_id
        self.outputs.append([page])
        return SimpleNamespace(update=self.outputs[-1].append)

    def text(self, at: int = -1) -> str:
        """What the last output says."""
        return re.sub(r"<[^>]+>", " ", self.outputs[-1][at])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


def test_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    Notebook(monkeypatch, "TerminalInteractiveShell")
    assert not in_notebook()
    Notebook(monkeypatch)
    assert in_notebook()


def test_prepare_shows_its_stages(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(sentences(100))
    settings: dict[str, Any] = {"documents": "line", "tokenizer": "byte", "memory": "8GB", "threads": 1}
    real = entry.prepare_to

    def prepare_to(*given: Any, progress: Any, **named: Any) -> Any:
        """With the reports of a stage that takes long enough for some."""
        progress("comparing", 5, 20)
        progress("comparing", 20, 20)
        return real(*given, progress=progress, **named)

    monkeypatch.setattr(entry, "prepare_to", prepare_to)
    ramlet.prepare(tmp_path / "text.txt", tmp_path / "data", **settings)
    assert len(notebook.outputs) == 1
    assert re.search(r"comparing +5 of 20 hashes +25% .*memory .* of 8.00 GB", notebook.text(0))
    assert re.search(r"comparing +20 hashes +in \d", notebook.text())
    assert capfd.readouterr() == ("", "")
    called: list[str] = []
    ramlet.prepare(
        tmp_path / "text.txt", tmp_path / "other", progress=lambda stage, *_: called.append(stage), **settings
    )
    assert called
    assert len(notebook.outputs) == 1, "a caller's own progress is shown instead"


def test_train_shows_the_loss(notebook: Notebook, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = make_data(tmp_path)
    notebook.outputs.clear()
    result = run(data, tmp_path / "run")
    assert len(notebook.outputs) == 1
    page = notebook.outputs[0][-1]
    assert re.findall(r"training +\d+ steps", notebook.text()) == ["training  12 steps"]  # evaluations were in between
    assert f"loss {result.loss:.4f}" in page
    assert f"val {result.scores['val']['loss']:.4f}" in page
    assert any(re.search(r"loss \d.*tokens/s.* left +memory", each) for each in notebook.outputs[0])
    drawn = xml.dom.minidom.parseString(re.search(r"<svg.*</svg>", page)[0])  # type: ignore[index]
    lines = [each.getAttribute("points").split() for each in drawn.getElementsByTagName("polyline")]
    assert [len(each) for each in lines] == [12, 3]
    assert capfd.readouterr() == ("", "")
    run(data, tmp_path / "other", listener=type("Mine", (ramlet.Listener,), {})(), max_steps=1)
    assert len(notebook.outputs) == 1


def test_elsewhere_it_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(make_data(tmp_path), tmp_path / "run", max_steps=2)
    assert capfd.readouterr() == ("", "")


def test_an_error_leaves_what_stood_there(notebook: Notebook) -> None:
    with pytest.raises(ZeroDivisionError), display.Display(Meter(Budget.parse("1GB"))) as shown:
        shown.progress("counting", 1, 4)
        shown.note("<b>&")
        raise ZeroDivisionError
    assert "25%" in notebook.text()
    assert "&lt;b&gt;&amp;" in notebook.outputs[0][-1]


def test_it_has_all_that_a_listener_has(notebook: Notebook) -> None:
    wanted = {name for name in vars(ramlet.Listener) if not name.startswith("_")}
    assert wanted <= set(dir(display.TrainingDisplay))
    shown = display.TrainingDisplay(Meter())
    shown.warned("careful")
    shown.stopping()
    shown.averaged(3, {"val": SimpleNamespace(loss=2.0)})
    shown.sampled(7, "x" * 1000)
    shown.saved(7, Path("run"))
    shown.stepped(1, 2, float("nan"), 1.0, 1)
    assert "warning: careful" in notebook.text()
    assert "average of the last 3: val loss 2.0000" in notebook.text()
    assert len(notebook.text()) < 1200


def test_a_curve_keeps_its_shape_in_bounded_memory() -> None:
    curve = Curve()
    for step in range(1, 100_001):
        curve.add(step, step / 1000)
    curve.add(100_001, float("inf"))
    points = curve.points()
    assert POINTS // 2 <= len(points) <= POINTS
    assert points[-1][0] == 100_000
    for step, value in points[:-1]:
        assert value == pytest.approx(step / 1000, abs=1.0)
    assert svg({"none": Curve()}, 10) == ""
    assert "nan" not in svg({"flat": curve}, 10)
    steep = Curve()
    steep.add(1, 1e12)  # of a run that diverged before its first evaluation
    assert "nan" not in svg({"one": steep}, 10)
