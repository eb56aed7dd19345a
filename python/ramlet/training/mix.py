"""A mix of datasets with weights: `web=0.7`, `code=0.3`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ramlet.errors import SettingsError

Mix = list[tuple[str, float]]


def parse_data(names: Sequence[str]) -> Mix:
    """`["web=0.7", "code=0.3"]`, or names without weights, which count equally."""
    mix: Mix = []
    for name in names:
        path, mark, weight = name.rpartition("=")
        if not mark or os.path.exists(name):
            mix.append((name, 1.0))
            continue
        try:
            mix.append((path, float(weight)))
        except ValueError:
            raise SettingsError(f"{name}: the weight after = must be a number, as in {path}=0.5") from None
    return mix
