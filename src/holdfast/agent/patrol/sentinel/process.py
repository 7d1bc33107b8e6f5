"""Runs a sentinel, in the foreground or as a process of its own, from its record to its message (MON-03).

Its record is written before it waits and says afterwards how it ended, and whether that was told, so that whoever looks
later, or arms another one for the same condition, knows. What it waits for is `sentinel`'s business.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from holdfast.agent.messages.tries import Undelivered
from holdfast.agent.patrol.tell import run_notify_command
from holdfast.agent.view import observe
from holdfast.core.job.redact import redact_text
from holdfast.host import clock
from holdfast.host.process import processes
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.record import replace

from . import records, wait
from .records import SentinelRecord
from .wait import ConditionAnswer, SentinelCondition

MOST_WORDS = 2000
CUT_OFF = "its process ended before anybody had taken it"


def main(words: list[str]) -> int:
    """``RUN_DIR CONDITION LIFE_S [COMMAND [ATTEMPT]]``: the detached one, which says on its log what goes wrong.

    With an attempt it takes the place of one that has not told its outcome.
    """
    run_dir, condition, life_s = words[0], wait.parse_condition(words[1]), float(words[2])
    command = words[3] if len(words) > 3 else None
    attempt = int(words[4]) if len(words) > 4 else None
    try:
        answer = keep_watch(run_dir, condition, life_s, command, detached=True, say=_say, attempt=attempt)[1]
    except HoldfastError as error:
        _say(f"{error}; {error.hint}" if error.hint else str(error))
        return error.exit_code
    _say(answer.words)
    return answer.exit_code


def _say(words: str) -> None:
    sys.stderr.write(f"holdfast: {words}\n")


def keep_watch(
    run_dir: str,
    condition: SentinelCondition,
    life_s: float,
    notify_command: str | None,
    *,
    detached: bool,
    say: Callable[[str], None],
    attempt: int | None = None,
) -> tuple[int, ConditionAnswer]:
    """Arm, wait, record the outcome and tell it: the attempt that it began at, and how it ended.

    Until somebody has taken it the record says that nobody was told; `holdfast reconcile` begins such a sentinel anew,
    at the `attempt` that it was at.

    Raises:
        StorageError: it cannot be recorded, or an earlier sentinel of its kind does not end.
        ResourceBusy: another one is just being armed.
    """
    earlier = None if attempt is None else records.read(records.path_of(os.path.basename(run_dir), condition.text))
    attempt = attempt or max(observe.list_attempts(run_dir), default=1)
    record = records.SentinelRecord(
        run_id=os.path.basename(run_dir),
        run_dir=run_dir,
        attempt=attempt,
        condition=condition.text,
        host=os.uname().nodename,
        process=processes.identify_self(),
        armed_at=clock.utc_now(),
        until=clock.epoch_s() + life_s,
        detached=detached,
        notify_command=redact_text(notify_command or ""),
    )
    try:
        superseded = records.arm(record)
    except OSError as error:
        raise StorageError(f"the sentinel cannot be recorded: {error}", hint="see XDG_STATE_HOME") from error
    if superseded is not None:
        say(f"took the place of pid {superseded.process.pid}, armed {superseded.armed_at}")
    tries = 1 if earlier is None or earlier.untold is None else earlier.untold.tries + 1
    answer = None
    try:
        answer = wait.wait_for_condition(run_dir, condition, max_s=life_s, attempt=attempt)
    finally:
        tells = notify_command and answer is not None and answer.verdict is not wait.ConditionState.ENDED
        _finish(record, answer, Undelivered(condition.text, tries, problem=CUT_OFF) if tells else None)
    if notify_command and tells:
        problem = _tell(notify_command, record, answer)
        if problem:
            say(f"nobody was told: {problem}")
            answer = replace(answer, words=f"{answer.words}; nobody was told: {problem}")
        untold = Undelivered(condition.text, tries, clock.epoch_s(), problem) if problem else None
        _finish(record, answer, untold)
    return attempt, answer


def _finish(record: SentinelRecord, answer: ConditionAnswer | None, untold: Undelivered | None) -> None:
    """Leave no record of a foreground wait, however it ended (Ctrl-C too); of a detached one its outcome."""
    if answer is None:
        records.finish(record, "failed", "it ended without an answer", 70)
    else:
        records.finish(record, answer.verdict.value, answer.words, answer.exit_code, untold)


def _tell(command: str, record: SentinelRecord, answer: ConditionAnswer) -> str:
    """Run the command; what went wrong with it, in words."""
    message = {
        "event": "sentinel",
        "run_id": record.run_id,
        "attempt": record.attempt,
        "condition": record.condition,
        "verdict": answer.verdict,
        "words": redact_text(answer.words)[:MOST_WORDS],
        "exit_code": answer.exit_code,
    }
    return run_notify_command(command, message)
