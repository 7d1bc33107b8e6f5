"""Where holdfast keeps what is its own on this account."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.host.files.ownership import make_own_directory

HOME_RUNS = "~/.local/share/holdfast/runs"


def state_directory() -> str:
    """Where holdfast keeps what is its own on this account: ``$XDG_STATE_HOME/holdfast``."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{base}/holdfast"


def make_state_directory(below: str = "") -> str:
    """The state directory, or a directory `below` it, made when there is none.

    Raises:
        NotPermitted: another account could replace it.
        StorageError: it cannot be made.
    """
    path = f"{state_directory()}/{below}".rstrip("/")
    make_own_directory(path, "the state directory", "let XDG_STATE_HOME name a place of your own")
    return path


def queue_directory() -> str:
    """``$HOLDFAST_QUEUE``, else ``<state directory>/queue/<host name>``: one queue for each account and box."""
    asked = os.environ.get("HOLDFAST_QUEUE")
    return os.path.abspath(asked) if asked else f"{state_directory()}/queue/{os.uname().nodename}"


def default_root(environ: Mapping[str, str] = os.environ) -> str:
    """The runs root without ``--runs``: ``$HOLDFAST_RUNS``, else ``holdfast/runs`` in the account's data directory.

    That is ``$XDG_DATA_HOME``, else ``~/.local/share``. Source: XDG Base Directory Specification (absolute paths only).
    """
    stated, data = environ.get("HOLDFAST_RUNS"), environ.get("XDG_DATA_HOME", "")
    if stated:
        return os.path.abspath(stated)
    return f"{data.rstrip('/')}/holdfast/runs" if data.startswith("/") else os.path.expanduser(HOME_RUNS)
