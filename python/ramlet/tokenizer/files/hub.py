"""Files of a repository on the Hugging Face hub, through its own client, which caches them.

If the hub cannot be reached, only the cache is searched.
"""

from __future__ import annotations

import re
from logging import ERROR
from pathlib import Path

from ramlet.errors import TokenizerError
from ramlet.runtime.reachable import unreachable


def looks_like_a_name(text: str) -> bool:
    """`owner/name` that cannot be meant as a file. A name without an owner is more often a mistyped path."""
    suffix = re.search(r"\.(?:json|tiktoken|txt|model|bpe)$", text)
    return suffix is None and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text) is not None


def download(repository: str, name: str) -> Path:
    """The path of the file in the client's cache, downloaded if needed."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import logging
    except ImportError:
        raise TokenizerError(
            f"cannot download {name} of {repository} from the hub: pip install 'ramlet[hf]', or give a file or folder"
        ) from None
    verbosity = logging.get_verbosity()
    logging.set_verbosity(ERROR)  # every retry would print two lines
    offline = unreachable()
    try:
        return Path(hf_hub_download(repository, name, local_files_only=bool(offline)))
    except Exception as error:  # noqa: BLE001 - the client passes on the errors of its HTTP library
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TokenizerError(
            f"cannot download {name} of {repository} from the hub ({offline or reason.rstrip('.')}): "
            "check the name and the network, or give a file or folder"
        ) from None
    finally:
        logging.set_verbosity(verbosity)
