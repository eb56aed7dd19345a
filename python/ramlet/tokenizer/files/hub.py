"""Files of a repository on the Hugging Face hub, through its own client, which caches them.

Without a network the client tries again and again, for half a minute. So the hub is asked once, briefly, whether it is
there; where it is not, or the client is told to stay offline (HF_HUB_OFFLINE), only what is cached is looked for.
"""

from __future__ import annotations

import re
from logging import ERROR
from pathlib import Path
from threading import Thread

from ramlet.errors import TokenizerError

__all__ = ["download", "looks_like_a_name", "unreachable"]

PATIENCE = 2.5
"""Seconds for the hub's first answer."""


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


def unreachable() -> str:
    """Why there is no use in asking the hub for anything; "" where it answers."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and it is not in the cache"
    told: list[str] = []
    # A thread of its own, for a name server that is silent holds up the caller whatever the timeout.
    asking = Thread(target=lambda: told.append(_asked(constants.ENDPOINT)), daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return told[0] if told else f"no answer within {PATIENCE:g} s"


def _asked(address: str) -> str:
    """Any answer will do, also a refusal: what is wrong then, the client knows to tell."""
    from http.client import HTTPException
    from ssl import SSLError
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(address, method="HEAD"), timeout=PATIENCE):
            return ""
    except HTTPError:
        return ""
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        # The client has certificates of its own.
        return "" if isinstance(cause, SSLError) else f"no connection: {cause}"
