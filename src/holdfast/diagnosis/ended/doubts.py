"""What speaks against an exit code 0: how the output ends, and what the job left behind. Pure.

An alarm that is wrong costs more than one that is missed: a traceback that was handled is followed by more output, one
loss that is not finite is passed over, a helper that ran beside the job all the time is no part of its work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.logs.survived import ends_in_exception
from holdfast.model.pattern import compile_later

if TYPE_CHECKING:
    from holdfast.diagnosis.evidence import LogFacts

LOSSES = 3
"""So many of the last losses must all be not finite; of fewer all, and at least two."""
LAST_LINES = 5
LATE_LINES = 3
_LOSS = compile_later(
    r"(?i)\b(?:train[_ /]?|val[_ /]?|total[_ /]?)?loss\b['\"]?\s*(?:\bis\b|[:=])?\s*['\"]?(?:tensor\()?"
    r"(?P<value>[-+]?(?:nan\b|inf(?:inity)?\b|\d[\d.]*(?:e[-+]?\d+)?))"
)
_SIGNAL = r"(?:SIG(?:TERM|INT|HUP)|signal:?\s*(?:15|2|1)\b|TERM\b)"
_FAREWELL = compile_later(
    rf"(?i)\b(?:received|got|caught|handling|interrupted by)\s+(?:an?\s+|the\s+)?(?:signal:?\s+)?{_SIGNAL}"
    rf"|\b{_SIGNAL}\)?\s+(?:was\s+)?(?:received|caught)|^\s*(?:\S+:.*\s)?Terminated\s*$"
)
"""A job that says that it was asked to leave; bash says ``Terminated`` of a child that TERM ended."""
_HELPER = compile_later(
    r"(?i)(?<![\w-])(?:tensorboard|wandb|mlflow|jupyter|monitor|exporter|sidecar|helper|child|subprocess"
    r"|(?:data ?)?loader|worker)s?(?![\w-])"
)
"""What a job starts beside itself, and ends when it is done; no part of the name of a box (``gpu-worker-01``)."""


def find_last_exception(facts: LogFacts, *, piped: bool) -> str:
    """The job's own exception with which the output ends; empty when more follows it, or it is none of its own.

    `piped`: what it printed came through `tee`, so that the last lines before the traceback may stand behind it.
    """
    return facts.exception if ends_in_exception(facts, LATE_LINES if piped else 0) else ""


def find_lost_losses(facts: LogFacts) -> tuple[str, ...]:
    """The last losses that the output names, where none of them is finite; else nothing."""
    values = [match["value"] for match in _LOSS.finditer(facts.tail)][-LOSSES:]
    lost = [value for value in values if value.lower().lstrip("+-").startswith(("nan", "inf"))]
    return tuple(lost) if len(lost) == len(values) > 1 else ()


def find_farewell(facts: LogFacts) -> str:
    """The line near the end by which the job itself says that a signal asked it to leave; empty without."""
    lines = [line.strip() for line in facts.tail.splitlines() if line.strip()]
    for line in reversed(lines[-LAST_LINES:]):
        said = _FAREWELL.search(line)
        if said and not _HELPER.search(line[: said.start()]):
            return line[:300]
    return ""
