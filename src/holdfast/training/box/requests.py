"""What the supervisor asks of a running job: a file that appears, to be looked for at a step boundary (LIM-03).

A file and not a signal: a signal that nobody handles ends the process, and saving inside a handler corrupts.
"""

from __future__ import annotations

import os


def checkpoint_requested() -> bool:
    """Whether the job was asked to save now, because its memory nears a limit: one look at a file, cheap.

    The request stays until the job removes it (``HOLDFAST_CHECKPOINT_REQUEST`` is its path). False outside of holdfast.
    """
    path = os.environ.get("HOLDFAST_CHECKPOINT_REQUEST", "")
    return bool(path) and os.path.exists(path)
