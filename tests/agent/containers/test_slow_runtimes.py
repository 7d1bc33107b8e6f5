"""Jobs in containers where a step takes long, or is refused: of the runtime, or of the lease area."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import files
from holdfast.host.process import pidfd
from holdfast.model import wire
from holdfast.model.container import ROOM, SAID
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions
from holdfast.model.run import Outcome
from tests.agent.containers.test_containers import TRAINER, UP_S, assert_removed, ready, record_of, start
from tests.host.small_disk import fill, mount_small_disk
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive, Driven
    from tests.runtimes import Engine

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
WAITS = """#!/bin/sh
# The real one, which at one verb waits until it may go on.
if [ "$1" = "$WAITS_AT" ]; then
    : >"$PLACE/there"
    while [ ! -e "$PLACE/go" ]; do sleep 0.05; done
fi
exec %s "$@"
"""


def make_waiting(place: Path, verb: str) -> dict[str, str]:
    """The environment in which podman waits at `verb`: for a file `go` in `place`, beside which it says `there`."""
    place.mkdir()
    (place / "podman").write_text(WAITS % shutil.which("podman"))
    (place / "podman").chmod(0o755)
    return {"PLACE": str(place), "WAITS_AT": verb, "PATH": f"{place}:{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.requirement("CTR-05")
def test_a_removal_that_hangs_holds_neither_the_record_nor_a_supervisor(
    drive: Drive, podman: Engine, tmp_path: Path
) -> None:
    environ = make_waiting(tmp_path / "bin", "rm")
    run = start(drive, podman, "true", environ=environ)
    wait_until((tmp_path / "bin" / "there").exists, UP_S, what="it is being removed")
    assert run.read(wire.EXIT)["outcome"] == "succeeded"
    assert run.supervised()
    run.signal_supervisor(signal.SIGTERM)
    run.ended(UP_S)
    assert [event["data"]["why"] for event in run.events("container_left")] == ["was told to leave"]
    # What was begun goes on by itself.
    (tmp_path / "bin" / "go").touch()
    wait_until(lambda: not podman.left(), what="it was removed")


@pytest.mark.slow
@pytest.mark.requirement("CTR-05")
def test_a_stop_while_it_is_created_starts_nothing_and_leaves_nothing(
    drive: Drive, podman: Engine, tmp_path: Path
) -> None:
    environ = make_waiting(tmp_path / "bin", "create")
    run = start(drive, podman, "python3", "-c", TRAINER, environ=environ)
    wait_until((tmp_path / "bin" / "there").exists, UP_S, what="it is being created")
    run.ask()
    run.wait_kind("ended", timeout_s=UP_S)
    (tmp_path / "bin" / "go").touch()
    assert run.ended(UP_S).outcome is Outcome.STOPPED
    assert_removed(run, podman)
    assert not run.output()


@pytest.mark.slow
@pytest.mark.requirement("LEASE-09")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_lease_that_cannot_name_who_is_inside_holds_the_gate(drive: Drive, podman: Engine, tmp_path: Path) -> None:
    place = tmp_path / "bin"
    waiting = make_waiting(place, "start")
    with mount_small_disk(tmp_path / "disk", 1 << 20) as disk:
        environ = {**waiting, "HOLDFAST_LEASE_DIR": f"{disk}/area"}
        run = start(
            drive, podman, "python3", "-c", TRAINER, gpus=GpuRequest(count=1), gpu=GpuOptions(idle_window_s=0.0),
            environ={**environ, "HOLDFAST_SIMULATED_GPUS": "1"},
        )  # fmt: skip
        wait_until((place / "there").exists, UP_S, what="the client is about to start it")
        full = fill(disk)
        (place / "go").touch()
        wait_until(lambda: run.events("lease_record_stale"), UP_S, what="the lease area refuses the record")
        wait_until(lambda: record_of(run).init, UP_S, what="its first process is known")
        wait_until(lambda: "ready" in read_said(run), UP_S, what="it waits at the gate")
        assert not run.events("exec")
        assert not record_of(run).opened
        full.unlink()
        ready(run)
        run.ask()
        run.ended(UP_S)
        assert_removed(run, podman)


@pytest.mark.slow
@pytest.mark.requirement("CTR-05")
def test_a_paused_container_dies_of_kill_without_its_runtime(drive: Drive, podman: Engine, tmp_path: Path) -> None:
    environ = make_waiting(tmp_path / "bin", "unpause")
    run = start(drive, podman, "python3", "-c", TRAINER, environ=environ, grace_s=1.0)
    ready(run)
    podman("pause", record_of(run).id)
    run.ask()
    ended = run.ended(UP_S)
    assert (ended.outcome, run.events("kill_sent")[-1]["data"]["survivors"]) == (Outcome.STOPPED, 0)
    # It ends by itself in 20 s, whoever waits for it.
    (tmp_path / "bin" / "go").touch()
    assert_removed(run, podman)


@pytest.mark.slow
@pytest.mark.requirement("CTR-05")
def test_a_client_that_does_not_leave_holds_neither_a_run_nor_its_end(drive: Drive, podman: Engine) -> None:
    run = start(drive, podman, "python3", "-c", TRAINER, grace_s=5.0)
    state = ready(run)
    # As one whose daemon hangs.
    pidfd.send_signal(state.job.process, signal.SIGSTOP)
    run.ask()
    ended = run.ended(UP_S)
    assert (ended.outcome, ended.status and ended.status.code) == (Outcome.STOPPED, 7)
    assert run.read(wire.EXIT)["status"]["code"] == 7
    assert run.events("client_outlived")
    assert_removed(run, podman)


def read_said(run: Driven) -> str:
    return files.read_text_or_none(f"{run.path(ROOM)}/{SAID}") or ""
