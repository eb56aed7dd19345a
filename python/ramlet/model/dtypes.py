"""The dtypes of stored tensors, and conversion between them without an engine.

    DTYPES["BF16"].name, DTYPES["BF16"].itemsize      # bfloat16, 2
    convert(memory, "F32", "BF16", into)

NumPy has no bfloat16: it is the upper half of a float32. Numbers are rounded to the nearest, ties to even, as in every
engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Dtype(NamedTuple):
    name: str
    """As in PyTorch, NumPy and config.json files."""
    itemsize: int

    @property
    def floating(self) -> bool:
        return "float" in self.name


DTYPES = {
    "F64": Dtype("float64", 8),
    "F32": Dtype("float32", 4),
    "F16": Dtype("float16", 2),
    "BF16": Dtype("bfloat16", 2),
    "F8_E4M3": Dtype("float8_e4m3fn", 1),
    "F8_E5M2": Dtype("float8_e5m2", 1),
    "I64": Dtype("int64", 8),
    "I32": Dtype("int32", 4),
    "I16": Dtype("int16", 2),
    "I8": Dtype("int8", 1),
    "U64": Dtype("uint64", 8),
    "U32": Dtype("uint32", 4),
    "U16": Dtype("uint16", 2),
    "U8": Dtype("uint8", 1),
    "BOOL": Dtype("bool", 1),
}
"""By the names of safetensors, which all of ramlet uses for stored tensors."""

PRECISIONS = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
"""By the names that settings use."""

BLOCK = 1 << 16
"""Elements converted at a time: on top of the two buffers, memory for a few of these."""
NAN = 0x7FC0


def convert(memory: memoryview, given: str, wanted: str, into: memoryview) -> memoryview:
    """Converts floating-point elements to `wanted`, at the start of `into`; OverflowError if a finite number is too
    large for fp16."""
    import numpy as np

    source: Any = np.frombuffer(memory, _plain(given))
    target: Any = np.frombuffer(into, _plain(wanted), count=len(source))
    for start in range(0, len(source), BLOCK):
        block = source[start : start + BLOCK]
        wide = (block.astype(np.uint32) << 16).view(np.float32) if given == "BF16" else block
        with np.errstate(over="ignore", invalid="ignore"):
            # fp64 is converted to 16 bits via fp32, as in PyTorch.
            narrow = wide.astype(np.float32) if DTYPES[wanted].itemsize == 2 else wide
            narrow = _bfloat16(narrow) if wanted == "BF16" else narrow.astype(_plain(wanted))
        if wanted == "F16" and not np.array_equal(np.isfinite(wide), np.isfinite(narrow)):
            raise OverflowError
        target[start : start + BLOCK] = narrow
    return into[: len(source) * DTYPES[wanted].itemsize]


def _plain(dtype: str) -> str:
    return "uint16" if dtype == "BF16" else DTYPES[dtype].name


def _bfloat16(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    import numpy as np

    bits: Any = numbers.view(np.uint32)
    rounded = (bits + ((bits >> 16 & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(numbers), np.uint16(NAN), rounded.astype(np.uint16))
