"""Telling people outside of a run's own life: the command that a patrol or a sentinel was given."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from ..host.offload import Offload, OffloadFailed
from ..model import wire
from ..model.job import Notify
from ..model.run import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping


def tell(command: str, message: Mapping[str, object]) -> str:
    """Run `command` (words as a shell would split them, no shell) with `message` as JSON on its input.

    Answers what went wrong, in words; empty when nothing did. Bounded by the notifier's own limits; a message of more
    than 4 KiB would be cut (`notify.deliver`), so callers keep it short.
    """
    from .notify import COMMAND_LIMIT_S, MARGIN_S, deliver

    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        return f"{command!r}: {error}"
    if not words:
        return "the command is empty"
    body = json.dumps({"schema": SCHEMA, **wire.encode(dict(message))}).encode()
    try:
        problems = Offload(lambda: deliver(Notify(command=words), body)).wait(COMMAND_LIMIT_S + 2 * MARGIN_S)
    except (OffloadFailed, OSError) as error:
        return str(error)
    return str(problems.get("command") or "")
