"""The entry ``environment``: reads the environment of a login shell anew, for jobs that are to have it.

Answers ``names`` (how many variables there are) and ``path`` (its PATH); no other value leaves the box.
"""

from __future__ import annotations

import os

from holdfast.agent.login_environment import take_login_environment

from .answer import answer


def main(_words: list[str]) -> int:
    """Read it and keep it; the exit code."""
    return answer(_read)


def _read() -> dict[str, object]:
    found = take_login_environment(os.environ, anew=True)
    return {"names": len(found), "path": found.get("PATH", "")}
