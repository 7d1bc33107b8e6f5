"""The account and process that give a command, in words for records."""

from __future__ import annotations

import os

from holdfast.host.process import processes


def describe_caller() -> str:
    """The account and the process that act, in words."""
    return f"{processes.user_name(os.getuid())} (pid {os.getpid()})"
