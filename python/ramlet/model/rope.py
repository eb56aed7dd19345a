"""Rotary positions as config files describe them: the base, and Llama 3's scaling of the frequencies.

    rope_of({"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, ...}})
    {"rope_base": 500000.0, "rope_scaling": RopeScaling(factor=32.0, ...)}

transformers up to 4.x writes `rope_theta` and `rope_scaling`; from 5.0 on everything is in `rope_parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ramlet.errors import SettingsError

_GROUPS = ("rope_scaling", "rope_parameters")
"""The first that has anything counts, as in transformers."""


@dataclass(frozen=True)
class RopeScaling:
    """`rope_type: llama3`, with the names of transformers: frequencies that are low for a context of
    `original_max_position_embeddings` are divided by `factor`, high ones are not, those in between by something in
    between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise SettingsError(f"rope_scaling has {name}: {value!r}, which should be a number above 0")
        if self.high_freq_factor <= self.low_freq_factor:
            raise SettingsError(
                f"rope_scaling has high_freq_factor {self.high_freq_factor}, "
                f"which must be above low_freq_factor, {self.low_freq_factor}"
            )

    def scaled(self, step: float) -> float:
        """A frequency, in radians per token: turns that take longer than the original context are slower, fast ones
        are not."""
        low, high = self.low_freq_factor, self.high_freq_factor
        turns = self.original_max_position_embeddings * step / (2 * math.pi)
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        return step * (share + (1 - share) / self.factor)

    def described(self) -> dict[str, Any]:
        """As a config has it."""
        return {"rope_type": "llama3", **asdict(self)}


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_base` and `rope_scaling` of a shape, those that the config has; raises SettingsError for other kinds."""
    key = next((key for key in _GROUPS if config.get(key)), None)
    group = config[key] if key is not None else {}
    kind = group.get("rope_type", group.get("type", "default")) if isinstance(group, Mapping) else group
    if not isinstance(group, Mapping) or kind not in ("default", "llama3"):
        raise SettingsError(f"{key} {kind} is not supported, only llama3: remove it, or use another model")
    if any(isinstance(value, Mapping) for value in group.values()):
        raise SettingsError(f"{key} differs between layers, which is not supported: use another model")
    for holder in (group, config):
        if holder.get("partial_rotary_factor") not in (None, 1):
            raise SettingsError("partial_rotary_factor is not supported, heads are rotated as a whole: remove it")
    base = group.get("rope_theta")
    found = {"rope_base": config.get("rope_theta") if base is None else base}
    if kind == "llama3":
        names = list(RopeScaling.__dataclass_fields__)
        values = {"original_max_position_embeddings": config.get("max_position_embeddings"), **group}
        if missing := [name for name in names if values.get(name) is None]:
            raise SettingsError(f"{key} has no {missing[0]}: add it")
        found["rope_scaling"] = RopeScaling(**{name: values[name] for name in names})
    return {name: value for name, value in found.items() if value is not None}
