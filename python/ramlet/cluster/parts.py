"""A slice of a stage's parts, for a scheduler that starts many processes.

    Slice.parse("3/16").of(1000)     parts 2, 18, 34, ... of 1,000: every 16th, from the third on

Slices are numbered from 1, like the tasks of `sbatch --array=1-16` and of `seq 16`. Any number of slices works with any
number of parts. They are strided because neighboring files tend to be alike: each slice gets some of the large ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ramlet.errors import SettingsError, option


@dataclass(frozen=True)
class Slice:
    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Slice:
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        if found is None:
            raise SettingsError(f"{option('part')} is {text!r}: give which of how many, as in 3/16")
        number, count = int(found[1]), int(found[2])
        if not 1 <= number <= count:
            raise SettingsError(f"{option('part')} {text} does not exist: parts are numbered from 1 to {count}")
        return cls(number, count)

    def of(self, parts: int) -> range:
        """The indices of its parts."""
        return range(self.number - 1, parts, self.count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"
