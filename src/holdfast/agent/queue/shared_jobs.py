"""The worker's side of shared jobs: claim before a run is made, and watch what other boxes have claimed (QUEUE-12).

What `host.files.claims` does may hang with the shared directory, so each look and each claim is made in a disposable
child. A job that could not be looked at is neither free nor taken: it waits.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.host.clock import monotonic_s
from holdfast.host.files import files
from holdfast.host.files.claims import BeatWatch, Claim, ClaimEnd, ClaimView, look_at_claim, make_claim, open_directory
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.queue import JobState
from holdfast.model.record import record

if TYPE_CHECKING:
    from holdfast.model.queue import QueuedJob

ANSWER_S = 10.0


@record
class ClaimAnswer:
    """What became of asking for a job: `claim` when it is ours, else the state that it goes to, and why in words.

    `state` None: nothing is known; ask again later. `expiry_s`: the silence after which a claim may be taken over.
    """

    claim: Claim | None = None
    expiry_s: float = 0.0
    state: JobState | None = None
    note: str = ""


class SharedJobs:
    """Claims of one worker. Remembers how long other boxes' beats have stood still, which a new worker begins anew."""

    def __init__(self) -> None:
        """Nothing has been seen."""
        self._watch = BeatWatch()

    def claim(self, job: QueuedJob, run_id: str) -> ClaimAnswer:
        """Claim a job for a run of ours, if it is free, was ours already, or its owner has gone silent."""
        assert job.claims is not None
        return self._ask(job, run_id)

    def review(self, job: QueuedJob) -> ClaimAnswer:
        """Look at a job that another box has: the state it is in now; never claims it."""
        return self._ask(job, None)

    def _ask(self, job: QueuedJob, run_id: str | None) -> ClaimAnswer:
        try:
            facts = Offload(lambda: _look(job, run_id)).wait(ANSWER_S)
            seen, expiry_s = wire.decode(ClaimView, facts["seen"]), float(facts["expiry_s"])
        except (OffloadFailed, OSError, wire.WireError, KeyError, TypeError) as error:
            return ClaimAnswer(note=f"the claims directory cannot be used: {error}")
        if seen.sha256 and job.sha256 and seen.sha256 != job.sha256:
            words = f"{seen.host} has claimed a job of this name with another configuration ({seen.sha256[:12]})"
            return ClaimAnswer(
                state=JobState.HELD, note=f"{words}; this one is {job.sha256[:12]}: give it another name"
            )
        found = self._read_claim(facts)
        if found is not None:
            self._watch.forget(job.key)
            return found
        if seen.end is not None and not seen.end.is_open:
            self._watch.forget(job.key)
            return _close(seen.end)
        if seen.claimable:
            return ClaimAnswer(state=JobState.QUEUED, note="free")
        if self._watch.has_expired(job.key, seen, monotonic_s(), expiry_s):
            return self._take_over(job, seen, run_id)
        note = f"claimed by {seen.host} since {seen.since}"
        return ClaimAnswer(state=JobState.ELSEWHERE, expiry_s=expiry_s, note=note)

    def _take_over(self, job: QueuedJob, seen: ClaimView, run_id: str | None) -> ClaimAnswer:
        silent = f"{seen.host} has claimed it and has gone silent"
        if run_id is None:
            return ClaimAnswer(state=JobState.QUEUED, note=silent)
        try:
            facts = Offload(lambda: _claim(job, seen.number, run_id)).wait(ANSWER_S)
        except (OffloadFailed, OSError) as error:
            return ClaimAnswer(note=f"the claims directory cannot be used: {error}")
        self._watch.forget(job.key)
        return self._read_claim(facts) or ClaimAnswer(state=JobState.ELSEWHERE, note="another box was quicker")

    @staticmethod
    def _read_claim(facts: dict[str, Any]) -> ClaimAnswer | None:
        if facts.get("claim") is None:
            return None
        return ClaimAnswer(claim=wire.decode(Claim, facts["claim"]), expiry_s=float(facts["expiry_s"]))


def _close(end: ClaimEnd) -> ClaimAnswer:
    where = f"on {end.host}: {end.run_dir}"
    if end.outcome == "succeeded":
        return ClaimAnswer(state=JobState.DONE, note=f"done {where}")
    return ClaimAnswer(state=JobState.FAILED, note=f"{end.outcome} {where}")


def _look(job: QueuedJob, run_id: str | None) -> dict[str, Any]:
    """In a child: look, and claim at once what is free or ours."""
    assert job.claims is not None
    directory = open_directory(job.claims, make=False)
    path = directory.job_directory(f"{job.group}/{job.name}")
    seen = look_at_claim(path)
    facts = {"seen": wire.encode(seen), "expiry_s": directory.expiry_s, "claim": None}
    if run_id is None:
        return facts
    if seen.end is None and seen.number and _is_ours(path, seen, run_id):
        return {**facts, "claim": wire.encode(Claim(path, seen.number, seen.token))}
    # An end that we said ourselves may be followed by ourselves: somebody asked for it here.
    again = seen.end is not None and os.path.basename(seen.end.run_dir) == run_id
    return {**facts, **_claim(job, seen.number, run_id)} if seen.claimable or again else facts


def _claim(job: QueuedJob, after: int, run_id: str) -> dict[str, Any]:
    assert job.claims is not None
    directory = open_directory(job.claims, make=False)
    claim = make_claim(
        directory.job_directory(f"{job.group}/{job.name}"), after, facts={"run_id": run_id, "sha256": job.sha256}
    )
    return {"claim": wire.encode(claim) if claim is not None else None, "expiry_s": directory.expiry_s}


def _is_ours(path: str, seen: ClaimView, run_id: str) -> bool:
    """Whether an earlier worker of this box has claimed it for the same run, and died before it could say so."""
    claim = Claim(path, seen.number, seen.token)
    owner = wire.parse_object(files.read_bytes(claim.path("claim")), claim.path("claim"))
    return owner.get("run_id") == run_id and owner.get("host") == os.uname().nodename
