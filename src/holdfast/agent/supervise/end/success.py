"""Whether an end with exit code 0 asks for a second look. Cheap: the look itself is the diagnosis of an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.finding import Level

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.finding import Finding

TAIL_BYTES = 16 * 1024
SIGNS = (
    *(b"traceback (most", b"nan", b"inf ", b"inf,", b"inf)", b"inf\n"),
    *(b"signal", b"terminated", b"sigterm", b"sigint", b"sighup"),
)
"""What the end of an output has, in small letters, when `diagnosis.ended.doubts` may find something in it."""


def is_doubtful(context: SupervisorContext, findings: Iterable[Finding]) -> bool:
    """Whether something may speak against a success: its time, its last step, its losses, its output, what it left."""
    beat = context.heartbeat()
    step, planned, nonfinite = (beat.get(name) for name in ("step", "planned_steps", "nonfinite"))
    early = isinstance(step, (int, float)) and isinstance(planned, (int, float)) and step < planned
    fast = any(finding.id == "duration" and finding.level is Level.WARN for finding in findings)
    diverged = isinstance(nonfinite, int) and nonfinite > 0
    return early or fast or diverged or _left_behind(context) or _ends_oddly(context)


def _ends_oddly(context: SupervisorContext) -> bool:
    tail = files.read_tail(context.recorder.path(wire.OUTPUT), TAIL_BYTES).lower()
    return any(sign in tail for sign in SIGNS)


def _left_behind(context: SupervisorContext) -> bool:
    return b'"event": "leftovers"' in files.read_tail(context.recorder.path(wire.EVENTS), TAIL_BYTES)
