"""Writes `typed.py`, the types of the settings that Python functions take, from the declarations.

    python -m ramlet.settings.types          updates it; a test fails if it is out of date

Type checkers cannot read declarations: with these types, mypy and pyright find a misspelt name or value in
`ramlet.train("data", "run", batch_sise=8)`, and editors complete names and show their help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from ramlet.settings.declared import Setting, declared
from ramlet.settings.kinds import Choice, Count, Duration, Kind, Memory, Number, Place, Places, Strings, Switch, Text
from ramlet.settings.owners import owner

FILE = Path(__file__).with_name("typed.py")
FUNCTIONS = {
    "train": ("TrainSettings", "train"),
    "prepare": ("PrepareSettings", "prepare"),
    "tokenizer train": ("TokenizerSettings", "Tokenizer.train"),
    "generate": ("GenerateSettings", "generate"),
}
"""By command: the name of the type, and the function of `ramlet` that takes these settings."""

_HEAD = '''"""The settings of Python functions, for type checkers and editors.

Written by `python -m ramlet.settings.types`: do not change it by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Literal, TypedDict

Amount = int | float | str
"""2048, 1e6, "32k" or "10M"; of bytes also "200MB"."""
PathName = str | PathLike[str]
'''

_TYPES: tuple[tuple[type[Kind], str], ...] = (
    (Count, "Amount"),
    (Number, "float | str"),
    (Switch, "bool"),
    (Duration, "str"),
    (Memory, "int | str"),
    # The narrower of two classes comes first.
    (Places, "PathName | Iterable[PathName]"),
    (Strings, "str | Iterable[str]"),
    (Place, "PathName"),
    (Text, "str"),
)


def written() -> str:
    """The text of `typed.py`."""
    return _HEAD + "".join(_class(command, *names) for command, names in FUNCTIONS.items())


def _class(command: str, name: str, path: str) -> str:
    import ramlet

    function: Callable[..., Any] = attrgetter(path)(ramlet)
    settings = declared(owner(command))
    fields = [each for each in settings.values() if each.name not in inspect.signature(function).parameters]
    lines = [f"class {name}(TypedDict, total=False):", f'    """Of `ramlet.{path}`."""', ""]
    lines += [line for each in fields for line in (f"    {each.name}: {_type(each)}", _help(each, settings))]
    return "\n\n" + "\n".join(lines) + "\n"


def _type(each: Setting) -> str:
    if isinstance(each.kind, Choice):
        found = f"Literal[{', '.join(f'{name!r}' for name in each.kind.among)}]".replace("'", '"')
    else:
        found = next(text for kind, text in _TYPES if isinstance(each.kind, kind))
    return f"{found} | None" if each.default is None else found


def _help(each: Setting, settings: Mapping[str, Setting]) -> str:
    """Its help, with settings by their names in Python."""
    return f'    """{each.help.format(**{name: name for name in settings})}"""'


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
