"""Files of a repository on the Hugging Face hub, through its own client, which caches them."""

from __future__ import annotations

import re
from pathlib import Path

from ramlet.errors import TokenizerError

__all__ = ["download", "looks_like_a_name"]


def looks_like_a_name(text: str) -> bool:
    """`owner/name`, or a bare `name`, that cannot be meant as a file."""
    return re.fullmatch(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*", text) is not None and not re.search(
        r"\.(?:json|tiktoken|txt|model|bpe)$", text
    )


def download(repository: str, name: str) -> Path:
    """The file's path in the client's cache; fetched where it is not there yet."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise TokenizerError(
            f"cannot fetch {name} of {repository} from the hub: pip install 'ramlet[hf]', or give a file or folder"
        ) from None
    try:
        return Path(hf_hub_download(repository, name))
    except Exception as error:  # noqa: BLE001 - the client lets through the errors of whatever transport it uses
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TokenizerError(
            f"cannot fetch {name} of {repository} from the hub ({reason.rstrip('.')}): "
            "check the name and the network, or give a file or folder"
        ) from None
