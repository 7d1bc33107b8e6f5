"""Lean cells through the worker: claimed in batches, begun within the limits, each once whoever is killed."""

from __future__ import annotations

import errno
import glob
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queueing import lean, lean_cells
from holdfast.agent.queueing.lean_cells import LeanCells
from holdfast.agent.queueing.watching import Watch
from holdfast.host import processes
from holdfast.model.errors import StorageError
from holdfast.model.queue import Cell, CellState, OrderVerb
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.queueing.working import Work

pytestmark = pytest.mark.process

DONE, FAILED, QUEUED, HELD = CellState.DONE, CellState.FAILED, CellState.QUEUED, CellState.HELD
KILLS = int(os.environ.get("HOLDFAST_SOAK_KILLS", "500"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", str(int.from_bytes(os.urandom(4), "big"))))


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-16")
def test_many_lean_cells_end_with_their_own_exit_code_and_one_record_each(work: Work, tmp_path: Path) -> None:
    codes = {f"c{n}": n % 5 for n in range(40)}
    work.submit({name: shell(f"echo >> {tmp_path}/{name}; exit {code}") for name, code in codes.items()}, lean=True)
    work.wait_left()
    cells = work.cells()
    assert {name: cell.exit_code for name, cell in cells.items()} == codes
    assert {name: cell.state for name, cell in cells.items()} == {
        name: FAILED if code else DONE for name, code in codes.items()
    }
    assert {(tmp_path / name).read_text() for name in codes} == {"\n"}
    with work.open() as queue:
        records = lean.find_records(work.runs, queue.settings().queue_id)
    assert {record["name"]: record["exit_code"] for record in records} == codes
    assert os.listdir(work.runs) == ["lean"]


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-10")
def test_no_more_than_the_groups_limit_run_at_once_though_more_are_claimed(work: Work, tmp_path: Path) -> None:
    busy = f"cd {tmp_path} && (mkdir slot || echo over >> over); sleep 0.005; rmdir slot"
    work.submit({f"c{n}": shell(busy) for n in range(30)}, lean=True, max_parallel=1)
    work.wait_left()
    assert set(work.states().values()) == {DONE}
    assert not (tmp_path / "over").exists()


@pytest.mark.slow
def test_what_needs_a_lean_cell_starts_when_that_is_done(work: Work, tmp_path: Path) -> None:
    file = tmp_path / "order"
    cells = {name: shell(f"echo {name} >> {file}") for name in "abc"}
    work.submit(cells, lean=True, each={"a": {"needs": ("b",)}, "b": {"needs": ("c",)}})
    work.wait_left()
    assert file.read_text().split() == ["c", "b", "a"]


@pytest.mark.slow
def test_a_paused_group_keeps_its_lean_cells(work: Work, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f"echo >> {tmp_path}/ran; test $HOLDFAST_CELL != c5 || read line < {go}"
    work.submit({f"c{n}": shell(script) for n in range(40)}, lean=True, max_parallel=1)
    work.wait_state("c4", DONE)
    work.order(OrderVerb.PAUSE, group="g")
    wait_until(lambda: set(work.states().values()) <= {DONE, QUEUED, CellState.CLAIMED}, what="nothing else")
    wait_until(lambda: list(work.states().values()).count(QUEUED) == 34, what="what was claimed ahead is given back")
    go.write_text("on\n")
    work.wait_left()
    states = list(work.states().values())
    assert (states.count(DONE), states.count(QUEUED)) == (6, 34)
    assert len((tmp_path / "ran").read_text().splitlines()) == 6


def test_a_light_supervisor_that_is_killed_loses_its_cell_alone(work: Work, tmp_path: Path) -> None:
    script = f"test $HOLDFAST_CELL != a || {{ echo $$ > {tmp_path}/pid; exec sleep 60; }}"
    work.submit({name: shell(script) for name in "abc"}, lean=True, max_parallel=1)
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), what="it runs"))
    victim = lean.look(work.cells()["a"]).supervisor
    assert victim is not None
    processes.send_signal(victim, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(victim), what="it is dead")
    os.kill(pid, signal.SIGKILL)
    work.wait_left()
    assert work.states() == {"a": FAILED, "b": DONE, "c": DONE}
    assert work.cells()["a"].outcome == "lost"


@pytest.mark.requirement("QUEUE-09")
def test_a_rebuilt_database_knows_what_became_of_lean_cells(work: Work, tmp_path: Path) -> None:
    work.submit({name: shell(f"echo >> {tmp_path}/{name}; exit {name == 'b'}") for name in "ab"}, lean=True)
    work.submit({"b": shell(f"echo >> {tmp_path}/b; exit 3")}, lean=True, group="h")
    work.wait_left()
    before = [(cell.group, cell.name, cell.state, cell.exit_code) for cell in work_cells(work)]
    for path in glob.glob(f"{work.directory}/queue*.db*"):
        os.unlink(path)
    assert [(cell.group, cell.name, cell.state, cell.exit_code) for cell in work_cells(work)] == before


def test_a_marker_that_cannot_be_read_holds_its_cell_in_a_rebuild(work: Work, tmp_path: Path) -> None:
    work.submit({name: shell(f"echo >> {tmp_path}/{name}") for name in "ab"}, lean=True)
    work.wait_left()
    work.submit({"c": shell(f"echo >> {tmp_path}/c")}, lean=True, start=False)
    # As after a power cut: the name is on the disk and the content is not.
    os.truncate(f"{work.runs}/lean/g/a.json", 0)
    for path in glob.glob(f"{work.directory}/queue*.db*"):
        os.unlink(path)
    found = work.cells()
    assert {name: cell.state for name, cell in found.items()} == {"a": HELD, "b": DONE, "c": QUEUED}
    assert "lean/g/a.json" in found["a"].note
    work.ensure()
    work.wait_left()
    assert [(tmp_path / name).read_text() for name in "abc"] == ["\n"] * 3


@pytest.mark.parametrize("path", ["lean", "lean/g"])
def test_a_directory_of_lean_cells_that_cannot_be_listed_is_not_an_empty_one(
    path: str, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.submit({"a": shell("true")}, lean=True, start=False)
    os.makedirs(f"{work.runs}/lean/g", mode=0o700)
    for name in glob.glob(f"{work.directory}/queue*.db*"):
        os.unlink(name)
    listdir = os.listdir

    def refuse(name: str) -> list[str]:
        if name == f"{work.runs}/{path}":
            raise OSError(errno.EIO, "Input/output error", name)
        return listdir(name)

    monkeypatch.setattr(os, "listdir", refuse)
    assert work.states() == {"a": HELD}


@pytest.mark.slow
def test_a_light_supervisor_that_cannot_come_up_is_not_tried_for_ever(work: Work) -> None:
    os.makedirs(f"{work.runs}/lean/g/a.log", mode=0o700)
    work.submit({"a": shell("true"), "b": shell("true")}, lean=True)
    work.wait_left()
    assert work.states() == {"a": HELD, "b": DONE}
    assert "worker.log" in work.cells()["a"].note
    assert "Is a directory" in work.log()


def test_what_is_at_work_or_has_ended_is_not_taken_up_again(work: Work, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    work.submit({"a": shell(f"echo >> {tmp_path}/a; read line < {go}")}, lean=True, start=False)
    with work.open() as queue:
        watch = Watch(f"{work.directory}/journal")
        cells = LeanCells(queue, watch, lambda _: (work.environ, 0o077))
        try:
            cells.start(queue.cells())
            (claimed,) = queue.cells()
            # As after an error in the middle of a turn: stock is taken of all that the queue calls active.
            cells.adopt(claimed)
            assert [cell.id for cell in cells.active] == [claimed.id]
            go.write_text("on\n")

            def ended() -> bool:
                cells.collect()
                return len(cells.active) == 0

            wait_until(ended, what="it has ended")
            cells.adopt(claimed)
            assert len(cells.active) == 0
            assert [state for _, state in cells.start([])] == [DONE]
        finally:
            cells.close()
            watch.close()
    assert (tmp_path / "a").read_text() == "\n"


def test_a_claim_of_which_nothing_was_begun_does_not_count_as_an_attempt() -> None:
    cell = Cell(1, "1", "g", "a", CellState.CLAIMED, attempts=2, lean=True)
    error = StorageError("no room")
    for cause, state in ((OSError(errno.ENOSPC, "full"), QUEUED), (None, HELD)):
        error.__cause__ = cause
        _, to, facts = lean_cells._retreat(cell, error, "no room")
        assert (to, facts["attempts"]) == (state, 1)


def work_cells(work: Work) -> list[Cell]:
    with work.open() as queue:
        return queue.cells()


def campaign(work: Work, directory: Path, *, cells: int, kills: int, seed: int) -> None:
    """Kill the worker at random moments while lean cells run; each must have run once, with its own exit code."""
    draw = random.Random(seed)
    codes = {f"c{n}": n % 7 for n in range(cells)}
    commands = {}
    for name, code in codes.items():
        pause = draw.choice(("0", "0", "0", f"{draw.uniform(0.0, 0.2):.3f}"))
        commands[name] = shell(f"sleep {pause}; echo >> {directory}/{name}; exit {code}")
    work.submit(commands, lean=True)
    dead, end = 0, time.monotonic() + 60 + kills
    while dead < kills and time.monotonic() < end:
        work.ensure()
        time.sleep(draw.uniform(0.0, 0.1))
        if work.worker() is not None:
            work.kill_worker()
            dead += 1
        elif not any(cell.state in (QUEUED, CellState.CLAIMED) for cell in work.cells().values()):
            break
    work.ensure()
    work.wait_left(timeout_s=120)
    found = work.cells()
    ran = {name: (directory / name).read_text().count("\n") if (directory / name).exists() else 0 for name in codes}
    assert ran == dict.fromkeys(codes, 1), f"seed {seed}"
    assert {name: found[name].exit_code for name in codes} == codes, f"seed {seed}"
    assert dead >= min(kills, 2), f"seed {seed}: only {dead} workers were killed"


@pytest.mark.requirement("QUEUE-01")
def test_QUEUE_01_each_lean_cell_runs_once_whenever_the_worker_is_killed(work: Work, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    campaign(work, tmp_path / "out", cells=40, kills=5, seed=SEED)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.requirement("QUEUE-01")
def test_QUEUE_01_lean_cells_and_five_hundred_dead_workers(work: Work, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    campaign(work, tmp_path / "out", cells=KILLS * 8, kills=KILLS, seed=SEED)
