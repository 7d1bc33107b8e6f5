"""Whether an end with exit code 0 asks for a second look. Cheap: the look itself is the diagnosis of an end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.core.run.outcome import LIMIT_FINDING
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.finding import Level

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.finding import Finding

TAIL_BYTES = 256 * 1024
"""As much of an output as the diagnosis holds for its end (`diagnosis.logs.lines`)."""
SIGNS = (
    *(b"traceback  most", b"fatal python error"),
    *(b" nan ", b" inf ", b" infinity ", b"non finite", b"invalid loss", b"minimum loss scale", b"already at minimum"),
    *(b"signal", b"sigterm", b"sigint", b"sighup", b" term ", b" terminated "),
    *(b" killed ", b"segmentation fault", b" aborted ", b" bus error ", b" illegal instruction "),
    *(b"floating point exception", b" trace breakpoint trap ", b" bad system call "),
    *(b"return code", b"exit code", b"exit status", b"exited with", b"non zero "),
    *(b" exiting ", b" aborting ", b" giving up ", b" quitting "),
    *(b" 0 image", b" 0 sample", b" 0 example", b" 0 file", b" 0 shard", b" 0 batch", b" 0 record", b" 0 row"),
    *(b" 0 token", b" 0 sequence", b" 0 document", b" 0 step", b" 0 item", b" 0 class", b" is empty", b"nothing to "),
    *(b"setting device to cpu", b"not compiled with cuda"),
    *(b" no " + what for what in (b"weights", b"checkpoint", b"model", b"result", b"output")),
    *(
        how + act
        for how in (b"could not ", b"cannot ", b"failed to ", b"unable to ")
        for act in (b"save", b"write", b"finali", b"upload", b"export", b"copy", b"sync", b"push")
    ),
    *(b" device  cpu ", b" device cpu ", b" train_runtime    0 0", b" train_runtime   0 0"),
)
"""What the end of an output has, as `_WORDS` makes it, when `diagnosis.ended.doubts` may find something in it."""
_COUNTED = re.compile(rb"step[\s:=\[]*([0-9]{1,9}) ?/ ?([0-9]{1,9})\b")
_WORDS = bytes(byte if byte < 128 and (chr(byte).isalnum() or byte == ord("_")) else ord(" ") for byte in range(256))
"""All that is no part of a word is a space: so `inf` is found before any sign of punctuation, and not in `info`."""


def is_doubtful(context: SupervisorContext, findings: Iterable[Finding]) -> bool:
    """Whether something may speak against a success: time, step, losses, output, memory, leftovers."""
    beat = context.heartbeat()
    step, planned, nonfinite = (beat.get(name) for name in ("step", "planned_steps", "nonfinite"))
    early = isinstance(step, (int, float)) and isinstance(planned, (int, float)) and step < planned
    warned = any(finding.id in ("duration", LIMIT_FINDING) and finding.level is Level.WARN for finding in findings)
    diverged = isinstance(nonfinite, int) and nonfinite > 0
    return early or warned or diverged or _left_behind(context) or has_sign(_read_tail(context, wire.OUTPUT))


def has_sign(tail: bytes) -> bool:
    """Whether the diagnosis may find a doubt in the end of an output; True for all in which it does."""
    lower = tail.lower()
    words = b" " + lower.translate(_WORDS) + b" "
    return any(sign in words for sign in SIGNS) or _counts_further(lower)


def _counts_further(tail: bytes) -> bool:
    """Whether the last line that counts steps is under half of what it counts to."""
    counted = _COUNTED.findall(tail)
    return bool(counted) and 2 * int(counted[-1][0]) < int(counted[-1][1])


def _left_behind(context: SupervisorContext) -> bool:
    return b'"event": "leftovers"' in _read_tail(context, wire.EVENTS)


def _read_tail(context: SupervisorContext, name: str) -> bytes:
    return files.read_tail(context.recorder.path(name), TAIL_BYTES)
