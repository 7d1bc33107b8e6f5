"""What stands below a runs root and is no run: each account's own directories, under hidden names of its own.

Pure, and of the standard library of any Python: its text is sent to boxes that have nothing of ours.
"""

from __future__ import annotations


def bundles_dir(root: str, uid: int) -> str:
    """Where an account keeps bundles of holdfast, by their hash."""
    return f"{root}/.agent-{uid}"


def sweeps_dir(root: str, uid: int) -> str:
    """Where the sweeps of an account are that a scheduler runs, by their name."""
    return f"{root}/.sweeps-{uid}"


def trees_dir(root: str, uid: int) -> str:
    """Where an account keeps trees of code, by their hash."""
    return f"{root}/.code-{uid}"
