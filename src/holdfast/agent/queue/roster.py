"""The roster of a group against what is on disk: what is done, missing, empty, failed, double, unverified (QUEUE-15).

The queue's own word is not believed: each job that has run is looked at again (`proof.gather_evidence`). What is found
is only told; the one command that re-runs what is missing is proposed, never done. Bounded: content is read only when
it is asked for (`deep`).
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from holdfast.core.queue.completion import JobEvidence, JobProof, ProofStatus
from holdfast.core.queue.completion import judge_completion as judge_evidence
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.ids import is_run_id
from holdfast.model.queue import ACTIVE_STATES, JobState, QueuedJob
from holdfast.model.record import record, replace

from .proof import gather_evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_RUNS = 20_000
"""Run directories that are looked through for runs of no job, the newest first."""
MOST_NAMED = 20
"""Jobs that a command names; more are asked for by their group."""
MOST_FILES = 50
MOST_NEEDS = 3
SMALLEST_COMPARED = 16
"""Bytes: shorter results ("ok") are the same for good reasons."""
RERUN_STATES = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.HELD, JobState.DONE})


@record
class RosterItem:
    """One job of the roster as this look found it; `path` is what the words are about."""

    job: QueuedJob
    standing: ProofStatus
    why: str
    path: str = ""

    @property
    def done(self) -> bool:
        """Whether it is proven done."""
        return self.standing is ProofStatus.DONE


@record
class RosterRemark:
    """Something that is not about one job alone. `suspicious`: it may have a good reason; nothing is open for it."""

    standing: ProofStatus
    subject: str
    why: str
    path: str
    suspicious: bool = True


@record
class RosterReport:
    """What a look at the roster found. `command` re-runs what is missing; None: `hint` says what comes instead."""

    groups: tuple[str, ...]
    items: tuple[RosterItem, ...]
    remarks: tuple[RosterRemark, ...] = ()
    command: str | None = None
    hint: str = ""

    @property
    def complete(self) -> bool:
        """Whether every job of the roster is proven done; an empty roster proves nothing."""
        return bool(self.items) and all(item.done for item in self.items)

    @property
    def counts(self) -> dict[ProofStatus, int]:
        """How many jobs stand where."""
        found = Counter(item.standing for item in self.items)
        return {standing: found[standing] for standing in ProofStatus if found[standing]}


def check_roster(queue: Any, group: str | None = None, *, deep: bool = False) -> RosterReport:  # noqa: ANN401 - a store.Queue
    """Hold the roster of a group (without one: of every group) against what is on disk.

    Args:
        queue: An open `store.queue.queue.Queue`.
        group: The group's name.
        deep: Read the results whole: their structure, and whether two jobs have the same bytes.

    Raises:
        StorageError: the queue cannot be read.
    """
    jobs: list[QueuedJob] = queue.jobs(group=group)
    known = queue.groups()
    names = (group,) if group is not None else tuple(known)
    looked = [(_name_needs(item, queue), evidence) for item, evidence in (_look(job, deep=deep) for job in jobs)]
    items, remarks = compare_items(looked, deep=deep)
    remarks += list(_find_extra(jobs, queue.settings().queue_id, set(names)))
    command, hint = _propose(items, paused=[name for name in names if name in known and known[name].paused])
    return RosterReport(names, tuple(items), tuple(remarks), command, hint)


def compare_items(
    looked: Sequence[tuple[RosterItem, JobEvidence]], *, deep: bool
) -> tuple[list[RosterItem], list[RosterRemark]]:
    """The items with those that rest on one thing as doubles, and what is to be said of several together."""
    items, remarks = _find_doubles(looked)
    return items, [*remarks, *(_find_twins(items) if deep else ())]


def _name_needs(item: RosterItem, queue: Any) -> RosterItem:  # noqa: ANN401 - a store.Queue
    """With what a blocked job waits for, so that a line says why it has not run."""
    if item.job.state is not JobState.BLOCKED:
        return item
    needs = [f"{job.label} ({job.state.value})" for job in queue.needs_of(item.job.id)]
    more = f" and {len(needs) - MOST_NEEDS} more" if len(needs) > MOST_NEEDS else ""
    return replace(item, why=f"{item.why}; needs {', '.join(needs[:MOST_NEEDS])}{more}") if needs else item


def look_at_job(job: QueuedJob) -> RosterItem:
    """One job as it stands by what is on disk now."""
    return _look(job, deep=False)[0]


def _look(job: QueuedJob, *, deep: bool) -> tuple[RosterItem, JobEvidence]:
    nothing = JobEvidence(exists=False)
    if job.state in ACTIVE_STATES:
        return RosterItem(job, ProofStatus.OPEN, f"{job.state.value}: {job.note or 'under way'}"), nothing
    if job.state is JobState.ELSEWHERE:
        return RosterItem(job, ProofStatus.OPEN, job.note or "another box has it"), nothing
    if job.state is JobState.DONE and job.claims is not None and job.run_id is None:
        return RosterItem(job, ProofStatus.DONE, job.note or "proven by another box"), nothing
    if job.run_dir is None:
        note = f": {job.note}" if job.note else ""
        return RosterItem(job, ProofStatus.MISSING, f"has not run, {job.state.value}{note}"), nothing
    if job.state not in (JobState.DONE, JobState.FAILED):
        note = f": {job.note}" if job.note else ""
        taken_out = job.state is JobState.CANCELLED
        words = job.state.value if taken_out else f"{job.state.value} for another attempt"
        return RosterItem(
            job, ProofStatus.FAILED if taken_out else ProofStatus.OPEN, f"{words}{note}", job.run_dir
        ), nothing
    evidence = gather_evidence(job, job.run_dir, expected_sha=job.sha256, deep=deep)
    proof = judge_evidence(evidence)
    if job.state is JobState.FAILED and proof.standing in (ProofStatus.DONE, ProofStatus.OPEN):
        # What failed it was seen when it ended, and is not undone by what is there now.
        proof = JobProof(ProofStatus.FAILED, job.note or job.failure or "ended without success")
    return RosterItem(job, proof.standing, proof.why, proof.path or job.run_dir), evidence


def _find_doubles(looked: Sequence[tuple[RosterItem, JobEvidence]]) -> tuple[list[RosterItem], list[RosterRemark]]:
    """Jobs that rest on one run, one path or one file stand as doubles: it can be the result of one of them only."""
    owners: dict[tuple[object, ...], list[int]] = {}
    for index, (item, evidence) in enumerate(looked):
        if not item.done:
            continue
        marks: set[tuple[object, ...]] = {("run", item.job.run_id)} if item.job.run_id else set()
        for artifact in evidence.artifacts:
            marks.add(("path", os.path.realpath(artifact.path)))
            if artifact.inode:
                marks.add(("file", artifact.device, artifact.inode))
        for mark in marks:
            owners.setdefault(mark, []).append(index)
    items = [item for item, _ in looked]
    remarks = []
    told: set[tuple[int, ...]] = set()
    for mark, indexes in sorted(owners.items(), key=lambda pair: pair[1]):
        if len(indexes) < 2 or tuple(indexes) in told:
            continue
        told.add(tuple(indexes))
        labels = ", ".join(items[index].job.label for index in indexes[:MOST_NAMED])
        paths = [artifact.path for artifact in looked[indexes[0]][1].artifacts]
        path = next((path for path in paths if mark == ("path", os.path.realpath(path))), None)
        path = path or (paths[0] if paths and mark[0] == "file" else items[indexes[0]].path)
        words = "one run" if mark[0] == "run" else "one file"
        remarks.append(RosterRemark(ProofStatus.DUPLICATE, labels, f"rest on {words}", path, suspicious=False))
        for index in indexes:
            items[index] = replace(
                items[index], standing=ProofStatus.DUPLICATE, why=f"rests on {words} with {labels}", path=path
            )
    return items, remarks


def _find_twins(items: Iterable[RosterItem]) -> Iterator[RosterRemark]:
    """Results of different configurations with the same bytes; only files of one size are read."""
    by_size: dict[int, list[tuple[QueuedJob, str]]] = {}
    for item in items:
        for path, size in _list_results(item) if item.done else ():
            by_size.setdefault(size, []).append((item.job, path))
    for same in by_size.values():
        if len({job.key for job, _ in same}) < 2:
            continue
        by_hash: dict[str, list[tuple[QueuedJob, str]]] = {}
        for job, path in same:
            if digest := _hash(path):
                by_hash.setdefault(digest, []).append((job, path))
        for twins in by_hash.values():
            if len({job.sha256 for job, _ in twins}) > 1:
                labels = ", ".join(dict.fromkeys(job.label for job, _ in twins[:MOST_NAMED]))
                why = f"have the same bytes in {os.path.basename(twins[0][1])}, with different configurations"
                yield RosterRemark(ProofStatus.DUPLICATE, labels, why, twins[0][1])


def _list_results(item: RosterItem) -> Iterator[tuple[str, int]]:
    """Files with content that a run left, in its own directories, two levels deep."""
    count = 0
    for name in (wire.ARTIFACTS, wire.CHECKPOINTS):
        for directory, below, names in os.walk(f"{item.job.run_dir}/{name}"):
            if directory.count("/") - f"{item.job.run_dir}/{name}".count("/") >= 1:
                below.clear()
            for entry in sorted(names):
                try:
                    facts = os.lstat(f"{directory}/{entry}")
                except OSError:
                    continue
                if facts.st_size >= SMALLEST_COMPARED and count < MOST_FILES:
                    count += 1
                    yield f"{directory}/{entry}", facts.st_size


def _hash(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()


def _find_extra(jobs: Sequence[QueuedJob], queue_id: str, groups: set[str]) -> Iterator[RosterRemark]:
    """Runs that say they are of these groups and are no job's: taken out of the roster, or a second run of a job."""
    runs = {job.run_id for job in jobs}
    by_key = {job.key: job for job in jobs}
    for root in sorted({job.runs_root for job in jobs if job.runs_root}):
        try:
            names = sorted((name for name in os.listdir(root) if is_run_id(name)), reverse=True)
        except OSError as error:
            yield RosterRemark(ProofStatus.UNVERIFIED, root, f"cannot be looked through: {error.strerror}", root)
            continue
        if len(names) > MOST_RUNS:
            why = f"holds {len(names)} runs; only the newest {MOST_RUNS} were looked through for runs of no job"
            yield RosterRemark(ProofStatus.UNVERIFIED, root, why, root)
        for name in names[:MOST_RUNS]:
            ref = _read_job(f"{root}/{name}/{wire.RUN}") if name not in runs else {}
            if ref.get("queue") != queue_id or ref.get("group") not in groups:
                continue
            job = by_key.get(str(ref.get("key")))
            if job is None:
                why = f"is of {ref.get('group')}/{ref.get('name')}, which is not on the roster"
                yield RosterRemark(ProofStatus.EXTRA, name, why, f"{root}/{name}")
            else:
                yield RosterRemark(ProofStatus.DUPLICATE, name, f"is a second run of {job.label}", f"{root}/{name}")


def _read_job(path: str) -> dict[str, Any]:
    try:
        ref = wire.parse_object(files.read_bytes(path), path).get("queued")
    except (OSError, wire.WireError):
        return {}
    return ref if isinstance(ref, dict) else {}


def _propose(items: Sequence[RosterItem], *, paused: Sequence[str]) -> tuple[str | None, str]:
    """The one command that re-runs what is missing; else what has to happen instead, in words."""
    left = [item for item in items if not item.done]
    if not left:
        return None, "" if items else "there are no jobs: nothing is proven"
    again = [item.job for item in left if item.job.state in RERUN_STATES and item.standing is not ProofStatus.DUPLICATE]
    if again:
        return _write_command(again, items), ""
    if paused:
        return shlex.join(["holdfast", "queue", "resume", paused[0]]), "its group is paused"
    if any(item.standing is ProofStatus.DUPLICATE for item in left):
        return None, "give each job a path of its own ({job} in the command, or a path in the run directory)"
    if any(item.job.state is JobState.ELSEWHERE for item in left):
        return None, "another box has claimed what is left"
    return None, "what is left waits or runs; `holdfast wait` waits for it"


def _write_command(again: Sequence[QueuedJob], items: Sequence[RosterItem]) -> str:
    words = [job.label for job in again]
    groups = {job.group for job in again}
    failed = [item.job for item in items if item.job.state is JobState.FAILED]
    if len(words) > MOST_NAMED and len(groups) == 1 and len(failed) == len(again):
        words = [f"{again[0].group}/", "--failed"]
    return shlex.join(["holdfast", "queue", "retry", *words])
