"""Postflight: what the run leaves is what it promised, and nothing else (POST-04, POST-05, POST-06, RAIL-07).

Exit code 0 is a claim; a declared artifact that is there, newer than the start, not empty and whole is evidence. Looks
only: results are never changed or removed here. A check that breaks is a finding, as in preflight.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.core.run.outcome import NODE_FINDING
from holdfast.host.clock import epoch_s, parse_utc
from holdfast.host.files import files
from holdfast.host.formats.dataset import DataSurvey, compare_surveys, survey_data
from holdfast.host.formats.readable import find_damage
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.identity import WaitStatus
from holdfast.model.nodes import NODES, NodesRecord
from holdfast.model.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec

BASELINE = "data-baseline.json"
FAST_SHARE = 0.5
"""A finish in less than this part of the expected time is flagged (POST-06)."""
CLOCK_SLACK_S = 0.05
"""File times come from the kernel's tick, up to 10 ms behind the clock; the start is recorded in milliseconds."""
MOST_ENTRIES = 5000
MOST_NAMED = 5


def check_results(
    spec: JobSpec,
    run_dir: str,
    attempt: int,
    *,
    started_epoch_s: float,
    status: WaitStatus | None,
) -> tuple[Finding, ...]:
    """Look at what an attempt left. Artifacts and duration are judged only after exit code 0. Does not raise.

    Args:
        spec: The job.
        run_dir: Its run directory; relative artifacts lie in it.
        attempt: The attempt that ended.
        started_epoch_s: When the job was started: an older artifact is another run's.
        status: How the job ended; None when nobody saw it.
    """
    findings: list[Finding] = []
    steps: list[tuple[str, Iterator[Finding]]] = []
    if status is not None and status.code == 0:
        steps.append(("artifacts", _check_artifacts(spec, run_dir, started_epoch_s)))
        steps.append(("duration", _check_duration(spec, started_epoch_s, status)))
    steps.append(("data", _check_data(spec, run_dir, attempt)))
    steps.append(("checkpoints", _list_checkpoints(run_dir, started_epoch_s)))
    steps.append(("leftovers", _check_temporaries(run_dir, attempt)))
    if spec.nodes > 1:
        steps.append(("nodes", _look_at_nodes(run_dir, attempt)))
    for name, step in steps:
        try:
            for finding in step:
                findings.append(finding)  # noqa: PERF402 - what was found before it broke stays
        except Exception as error:  # noqa: BLE001 - a broken check must not hide the others or lose the exit record
            seen = f"this check could not be done: {type(error).__name__}: {error}"
            findings.append(Finding(f"postflight.{name}", Level.UNKNOWN, name, seen, "look at it yourself"))
    return tuple(findings)


def _check_artifacts(spec: JobSpec, run_dir: str, started_epoch_s: float) -> Iterator[Finding]:
    for declared in spec.artifacts:
        pattern = os.path.join(run_dir, declared)
        paths = _expand(pattern)
        if not paths:
            seen = "was declared and is not there after exit code 0"
            if written := _find_in_workdir(spec, declared, started_epoch_s):
                seen += f"; the job wrote {written}, in its working directory"
            yield Finding("artifact", Level.FAIL, declared, seen, f"have the job write it to {pattern}")
        for path in paths:
            yield _check_artifact(declared if path == pattern else path, path, started_epoch_s)


def _find_in_workdir(spec: JobSpec, declared: str, started_epoch_s: float) -> str:
    """The file of that name that this attempt wrote where it works, and not into its run; empty where there is none."""
    for name in dict.fromkeys((declared, os.path.basename(declared))):
        path = os.path.join(spec.workdir, name)
        with contextlib.suppress(OSError):
            facts = os.stat(path)
            if stat.S_ISREG(facts.st_mode) and is_fresh(facts, started_epoch_s):
                return path
    return ""


def _expand(pattern: str) -> list[str]:
    if os.path.lexists(pattern):
        return [pattern]
    if not any(letter in pattern for letter in "*?["):
        return []

    return sorted(glob.glob(pattern))[:MOST_ENTRIES]


def _check_artifact(name: str, path: str, started_epoch_s: float) -> Finding:
    try:
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode):
            return _check_directory(name, path, started_epoch_s)
        if not stat.S_ISREG(facts.st_mode):
            return Finding("artifact", Level.FAIL, name, "is neither a file nor a directory", "write a regular file")
        if facts.st_size == 0:
            return Finding("artifact", Level.FAIL, name, "is empty", "see the job's output")
        if not is_fresh(facts, started_epoch_s):
            age = format_duration(started_epoch_s - facts.st_mtime)
            seen = f"is {age} older than the start of the job: it is not this attempt's result"
            return Finding("artifact", Level.FAIL, name, seen, "have the job write it, or remove the old one first")
        damage = find_damage(path)
    except FileNotFoundError:
        return Finding("artifact", Level.FAIL, name, "is a link to nothing", "have the job write the file itself")
    except OSError as error:
        return Finding(
            "artifact", Level.FAIL, name, f"cannot be read: {error.strerror}", "see its permissions and disk"
        )
    if damage is not None:
        return Finding("artifact", Level.FAIL, name, damage, "write to a temporary name and rename when complete")
    return Finding("artifact", Level.PASS, name, f"{format_bytes(facts.st_size)}, written by this attempt")


def is_fresh(facts: os.stat_result, started_epoch_s: float) -> bool:
    """Whether the modification time is not before the start, as exactly as the file system keeps it."""
    coarse = facts.st_mtime_ns % 1_000_000_000 == 0
    return facts.st_mtime >= started_epoch_s - (2.0 if coarse else CLOCK_SLACK_S)


def _check_directory(name: str, path: str, started_epoch_s: float) -> Finding:
    count, fresh = 0, 0
    for directory, _, names in os.walk(path):
        for entry in names:
            try:
                facts = os.stat(f"{directory}/{entry}")
            except OSError:
                continue
            count += facts.st_size > 0
            fresh += facts.st_size > 0 and is_fresh(facts, started_epoch_s)
        if count > MOST_ENTRIES:
            break
    if not count:
        return Finding("artifact", Level.FAIL, name, "is a directory without content", "see the job's output")
    if not fresh:
        seen = f"holds {format_count(count, 'file')}, all older than the start of the job"
        return Finding("artifact", Level.FAIL, name, seen, "have the job write it, or remove the old one first")
    return Finding("artifact", Level.PASS, name, f"{fresh} of {format_count(count, 'file')} written by this attempt")


def _check_duration(spec: JobSpec, started_epoch_s: float, status: WaitStatus) -> Iterator[Finding]:
    if spec.expected_s is None:
        return
    ended = parse_utc(status.ended_at) if status.ended_at else epoch_s()
    took = max(0.0, ended - started_epoch_s)
    words = f"took {format_duration(took)}, expected {format_duration(spec.expected_s)}"
    if took < spec.expected_s * FAST_SHARE:
        remedy = "see whether it did all of its work: a skipped stage, an empty data set, a resumed last step"
        yield Finding("duration", Level.WARN, "duration", f"{words}: suspiciously fast", remedy)
    else:
        yield Finding("duration", Level.PASS, "duration", words)


def write_data_baseline(spec: JobSpec, run_dir: str, attempt: int) -> None:
    """Remember what the declared data look like before the job starts. Bounded to about a second.

    Raises:
        OSError: the record cannot be written.
    """
    if spec.data:
        files.commit(f"{wire.attempt_dir(run_dir, attempt)}/{BASELINE}", wire.to_bytes(survey_data(spec.data)))


def _check_data(spec: JobSpec, run_dir: str, attempt: int) -> Iterator[Finding]:
    """Declared data are as they were (RAIL-07). A change is flagged: others may have made it, so it fails nothing."""
    if not spec.data:
        return

    path = f"{wire.attempt_dir(run_dir, attempt)}/{BASELINE}"
    try:
        before = wire.from_bytes(DataSurvey, files.read_bytes(path), path)
    except (OSError, wire.WireError) as error:
        seen = f"what they looked like at the start is not known: {error}"
        yield Finding("data", Level.UNKNOWN, ", ".join(spec.data), seen, "compare them with your copy")
        return
    changes = compare_surveys(before, survey_data(spec.data))
    if changes:
        named = "; ".join(changes[:MOST_NAMED]) + (
            f"; {len(changes) - MOST_NAMED} more" if len(changes) > MOST_NAMED else ""
        )
        remedy = "have the job write to HOLDFAST_ARTIFACT_DIR; restore the data before the next run"
        yield Finding("data", Level.WARN, ", ".join(spec.data), f"changed while the job ran: {named}", remedy)
    else:
        extent = format_count(len(before.entries), "entry", "entries") + ("" if before.complete else ", a sample")
        yield Finding("data", Level.PASS, ", ".join(spec.data), f"unchanged ({extent})")


def _list_checkpoints(run_dir: str, started_epoch_s: float) -> Iterator[Finding]:
    """How many checkpoints there are and which is the newest, for people; their content is the library's to judge."""
    found = []
    with os.scandir(f"{run_dir}/{wire.CHECKPOINTS}") as entries:
        for entry in entries:
            facts = entry.stat(follow_symlinks=False)
            found.append((facts.st_mtime, entry.name, facts.st_size))
    if found:
        when, name, _ = max(found)
        age = "by this attempt" if when >= started_epoch_s - CLOCK_SLACK_S else "by an earlier attempt"
        yield Finding("checkpoints", Level.PASS, f"{run_dir}/{wire.CHECKPOINTS}", f"{len(found)}; newest {name}, {age}")


def _check_temporaries(run_dir: str, attempt: int) -> Iterator[Finding]:
    """Half-written records of writers that are dead (POST-04); they do no harm and are named, not removed."""
    directory = wire.attempt_dir(run_dir, attempt)
    temporaries = (name for name in os.listdir(directory) if files.is_temporary(name))
    left = [name for name in temporaries if not os.path.exists(f"/proc/{name.split('.')[-3]}")]
    if left:
        seen = f"half-written records of killed writers: {', '.join(sorted(left)[:MOST_NAMED])}"
        yield Finding(
            "leftovers", Level.WARN, directory, seen, "holdfast reconcile removes them, an hour after they were left"
        )


def _look_at_nodes(run_dir: str, attempt: int) -> Iterator[Finding]:
    """Which of several nodes failed first, and in what they differed (MN-01, MN-03)."""
    try:
        path = f"{wire.attempt_dir(run_dir, attempt)}/{NODES}"
        found = wire.from_bytes(NodesRecord, files.read_bytes(path), path)
    except (OSError, wire.WireError) as error:
        yield Finding("nodes", Level.UNKNOWN, NODES, f"cannot be read: {error}")
        return
    for words in found.warnings:
        yield Finding("nodes.differ", Level.WARN, "nodes", words)
    if (first := found.first) is not None:
        words = f"node {first.node} ({first.host}) {first.words}"
        yield Finding(NODE_FINDING, Level.WARN, f"node {first.node}", words, "its output is in `nodes`")
