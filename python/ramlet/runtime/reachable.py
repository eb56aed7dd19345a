"""Whether the Hugging Face hub is there.

Without a network its client tries again and again, for half a minute. So the hub is asked once, briefly, before the
client is; where it does not answer, or the client is told to stay offline (HF_HUB_OFFLINE), only what is cached is of
use.
"""

from __future__ import annotations

from threading import Thread

__all__ = ["unreachable"]

PATIENCE = 2.5
"""Seconds for the hub's first answer."""


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
