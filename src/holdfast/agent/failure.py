"""The failure note: what a person reads first when a run did not succeed (POST-03).

Class, evidence, one remedy, what the checks found, and the last 200 lines of the job's own output; secrets that the job
printed are taken out. Everything is read from the run directory, so the note can be written again at any time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..core.failures import SIGNALS, Traces, judge_failure
from ..core.redact import redact_text
from ..host import files
from ..model import wire
from ..model.finding import Finding, Level

if TYPE_CHECKING:
    from ..core.failures import Verdict
    from ..model.run import Ended

LAST_LINES = 200
TAIL_BYTES = 256 * 1024
LONGEST_LINE = 2000


def judge_attempt(run_dir: str, attempt: int, ended: Ended) -> Verdict:
    """The class of an end without success, with evidence and remedy, from what the attempt's directory holds."""
    directory = wire.attempt_dir(run_dir, attempt)
    return judge_failure(ended, _gather(directory, read_tail(f"{directory}/{wire.OUTPUT}")))


def write_failure(run_dir: str, attempt: int, ended: Ended, findings: tuple[Finding, ...]) -> None:
    """Write ``failure.md`` of an attempt that has ended without success.

    Raises:
        OSError: it cannot be written.
    """
    directory = wire.attempt_dir(run_dir, attempt)
    tail = read_tail(f"{directory}/{wire.OUTPUT}")
    verdict = judge_failure(ended, _gather(directory, tail))
    text = _render(f"{os.path.basename(run_dir)}, attempt {attempt}", ended, verdict, findings, tail)
    files.commit(f"{directory}/{wire.FAILURE}", redact_text(text).encode("utf-8", "replace"), durable=False)


def read_tail(path: str, lines: int = LAST_LINES) -> str:
    """The last lines of the job's output as text; empty when there is none, and very long lines are cut."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES))
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    # A progress bar rewrites its line with carriage returns: only its last state is a line.
    kept = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    if kept and kept[-1] == "":
        kept.pop()
    return _cut_lines(kept[-lines:])


def _cut_lines(lines: list[str]) -> str:
    return "\n".join(line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " ..." for line in lines)


def _gather(directory: str, tail: str) -> Traces:
    usage = _read_usage(f"{directory}/{wire.EXIT}")
    try:
        facts = os.statvfs(directory)
        free: int | None = facts.f_bavail * facts.f_frsize
    except OSError:
        free = None
    return Traces(
        tail=tail,
        oom_kills=_whole(usage.get("oom_kills")),
        memory_peak_bytes=_whole(usage.get("memory_peak_bytes")),
        memory_limit_bytes=_whole(usage.get("memory_limit_bytes")),
        free_bytes=free,
    )


def _read_usage(path: str) -> dict[str, object]:
    """What the exit record says of the tree's resources; nothing when there is no record yet."""
    try:
        usage = wire.parse_object(files.read_bytes(path), path).get("usage")
    except (OSError, wire.WireError):
        return {}
    return usage if isinstance(usage, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _render(title: str, ended: Ended, verdict: Verdict, findings: tuple[Finding, ...], tail: str) -> str:
    status = ended.status
    lines = [
        f"# {title}: {ended.outcome.value}",
        "",
        f"- class: `{verdict.failure_class}`",
        f"- exit code: {ended.exit_code}",
    ]
    if status is not None and status.signal is not None:
        name, meaning = SIGNALS.get(status.signal, (f"signal {status.signal}", "see signal(7)"))
        lines.append(f"- ended by: {name} ({status.signal}), {meaning}")
    lines += [f"- ended at: {ended.at}", "", "## Evidence", ""]
    lines += [f"- {text}" for text in verdict.evidence]
    lines += ["", "## What to do", "", verdict.remedy, ""]
    worse = [finding for finding in findings if finding.level is not Level.PASS]
    if worse:
        lines += ["## What the checks found", ""]
        lines += [_render_finding(finding) for finding in worse]
        lines.append("")
    if ended.stop is not None and ended.stop.traceback:
        lines += [
            "## Its exception, as the training library saw it",
            "",
            *_fence(_cut_lines(ended.stop.traceback.strip("\n").split("\n"))),
            "",
        ]
    if tail:
        count = tail.count("\n") + 1
        lines += [f"## The last {count} lines of its output", "", *_fence(tail), ""]
    else:
        lines += ["## Its output", "", "The job wrote nothing, or its log cannot be read.", ""]
    return "\n".join(lines)


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
