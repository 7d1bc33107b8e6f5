"""What stands beside a job: observe, decide, commit, act."""

from __future__ import annotations
