"""holdfast inside of a container as its first process, with a real runtime around it (docs/places.md, `stand`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.model import wire
from tests.agent.standing import SAVES
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.driving import Drive, Driven
    from tests.agent.standing import Stands
    from tests.runtimes import Engine

pytestmark = [pytest.mark.process, pytest.mark.timeout(180), pytest.mark.slow]
SOURCE = str(Path(holdfast.__file__).parent.parent)
AGAIN = f'[ -e "$HOLDFAST_CHECKPOINT_DIR/saved" ] && {{ echo continued; exit 0; }}; {SAVES[2]}'
ULIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")
"""Podman on small machines wants these said (tests/runtimes.py)."""


@pytest.mark.requirement("KUB-06", "KUB-14")
@pytest.mark.parametrize("name", ["podman", "docker"])
def test_as_the_first_process_a_stop_of_the_runtime_saves_and_the_next_container_goes_on(
    drive: Drive, stands: Stands, request: pytest.FixtureRequest, name: str
) -> None:
    engine = request.getfixturevalue(name)
    order, run = stands.order("sh", "-c", AGAIN, workdir=drive.workdir)
    first = begin(drive, engine, "--root", drive.root, "--order", order, "--term", "preemption", order=order)
    wait_until(lambda: b"ready\n" in run.output(), what=f"the job is ready: {engine('logs', first)}")
    engine("stop", "--time=30", first)
    assert (engine("wait", first), told(run)) == ("143", "preempted")
    second = begin(drive, engine, "--run", run.run_dir, "--next", "preemption", order=order)
    assert engine("wait", second) == "0", engine("logs", second)
    run.attempt = 2
    assert told(run) == "succeeded"
    assert "continued" in engine("logs", second)
    engine("rm", first, second)


def begin(drive: Drive, engine: Engine, *words: str, order: str) -> str:
    """A container of which the first process is a supervisor in the foreground; its id."""
    mounts = (SOURCE, f"{SOURCE}:ro"), (drive.root, drive.root), (drive.workdir, drive.workdir), (order, f"{order}:ro")
    return engine(
        "run", "--detach", "--network=host", *(ULIMITS if engine.name == "podman" else ()),
        *(f"--volume={source}:{target}" for source, target in mounts),
        engine.image, "python3", "-I", "-S", f"{SOURCE}/holdfast/agent/__main__.py", "stand", *words,
    ).splitlines()[-1]  # fmt: skip


def told(run: Driven) -> str:
    assert os.path.exists(run.path(wire.EXIT)), run.log()
    return str(run.read(wire.EXIT)["outcome"])
