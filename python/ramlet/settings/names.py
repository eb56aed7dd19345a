"""Names that are not known, and the one that was probably meant: settings, stages, keys, options, files.

check_names({"param": "1M"}, ["params", "tokens"])      there is no setting 'param': did you mean params?
nearest("corpsu", ["corpus", "data"])                   corpus
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ramlet.errors import SettingsError

__all__ = ["check_names", "meant", "nearest"]

SIMILAR = 0.75
"""A letter or two off, as `difflib` counts it; at its own 0.6 `wheel` is taken for `nowhere`."""


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Stops at the first name that is not known, with the one that was probably meant."""
    names = sorted(known)
    for name in given:
        if name not in names:
            raise SettingsError(f"there is no setting {name!r}: {meant(name, names)}")


def meant(name: str, known: Sequence[str]) -> str:
    """The one that was probably meant, or all there are."""
    near = nearest(name, known)
    return f"did you mean {near}?" if near else f"they are {', '.join(known)}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is so much like this one that it was probably meant."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), 1, SIMILAR)), None)
