"""After a crash of ours: have a run that vanished finished by a new supervisor (PROC-15). Never starts a job again.

Only a run whose supervisor is dead, whose state is not `ended`, and of which nothing lives any more is settled here; a
live job without a supervisor is left to ``holdfast adopt``, because who watches it is its owner's choice.
"""

from __future__ import annotations

import os

from .launch import start_supervisor
from .observe import observe


def settle(run_dir: str) -> bool:
    """Start a supervisor that takes the run to its end; False when there is nothing to settle."""
    view = observe(run_dir)
    if not view.vanished:
        return False
    start_supervisor(run_dir, view.attempt, environ=os.environ, reason="adopt")
    return True
