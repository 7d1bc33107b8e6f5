"""Whether a cell is proven done: its evidence in, a standing and the reasons out (QUEUE-05, QUEUE-15, QUEUE-16). Pure.

Exit code 0 is a claim. Done needs every piece of evidence: the exit record of the newest attempt, the checks of its
results, the declared results as they are now, and the recorded configuration. What cannot be read is never done:
it is *unverified*, which is neither a failure of the job nor a success.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..model.run import Outcome

NO_ARTIFACTS = "no artifacts declared: rests on the exit record"


class Standing(str, Enum):
    """Where a cell of the roster stands when its evidence is looked at."""

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
    """What it has is another cell's too."""
    EXTRA = "extra"
    """A run that belongs to no cell of the roster."""


class Seen(str, Enum):
    """What a look at one declared result found."""

    WHOLE = "whole"
    MISSING = "missing"
    EMPTY = "empty"
    OLD = "old"
    CHANGED = "changed"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One declared result: as it was declared, the path that was looked at, what was seen, and that in words."""

    declared: str
    path: str
    seen: Seen
    words: str = ""
    device: int = 0
    inode: int = 0
    size: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one cell's run. `problem` says what could not be read at all; empty when all of it could.

    `exists`: there is a run directory. `outcome` None: no end is on record. `mistaken` says how the run is not this
    cell's (another id, another cell, another configuration). `failed` and `unknown` are the checks after the end, in
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


@dataclass(frozen=True, slots=True)
class Proof:
    """What follows from the evidence: the standing, why, and the path that it is about (empty: the run directory)."""

    standing: Standing
    why: str
    path: str = ""

    @property
    def done(self) -> bool:
        """Whether the cell is proven done."""
        return self.standing is Standing.DONE


_BY_SEEN = {
    Seen.MISSING: Standing.MISSING,
    Seen.EMPTY: Standing.EMPTY,
    Seen.OLD: Standing.UNVERIFIED,
    Seen.CHANGED: Standing.UNVERIFIED,
    Seen.DAMAGED: Standing.FAILED,
    Seen.UNREADABLE: Standing.UNVERIFIED,
}


def judge(evidence: Evidence) -> Proof:
    """Where a cell stands. The first thing that speaks against done decides; the worst of its results before others."""
    return _judge_run(evidence) or _judge_results(evidence)


def _judge_run(evidence: Evidence) -> Proof | None:
    """What the run and its records say against done; None when nothing."""
    if not evidence.exists:
        return Proof(Standing.MISSING, "its run directory is not there")
    if evidence.problem or evidence.mistaken:
        return Proof(Standing.UNVERIFIED, evidence.problem or evidence.mistaken)
    if evidence.following:
        return Proof(Standing.OPEN, "another attempt follows")
    if evidence.outcome is None:
        return Proof(Standing.OPEN, f"its run has not ended{': ' if evidence.ending else ''}{evidence.ending}")
    if evidence.outcome is not Outcome.SUCCEEDED:
        return Proof(Standing.FAILED, evidence.ending or evidence.outcome.value.replace("_", " "))
    if evidence.failed:
        return Proof(Standing.FAILED, "; ".join(evidence.failed))
    if evidence.failure:
        return Proof(Standing.UNVERIFIED, f"it ended with 0, and something speaks against that: {evidence.failure}")
    return None


def _judge_results(evidence: Evidence) -> Proof:
    for wanted in (Standing.MISSING, Standing.EMPTY, Standing.FAILED, Standing.UNVERIFIED):
        for artifact in evidence.artifacts:
            if _BY_SEEN.get(artifact.seen) is wanted:
                return Proof(wanted, f"{artifact.declared} {artifact.words}", artifact.path)
    if evidence.unknown:
        return Proof(Standing.UNVERIFIED, "; ".join(evidence.unknown))
    if not evidence.artifacts:
        return Proof(Standing.DONE, NO_ARTIFACTS)
    whole = len(evidence.artifacts)
    return Proof(Standing.DONE, f"exit record, configuration, {whole} result{'' if whole == 1 else 's'} in place")
