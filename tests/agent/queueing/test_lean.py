"""Lean cells: one record each with the exact end, at most one run, and nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.queueing import lean, lean_jobs
from holdfast.agent.queueing.lean import LeanLook, Phase
from holdfast.host.processes import identify, is_alive
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.gpu import GpuRequest
from holdfast.model.identity import ProcessId
from holdfast.model.job import GpuOptions, JobSpec, Limits, Priority, Timeouts
from holdfast.model.queue import Cell, CellState, NewCell, Submission
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


def make_cell(root: Path, name: str = "a", **changes: Any) -> Cell:
    cell = Cell(
        1, "k1", "g", name, CellState.CLAIMED, run_id=lean.new_claim(), runs_root=str(root), lean=True, sha256="5a"
    )
    return replace(cell, **changes)


def submit(cell: Cell, *command: str, **fields: Any) -> Submission:
    spec = JobSpec("job", command, fields.pop("workdir", "/"), priority=Priority.NORMAL, **fields)
    return Submission("g", wire.encode(spec), (NewCell(cell.name),), cell.runs_root, "/", (), "me", "now", lean=True)


class Started:
    """Cells started here; all are ended and reaped."""

    def __init__(self) -> None:
        self._lights: list[lean.Light] = []

    def start(self, cell: Cell, *command: str, **fields: Any) -> lean.Light:
        light = lean.start(cell, submit(cell, *command, **fields), ENVIRON, umask=0o022, queue="q1")
        assert light is not None
        self._lights.append(light)
        return light

    def wait(self, cell: Cell) -> LeanLook:
        """Until its light supervisor has left, then what there is."""
        light = self._lights.pop()
        os.waitid(os.P_PIDFD, light.pidfd, os.WEXITED)
        os.close(light.pidfd)
        return lean.look(cell)

    def run(self, cell: Cell, *command: str, **fields: Any) -> dict[str, Any]:
        self.start(cell, *command, **fields)
        found = self.wait(cell)
        assert found.record is not None, found
        return found.record

    def close(self) -> None:
        for light in self._lights:
            signal.pidfd_send_signal(light.pidfd, signal.SIGTERM)
            os.waitid(os.P_PIDFD, light.pidfd, os.WEXITED)
            os.close(light.pidfd)


@pytest.fixture
def cells() -> Iterator[Started]:
    started = Started()
    yield started
    started.close()


@pytest.mark.requirement("QUEUE-16")
@pytest.mark.parametrize(
    ("script", "status", "state"),
    [
        ("exit 0", (0, None), CellState.DONE),
        ("exit 3", (3, None), CellState.FAILED),
        ("exit 255", (255, None), CellState.FAILED),
        ("kill -9 $$", (None, 9), CellState.FAILED),
    ],
)
def test_the_exit_status_is_exact(
    cells: Started, tmp_path: Path, script: str, status: tuple[int | None, int | None], state: CellState
) -> None:
    cell = make_cell(tmp_path)
    record = cells.run(cell, "/bin/sh", "-c", script)
    assert (record["exit_code"], record["signal"]) == status
    assert record["emptied"] is True
    assert record["command"] == ["/bin/sh", "-c", script]
    assert {name: record[name] for name in ("run_id", "queue", "key", "group", "name", "sha256")} == {
        "run_id": cell.run_id, "queue": "q1", "key": "k1", "group": "g", "name": "a", "sha256": "5a"
    }  # fmt: skip
    assert record["user_s"] >= 0
    assert record["max_rss_bytes"] > 0
    found = lean.judge(lean.look(cell))
    assert (found[0], found[1]["exit_code"]) == (state, status[0])


def test_one_that_is_begun_and_cannot_be_watched_is_not_said_to_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    cell = make_cell(tmp_path)
    command = submit(cell, "/bin/sh", "-c", f"echo >> {tmp_path}/ran")
    assert lean.start(cell, command, ENVIRON, umask=0o022, queue="q1") is None
    os.waitpid(-1, 0)
    assert lean.look(cell).phase is Phase.ENDED
    assert lean.start(cell, command, ENVIRON, umask=0o022, queue="q1") is None
    assert (tmp_path / "ran").read_text() == "\n"


def test_one_that_was_lost_is_not_begun_again_under_the_same_claim(cells: Started, tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    script = f"echo >> {tmp_path}/ran; exec sleep 60"
    light = cells.start(cell, "/bin/sh", "-c", script)
    wait_until((tmp_path / "ran").exists, what="it runs")
    (child,) = map(int, Path(f"/proc/{light.pid}/task/{light.pid}/children").read_text().split())
    os.kill(light.pid, signal.SIGKILL)
    assert cells.wait(cell).phase is Phase.LOST
    os.kill(child, signal.SIGKILL)
    again = lean.start(cell, submit(cell, "/bin/sh", "-c", script), ENVIRON, umask=0o022, queue="q1")
    assert again is None
    assert (tmp_path / "ran").read_text() == "\n"


@pytest.mark.requirement("QUEUE-13")
def test_its_input_is_empty_and_its_output_and_errors_are_kept(cells: Started, tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    record = cells.run(cell, "/bin/sh", "-c", "wc -c; echo there >&2; pwd; umask", workdir=str(tmp_path))
    with open(record["output"], encoding="utf-8") as file:
        assert file.read().split() == ["0", "there", str(tmp_path), "0022"]
    assert os.stat(record["output"]).st_mode & 0o777 == 0o600


def test_it_sees_no_card_and_only_its_own_environment(cells: Started, tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    record = cells.run(cell, "env", env={"CUDA_VISIBLE_DEVICES": "0", "LR": "0.1"})
    with open(record["output"], encoding="utf-8") as file:
        seen = dict(line.rstrip("\n").split("=", 1) for line in file)
    assert seen["CUDA_VISIBLE_DEVICES"] == "-1"
    assert (seen["LR"], seen["HOME"]) == ("0.1", "/nonexistent")
    assert (seen["HOLDFAST_RUN_ID"], seen["HOLDFAST_CELL"], seen["HOLDFAST_GROUP"]) == (cell.run_id, "a", "g")
    assert "PYTEST_CURRENT_TEST" not in seen


def test_it_has_no_descriptor_and_no_ignored_signal_of_the_worker(cells: Started, tmp_path: Path) -> None:
    with open(tmp_path / "held", "w", encoding="ascii") as file:
        os.set_inheritable(file.fileno(), True)
        record = cells.run(
            make_cell(tmp_path), "/bin/sh", "-c", "ls -l /proc/self/fd; grep -E 'Sig(Ign|Blk)' /proc/self/status"
        )
    with open(record["output"], encoding="utf-8") as output:
        text = output.read()
    assert "held" not in text
    masks = {line.split(":")[0]: int(line.split()[1], 16) for line in text.splitlines() if line.startswith("Sig")}
    # Source: glibc, sysdeps/unix/sysv/linux/spawni.c: its own two signals (32, 33) are ignored in what it spawns.
    assert {name: mask & ~(3 << 31) for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}


@pytest.mark.parametrize(
    ("job", "code", "words"),
    [
        (("no-such-command", "/"), 127, "no such command"),
        (("/no/such/command", "/"), 127, "No such file"),
        (("/etc/passwd", "/"), 126, "Permission denied"),
        (("/bin/true", "/no/such/directory"), 126, "/no/such/directory"),
    ],
)
def test_a_command_that_cannot_be_started_says_why(
    cells: Started, tmp_path: Path, job: tuple[str, str], code: int, words: str
) -> None:
    cell = make_cell(tmp_path)
    record = cells.run(cell, job[0], workdir=job[1])
    assert record["exit_code"] == code
    assert words in record["error"]
    state, facts = lean.judge(lean.look(cell))
    assert state is CellState.FAILED
    assert words in facts["note"]


def test_what_the_command_leaves_behind_is_ended(cells: Started, tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    record = cells.run(cell, "/bin/sh", "-c", f"(setsid sleep 60 & echo $! > {tmp_path}/pid)")
    assert (record["exit_code"], record["left"], record["emptied"]) == (0, 1, True)
    assert identify(int((tmp_path / "pid").read_text())) is None


def test_a_leftover_that_ignores_term_is_killed(
    cells: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agent.queueing.light.LEFTOVER_GRACE_S", 0.05)
    record = cells.run(make_cell(tmp_path), "/bin/sh", "-c", "trap '' TERM; sleep 60 & exec true")
    assert record["emptied"] is True


def test_a_stop_is_passed_on_and_is_no_success(cells: Started, tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    cells.start(cell, "/bin/sh", "-c", f"trap 'exit 0' TERM; echo > {tmp_path}/ready; while :; do sleep 0.05; done")
    wait_until((tmp_path / "ready").exists, what="the command")
    assert lean.look(cell).phase is Phase.LIVE
    assert lean.stop(cell)
    found = cells.wait(cell)
    assert found.record is not None
    assert (found.record["outcome"], found.record["exit_code"], found.record["stopped_by"]) == ("stopped", 0, "SIGTERM")
    assert lean.judge(found)[0] is CellState.CANCELLED
    assert not lean.stop(cell)


@pytest.mark.requirement("QUEUE-01")
def test_a_cell_that_was_begun_is_not_begun_again_under_the_same_claim(cells: Started, tmp_path: Path) -> None:
    cell, stamps = make_cell(tmp_path), tmp_path / "ran"
    cells.start(cell, "/bin/sh", "-c", f"echo >> {stamps}; exec sleep 60")
    wait_until(stamps.exists, what="the command")
    again = submit(cell, "/bin/sh", "-c", f"echo >> {stamps}")
    assert lean.start(cell, again, ENVIRON, umask=0o022, queue="q1") is None
    assert lean.stop(cell)
    assert cells.wait(cell).phase is Phase.ENDED
    assert lean.start(cell, again, ENVIRON, umask=0o022, queue="q1") is None
    assert stamps.read_text() == "\n"


def test_a_cell_that_is_stopped_before_it_began_is_not_begun(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    assert lean.stop(cell)
    assert lean.start(cell, submit(cell, "touch", str(tmp_path / "ran")), ENVIRON, umask=0o022, queue="q1") is None
    assert lean.judge(lean.look(cell))[0] is CellState.CANCELLED
    assert not (tmp_path / "ran").exists()


def test_a_time_limit_ends_it(cells: Started, tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    record = cells.run(cell, "sleep", "60", timeouts=Timeouts(run_s=0.05), grace_s=0.05)
    assert lean.judge(lean.look(cell))[0] is CellState.FAILED
    assert (record["outcome"], record["signal"]) == ("stopped", int(signal.SIGTERM))
    assert "time limit" in record["stopped_by"]


@pytest.mark.requirement("QUEUE-01")
def test_the_death_of_the_worker_costs_nothing(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    worker = os.fork()
    if worker == 0:
        try:
            Started().start(cell, "/bin/sh", "-c", f"echo > {tmp_path}/ready; read line < {tmp_path}/gate; exit 7")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.mkfifo(tmp_path / "gate")
    os.waitpid(worker, 0)
    wait_until((tmp_path / "ready").exists, what="the command")
    assert lean.look(cell).phase is Phase.LIVE
    (tmp_path / "gate").write_text("go\n")
    record = wait_until(lambda: lean.look(cell).record, what="its record")
    assert record is not None
    assert record["exit_code"] == 7
    light = wire.decode(ProcessId, record["supervisor"])
    wait_until(lambda: not is_alive(light), what="it to leave")


@pytest.mark.requirement("QUEUE-01")
def test_a_cell_whose_light_supervisor_was_killed_is_lost_and_not_repeated(cells: Started, tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    light = cells.start(cell, "/bin/sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), what="the command"))
    signal.pidfd_send_signal(light.pidfd, signal.SIGKILL)
    found = cells.wait(cell)
    os.kill(pid, signal.SIGKILL)
    assert found.phase is Phase.LOST
    state, facts = lean.judge(found)
    assert (state, facts["outcome"], facts["exit_code"]) == (CellState.FAILED, "lost", None)


@pytest.mark.requirement("QUEUE-01")
def test_a_start_that_was_cut_off_before_the_command_is_done_again(
    cells: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell(tmp_path)
    assert lean.look(cell).phase is Phase.UNBEGUN
    worker = os.fork()
    if worker == 0:
        # Killed between the marker and the fork.
        monkeypatch.setattr(os, "fork", lambda: os.kill(os.getpid(), signal.SIGKILL))
        Started().start(cell, "true")
    os.waitpid(worker, 0)
    assert os.path.exists(lean.record_path(cell))
    assert lean.look(cell).phase is Phase.UNBEGUN
    assert cells.run(cell, "true")["exit_code"] == 0


def test_after_a_restart_of_the_box_a_claim_without_a_record_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell(tmp_path)
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "ffffffff-0000-4000-8000-000000000000")
    found = lean.look(cell)
    assert (found.phase, "before the box was started anew" in found.why) == (Phase.LOST, True)


def test_a_record_outlives_a_restart_of_the_box(
    cells: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell(tmp_path)
    cells.run(cell, "true")
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "ffffffff-0000-4000-8000-000000000000")
    assert lean.look(cell).phase is Phase.ENDED


def test_a_marker_that_cannot_be_read_is_no_reason_to_run_again(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    os.makedirs(tmp_path / "lean" / "g")
    (tmp_path / "lean" / "g" / "a.json").write_bytes(b"")
    assert lean.look(cell).phase is Phase.LOST


def test_the_next_claim_of_a_cell_keeps_the_record_and_output_of_the_last(cells: Started, tmp_path: Path) -> None:
    first = make_cell(tmp_path)
    cells.run(first, "/bin/sh", "-c", "echo one; exit 1")
    second = make_cell(tmp_path)
    assert lean.look(second).phase is Phase.UNBEGUN
    cells.run(second, "/bin/sh", "-c", "echo two")
    kept = tmp_path / "lean" / "g"
    assert (kept / "a.log").read_text() == "two\n"
    assert (kept / f"a.{first.run_id}.log").read_text() == "one\n"
    assert json.loads((kept / f"a.{first.run_id}.json").read_text())["exit_code"] == 1
    assert [found["run_id"] for found in lean.find_records(str(tmp_path), "q1")] == [second.run_id]
    assert lean.find_records(str(tmp_path), "q2") == []


def test_a_disk_that_takes_no_marker_begins_nothing(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    (tmp_path / "lean").write_text("in the way")
    with pytest.raises(StorageError, match="lean"):
        lean.start(cell, submit(cell, "true"), ENVIRON, umask=0o022, queue="q1")


def test_a_name_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        lean.record_path(make_cell(tmp_path, ".."))


PLAIN = JobSpec("job", ("true",), "/")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (replace(PLAIN, gpus=GpuRequest(1)), "cards"),
        (replace(PLAIN, gpu=GpuOptions(min_free_bytes=1)), "cards"),
        (replace(PLAIN, limits=Limits(tasks=3)), "limits"),
        (replace(PLAIN, artifacts=("out/*.pt",)), "artifacts"),
        (replace(PLAIN, data=("/data",)), "data"),
        (replace(PLAIN, inputs=("a.csv",)), "inputs"),
        (replace(PLAIN, config="c.yaml"), "configuration"),
        (replace(PLAIN, timeouts=Timeouts(total_s=3.0)), "timeouts"),
        (replace(PLAIN, pty=True), "terminal"),
    ],
)
def test_what_a_lean_cell_cannot_do_is_refused(spec: JobSpec, words: str, tmp_path: Path) -> None:
    (why,) = lean_jobs.refuse(spec)
    assert words in why
    cell = make_cell(tmp_path)
    with pytest.raises(UsageError, match=words):
        lean.start(cell, replace(submit(cell), base=wire.encode(spec)), ENVIRON, umask=0o022, queue="q1")
    assert lean.look(cell).phase is Phase.UNBEGUN


def test_a_plain_command_can_be_lean() -> None:
    assert (
        lean_jobs.refuse(replace(PLAIN, timeouts=Timeouts(run_s=5.0), env={"A": "b"}, priority=Priority.NORMAL)) == ()
    )


def test_every_field_of_a_job_is_kept_ignored_or_refused_with_a_reason() -> None:
    known = lean_jobs.KEPT_FIELDS | lean_jobs.IGNORED_FIELDS | lean_jobs.REFUSED.keys()
    assert {field.name for field in fields(JobSpec)} == known


def test_a_secret_on_the_command_line_is_refused(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    with pytest.raises(UsageError, match="secret"):
        lean.start(
            cell,
            submit(cell, "true", "--api-key=sk-abcdefghijklmnopqrstuvwx0123456789"),
            ENVIRON,
            umask=0o22,
            queue="q",
        )


def test_a_light_supervisor_is_no_child_of_a_terminal(cells: Started, tmp_path: Path) -> None:
    record = cells.run(make_cell(tmp_path), sys.executable, "-c", "import os; print(os.getsid(0) == os.getppid())")
    with open(record["output"], encoding="utf-8") as file:
        assert file.read() == "True\n"
