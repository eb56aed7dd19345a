"""Progress in a notebook, where `ramlet.prepare` and `ramlet.train` show it without being asked.

    display.py     what is shown: the stages, and of a run also its loss curve; redrawn in place
    curve.py       a curve of any number of points, in bounded memory, as SVG

Everywhere else the library is silent. IPython is never imported: in a notebook it is loaded already.
"""

from __future__ import annotations

import sys
from typing import Any


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; False in IPython's terminal."""
    shell = _shell()
    return any(each.__name__ == "ZMQInteractiveShell" for each in type(shell).__mro__)


def _shell() -> Any:
    ipython: Any = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
