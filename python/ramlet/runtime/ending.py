"""The end of a process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """If torch was loaded, the process ends without unloading torch's libraries, which would read 200 MB of their files
    back into memory and exceed any budget. Everything that matters is closed and on disk by then."""
    if "torch" in sys.modules:
        import atexit

        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
