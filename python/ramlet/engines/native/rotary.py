"""The tables of rotary positions: cos and sin, (positions, head width / 2) each, fp32.

    cos, sin = rotary_tables(shape, length=256)

The same bits on every machine: libraries differ in the last bit of powers, cosines and sines, so here they are only
computed for the first position, in decimal arithmetic. All other positions follow from it by turning, which needs
products and sums of fp64 alone: each is at most twenty turns away, so that the error stays far below the last bit of
fp32. Memory besides the tables is that of a block of positions.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ramlet.model.shape import Shape

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BLOCK = 256
"""Positions that are turned together."""
DIGITS = 40


def rotary_tables(shape: Shape, length: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Of the positions below `length`; at most those of the context."""
    import numpy as np

    length = min(length, shape.context)
    block = min(BLOCK, length)
    first = _first(shape)
    inside = _turned(first, block)
    # The last of a block is one turn short of the next.
    blocks = _turned(_times(inside[-1], first), -(-length // block))
    made = (np.empty((length, len(first)), np.float32), np.empty((length, len(first)), np.float32))
    for number, start in enumerate(range(0, length, block)):
        part = _times(inside[: length - start], blocks[number])
        for table, numbers in zip(made, (part.real, part.imag)):
            table[start : start + block] = numbers
    return made


def _turned(once: Any, count: int) -> Any:
    """(count, frequencies): 1, and `once` multiplied with itself: each number from two others."""
    import numpy as np

    turned = np.ones((count, len(once)), np.complex128)
    step, done = once, 1
    while done < count:
        some = min(done, count - done)
        turned[done : done + some] = _times(turned[:some], step)
        step, done = _times(step, step), done + some
    return turned


def _times(one: Any, other: Any) -> Any:
    """A complex product, whose parts are computed separately: fused, their last bits would depend on the machine."""
    import numpy as np

    real = one.real * other.real
    real = real - one.imag * other.imag
    imag = one.real * other.imag
    imag = imag + one.imag * other.real
    made = np.empty(real.shape, np.complex128)
    made.real, made.imag = real, imag
    return made


def _first(shape: Shape) -> Any:
    """The turns of one position, as complex numbers."""
    import numpy as np

    with decimal.localcontext() as context:
        context.prec = DIGITS
        turns = [_turn(step) for step in frequencies(shape)]
    return np.array(turns, np.complex128)


def frequencies(shape: Shape) -> list[float]:
    """The angles of one position."""
    half = shape.head_width // 2
    with decimal.localcontext() as context:
        context.prec = DIGITS
        steps = [float(Decimal(shape.rope_base) ** (Decimal(-number) / half)) for number in range(half)]
    return steps if shape.rope_scaling is None else [shape.rope_scaling.scaled(step) for step in steps]


def _turn(angle: float) -> complex:
    """cos and sin, by their series: angles are at most 1."""
    cos, sin, term = Decimal(0), Decimal(0), Decimal(1)
    for number in range(DIGITS):
        sign = -1 if number % 4 > 1 else 1
        if number % 2:
            sin += sign * term
        else:
            cos += sign * term
        term = term * Decimal(angle) / (number + 1)
    return complex(float(cos), float(sin))
