"""`ramlet tokenizer`: train | encode | decode | show | compare. One file a command."""

from __future__ import annotations

import typer

from ramlet.cli.options import new_app
from ramlet.cli.tokenizer import compare, decode, encode, show, train

__all__ = ["add_to"]

app = new_app(
    """Train tokenizers within a memory budget, and use them.

    ramlet tokenizer train corpus/ -v 32k -s "<|endoftext|>" -m 2GB --out tok
    ramlet tokenizer show my-tokenizer --text "Hello, world"
    """
)
for command in (train.train, encode.encode, decode.decode, show.show, compare.compare):
    app.command()(command)


def add_to(root: typer.Typer) -> None:
    root.add_typer(app, name="tokenizer")
