"""The exception tree is part of the public surface: what it derives from is what callers catch."""

from __future__ import annotations

import re

import pytest

from ramlet import errors

TREE = {
    "RamletError": (Exception,),
    "BudgetError": (errors.RamletError, ValueError),
    "SettingsError": (errors.RamletError, ValueError),
    "SourceError": (errors.RamletError, ValueError),
    "SourceChanged": (errors.SourceError,),
    "BrokenInput": (errors.SourceError,),
    "TokenizerError": (errors.RamletError, ValueError),
    "DatasetError": (errors.RamletError, ValueError),
    "ModelError": (errors.RamletError, ValueError),
    "TrainingStopped": (errors.RamletError,),
    "PipelineError": (errors.RamletError,),
    "DiskFull": (errors.RamletError, OSError),
    "InternalError": (errors.RamletError,),
    "Interrupted": (errors.RamletError,),
}


@pytest.mark.parametrize("name", TREE)
def test_parents(name: str) -> None:
    assert getattr(errors, name).__bases__ == TREE[name]


def test_no_error_is_missing_from_the_tree() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == set(TREE) == set(errors.__all__)


def test_docstring_draws_the_tree() -> None:
    """Each error is drawn, indented below its parent, with its built-in parent in brackets."""
    drawn = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"[ │├└─]*?(?=\w)(\w+)( +\((\w+)\))?", line)
        if match and match[1] in TREE:
            drawn[match[1]] = (match.start(1), match[3])
    assert set(drawn) == set(TREE)
    for name, (column, builtin) in drawn.items():
        parents = TREE[name]
        builtins = [parent.__name__ for parent in parents if parent in (ValueError, OSError)]
        assert [builtin] == (builtins or [None]), name
        if parents[0] is not Exception:
            assert column == drawn[parents[0].__name__][0] + 4, name


@pytest.mark.parametrize("name", TREE)
def test_str_is_the_sentence(name: str) -> None:
    """Also for DiskFull, whose OSError parent has ideas of its own about one argument."""
    assert str(getattr(errors, name)("no space left in /spill")) == "no space left in /spill"
