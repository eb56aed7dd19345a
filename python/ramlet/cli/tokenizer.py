"""`ramlet tokenizer`: train | encode | decode | show | compare."""

from __future__ import annotations

import typer

from ramlet.cli.options import new_app

app = new_app("Train tokenizers within a memory budget, and use them.")


def add_to(root: typer.Typer) -> None:
    root.add_typer(app, name="tokenizer")
