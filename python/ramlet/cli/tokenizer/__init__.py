"""`ramlet tokenizer`: train | encode | decode | show | compare, each in its own file."""

from __future__ import annotations

from ramlet.cli.options import new_app
from ramlet.cli.tokenizer import compare, decode, encode, show, train

__all__ = ["app"]

app = new_app(
    """Train and use tokenizers within a memory budget.

    ramlet tokenizer train corpus/ -v 32k -s "<|endoftext|>" -m 2GB --out tok
    ramlet tokenizer show my-tokenizer --text "Hello, world"
    """
)
for command in (train.train, encode.encode, decode.decode, show.show, compare.compare):
    app.add(command)
