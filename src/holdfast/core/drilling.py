"""Does an interrupted training continue? The judgement of a rehearsal, from what was seen of its attempts: pure.

Compared are an uninterrupted run, the reference, and one that was interrupted again and again. What differs between
the two before the first interruption cannot be blamed on interruptions: the first attempt is its own control.

Absence of evidence is no success: what could not be compared is said to be not proven.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .drilling_values import Comparison, compare, describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .drilling_values import Rows

NOTES = "run.state"
"""What a script keeps beside its training (`Run.state`): a clock in it is no difference of the training."""
EXIT_STOPPED = 143
"""What the training library leaves with when it was asked to stop: 128 + SIGTERM."""


class End(str, Enum):
    """How an attempt ended: by itself, by our KILL, by our TERM, with an error of its own, or cut at the time limit."""

    FINISHED = "finished"
    KILLED = "killed"
    STOPPED = "stopped"
    FAILED = "failed"
    CUT = "cut"


class Verdict(str, Enum):
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


@dataclass(frozen=True, slots=True)
class Trail:
    """One attempt as it was seen. Steps are numbers of complete steps; None: not seen.

    `first` is the step at which it began, `last` the last one that is known; `durable` the newest durable checkpoint
    when it began, `files` how many files of any kind were then where checkpoints belong; `rows` the logged values by
    step; `prints` a digest of each part of the state, by the checkpoint's step; `stop` what its stop record says.
    Times are seconds.
    """

    attempt: int
    end: End
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


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report: what was looked at, whether it is as it should be (None: not told), and what was seen."""

    what: str
    good: bool | None
    words: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, in one more sentence why, the lines of the report, and how many steps were done again."""

    verdict: Verdict
    why: str
    lines: tuple[Line, ...] = ()
    redone: int = 0
    compared: int = 0

    @property
    def passed(self) -> bool:
        """Whether the training continued as if nothing had happened."""
        return self.verdict is Verdict.EXACT


def judge(reference: Trail, trails: Sequence[Trail], *, source: str = "metrics", stop: bool = False) -> Judgement:
    """Judge a rehearsal.

    `source` says what `rows` were read from (``metrics`` or ``heartbeats``); with `stop` one interruption was to be a
    TERM.
    """
    early = _judge_reference(reference, trails) or _judge_ends(trails)
    redone = count_redone(trails)
    if early is not None:
        return Judgement(*early, (), redone)
    steps = _judge_resumes(reference, trails, source)
    if steps[0] is not None:
        return Judgement(steps[0], steps[1], (Line("steps", False, steps[1]),), redone)
    rows = compare([(t.attempt, t.rows) for t in trails], reference.rows)
    prints = compare([(t.attempt, t.prints) for t in trails], reference.prints)
    lines = [Line("steps", True, steps[1]), _line_of_rows(rows, source), *_lines_of_prints(prints)]
    stopping = _judge_stops(trails)
    if stop and not stopping:
        words = (
            f"no attempt left after a TERM: attempt {trails[-1].attempt} was done without, or went on in spite of it"
        )
        stopping.append(Line("stop", None, words))
    lines += stopping
    verdict, why = _conclude(rows, prints, source)
    bad = next((line for line in stopping if not line.good), None)
    if bad is not None and verdict is not Verdict.INEXACT:
        verdict, why = Verdict.DOES_NOT_STOP, bad.words
    return Judgement(verdict, why, tuple(lines), redone, max(rows.steps, prints.steps))


def count_redone(trails: Sequence[Trail]) -> int:
    """How many steps were done a second time, as far as was seen."""
    return sum(
        max(before.last - after.first, 0)
        for before, after in pairwise(trails)
        if before.last is not None and after.first is not None
    )


# ----------------------------------------------------------------------------------------------- how attempts ended


def _judge_reference(reference: Trail, trails: Sequence[Trail]) -> tuple[Verdict, str] | None:
    if reference.end is End.FAILED:
        return Verdict.BROKEN, f"exit code {reference.exit_code}{_quote(reference.words)}"
    start, end = reference.first, reference.last
    first = trails[0].first if trails else None
    if None not in (start, end, first) and first > (start + end) / 2:  # type: ignore[operator]  # none is None
        return Verdict.SHARED, (
            f"its second run began at step {first}, where the first one had left something; let it keep its "
            "checkpoints in HOLDFAST_CHECKPOINT_DIR, which is another directory in each run"
        )
    return None


def _judge_ends(trails: Sequence[Trail]) -> tuple[Verdict, str] | None:
    failed = next((trail for trail in trails if trail.end is End.FAILED), None)
    interrupted = [trail for trail in trails if trail.end in (End.KILLED, End.STOPPED)]
    if failed is not None:
        return Verdict.FAILS, f"attempt {failed.attempt} ended with exit code {failed.exit_code}{_quote(failed.words)}"
    if not interrupted or len(trails) < 2:
        return Verdict.TOO_SHORT, "it was done before the first interruption was due"
    if trails[-1].end is End.CUT:
        last = trails[-1]
        return Verdict.UNFINISHED, f"attempt {last.attempt} was at step {_number(last.last)} when time was up"
    return None


def _quote(words: str) -> str:
    return f": {words}" if words else ""


def _number(step: int | None) -> str:
    return "?" if step is None else str(step)


# ------------------------------------------------------------------------------------------------ where they resumed


def _judge_resumes(reference: Trail, trails: Sequence[Trail], source: str) -> tuple[Verdict | None, str]:
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
        return Verdict.SKIPS, missing
    if unseen == len(trails) - 1:
        return Verdict.NO_CHECKPOINT if _never_saved(trails) else Verdict.UNPROVEN, (
            "no attempt said where it began: neither a heartbeat with its step nor metrics were written"
        )
    if not resumed:
        if _never_saved(trails):
            return (
                Verdict.NO_CHECKPOINT,
                f"every attempt began at step {start}; nothing was saved before an interruption",
            )
        return Verdict.STARTS_OVER, f"every attempt began at step {start}"
    where = ", ".join(f"{_number(trail.first)}" for trail in trails[1:])
    known = sum(trail.durable is not None for trail in trails[1:])
    newest = "the newest durable checkpoint" if known == len(trails) - 1 else "where it had saved"
    return (
        None,
        f"each attempt began at {newest} (step {where}); {count_redone(trails)} steps or a few more were done again",
    )


def _judge_resume(start: int, before: Trail, after: Trail) -> tuple[Verdict, str] | None:
    assert after.first is not None
    durable = after.durable
    if durable is None:
        return None
    if after.first < durable:
        seen = f"attempt {after.attempt} began at step {after.first}, although step {durable} was saved"
        return (Verdict.STARTS_OVER if after.first <= start else Verdict.GOES_BACK), seen
    if after.first > max(durable, 1):
        reached = f"; the one before had reached about {_number(before.last)}"
        return Verdict.SKIPS, (
            f"attempt {after.attempt} began at step {after.first}, the newest checkpoint was of step {durable}{reached}"
        )
    return None


def _has_resumed(start: int, before: Trail, after: Trail) -> bool:
    """Whether an attempt went on from somewhere.

    The library says exactly where. Another script's first heartbeat comes a few steps late; but one that saves every n
    steps resumes beyond the half of what it had reached.
    """
    assert after.first is not None
    if after.durable is not None or before.last is None:
        return after.first > start
    return 2 * (after.first - start) > before.last - start


def _never_saved(trails: Sequence[Trail]) -> bool:
    return all(trail.durable is None and not trail.files for trail in trails[1:])


def _find_missing(expected: Rows, trails: Sequence[Trail]) -> str | None:
    """A step that the reference logged and an attempt, which logged steps on both sides of it, did not."""
    for trail in trails:
        if trail.rows:
            low, high = min(trail.rows), max(trail.rows)
            missing = sorted(step for step in expected if low < step < high and step not in trail.rows)
            if missing:
                return f"attempt {trail.attempt} logged no step {missing[0]}, which the uninterrupted run did"
    return None


# ------------------------------------------------------------------------------------------------ what is concluded


def _line_of_rows(rows: Comparison, source: str) -> Line:
    if rows.differences:
        return Line("values", False, describe(rows.differences[0]))
    noise = ", ".join(one.name for one in rows.noisy)
    beside = f"; not judged, because it differs between two runs without an interruption: {noise}" if noise else ""
    if not rows.steps:
        return Line("values", None, f"nothing that could be judged was logged after a resume in both runs{beside}")
    told = "" if source == "metrics" else " (from heartbeats: nothing was logged with the library)"
    return Line(
        "values", None if noise else True, f"equal bit for bit in {rows.steps} steps after a resume{told}{beside}"
    )


def _lines_of_prints(prints: Comparison) -> list[Line]:
    if not prints.steps and not prints.noisy:
        return [Line("states", None, "no checkpoint of the same step was seen in both runs")]
    lines = [
        Line("states", False, f"{one.name} differs first in the checkpoint of step {one.step} (attempt {one.attempt})")
        for one in prints.differences
    ]
    if prints.noisy:
        noise = ", ".join(one.name for one in prints.noisy)
        lines.append(Line("states", None, f"not judged, because it differs without an interruption too: {noise}"))
    if not lines:
        lines.append(Line("states", True, f"equal bit for bit in {prints.steps} checkpoints after a resume"))
    return lines


def _conclude(rows: Comparison, prints: Comparison, source: str) -> tuple[Verdict, str]:
    if rows.differences:
        return Verdict.INEXACT, describe(rows.differences[0])
    if prints.differences:
        names = ", ".join(dict.fromkeys(one.name for one in prints.differences))
        return Verdict.INEXACT, f"{names} is not the same in the checkpoint of step {prints.differences[0].step}"
    noisy = [one for one in rows.noisy if one.name == "loss" or not rows.steps]
    own = next(iter((*noisy, *(one for one in prints.noisy if not one.name.startswith(NOTES)))), None)
    if own is not None:
        return Verdict.INEXACT, (
            f"two runs differ without any interruption ({own.name} at step {own.step}); is every generator seeded?"
        )
    judged = [
        f"{count} {what}" for count, what in ((rows.steps, "logged steps"), (prints.steps, "checkpoints")) if count
    ]
    if not judged:
        return (
            Verdict.UNPROVEN,
            f"nothing could be compared after a resume (no {source}, no checkpoint of the same step)",
        )
    return Verdict.EXACT, f"{' and '.join(judged)} after a resume are the same bit for bit"


# ---------------------------------------------------------------------------------------------------- how they stopped


def _judge_stops(trails: Sequence[Trail]) -> list[Line]:
    """What became of a TERM: left with 143, said so, and the next attempt began at that very step."""
    lines = []
    for before, after in pairwise(trails):
        if before.end is not End.STOPPED:
            continue
        step, saved = before.stop.get("step"), before.stop.get("saved")
        if before.exit_code != EXIT_STOPPED:
            words = f"attempt {before.attempt} left with exit code {before.exit_code} after a TERM, not {EXIT_STOPPED}"
            lines.append(Line("stop", False, words))
        elif not saved:
            lines.append(
                Line("stop", False, f"attempt {before.attempt} left after a TERM without having saved its step")
            )
        elif after.first is not None and after.first != step:
            words = f"attempt {before.attempt} saved step {step} after a TERM, the next one began at step {after.first}"
            lines.append(Line("stop", False, words))
        else:
            words = f"after a TERM it saved step {step}, left with {EXIT_STOPPED}, and began there again"
            lines.append(Line("stop", True, words))
    return lines
