"""`ramlet demo`: its text, its measure, its commands, and all of it as a user runs it."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import RunRamlet
from ramlet.demo.plausible import Plausible, plausible
from ramlet.demo.script import FULL, QUICK, Script, steps_in
from ramlet.demo.stdlib_text import gather
from ramlet.errors import SourceError


class TestText:
    def test_every_source_is_a_document_and_no_other_file(self, tmp_path: Path) -> None:
        root = tmp_path / "lib"
        for name, text in {
            "a.py": "x = 1\n",
            "inner/b.py": "y = '\u00e9'\n",
            "test/c.py": "left = 'out'\n",
            "site-packages/d.py": "left = 'out'\n",
            "encodings/table.py": "left = 'out'\n",
            "note.txt": "no source\n",
            "empty.py": "\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        (root / "odd.py").write_bytes(b"# coding: latin-1\nz = '\xe9'\n")
        (root / "broken.py").write_bytes(b"w = '\xff'\n")
        gathered = gather(tmp_path / "text.jsonl", root=root)
        documents = [json.loads(line) for line in (tmp_path / "text.jsonl").read_text().splitlines()]
        assert {one["path"]: one["text"] for one in documents} == {
            "a.py": "x = 1\n",
            "inner/b.py": "y = '\u00e9'\n",
            "odd.py": "# coding: latin-1\nz = '\u00e9'\n",
        }
        assert gathered.files == 3
        (root / "later.py").write_text("later = 1\n")
        assert gather(tmp_path / "text.jsonl", root=root) == gathered, "what is there stays"
        assert gathered.size == sum(len(one["text"].encode()) for one in documents)

    def test_less_is_spread_over_all_of_it(self, tmp_path: Path) -> None:
        root = tmp_path / "lib"
        root.mkdir()
        for number in range(20):
            (root / f"{number:02}.py").write_text(f"x = {number:02}\n" * 10)
        gather(tmp_path / "text.jsonl", most=20 * 70 // 4, root=root)
        paths = [json.loads(line)["path"] for line in (tmp_path / "text.jsonl").read_text().splitlines()]
        assert paths == ["00.py", "04.py", "08.py", "12.py", "16.py"]

    def test_a_python_without_sources_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="has no Python sources"):
            gather(tmp_path / "text.jsonl", root=tmp_path)
        assert not list(tmp_path.iterdir())


STATEMENTS = [
    "x = 1",
    "    return x + 1",
    "yield x, y",
    "await f(x)",
    "for x in y:",
    "if x:  # why",
    "elif x == 3:",
    "except ValueError as error:",
    "with open(x) as y:",
    "class A(B):",
    "def f(self, *, x: int = 1) -> None:",
    "@decorated(1)",
    "case [1, 2]:",
    "match x.y:",
    "from a import b",
    "x = f(1,\n      2)",
    "x = '''a\nb'''",
    "x = 1 + \\\n  2",
]
NONSENSE = [
    "foo bar",
    "def (x):",
    "x = = 1",
    "return return",
    ") + x",
    "x = 'open",
    "1 = x",
    "if x",
    "else x:",
    "class:",
]
NOTHING = ["", "   ", "# a comment", "x", "pass", "'''doc'''", "'''doc\nfoo bar baz\n'''", "try:", "else:", "break"]


class TestPlausible:
    @pytest.mark.parametrize("statement", STATEMENTS)
    def test_statements_are_taken(self, statement: str) -> None:
        judged = plausible(statement)
        assert judged.taken == judged.lines == statement.count("\n") + 1

    @pytest.mark.parametrize("line", NONSENSE)
    def test_nonsense_is_not(self, line: str) -> None:
        judged = plausible(line)
        assert (judged.lines, judged.taken) == (1, 0)

    @pytest.mark.parametrize("text", NOTHING)
    def test_what_says_nothing_is_not_counted(self, text: str) -> None:
        assert plausible(text).lines == 0

    def test_what_is_never_closed_costs_one_line_not_all(self) -> None:
        judged = plausible("x = f(1,\ny = 2\nz = 3 +\nw = 4")
        assert (judged.lines, judged.taken) == (4, 2)

    def test_a_text_that_was_cut_loses_its_last_line(self) -> None:
        assert plausible("x = 1\ny = = 2", cut=True).share == 1.0
        assert plausible(["x = 1\ny =", "z = 1\n"], cut=True).lines == 2

    def test_a_docstring_that_was_cut_is_not_counted(self) -> None:
        text = 'x = 1\n\ndef f(a):\n    """What it does.\n\n    More about it, in words\n    and'
        assert plausible(text, cut=True) == Plausible(lines=2, taken=2)
        assert plausible(text).share < 0.5, "a whole text closes its strings"
        # Only a docstring: whatever else is left open is invalid.
        assert plausible("x = (1,\nfoo bar baz\nand", cut=True).taken == 0

    def test_real_code_is_nearly_all_taken(self) -> None:
        text = Path(ast.__file__).read_text(encoding="utf-8")
        judged = plausible(text)
        assert judged.lines > 500
        assert judged.share > 0.95

    @given(st.text(st.sampled_from("ab1 :\n()[]'\"\\@=.,#\t\x00\u00e9"), max_size=60))
    def test_no_text_breaks_it(self, text: str) -> None:
        judged = plausible(text)
        assert 0 <= judged.taken <= judged.lines <= text.count("\n") + 1


class TestScript:
    def test_slow_machines_make_fewer_steps(self) -> None:
        a_step = FULL.seq_len * FULL.batch_size
        assert steps_in(FULL, FULL.steps * a_step / FULL.seconds * 2) == FULL.steps
        assert steps_in(FULL, FULL.steps * a_step / FULL.seconds / 2) == FULL.steps // 2
        assert steps_in(FULL, 1.0) == FULL.least_steps
        assert steps_in(QUICK, None) == QUICK.steps


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mine/a.md", "mine", "mine holds something else (a.md is in it): choose another --out, or an empty folder"),
        ("mine", "mine", "mine is a file: give a folder for the demo"),
        ("mine/python.jsonl", "{}", "mine/python.jsonl is not the text of a demo: remove it, or choose another --out"),
    ],
)
def test_a_folder_of_something_else(name: str, content: str, said: str, tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    assert ramlet("demo", "--quick", "--out", "mine").stderr == f"error: {said}\n"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [Path(name).name]


def waiting_memory_in_it(refusal: str) -> int:
    found = re.search(r"([\d.]+) MB for the process that waits", refusal)
    assert found is not None, refusal
    return round(float(found[1]) * 1e6)


def test_the_quick_demo_goes_from_text_to_a_report(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "ramlet", "demo", "--quick", "--out", str(out), "--memory"]
    environment = {**os.environ, "NO_COLOR": "1"}
    # Refused before anything is done, with a budget that is enough for all of it.
    refused = subprocess.run([*command, "64MB"], capture_output=True, text=True, env=environment, timeout=600)
    assert refused.returncode == 1
    assert not refused.stdout
    assert not out.exists()
    named = re.fullmatch(r"error: needs at least (\d+)MB: .* for the largest of the stages, .*\n", refused.stderr)
    assert named is not None, refused.stderr
    command.append(f"{named[1]}MB")
    left = int(named[1]) * 10**6 - waiting_memory_in_it(refused.stderr)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    script = Script(out, QUICK, f"{left // 10**6}MB")
    # Every command is shown as it was run.
    for words in (script.tokenizer, script.prepare, script.plan, script.report):
        assert f"$ ramlet {' '.join(words[:2])}" in done.stdout
    assert "step 0 writes" in done.stderr  # notes of `ramlet train`
    measures = json.loads((out / "run" / "measures.json").read_text())["measures"]
    untrained, trained, real = (point["value"] for point in measures[0]["points"])
    # On a busy machine the model trains for few steps: its lines may be no better yet, but its loss is.
    assert untrained <= trained < real
    losses = [line["loss"] for line in map(json.loads, (out / "run" / "metrics.jsonl").open()) if "loss" in line]
    assert losses[-1] < losses[0]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert measures[0]["name"] in page
    stats = json.loads((out / "run" / "stats.json").read_text())
    assert stats["memory"]["peak"] <= left
    # All stages together, this process included.
    assert f"of {named[1]} MB, all stages together" in done.stdout
    # Again, there is nothing left to do.
    again = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("nothing to do") == 3
