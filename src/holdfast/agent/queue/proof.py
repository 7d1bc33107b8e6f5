"""Is a job proven done? Gathers the evidence of its run; `core.queue.completion` judges it.

Read again at any time: what a run left may be gone, cut or replaced since. Nothing here changes or removes anything.
What lies outside of the run directory may be on a mount that hangs, so that is looked at in a disposable child.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from typing import TYPE_CHECKING

from holdfast.agent.checks.postflight import MOST_ENTRIES, is_fresh
from holdfast.agent.view.live.attempt import describe_doubt
from holdfast.agent.view.observe import list_begun, observe_run
from holdfast.agent.view.retries import is_followed
from holdfast.agent.view.source_change import rehash_job
from holdfast.core.queue.completion import Artifact, ArtifactState, JobEvidence, JobProof, ProofStatus
from holdfast.core.queue.completion import judge_completion as judge_evidence
from holdfast.core.run.copied import MADE_GOOD
from holdfast.core.run.outcome import COPY_FINDING
from holdfast.core.run.recorded_results import is_changed, list_recorded
from holdfast.host.clock import parse_utc
from holdfast.host.files import files
from holdfast.host.formats.readable import find_damage
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.finding import Level
from holdfast.model.queue import JobState
from holdfast.model.run import Outcome
from holdfast.model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.agent.view.run_view import RunView
    from holdfast.model.queue import QueuedJob

LOOK_WITHIN_S = 15.0
MOST_WORDS = 5
NEEDED = frozenset({wire.RUN, wire.STATE, wire.EXIT})
"""Records without which nothing is proven; what else cannot be read (a torn heartbeat of the job's) says nothing."""


def judge_ended(job: QueuedJob, run_dir: str, expected_sha: str = "") -> tuple[JobState, str]:
    """DONE or FAILED, and why, for a job whose run is over; `expected_sha` is its configuration (else the job's own).

    Does not raise. FAILED begins with ``unverified:`` where the job may be done and that could not be proven.
    """
    proof = prove_job(job, run_dir, expected_sha=expected_sha)
    if proof.done:
        return JobState.DONE, proof.why
    where = f" ({proof.path})" if proof.path else ""
    word = "" if proof.standing is ProofStatus.FAILED else f"{proof.standing.value}: "
    return JobState.FAILED, f"{word}{proof.why}{where}"


def prove_job(job: QueuedJob, run_dir: str, *, expected_sha: str = "", deep: bool = False) -> JobProof:
    """Where a job stands by what is on disk now; `deep` reads the results whole. Does not raise."""
    return judge_evidence(gather_evidence(job, run_dir, expected_sha=expected_sha or job.sha256, deep=deep))


def gather_evidence(job: QueuedJob, run_dir: str, *, expected_sha: str, deep: bool = False) -> JobEvidence:
    """The evidence of one job's run as it is now."""
    if not os.path.isdir(run_dir):
        return JobEvidence(exists=False)
    numbers = list_begun(run_dir)
    view = observe_run(run_dir, attempt=numbers[-1] if numbers else None)
    problems = [item for item in view.unreadable if os.path.basename(item.path) in NEEDED]
    if problems:
        return JobEvidence(problem="; ".join(f"{item.path}: {item.reason}" for item in problems))
    if not view.over:
        return JobEvidence(ending=view.note)
    try:
        return _gather_ended(job, view, expected_sha, deep=deep)
    except (OSError, ValueError, OffloadFailed) as error:
        return JobEvidence(problem=f"{run_dir} cannot be judged: {error}")


def _gather_ended(job: QueuedJob, view: RunView, expected_sha: str, *, deep: bool) -> JobEvidence:
    outcome = next((item for item in Outcome if item.value == view.exit.get("outcome")), None)
    if outcome is None:
        return JobEvidence(problem=f"{view.attempt_dir}/{wire.EXIT} names no outcome")
    failed, unknown = _read_findings(view)
    succeeded = outcome is Outcome.SUCCEEDED
    return JobEvidence(
        mistaken=_find_mistake(job, view, expected_sha),
        outcome=outcome,
        ending=str(view.exit.get("ending") or view.exit.get("evidence") or ""),
        failure="" if is_accepted(view.run_dir, view.attempt) else describe_failure(view),
        failed=failed if succeeded else (),
        unknown=unknown if succeeded else (),
        artifacts=_look_at_results(view, deep=deep) if succeeded else (),
        following=not succeeded and is_followed(view.run_dir, view.attempt),
    )


def is_accepted(run_dir: str, attempt: int) -> bool:
    """Whether a person has said that this attempt's success counts, whatever speaks against it."""
    try:
        files.read_bytes(f"{wire.attempt_dir(run_dir, attempt)}/{wire.ACCEPTED}")
    except OSError:
        return False
    return True


def is_made_good(run_dir: str, attempt: int) -> bool:
    """Whether this attempt failed by the copy of its results alone, and somebody has copied them since."""
    return observe_run(run_dir, attempt=attempt).exit.get(MADE_GOOD) is True


def describe_failure(view: RunView) -> str:
    """The class of the verdict on an end, of a success with what speaks against it; empty where nothing does."""
    return describe_doubt(view) or str(view.exit.get("failure_class") or "")


def _find_mistake(job: QueuedJob, view: RunView, expected_sha: str) -> str:
    """How this run is not the job's; empty when it is."""
    record, name = view.record, f"{view.run_dir}/{wire.RUN}"
    if record.get("run_id") != view.run_id:
        return f"{name} is of run {record.get('run_id')}"
    if job.run_id is not None and job.run_id != view.run_id:
        return f"the job's run is {job.run_id}, this is {view.run_id}"
    ref = record.get("queued")
    if isinstance(ref, dict) and ref.get("key") != job.key:
        return f"{name} is of the job {ref.get('group')}/{ref.get('name')}"
    told = record.get("job_sha256")
    # Of a job that a desk ordered the hash is over what was written there, not over the paths that it got here.
    if not isinstance(told, str) or (not record.get("ordered_by") and rehash_job(record) != told):
        return f"{name} does not have the job whose hash was recorded with it"
    if expected_sha and told != expected_sha:
        return f"its configuration is {told[:12]}, the job's is {expected_sha[:12]}"
    return ""


def _read_findings(view: RunView) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The checks after the end that failed, and those that could not be done, in words."""
    path = f"{view.attempt_dir}/{wire.POSTFLIGHT}"
    try:
        found = wire.parse_object(files.read_bytes(path), path).get("findings", [])
    except (OSError, wire.WireError) as error:
        return (), (f"the checks after the end cannot be read: {error}",)
    items = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    if view.exit.get(MADE_GOOD):
        items = [item for item in items if item.get("id") != COPY_FINDING]

    def words(level: Level) -> tuple[str, ...]:
        bad = [item for item in items if item.get("level") == level.value]
        return tuple(f"{item.get('subject')}: {item.get('evidence')}" for item in bad[:MOST_WORDS])

    return words(Level.FAIL), words(Level.UNKNOWN)


def _look_at_results(view: RunView, *, deep: bool) -> tuple[Artifact, ...]:
    told = view.spec.get("artifacts")
    declared = [item for item in told if isinstance(item, str)] if isinstance(told, list) else []
    if not declared:
        return ()
    started = view.exit.get("started_at")
    started_s = parse_utc(started) if isinstance(started, str) else 0.0

    def look() -> list[Artifact]:
        return [found for item in declared for found in _look_at(view, item, started_s, deep=deep)]

    near = all(not os.path.isabs(item) and ".." not in item.split("/") for item in declared)
    if near and not deep:
        return tuple(look())
    limit_s = LOOK_WITHIN_S if not deep else 40 * LOOK_WITHIN_S
    try:
        return tuple(wire.decode(Artifact, item) for item in Offload(lambda: wire.encode(look())).wait(limit_s))
    except OffloadFailed as error:
        return tuple(
            Artifact(item, item, ArtifactState.UNREADABLE, f"could not be looked at: {error}") for item in declared
        )


def _look_at(view: RunView, declared: str, started_s: float, *, deep: bool) -> Iterator[Artifact]:
    pattern = os.path.join(view.run_dir, declared)
    paths = [pattern]
    if not os.path.lexists(pattern) and any(letter in declared for letter in "*?["):
        paths = sorted(glob.glob(pattern))[:MOST_ENTRIES]
    if not paths:
        yield Artifact(declared, pattern, ArtifactState.MISSING, "is not there")
    recorded = list_recorded(view.exit)
    for path in paths:
        yield _look_at_one(declared, path, started_s, recorded.get(os.path.relpath(path, view.run_dir)), deep=deep)


def _look_at_one(
    declared: str, path: str, started_s: float, recorded: tuple[int, float] | None, *, deep: bool
) -> Artifact:
    try:
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode):
            filled = _has_content(path)
            return Artifact(
                declared,
                path,
                ArtifactState.WHOLE if filled else ArtifactState.EMPTY,
                "" if filled else "has no content",
            )
        seen, words = _judge_file(facts, started_s, recorded)
        if seen is ArtifactState.WHOLE and deep:
            damage = _find_damage(path)
            seen, words = (ArtifactState.WHOLE, words) if damage is None else (ArtifactState.DAMAGED, damage)
        sha256 = _hash(path) if deep and seen is ArtifactState.WHOLE else ""
    except FileNotFoundError:
        return Artifact(declared, path, ArtifactState.MISSING, "is not there")
    except OSError as error:
        return Artifact(declared, path, ArtifactState.UNREADABLE, f"cannot be read: {error.strerror}")
    return Artifact(declared, path, seen, words, facts.st_dev, facts.st_ino, facts.st_size, sha256)


def _judge_file(
    facts: os.stat_result, started_s: float, recorded: tuple[int, float] | None
) -> tuple[ArtifactState, str]:
    if not stat.S_ISREG(facts.st_mode):
        return ArtifactState.DAMAGED, "is neither a file nor a directory"
    if facts.st_size == 0:
        return ArtifactState.EMPTY, "is empty"
    if recorded is not None and recorded[0] != facts.st_size:
        return (
            ArtifactState.CHANGED,
            f"had {format_bytes(recorded[0])} at the end, has {format_bytes(facts.st_size)} now",
        )
    if recorded is not None and is_changed(recorded, facts.st_size, facts.st_mtime):
        return ArtifactState.CHANGED, "was written after the end"
    if not is_fresh(facts, started_s):
        return ArtifactState.OLD, "is older than the start of the job: it is not this attempt's result"
    return ArtifactState.WHOLE, format_bytes(facts.st_size)


def _find_damage(path: str) -> str | None:
    return find_damage(path)


def _hash(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _has_content(path: str) -> bool:
    """Whether a directory holds a file with content, among the first of its entries."""
    left = MOST_ENTRIES
    for directory, _, names in os.walk(path):
        for name in names[:left]:
            try:
                if os.stat(f"{directory}/{name}").st_size:
                    return True
            except OSError:
                continue
        left -= len(names)
        if left <= 0:
            return False
    return False
