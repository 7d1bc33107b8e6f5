"""Where the sockets of shared connections stand: a directory that only we can enter, with a short name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys

LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107
"""Bytes of a socket's path. Source: sun_path of unix(7) and unix(4), less the final NUL."""
TEMPORARY_SUFFIX = 17
"""ssh makes the socket under another name first: a dot and 16 letters more. Source: mux.c, muxserver_listen."""


def find_socket(identity: str) -> str | None:
    """A path for the connection that `identity` describes, or None where no directory of ours is short enough."""
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    for directory in _list_directories():
        path = os.path.join(directory, name)
        if len(os.fsencode(path)) + TEMPORARY_SUFFIX <= LONGEST_SOCKET and _is_private(directory):
            return path
    return None


def _list_directories() -> list[str]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    shared = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - see below
    # The name in a shared directory can be guessed, as tmux's can, but not taken: `_is_private`. Who makes it first
    # has us open a connection for each call, no more.
    found = [os.path.join(runtime, "holdfast"), os.path.join(shared, f"holdfast-ssh-{os.getuid()}")]
    return [path for path in found if os.path.isabs(path)]


def _is_private(directory: str) -> bool:
    """Make the directory if it is not there; whether it is ours alone, and no link."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        found = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
