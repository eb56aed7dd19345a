"""`ramlet data`: inspect | duplicates | verify | merge | export, each in its own file."""

from __future__ import annotations

from ramlet.cli.data import duplicates, export, inspect, merge, verify
from ramlet.cli.options import new_app

__all__ = ["app"]

app = new_app(
    """Inspect, verify, merge and export datasets.

    ramlet data inspect my-dataset
    ramlet data verify my-dataset
    """
)
for command in (inspect.inspect, duplicates.duplicates, verify.verify, merge.merge, export.export):
    app.add(command)
