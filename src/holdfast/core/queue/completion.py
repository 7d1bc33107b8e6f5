"""Judges whether a job is proven done: evidence in, status and reasons out (QUEUE-05, QUEUE-15, QUEUE-16). Pure.

Exit code 0 is a claim. Done needs every piece of evidence: the exit record of the newest attempt, the checks of its
results, the declared results as they are now, and the recorded configuration. What cannot be read is never done:
it is *unverified*, which is neither a failure of the job nor a success.
"""

from __future__ import annotations

from enum import Enum

from holdfast.model.record import record
from holdfast.model.run import Outcome
from holdfast.model.units import format_count

NO_ARTIFACTS = "no artifacts declared: rests on the exit record"


class ProofStatus(str, Enum):
    """Where a job of the roster stands when its evidence is looked at."""

    DONE = "done"
    OPEN = "open"
    """It has not ended: it waits, or it runs."""
    MISSING = "missing"
    """There is nothing where its run or its result should be."""
    EMPTY = "empty"
    """A declared result is there and has no content."""
    FAILED = "failed"
    UNVERIFIED = "unverified"
    """Something that must be known cannot be read, or speaks of something else."""
    DUPLICATE = "duplicate"
    """What it has is another job's too."""
    EXTRA = "extra"
    """A run that belongs to no job of the roster."""


class ArtifactState(str, Enum):
    """What a look at one declared result found."""

    WHOLE = "whole"
    MISSING = "missing"
    EMPTY = "empty"
    OLD = "old"
    CHANGED = "changed"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@record
class Artifact:
    """One declared result: as it was declared, the path that was looked at, what was seen, and that in words."""

    declared: str
    path: str
    seen: ArtifactState
    words: str = ""
    device: int = 0
    inode: int = 0
    size: int = 0
    sha256: str = ""


@record
class JobEvidence:
    """What is known of one job's run. `problem` says what could not be read at all; empty when all of it could.

    `exists`: there is a run directory. `outcome` None: no end is on record. `mistaken` says how the run is not this
    job's (another id, another job, another configuration). `failed` and `unknown` are the checks after the end, in
    words. `following`: another attempt of the run's own follows.
    """

    exists: bool = True
    problem: str = ""
    mistaken: str = ""
    outcome: Outcome | None = None
    ending: str = ""
    failure: str = ""
    failed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    following: bool = False


@record
class JobProof:
    """What follows from the evidence: the standing, why, and the path that it is about (empty: the run directory)."""

    standing: ProofStatus
    why: str
    path: str = ""

    @property
    def done(self) -> bool:
        """Whether the job is proven done."""
        return self.standing is ProofStatus.DONE


_BY_SEEN = {
    ArtifactState.MISSING: ProofStatus.MISSING,
    ArtifactState.EMPTY: ProofStatus.EMPTY,
    ArtifactState.OLD: ProofStatus.UNVERIFIED,
    ArtifactState.CHANGED: ProofStatus.UNVERIFIED,
    ArtifactState.DAMAGED: ProofStatus.FAILED,
    ArtifactState.UNREADABLE: ProofStatus.UNVERIFIED,
}


def judge_completion(evidence: JobEvidence) -> JobProof:
    """Where a job stands. The first thing that speaks against done decides; the worst of its results before others."""
    return _judge_run(evidence) or _judge_results(evidence)


def _judge_run(evidence: JobEvidence) -> JobProof | None:
    """What the run and its records say against done; None when nothing."""
    if not evidence.exists:
        return JobProof(ProofStatus.MISSING, "its run directory is not there")
    if evidence.problem or evidence.mistaken:
        return JobProof(ProofStatus.UNVERIFIED, evidence.problem or evidence.mistaken)
    if evidence.following:
        return JobProof(ProofStatus.OPEN, "another attempt follows")
    if evidence.outcome is None:
        return JobProof(ProofStatus.OPEN, f"its run has not ended{': ' if evidence.ending else ''}{evidence.ending}")
    if evidence.outcome is not Outcome.SUCCEEDED:
        return JobProof(ProofStatus.FAILED, evidence.ending or evidence.outcome.value.replace("_", " "))
    if evidence.failed:
        return JobProof(ProofStatus.FAILED, "; ".join(evidence.failed))
    if evidence.failure:
        return JobProof(
            ProofStatus.UNVERIFIED, f"it ended with 0, and something speaks against that: {evidence.failure}"
        )
    return None


def _judge_results(evidence: JobEvidence) -> JobProof:
    for wanted in (ProofStatus.MISSING, ProofStatus.EMPTY, ProofStatus.FAILED, ProofStatus.UNVERIFIED):
        for artifact in evidence.artifacts:
            if _BY_SEEN.get(artifact.seen) is wanted:
                return JobProof(wanted, f"{artifact.declared} {artifact.words}", artifact.path)
    if evidence.unknown:
        return JobProof(ProofStatus.UNVERIFIED, "; ".join(evidence.unknown))
    if not evidence.artifacts:
        return JobProof(ProofStatus.DONE, NO_ARTIFACTS)
    whole = len(evidence.artifacts)
    return JobProof(ProofStatus.DONE, f"exit record, configuration, {format_count(whole, 'result')} in place")
