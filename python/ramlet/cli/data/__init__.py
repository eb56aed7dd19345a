"""`ramlet data`: inspect | verify | merge | export. One file a command."""

from __future__ import annotations

import typer

from ramlet.cli.data import export, inspect, merge, verify
from ramlet.cli.options import new_app

__all__ = ["add_to"]

app = new_app(
    """Look into datasets, check them, put them together, hand them on.

    ramlet data inspect my-dataset
    ramlet data verify my-dataset
    """
)
for command in (inspect.inspect, verify.verify, merge.merge, export.export):
    app.command()(command)


def add_to(root: typer.Typer) -> None:
    root.add_typer(app, name="data")
