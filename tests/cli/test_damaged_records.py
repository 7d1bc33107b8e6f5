"""A run of which somebody has damaged a record: a living supervisor mends its own, the others are named, with the way.

Each is damaged as a slip does it: a redirection over it, a truncation, a removal.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.process.pidfd import send_signal
from holdfast.model import wire
from tests.cli.live import live_run
from tests.rundirs import ended, make_run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def overwrite(path: Path) -> None:
    path.write_text("{\n")


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("no JSON")
    other.rename(path)


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def remove_one_name(path: Path) -> None:
    path.with_name("link").unlink(missing_ok=True)
    os.link(path, path.with_name("link"))
    path.unlink()


def make_anew(path: Path) -> None:
    path.unlink()
    path.mkdir()
    path.rmdir()
    path.write_text("{}")


@pytest.mark.parametrize("damage", [overwrite, truncate, replace, Path.unlink, move, remove_one_name, make_anew])
def test_a_living_supervisor_writes_its_damaged_state_anew(holdfast: Command, damage: Callable[[Path], object]) -> None:
    with live_run(holdfast) as run:
        path = Path(run.look().attempt_dir, wire.STATE)
        for _ in range(2):
            damage(path)
            wait_until(lambda: run.look().condition == "running", what="its state is whole again")
        events = [event["event"] for event in holdfast("show", "--json", run.run_id).json()["events"]]
        assert events.count("state_mended") == 1
        done = holdfast("stop", run.run_id)
        assert (done.code, run.look().condition) == (0, "stopped"), done


def test_a_state_that_nobody_mends_is_named_and_its_supervisor_is_found_by_its_lock(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        view = run.look()
        assert view.state is not None
        supervisor = view.state.supervisor
        assert supervisor is not None
        path = Path(view.attempt_dir, wire.STATE)
        send_signal(supervisor, signal.SIGSTOP)
        try:
            overwrite(path)
            seen = run.look()
            assert (seen.condition, seen.supervised, seen.holder) == ("unreadable", True, supervisor)
            shown = holdfast("show", run.run_id).out
            assert f"{path} cannot be read (state.json is not valid JSON" in shown
            assert f"alive (pid {supervisor.pid})" in shown
            assert f"kill -CONT {supervisor.pid}" in shown
            refused = holdfast("adopt", run.run_id)
            assert f"has a supervisor (pid {supervisor.pid})" in refused.err, refused
            assert holdfast("limit", run.run_id, "--timeout", "2h", "--wait", "10ms").code == 75
            assert holdfast("stop", "--wait", "10ms", run.run_id).code == 124
            path.unlink()
            assert f"{path} cannot be read (it does not exist)" in run.look().note
        finally:
            send_signal(supervisor, signal.SIGCONT)
        run.wait_condition("stopped")
        assert "limits_changed" in Path(view.attempt_dir, wire.EVENTS).read_text()


def test_a_damaged_record_of_the_job_is_named_by_whoever_needs_it(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        path = Path(run.run_dir, wire.RUN)
        whole = path.read_bytes()
        overwrite(path)
        said = f"{path} cannot be read (run.json is not valid JSON"
        for words in (("restart",), ("restart", "--dry-run"), ("limit", "--timeout", "2h")):
            done = holdfast(*words, run.run_id)
            assert done.code == 74, done
            assert said in done.err
            assert "put that file back" in done.err
            assert f"holdfast stop {run.run_id} works without it" in done.err
        for verb in ("reconcile", "patrol"):
            done = holdfast(verb)
            assert (done.code, said in done.out + done.err) == (1, True), done
        assert holdfast("stop", run.run_id).code == 0
        for verb in ("rm", "restart"):
            done = holdfast(verb, run.run_id)
            assert (done.code, said in done.err, "put that file back" in done.err) == (74, True, True), done
        assert said in holdfast("reconcile").err
        assert said in holdfast("diagnose", run.run_id).out
        path.write_bytes(whole)
        assert holdfast("reconcile").code == 0
        assert holdfast("rm", "--yes", run.run_id).code == 0


def test_a_success_is_not_called_well_where_its_record_cannot_be_read(
    holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    run_dir = make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    overwrite(Path(run_dir, wire.RUN))
    done = holdfast("diagnose", "digits")
    assert "nothing speaks against it" not in done.out
    assert f"warning: {run_dir}/{wire.RUN} cannot be read" in done.out
