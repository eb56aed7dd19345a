"""Whether the Hugging Face hub can be reached.

Without a network its client retries for half a minute. So we send the hub one short request first; if it does not
answer, or HF_HUB_OFFLINE is set, only cached files can be used.
"""

from __future__ import annotations

from threading import Thread

PATIENCE = 2.5
"""Seconds to wait for the hub's first answer."""


def unreachable() -> str:
    """Why the hub cannot be used; "" if it answers."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and it is not in the cache"
    answers: list[str] = []
    # In a thread, because a silent name server blocks the caller whatever the timeout.
    request = Thread(target=lambda: answers.append(_connection_error(constants.ENDPOINT)), daemon=True)
    request.start()
    request.join(PATIENCE)
    return answers[0] if answers else f"no answer within {PATIENCE:g} s"


def _connection_error(address: str) -> str:
    """Any answer will do, even a refusal: the client explains that one better."""
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
        # The client brings its own certificates.
        return "" if isinstance(cause, SSLError) else f"no connection: {cause}"
