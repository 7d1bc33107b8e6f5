"""Where holdfast keeps what is its own on this account: the paths, and nothing that has to be loaded for them."""

from __future__ import annotations

import os


def state_directory() -> str:
    """Where holdfast keeps what is its own on this account: ``$XDG_STATE_HOME/holdfast``."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{base}/holdfast"


def queue_directory() -> str:
    """``$HOLDFAST_QUEUE``, else ``<state directory>/queue/<host name>``: one queue for each account and box."""
    asked = os.environ.get("HOLDFAST_QUEUE")
    return os.path.abspath(asked) if asked else f"{state_directory()}/queue/{os.uname().nodename}"
