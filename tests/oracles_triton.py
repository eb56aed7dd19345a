"""Triton's interpreter, for tests of kernels without a GPU. It must be asked for before Triton is imported."""

from __future__ import annotations

from typing import Any

import pytest


def mend_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of a loop are arrays of one value to Triton 3.6's interpreter; NumPy 2.4 makes no int of these."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_and_mend)
