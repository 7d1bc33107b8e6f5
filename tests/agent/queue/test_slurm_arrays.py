"""Sweeps as arrays of Slurm, by what its commands say: handed in again, tried again, damaged, forgotten."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.place.sweep_arrays import take_sweep
from holdfast.agent.queue.arrays import take
from holdfast.agent.queue.change.clear import clear, plan_clear
from holdfast.agent.queue.change.retry import retry_sweep
from holdfast.agent.view.runs.sweeps import read_sweep
from holdfast.core.queue.job_hasher import JobHasher
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.job import JobSpec
from holdfast.model.queue import GroupKind, NewJob, OrderedJobs, Submission
from holdfast.model.queue_order import QueueOrder
from holdfast.model.run import Outcome
from tests.rundirs import ended, make_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.slurm.programs import Programs

pytestmark = pytest.mark.process

NAME = "rates"


class Sweep:
    """A sweep of two jobs at a Slurm of scripts."""

    def __init__(self, programs: Programs, tmp_path: Path) -> None:
        """Nothing was handed in yet."""
        programs.take_jobs()
        self.programs, self._workdir = programs, str(tmp_path)
        self.root = Path(os.environ["HOLDFAST_RUNS"])
        self.directory = self.root / f".sweeps-{os.geteuid()}" / NAME
        self._orders = 0

    def hand_in(self, *, time: str = "", env_from: str = "none") -> tuple[str, ...]:
        """Hand it in as another order; what is said of it."""
        self._orders += 1
        base = wire.encode(JobSpec("job", ("true",), self._workdir, slurm={"time": time} if time else {}))
        hasher = JobHasher(base)
        changes = {name: {"command": ["sh", "-c", f": {name}"]} for name in ("a", "b")}
        jobs = tuple(NewJob(name, dict(change), sha256=hasher.hash(change)) for name, change in changes.items())
        ordered = OrderedJobs(f"20261123-101500-{NAME}-000{self._orders}", f"{self._orders}" * 64)
        asked = Submission(
            NAME, base, jobs, "", "", (), "", "2026-11-23T10:15:00.000Z", kind=GroupKind.SWEEP, ordered=ordered
        )
        order = QueueOrder(asked, named=True, scheduler="slurm", env_from=env_from)
        return take_sweep(order, str(self.root)).taken.notes

    def list_runs(self) -> list[str]:
        """The runs of its jobs."""
        sweep = read_sweep(str(self.directory))
        assert sweep is not None
        return [job.run_id for job in sweep.jobs]

    def end_all(self) -> None:
        """Have every job ended without success, in its first attempt."""
        for run_id in self.list_runs():
            attempt = self.root / run_id / "attempts/1"
            made = Path(make_run(self.root / "elsewhere", run_id, ended(Outcome.FAILED, 1)), "attempts/1")
            for name in ("state.json", "exit.json"):
                (attempt / name).write_bytes((made / name).read_bytes())


@pytest.fixture
def sweep(programs: Programs, tmp_path: Path) -> Sweep:
    """Of two jobs."""
    return Sweep(programs, tmp_path)


def test_an_edited_time_limit_is_said_and_holds_for_what_is_tried_again(sweep: Sweep) -> None:
    sweep.hand_in(time="60")
    runs = sweep.list_runs()
    assert "#SBATCH --time=60" in sweep.programs.read_script(1)
    assert not any("keep them so far" in note for note in sweep.hand_in(time="60"))
    assert any("2 were handed in before with other options of Slurm" in note for note in sweep.hand_in(time="240"))
    assert (sweep.list_runs(), sweep.programs.count("sbatch")) == (runs, 1)

    sweep.end_all()
    calls = len(sweep.programs.list_calls())
    told = retry_sweep(NAME, everything=False, dry_run=True)
    assert (told.did, len(told.jobs)) == ("would be handed in again", 2)
    assert sweep.programs.list_calls()[calls:] in ([], ["squeue"])
    assert not (sweep.root / runs[0] / "attempts/2").exists()
    assert retry_sweep(NAME, everything=False).did == "handed in again"
    assert "#SBATCH --time=240" in sweep.programs.read_script(2)


def test_what_is_tried_again_has_the_environment_that_it_was_ordered_with(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def choose(env_from: str, environ: Mapping[str, str]) -> Mapping[str, str]:
        asked.append(env_from)
        return environ

    monkeypatch.setattr("holdfast.agent.place.sweep_arrays.choose_environ", choose)
    monkeypatch.setattr(take, "choose_environ", choose)
    sweep.hand_in(env_from="login")
    sweep.end_all()
    asked.clear()
    retry_sweep(NAME, everything=False)
    assert asked == ["login"]
    record = json.loads((sweep.directory / "2/slurm.json").read_text())
    assert record["env_from"] == "login"


def test_a_half_written_record_of_a_sweep_says_the_way_out_and_that_one_works(sweep: Sweep) -> None:
    sweep.hand_in()
    first = sweep.list_runs()
    path = sweep.directory / "sweep.json"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StorageError, match="cannot be read") as refused:
        sweep.hand_in()
    source, target = refused.value.hint.rpartition("mv ")[2].split()
    os.rename(source, target)
    sweep.hand_in()
    assert not set(first) & set(sweep.list_runs())
    assert sorted(entry.name for entry in sweep.directory.iterdir() if entry.name.isdigit()) == ["1", "2"]
    old = json.loads((sweep.directory / "1/slurm.json").read_text())
    new = json.loads((sweep.directory / "2/slurm.json").read_text())
    assert (old["job_id"], new["job_id"]) == ("1", "2")


def test_a_sweep_of_which_nothing_waits_can_be_cleared_and_its_name_is_free(sweep: Sweep) -> None:
    sweep.hand_in()
    script = f"{sweep.directory}/1/batch.sh"
    sweep.programs.answer("squeue", f"1_[0-1]|PENDING|N/A|0:00|1:00:00|Priority|()|{script}\n")
    with pytest.raises(UsageError, match="2 jobs wait or run"):
        clear(plan_clear([NAME]))
    sweep.end_all()
    runs = sweep.list_runs()
    sweep.programs.answer("squeue", "")
    assert "their runs stay" in clear(plan_clear([NAME])).notes[0]
    assert not sweep.directory.exists()
    assert all((sweep.root / run_id).is_dir() for run_id in runs)
    sweep.hand_in()
    assert not set(runs) & set(sweep.list_runs())
