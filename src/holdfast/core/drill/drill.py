"""Judges from the attempts of a drill whether an interrupted training continues. Pure.

Compared are an uninterrupted run, the reference, and one that was interrupted again and again. What differs between
the two before the first interruption cannot be blamed on interruptions: the first attempt is its own control.

Absence of evidence is no success: what could not be compared is said to be not proven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

from holdfast.model.record import field, record
from holdfast.model.units import format_count

from .compare import Comparison, Rows, compare_runs, describe_difference

NOTES = "run.state"
"""What a script keeps beside its training (`Run.state`): a clock in it is no difference of the training."""
EXIT_STOPPED = 143
"""What the training library leaves with when it was asked to stop: 128 + SIGTERM."""


class AttemptEnd(str, Enum):
    """How an attempt ended: by itself, by our KILL, by our TERM, with an error of its own, or cut at the time limit."""

    FINISHED = "finished"
    KILLED = "killed"
    STOPPED = "stopped"
    FAILED = "failed"
    CUT = "cut"


class DrillVerdict(str, Enum):
    """What a rehearsal shows; the value is what people read."""

    EXACT = "continues exactly"
    INEXACT = "continues, not bit for bit"
    UNPROVEN = "continues; whether exactly cannot be told"
    STARTS_OVER = "starts over"
    NO_CHECKPOINT = "no checkpoint was ever made"
    GOES_BACK = "goes back further than its newest checkpoint"
    SKIPS = "skips steps"
    FAILS = "fails after an interruption"
    DOES_NOT_STOP = "continues, but does not stop well"
    UNFINISHED = "was not done in time"
    TOO_SHORT = "was over before it could be interrupted"
    SHARED = "cannot be told: it does not begin at its beginning"
    BROKEN = "fails without any interruption"


@record
class AttemptTrail:
    """One attempt as it was seen. Steps are numbers of complete steps; None: not seen.

    `first` is the step at which it began, `last` the last one that is known; `durable` the newest durable checkpoint
    when it began, `files` how many files of any kind were then where checkpoints belong; `rows` the logged values by
    step; `prints` a digest of each part of the state, by the checkpoint's step; `stop` what its stop record says.
    Times are seconds.
    """

    attempt: int
    end: AttemptEnd
    first: int | None = None
    last: int | None = None
    durable: int | None = None
    files: int = 0
    rows: Rows = field(default_factory=dict)
    prints: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    exit_code: int | None = None
    stop: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    words: str = ""


@record
class DrillLine:
    """One line of the report: what was looked at, whether it is as it should be (None: not told), and what was seen."""

    what: str
    good: bool | None
    words: str


@record
class DrillJudgement:
    """The verdict, in one more sentence why, the lines of the report, and how many steps were done again."""

    verdict: DrillVerdict
    why: str
    lines: tuple[DrillLine, ...] = ()
    redone: int = 0
    compared: int = 0

    @property
    def passed(self) -> bool:
        """Whether the training continued as if nothing had happened."""
        return self.verdict is DrillVerdict.EXACT


def judge_drill(
    reference: AttemptTrail, trails: Sequence[AttemptTrail], *, source: str = "metrics", stop: bool = False
) -> DrillJudgement:
    """Judge a rehearsal.

    `source` says what `rows` were read from (``metrics`` or ``heartbeats``); with `stop` one interruption was to be a
    TERM.
    """
    early = _judge_reference(reference, trails) or _judge_ends(trails)
    redone = count_redone(trails)
    if early is not None:
        return DrillJudgement(*early, (), redone)
    steps = _judge_resumes(reference, trails, source)
    if steps[0] is not None:
        return DrillJudgement(steps[0], steps[1], (DrillLine("steps", False, steps[1]),), redone)
    rows = compare_runs([(t.attempt, t.rows) for t in trails], reference.rows)
    prints = compare_runs([(t.attempt, t.prints) for t in trails], reference.prints)
    lines = [DrillLine("steps", True, steps[1]), _line_of_rows(rows, source), *_lines_of_prints(prints)]
    stopping = _judge_stops(trails)
    if stop and not stopping:
        words = (
            f"no attempt left after a TERM: attempt {trails[-1].attempt} was done without, or went on in spite of it"
        )
        stopping.append(DrillLine("stop", None, words))
    lines += stopping
    verdict, why = _conclude(rows, prints, source)
    bad = next((line for line in stopping if not line.good), None)
    if bad is not None and verdict is not DrillVerdict.INEXACT:
        verdict, why = DrillVerdict.DOES_NOT_STOP, bad.words
    return DrillJudgement(verdict, why, tuple(lines), redone, max(rows.steps, prints.steps))


def count_redone(trails: Sequence[AttemptTrail]) -> int:
    """How many steps were done a second time, as far as was seen."""
    return sum(
        max(before.last - after.first, 0)
        for before, after in pairwise(trails)
        if before.last is not None and after.first is not None
    )


# ----------------------------------------------------------------------------------------------- how attempts ended


def _judge_reference(reference: AttemptTrail, trails: Sequence[AttemptTrail]) -> tuple[DrillVerdict, str] | None:
    if reference.end is AttemptEnd.FAILED:
        return DrillVerdict.BROKEN, f"exit code {reference.exit_code}{_quote(reference.words)}"
    start, end = reference.first, reference.last
    first = trails[0].first if trails else None
    if None not in (start, end, first) and first > (start + end) / 2:  # type: ignore[operator]  # none is None
        return DrillVerdict.SHARED, (
            f"its second run began at step {first}, where the first one had left something; let it keep its "
            "checkpoints in HOLDFAST_CHECKPOINT_DIR, which is another directory in each run"
        )
    return None


def _judge_ends(trails: Sequence[AttemptTrail]) -> tuple[DrillVerdict, str] | None:
    failed = next((trail for trail in trails if trail.end is AttemptEnd.FAILED), None)
    interrupted = [trail for trail in trails if trail.end in (AttemptEnd.KILLED, AttemptEnd.STOPPED)]
    if failed is not None:
        return (
            DrillVerdict.FAILS,
            f"attempt {failed.attempt} ended with exit code {failed.exit_code}{_quote(failed.words)}",
        )
    if not interrupted or len(trails) < 2:
        return DrillVerdict.TOO_SHORT, "it was done before the first interruption was due"
    if trails[-1].end is AttemptEnd.CUT:
        last = trails[-1]
        return DrillVerdict.UNFINISHED, f"attempt {last.attempt} was at step {_number(last.last)} when time was up"
    return None


def _quote(words: str) -> str:
    return f": {words}" if words else ""


def _number(step: int | None) -> str:
    return "?" if step is None else str(step)


# ------------------------------------------------------------------------------------------------ where they resumed


def _judge_resumes(
    reference: AttemptTrail, trails: Sequence[AttemptTrail], source: str
) -> tuple[DrillVerdict | None, str]:
    """Whether each attempt began where the one before it had last saved; None and a sentence when all did."""
    start, resumed, unseen = reference.first or 0, 0, 0
    for before, after in pairwise(trails):
        if after.first is None:
            unseen += 1
            continue
        problem = _judge_resume(start, before, after)
        if problem is not None:
            return problem
        resumed += _has_resumed(start, before, after)
    # A heartbeat that was replaced before it was read was beaten all the same: only metrics prove that one is missing.
    missing = _find_missing(reference.rows, trails) if source == "metrics" else None
    if missing is not None:
        return DrillVerdict.SKIPS, missing
    if unseen == len(trails) - 1:
        return DrillVerdict.NO_CHECKPOINT if _never_saved(trails) else DrillVerdict.UNPROVEN, (
            "no attempt said where it began: neither a heartbeat with its step nor metrics were written"
        )
    if not resumed:
        if _never_saved(trails):
            return (
                DrillVerdict.NO_CHECKPOINT,
                f"every attempt began at step {start}; nothing was saved before an interruption",
            )
        return DrillVerdict.STARTS_OVER, f"every attempt began at step {start}"
    where = ", ".join(f"{_number(trail.first)}" for trail in trails[1:])
    known = sum(trail.durable is not None for trail in trails[1:])
    newest = "the newest durable checkpoint" if known == len(trails) - 1 else "where it had saved"
    return (
        None,
        f"each attempt began at {newest} (step {where}); {count_redone(trails)} steps or a few more were done again",
    )


def _judge_resume(start: int, before: AttemptTrail, after: AttemptTrail) -> tuple[DrillVerdict, str] | None:
    assert after.first is not None
    durable = after.durable
    if durable is None:
        return None
    if after.first < durable:
        seen = f"attempt {after.attempt} began at step {after.first}, although step {durable} was saved"
        return (DrillVerdict.STARTS_OVER if after.first <= start else DrillVerdict.GOES_BACK), seen
    if after.first > max(durable, 1):
        reached = f"; the one before had reached about {_number(before.last)}"
        return DrillVerdict.SKIPS, (
            f"attempt {after.attempt} began at step {after.first}, the newest checkpoint was of step {durable}{reached}"
        )
    return None


def _has_resumed(start: int, before: AttemptTrail, after: AttemptTrail) -> bool:
    """Whether an attempt went on from somewhere.

    The library says exactly where. Another script's first heartbeat comes a few steps late; but one that saves every n
    steps resumes beyond the half of what it had reached.
    """
    assert after.first is not None
    if after.durable is not None or before.last is None:
        return after.first > start
    return 2 * (after.first - start) > before.last - start


def _never_saved(trails: Sequence[AttemptTrail]) -> bool:
    return all(trail.durable is None and not trail.files for trail in trails[1:])


def _find_missing(expected: Rows, trails: Sequence[AttemptTrail]) -> str | None:
    """A step that the reference logged and an attempt, which logged steps on both sides of it, did not."""
    for trail in trails:
        if trail.rows:
            low, high = min(trail.rows), max(trail.rows)
            missing = sorted(step for step in expected if low < step < high and step not in trail.rows)
            if missing:
                return f"attempt {trail.attempt} logged no step {missing[0]}, which the uninterrupted run did"
    return None


# ------------------------------------------------------------------------------------------------ what is concluded


def _line_of_rows(rows: Comparison, source: str) -> DrillLine:
    if rows.differences:
        return DrillLine("values", False, describe_difference(rows.differences[0]))
    noise = ", ".join(one.name for one in rows.noisy)
    beside = f"; not judged, because it differs between two runs without an interruption: {noise}" if noise else ""
    if not rows.steps:
        return DrillLine("values", None, f"nothing that could be judged was logged after a resume in both runs{beside}")
    told = "" if source == "metrics" else " (from heartbeats: nothing was logged with the library)"
    steps = format_count(rows.steps, "step")
    return DrillLine("values", None if noise else True, f"equal bit for bit in {steps} after a resume{told}{beside}")


def _lines_of_prints(prints: Comparison) -> list[DrillLine]:
    if not prints.steps and not prints.noisy:
        return [DrillLine("states", None, "no checkpoint of the same step was seen in both runs")]
    lines = [
        DrillLine(
            "states", False, f"{one.name} differs first in the checkpoint of step {one.step} (attempt {one.attempt})"
        )
        for one in prints.differences
    ]
    if prints.noisy:
        noise = ", ".join(one.name for one in prints.noisy)
        lines.append(DrillLine("states", None, f"not judged, because it differs without an interruption too: {noise}"))
    if not lines:
        count = format_count(prints.steps, "checkpoint")
        lines.append(DrillLine("states", True, f"equal bit for bit in {count} after a resume"))
    return lines


def _conclude(rows: Comparison, prints: Comparison, source: str) -> tuple[DrillVerdict, str]:
    if rows.differences:
        return DrillVerdict.INEXACT, describe_difference(rows.differences[0])
    if prints.differences:
        names = ", ".join(dict.fromkeys(one.name for one in prints.differences))
        return DrillVerdict.INEXACT, f"{names} is not the same in the checkpoint of step {prints.differences[0].step}"
    noisy = [one for one in rows.noisy if one.name == "loss" or not rows.steps]
    own = next(iter((*noisy, *(one for one in prints.noisy if not one.name.startswith(NOTES)))), None)
    if own is not None:
        return DrillVerdict.INEXACT, (
            f"two runs differ without any interruption ({own.name} at step {own.step}); is every generator seeded"
            " (`training.run(seed=0)`)?"
        )
    judged = [
        f"{count} {what}" for count, what in ((rows.steps, "logged steps"), (prints.steps, "checkpoints")) if count
    ]
    if not judged:
        return (
            DrillVerdict.UNPROVEN,
            f"nothing could be compared after a resume (no {source}, no checkpoint of the same step)",
        )
    return DrillVerdict.EXACT, f"{' and '.join(judged)} after a resume are the same bit for bit"


# ---------------------------------------------------------------------------------------------------- how they stopped


def _judge_stops(trails: Sequence[AttemptTrail]) -> list[DrillLine]:
    """What became of a TERM: left with 143, said so, and the next attempt began at that very step."""
    lines = []
    for before, after in pairwise(trails):
        if before.end is not AttemptEnd.STOPPED:
            continue
        step, saved = before.stop.get("step"), before.stop.get("saved")
        if before.exit_code != EXIT_STOPPED:
            words = f"attempt {before.attempt} left with exit code {before.exit_code} after a TERM, not {EXIT_STOPPED}"
            lines.append(DrillLine("stop", False, words))
        elif not saved:
            lines.append(
                DrillLine("stop", False, f"attempt {before.attempt} left after a TERM without having saved its step")
            )
        elif after.first is not None and after.first != step:
            words = f"attempt {before.attempt} saved step {step} after a TERM, the next one began at step {after.first}"
            lines.append(DrillLine("stop", False, words))
        else:
            words = f"after a TERM it saved step {step}, left with {EXIT_STOPPED}, and began there again"
            lines.append(DrillLine("stop", True, words))
    return lines
