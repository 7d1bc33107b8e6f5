"""A run that is warned again and again is begun again as long as it gets anywhere."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.place.foreground import progress
from holdfast.agent.place.foreground.progress import describe_standstill, was_warned
from holdfast.agent.view.observe import observe_run
from holdfast.core.run.stop_record import PLACE_END
from holdfast.model import wire
from holdfast.model.record import replace
from holdfast.model.run import Outcome, StopCause, StopRecord, StopRequest
from tests.rundirs import ended, make_run

if TYPE_CHECKING:
    from holdfast.model.run import Ended

pytestmark = pytest.mark.files

LONG_AGO_NS, BEFORE_NS, LATELY_NS = 1_000_000_000, 2_000_000_000, 3_000_000_000
PREEMPTED = ended(Outcome.PREEMPTED, 143)
WARNED = replace(PREEMPTED, request=StopRequest(StopCause.PREEMPTION, "SIGUSR1 to the supervisor", warned=True))
SAVES = "mirror", "disk"


class Row:
    """A run whose attempts were begun at `BEFORE_NS`; its working directory, mirror and disk path are apart from it."""

    def __init__(self, tmp_path: Path) -> None:
        """There is none yet."""
        self.root, self.work, self.mirror, self.disk = (tmp_path / name for name in ("runs", "work", *SAVES))
        self.root.mkdir()
        self.work.mkdir()
        self.run_dir = ""

    def add(self, end: Ended, *, generation: int = 1, step: int | None = None) -> None:
        """One more attempt."""
        attempt = 1 if not self.run_dir else len(os.listdir(f"{self.run_dir}/attempts")) + 1
        self.run_dir = make_run(self.root, state=end, attempt=attempt)
        record = Path(self.run_dir, wire.RUN)
        job = {**json.loads(record.read_text())["job"], "workdir": str(self.work)}
        places = {"checkpoints": {"mirror": str(self.mirror)}, "disk": {"paths": [str(self.disk)]}}
        record.write_text(json.dumps({**json.loads(record.read_text()), "job": {**job, **places}}))
        directory = Path(wire.attempt_dir(self.run_dir, attempt))
        state = directory / wire.STATE
        state.write_text(json.dumps({**json.loads(state.read_text()), "generation": generation}))
        (directory / wire.NATIVE).touch()
        os.utime(directory / wire.NATIVE, ns=(BEFORE_NS, BEFORE_NS))
        if step is not None:
            (directory / wire.HEARTBEAT).write_text(json.dumps({"step": step}))

    def write(self, path: Path, at_ns: int) -> None:
        """Have its job write a file, at this time; the directories on the way are old."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, ns=(at_ns, at_ns))
        for above in path.parents:
            if above == self.root.parent:
                break
            os.utime(above, ns=(LONG_AGO_NS, LONG_AGO_NS))

    def judge(self) -> str:
        """Why it is not begun again."""
        return describe_standstill(observe_run(self.run_dir))


@pytest.fixture
def row(tmp_path: Path) -> Row:
    """Without attempts."""
    return Row(tmp_path)


def test_three_warned_attempts_without_anything_saved_are_the_last(row: Row) -> None:
    for _ in range(2):
        row.add(WARNED)
        assert not row.judge()
    row.add(replace(PREEMPTED, stop=StopRecord(*PLACE_END)))
    assert "3 attempts in a row were warned and got no further" in row.judge()
    assert f"holdfast restart {Path(row.run_dir).name}" in row.judge()


def test_a_preemption_that_was_warned_of_is_not_among_them(row: Row) -> None:
    taken = StopRequest(StopCause.PREEMPTION, "SIGUSR1 to the supervisor", detail=progress.TAKEN, warned=True)
    for end in (replace(PREEMPTED, request=taken), WARNED, WARNED):
        row.add(end)
        assert was_warned(observe_run(row.run_dir)), "put back all the same"
        assert not row.judge()
    row.add(WARNED)
    assert row.judge()


def test_what_any_of_them_has_saved_has_it_go_on_and_an_older_file_or_a_log_does_not(row: Row) -> None:
    for _ in range(3):
        row.add(WARNED)
    run, name = Path(row.run_dir), Path(row.run_dir).name
    places = [run / "checkpoints/state.json", row.mirror / name / "weights", run / "work/out/last.pt"]
    places += [run / "artifacts/x", row.disk / "state", row.work / "out/model.pth.tar", row.work / "attempts/m.pkl"]
    for path in places:
        row.write(path, LONG_AGO_NS)
        assert row.judge(), path
        row.write(path, LATELY_NS)
        assert not row.judge(), path
        row.write(path, LONG_AGO_NS)
    logs = [row.work / "train.log", row.work / "outputs/config.yaml", row.work / "wandb/latest/run.wandb"]
    logs.append(row.work / "runs/events.out.tfevents.1.box")
    others = (row.work / "runs/other/run.json", row.work / "runs/other/attempts/1/model.pt")
    for path in (run / "slurm-7.log", run / "checkpoints/.lock", run / "attempts/3/x.pt", *logs, *others):
        row.write(path, LATELY_NS)
        assert row.judge(), path


def test_links_lead_to_where_a_job_saves(row: Row, tmp_path: Path) -> None:
    for _ in range(3):
        row.add(WARNED)
    row.write(tmp_path / "scratch/last.pt", LONG_AGO_NS)
    (row.work / "out").symlink_to(tmp_path / "scratch")
    (row.work / "loop").symlink_to(row.work)
    (row.work / "nowhere").symlink_to(tmp_path / "absent")
    assert row.judge()
    row.write(tmp_path / "scratch/last.pt", LATELY_NS)
    assert not row.judge()


def test_a_step_higher_than_that_of_any_attempt_before_is_progress(row: Row) -> None:
    for step in (100, 200, 200):
        row.add(WARNED, step=step)
        assert not row.judge()
    row.add(WARNED, step=150)
    assert not row.judge(), "the second of the row got further than the first of all"
    row.add(WARNED, step=200)
    assert row.judge()
    for step in (1, 1):
        row.add(WARNED, generation=6, step=step)
    row.add(WARNED, generation=6, step=2)
    assert not row.judge(), "whoever restarted it may have begun from the start"


def test_what_somebody_asked_for_begins_a_new_row_and_another_end_ends_one(row: Row) -> None:
    for _ in range(3):
        row.add(WARNED)
    assert row.judge()
    for _ in range(2):
        row.add(WARNED, generation=4)
        assert not row.judge()
    row.add(WARNED, generation=4)
    assert row.judge()
    row.add(PREEMPTED, generation=4)
    assert not was_warned(observe_run(row.run_dir))
    row.add(WARNED, generation=4)
    assert was_warned(observe_run(row.run_dir))
    assert not row.judge()


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ESTALE, "Stale file handle")


def test_what_cannot_be_told_is_no_standstill(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        row.add(WARNED)
    for number in range(3):
        row.write(row.work / f"{number}.log", LATELY_NS)
    for name, value in (("MOST_ENTRIES", 2), ("WITHIN_S", -1.0)):
        with monkeypatch.context() as patch:
            patch.setattr(progress, name, value)
            assert not row.judge(), name
        assert row.judge()
    with monkeypatch.context() as patch:
        patch.setattr(progress, "_look", _refuse)
        assert not row.judge(), "what cannot be read may hold a checkpoint"
    Path(row.run_dir, "attempts/1", wire.NATIVE).unlink()
    assert not row.judge()
