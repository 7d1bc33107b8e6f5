"""Writes the failure note, which a person reads first when a run did not succeed (POST-03).

Class, confidence and cause, one action, the job's own exception, the evidence for and against and what could not be
read, what the checks found, and the last 200 lines of the job's own output; secrets that the job printed are taken out.
The same for programs is
``verdict.json``. Everything is read from the run directory, so both can be made again at any time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.job.redact import redact_text
from holdfast.diagnosis.ended.detect.signals import describe_signal, name_signal
from holdfast.diagnosis.ended.judge import examine_attempt
from holdfast.diagnosis.fold import redact_verdict
from holdfast.diagnosis.logs.scan import read_tail
from holdfast.host.files import fallback, files
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.record import replace
from holdfast.model.units import format_count
from holdfast.model.verdict import FailureClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from holdfast.diagnosis.ended.judgement import EndedJudgement
    from holdfast.model.run import Ended
    from holdfast.model.verdict import Clue

LONGEST_LINE = 2000


def write_verdict(run_dir: str, attempt: int, judgement: EndedJudgement) -> None:
    """Write ``verdict.json``, in the fallback place where the run directory takes nothing."""
    run_id, directory = os.path.basename(run_dir), wire.attempt_dir(run_dir, attempt)
    data = wire.to_bytes(replace(judgement, tail="", exception=""))
    fallback.commit(run_id, attempt, f"{directory}/{wire.VERDICT}", data, durable=False)


def judge_attempt(
    run_dir: str, attempt: int, ended: Ended, *, record: Mapping[str, Any] | None, secrets: Iterable[str]
) -> EndedJudgement:
    """As `examine_attempt`, without the values that the job was given and repeated in its output."""
    judgement, values = examine_attempt(run_dir, attempt, ended, record=record), tuple(secrets)
    if not values:
        return judgement

    def clean(text: str) -> str:
        return redact_text(text, values)

    verdict = None if judgement.verdict is None else redact_verdict(judgement.verdict, clean)
    return replace(judgement, verdict=verdict, tail=clean(judgement.tail), exception=clean(judgement.exception))


def write_failure(
    run_dir: str,
    attempt: int,
    ended: Ended,
    findings: tuple[Finding, ...],
    judgement: EndedJudgement | None = None,
    *,
    record: Mapping[str, Any] | None = None,
    secrets: Iterable[str] = (),
) -> None:
    """Write ``failure.md`` and ``verdict.json`` of an attempt that has ended without success.

    `secrets` are values that the job was given, which its output may repeat.

    Raises:
        OSError: the note cannot be written.
    """
    judgement = judgement or examine_attempt(run_dir, attempt, ended, record=record)
    write_verdict(run_dir, attempt, judgement)
    directory = wire.attempt_dir(run_dir, attempt)
    tail = judgement.tail or read_tail(f"{directory}/{wire.OUTPUT}")
    text = _render(f"{os.path.basename(run_dir)}, attempt {attempt}", ended, judgement, findings, tail)
    files.commit(f"{directory}/{wire.FAILURE}", redact_text(text, secrets).encode("utf-8", "replace"), durable=False)


def _cut_lines(lines: list[str]) -> str:
    return "\n".join(line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " ..." for line in lines)


def _render(title: str, ended: Ended, judgement: EndedJudgement, findings: tuple[Finding, ...], tail: str) -> str:
    status, verdict = ended.status, judgement.verdict
    lines = [f"# {title}: {ended.outcome.value}", ""]
    if verdict is not None:
        lines.append(f"- class: `{verdict.kind.value}` ({verdict.confidence.value})")
        lines += [f"- cause: {verdict.cause}"] if verdict.cause else []
    lines.append(f"- exit code: {ended.exit_code}")
    if status is not None and status.signal is not None:
        # What a signal may mean is of use only where nothing says what this one meant.
        guess = verdict is None or verdict.kind in (FailureClass.KILLED, FailureClass.UNKNOWN)
        meaning = describe_signal(status.signal).partition(": ")[2] if guess else ""
        lines.append(f"- ended by: {name_signal(status.signal)}{meaning and f', {meaning}'}")
    lines.append(f"- ended at: {ended.at}")
    if verdict is not None:
        lines += [f"- something also speaks for {other}" for other in verdict.others]
        lines += ["", "## What to do", "", verdict.action, ""]
        lines += [f"- `holdfast explain {gotcha}`" for gotcha in verdict.gotchas]
        lines += [""] if verdict.gotchas else []
    lines += _quote_exception(ended, judgement)
    if verdict is not None:
        lines += _section("## Evidence", verdict.evidence_for)
        lines += _section("## Against it, and what it was not", verdict.evidence_against)
        lines += _section("## Could not be read", verdict.unknown)
    told = [finding for finding in findings if finding.level is not Level.PASS]
    if told:
        lines += ["## What the checks found", "", *map(_render_finding, told), ""]
    if tail:
        count = tail.count("\n") + 1
        lines += [f"## The last {format_count(count, 'line')} of its output", "", *_fence(tail), ""]
    else:
        lines += ["## Its output", "", "The job wrote nothing, or its log cannot be read.", ""]
    return "\n".join(lines)


def _quote_exception(ended: Ended, judgement: EndedJudgement) -> list[str]:
    """The job's own exception; its last lines often hold more than that, or less."""
    exception = judgement.exception.strip("\n")
    if not exception:
        return []
    whose = "as the training library saw it" if ended.stop is not None and ended.stop.traceback else "from its output"
    return [f"## Its exception, {whose}", "", *_fence(_cut_lines(exception.split("\n"))), ""]


def _section(title: str, clues: tuple[Clue, ...]) -> list[str]:
    return [title, "", *map(_render_clue, clues), ""] if clues else []


def _render_clue(clue: Clue) -> str:
    source = f" [{clue.place}]" if clue.source else ""
    # One line each: a clue may quote the job.
    return f"- {' '.join(clue.text.split())}{source}"


def _render_finding(finding: Finding) -> str:
    remedy = f" ({finding.remedy})" if finding.remedy else ""
    return f"- {finding.level.value}: {finding.id}, {finding.subject}: {finding.evidence}{remedy}"


def _fence(text: str) -> tuple[str, str, str]:
    """The text as a block that nothing in it can end."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return fence, text, fence


def _longest_run(text: str) -> int:
    """The most backticks in a row, so that a fence around the text is longer."""
    longest = current = 0
    for letter in text:
        current = current + 1 if letter == "`" else 0
        longest = max(longest, current)
    return longest
