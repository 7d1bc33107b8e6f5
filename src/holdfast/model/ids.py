"""Run ids: when, what, and four random hex digits.

``20261120-104501-digits-3fa2`` sorts by time, is unique on the box because the run directory is created exclusively,
and is safe as a file name, an environment value and an argument.
"""

from __future__ import annotations

import re

from .pattern import compile_later

_RUN_ID = compile_later(r"\d{8}-\d{6}-[A-Za-z0-9][A-Za-z0-9._-]{0,47}-[0-9a-f]{4}", re.ASCII)
_NAME = compile_later(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}", re.ASCII)


def is_run_id(text: str) -> bool:
    """Whether `text` has the form of a run id."""
    return _RUN_ID.fullmatch(text) is not None


def build_run_id(stamp: str, name: str, suffix: str) -> str:
    """A run id from ``yyyymmdd-hhmmss`` (UTC), a valid name and four hex digits.

    Raises:
        ValueError: one of the parts is malformed.
    """
    run_id = f"{stamp}-{name}-{suffix}"
    if not is_run_id(run_id):
        raise ValueError(f"{run_id!r} is not a run id (yyyymmdd-hhmmss-name-hhhh)")
    return run_id


def name_of(run_id: str) -> str:
    """The human name inside a run id."""
    return run_id[16:-5]


def is_name(text: str) -> bool:
    """Whether `text` may name a run: 1 to 48 letters, digits, dots, underscores and dashes, no leading dash or dot."""
    return _NAME.fullmatch(text) is not None


def clean_name(text: str) -> str:
    """The nearest valid name to `text`; ``run`` when nothing usable is left."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text, flags=re.ASCII).strip("-._")[:48] or "run"
