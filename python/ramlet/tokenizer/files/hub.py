"""Files of a repository on the Hugging Face hub, through its own client, which caches them.

Where the hub cannot be reached, only what is cached is looked for.
"""

from __future__ import annotations

import re
from logging import ERROR
from pathlib import Path

from ramlet.errors import TokenizerError
from ramlet.runtime.reachable import unreachable

__all__ = ["download", "looks_like_a_name"]


def looks_like_a_name(text: str) -> bool:
    """`owner/name`, where it cannot be meant as a file. A bare name is more often a mistyped path."""
    suffix = re.search(r"\.(?:json|tiktoken|txt|model|bpe)$", text)
    return suffix is None and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text) is not None


def download(repository: str, name: str) -> Path:
    """The file's path in the client's cache; fetched where it is not there yet."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import logging
    except ImportError:
        raise TokenizerError(
            f"cannot fetch {name} of {repository} from the hub: pip install 'ramlet[hf]', or give a file or folder"
        ) from None
    verbosity = logging.get_verbosity()
    logging.set_verbosity(ERROR)  # each of its retries would print two lines
    offline = unreachable()
    try:
        return Path(hf_hub_download(repository, name, local_files_only=bool(offline)))
    except Exception as error:  # noqa: BLE001 - the client lets through the errors of whatever transport it uses
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TokenizerError(
            f"cannot fetch {name} of {repository} from the hub ({offline or reason.rstrip('.')}): "
            "check the name and the network, or give a file or folder"
        ) from None
    finally:
        logging.set_verbosity(verbosity)
