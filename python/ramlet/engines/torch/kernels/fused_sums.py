# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# (the kernels are in Triton's language, which only looks like Python and has no types that mypy knows)
"""The last step of a gain's gradient: what each program has summed over its tokens, added up (see fused.py).

add_sums([gain_grad], sums)                                # sums: (programs, width)
add_sums([query_grad, key_grad], sums)                     # the first half of the rows is the first one's
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

# A column's rows are read at once, by enough programs for the whole device: the table is small and the latency of
# memory is all that counts. In torch's sums it was twice as long, and one kernel more.
_ROWS, _COLUMNS = 1024, 8


@triton.jit(do_not_specialize=["rows"])
def _add_sums_kernel(first_out, second_out, table, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    out = first_out if tl.program_id(1) == 0 else second_out
    table += tl.program_id(1) * rows * width
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < width)[None, :]
        total += tl.load(table + row * width + column[None, :], mask=inside, other=0.0)
    before = tl.load(out + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(out + column, before + tl.sum(total, axis=0), mask=column < width)


def add_sums(outs: Sequence[Tensor], sums: Tensor) -> None:
    """Adds the rows of `sums`, (programs, width) in fp32, to one tensor, or each half of them to one of two."""
    rows, width = len(sums) // len(outs), sums.shape[1]
    grid = triton.cdiv(width, _COLUMNS), len(outs)
    _add_sums_kernel[grid](outs[0], outs[-1], sums, rows, width, _ROWS, _COLUMNS, num_warps=8)
