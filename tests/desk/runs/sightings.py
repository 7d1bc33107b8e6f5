"""Rows and answers of a box as its ``agent poll`` gives them, for tests of what a desk makes of them."""

from __future__ import annotations

from typing import Any

from holdfast.model.ids import name_of
from holdfast.model.place import Place


def run_id(number: int, name: str = "digits") -> str:
    return f"20261120-10{number // 60:02d}{number % 60:02d}-{name}-0a1b"


def row(number: int = 1, name: str = "digits", **fields: Any) -> dict[str, Any]:
    """A run that goes on, unless told."""
    me = fields.pop("run_id", run_id(number, name))
    return {
        "root": "/runs",
        "run_id": me,
        "run_dir": f"/runs/{me}",
        "name": name_of(str(me)),
        "attempt": 1,
        "condition": "running",
        "exit_code": None,
        "created_at": "2026-11-20T10:00:00.000Z",
        "started_at": "2026-11-20T10:00:01.000Z",
        "ended_at": None,
        "cards": "0",
        "step": 12,
        "loss": "0.5",
        "note": "",
        "failure": "",
        "ended": False,
        "elapsed_s": 61.0,
        "desired": None,
        "submitted_by": "me",
        "submitted_from": "laptop",
        "vanished": False,
        **fields,
    }


def over(number: int = 1, name: str = "digits", **fields: Any) -> dict[str, Any]:
    """A run that succeeded."""
    return row(number, name, **{"condition": "succeeded", "exit_code": 0, "ended": True, **fields})


def answer(*rows: Any, **fields: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "runs": list(rows),
        "known": len(rows),
        "absent": [],
        "missing_roots": [],
        "notice": None,
        **fields,
    }


def place(name: str = "gpu1") -> Place:
    return Place(name, host=name)
