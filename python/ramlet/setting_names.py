"""Names that a caller gives: settings as keywords, stages of a pipeline.

check_names({"param": "1M"}, ["params", "tokens"])      there is no setting 'param': did you mean params?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ramlet.errors import SettingsError

__all__ = ["check_names", "meant"]


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Stops at the first name that is not known, with the one that was probably meant."""
    names = sorted(known)
    for name in given:
        if name not in names:
            raise SettingsError(f"there is no setting {name!r}: {meant(name, names)}")


def meant(name: str, known: Sequence[str]) -> str:
    """The one that was probably meant, or all there are."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"they are {', '.join(known)}"
