"""Jobs with the run directories that they left, for tests of what holds the roster against the disk."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.agent.control.create import create_run
from holdfast.core.job.job_hash import hash_job
from holdfast.host.clock import format_utc
from holdfast.model import wire
from holdfast.model.identity import WaitStatus
from holdfast.model.job import JobSpec
from holdfast.model.queue import GroupKind, JobGroup, JobRef, JobState, QueuedJob, QueueSettings
from holdfast.model.record import replace
from holdfast.model.run import Ended, Outcome, RunState
from holdfast.model.verdict import Confidence

QUEUE = "q1"
RESULT = "artifacts/result.json"
STARTED_S = 1_763_000_000.0
"""Long ago: whatever a test writes now is younger."""


@dataclass
class Roster:
    """Stands for a queue: what `reconcile` asks one, and nothing else."""

    root: Path
    made: list[QueuedJob] = field(default_factory=list)
    known: dict[str, JobGroup] = field(default_factory=lambda: {"night": JobGroup("night", GroupKind.LINES)})

    def jobs(self, *, group: str | None = None) -> list[QueuedJob]:
        return [job for job in self.made if group in (None, job.group)]

    def groups(self) -> dict[str, JobGroup]:
        return self.known

    def settings(self) -> QueueSettings:
        return QueueSettings(QUEUE)

    def needs_of(self, job_id: int) -> tuple[QueuedJob, ...]:
        """What failed stands for what a blocked job needs."""
        return tuple(job for job in self.made if job.id != job_id and job.state is JobState.FAILED)

    def add(self, name: str, state: JobState = JobState.QUEUED, **fields: Any) -> QueuedJob:
        """A job without a run."""
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        fields = {"group": "night", "runs_root": str(self.root / "runs"), **fields}
        job = QueuedJob(id=len(self.made) + 1, key=key, name=name, state=state, **fields)
        self.made.append(job)
        return job

    def add_run(
        self,
        name: str,
        state: JobState = JobState.DONE,
        *,
        content: str | None = None,
        artifacts: tuple[str, ...] = (RESULT,),
        outcome: Outcome = Outcome.SUCCEEDED,
        **fields: Any,
    ) -> QueuedJob:
        """A job whose run has ended so; `content` is what its result holds (None: its own name)."""
        job = self.add(name, state, **fields)
        spec = JobSpec(name=name, command=("true", name), workdir=str(self.root), artifacts=artifacts)
        run_dir, run_id = create_run(
            spec,
            job.runs_root,
            argv=["holdfast"],
            cwd="/",
            environ=os.environ,
            queued=JobRef(QUEUE, job.key, job.group, job.name),
        )
        for declared in artifacts:
            path = Path(run_dir, declared.replace("*", "1"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"job": name, "filler": "-" * 20}) if content is None else content)
        end_run(run_dir, outcome)
        job = replace(job, run_id=run_id, sha256=hash_job(spec), attempts=1)
        self.made[-1] = job
        return job


def end_run(run_dir: str, outcome: Outcome, attempt: int = 1, *, failure: str | None = None, **fields: Any) -> Ended:
    """Write what a supervisor leaves at such an end; `fields` are those of `Ended`."""
    directory = wire.attempt_dir(run_dir, attempt)
    code = 0 if outcome is Outcome.SUCCEEDED else 1
    told: dict[str, Any] = {
        "at": format_utc(STARTED_S + 60),
        "outcome": outcome,
        "exit_code": code,
        "evidence": f"the job ended with exit code {code}",
        "status": WaitStatus(code, None, ended_at=format_utc(STARTED_S + 60)),
        "started_at": format_utc(STARTED_S),
        **fields,
    }
    ended = Ended(**told)
    state = Path(directory, wire.STATE)
    record = replace(wire.from_bytes(RunState, state.read_bytes(), wire.STATE), state=ended, version=9)
    state.write_bytes(wire.to_bytes(record))
    listed = [
        {"name": path.name, "bytes": path.stat().st_size, "modified": round(path.stat().st_mtime, 3)}
        for path in Path(run_dir, wire.ARTIFACTS).iterdir()
    ]
    facts = {"ending": ended.evidence, "artifacts": listed, "failure_class": failure}
    Path(directory, wire.EXIT).write_bytes(wire.to_bytes({**wire.encode(ended), **facts}))
    Path(directory, wire.POSTFLIGHT).write_bytes(wire.to_bytes({"findings": []}))
    if failure is not None:
        verdict = {"verdict": {"kind": failure, "confidence": Confidence.LIKELY}}
        Path(directory, wire.VERDICT).write_bytes(wire.to_bytes(verdict))
    return ended
