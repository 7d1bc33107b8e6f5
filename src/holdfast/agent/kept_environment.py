"""The environment of a run that another attempt may follow by itself, kept should its supervisor be killed.

It lies in memory only, in the account's private directory (0700, the file 0600), never on a disk: it may hold secrets.
Written before the job starts, removed when nothing follows any more; a restart of the box ends it, and with it every
attempt that nobody has asked for.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from holdfast.host.files import fallback, files

if TYPE_CHECKING:
    from collections.abc import Mapping

ENDING = ".environment"


def keep_environment(run_id: str, environ: Mapping[str, str]) -> None:
    """Keep it; where there is no memory to keep it in, a kill at the end costs the attempt that would have followed."""
    path = _path(run_id)
    if path is None:
        return
    try:
        # ASCII: what is no UTF-8 is lone surrogates here, which come back as they were.
        files.commit(path, json.dumps(dict(environ)).encode("ascii"), durable=False)
    except OSError:
        return


def read_kept(run_id: str) -> dict[str, str] | None:
    """What was kept; None when it is not there."""
    path = _path(run_id)
    if path is None:
        return None
    try:
        found = json.loads(files.read_bytes(path))
    except (OSError, ValueError):
        return None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else None


def drop_environment(run_id: str) -> None:
    """Remove it, if it is there."""
    path = _path(run_id)
    if path is not None:
        files.remove_quietly(path)


def _path(run_id: str) -> str | None:
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    return None if base is None else os.path.join(base, f"{run_id}{ENDING}")
