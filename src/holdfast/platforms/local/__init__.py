"""This very box: the run directory is a local path, and the supervisor a process beside us."""

from __future__ import annotations

from .platform import LocalPlatform

__all__ = ["LocalPlatform"]
