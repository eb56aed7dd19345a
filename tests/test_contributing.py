"""The drills in CONTRIBUTING.md fit the code: files, functions and lines that a diff starts from exist."""

from __future__ import annotations

import re

import pytest

from documented import ROOT, blocks

DIFFS = blocks(ROOT / "CONTRIBUTING.md", "diff")
NEW = "/dev/null"


def files(diff: str) -> list[tuple[str, str, list[str]]]:
    """The path before and after, and the lines, of each file of a diff."""
    parts = re.split(r"^--- (\S+)\n\+\+\+ b/(\S+)\n", diff, flags=re.M)[1:]
    return [
        (before.removeprefix("a/"), after, lines.splitlines())
        for before, after, lines in zip(parts[::3], parts[1::3], parts[2::3])
    ]


ALL = [each for diff in DIFFS for each in files(diff)]


def test_there_are_drills() -> None:
    assert len(ALL) >= 18


@pytest.mark.parametrize(("before", "after", "lines"), ALL, ids=[after for _, after, _ in ALL])
def test_a_drill_fits_the_code(before: str, after: str, lines: list[str]) -> None:
    if before == NEW:
        assert not (ROOT / after).exists()
        assert all(line.startswith("+") for line in lines)
        return
    assert before == after
    code = re.sub(r"\s+", " ", (ROOT / after).read_text(encoding="utf-8"))
    for line in lines:
        if line.startswith("@@ "):  # a function or class; its arguments may be shortened
            assert re.match(r"[^({]*", line[3:])[0].strip() in code, line  # type: ignore[index]
        elif not line.startswith("+"):
            for part in line[1:].split("..."):
                assert re.sub(r"\s+", " ", part).strip() in code, line
