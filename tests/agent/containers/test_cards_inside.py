"""The cards are proven inside of a container of a real runtime, whatever the command is; torch is a stand-in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.supervise.container.ask_inside import put_question, read_answer
from holdfast.agent.supervise.container.room import Room
from holdfast.core.container.command import CardsInside, ContainerPlan, DeviceGrant
from holdfast.core.job.setup import wrap_in_setup
from holdfast.model.container import RuntimeName
from holdfast.model.job import JobSpec
from tests.agent.containers.test_apptainer import TORCH
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.runtimes import Engine

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]
SCRIPT = ("sh", "/code/train.sh")
COMMANDS = (
    ("python3", "train.py"),
    ("/code/named",),
    ("env", "python3", "train.py"),
    ("env", "-u", "OTHER", "SEEN=0", "python3", "train.py"),
    SCRIPT,
    ("/code/train.sh",),
    wrap_in_setup(("export A=b",), ("python3", "train.py")),
    wrap_in_setup(("export A=b",), SCRIPT),
)


@pytest.mark.requirement("CTR-08", "LEASE-09")
@pytest.mark.gotcha("U31")
@pytest.mark.parametrize("name", ["podman", "docker"])
def test_CTR_08_a_command_that_names_no_python_is_not_begun_without_cards(
    tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    engine = request.getfixturevalue(name)
    code = tmp_path / "code"
    (code / "torch").mkdir(parents=True)
    torch = code / "torch" / "__init__.py"
    for program, first in (("train.sh", "#!/bin/sh"), ("named", "#!/bin/env python3")):
        (code / program).write_text(f"{first}\n")
        (code / program).chmod(0o755)
    torch.write_text(TORCH)
    for number, command in enumerate(COMMANDS):
        said = ask(engine, tmp_path / f"bad-{number}", command, seen="0")
        assert "would train on the CPU" in said, command
    assert "sees 2 cards" in ask(engine, tmp_path / "two", SCRIPT, seen="2")
    torch.write_text(TORCH.replace('"12.4", None', "None, None"))
    assert "would train on the CPU" in ask(engine, tmp_path / "named", COMMANDS[0], seen="0")
    # The image's own Python has a torch for the CPU, and the script may use another one.
    assert ask(engine, tmp_path / "guessed", SCRIPT, seen="0") == ""
    torch.write_text(TORCH)
    assert ask(engine, tmp_path / "good", SCRIPT, seen="1") == ""


def ask(engine: Engine, place: Path, command: tuple[str, ...], *, seen: str) -> str:
    """What a start would be refused with, in a container whose torch sees so many cards of one that is leased."""
    cards = CardsInside(DeviceGrant.CDI, ("GPU-b",))
    room = Room(str(place))
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    runtime = RuntimeName(engine.name)
    room.make(ContainerPlan(runtime, "x", "x", 1, "/", engine.image, command, "/", environ, (), cards=cards))
    put_question(room, JobSpec("t", command, "/"), cards)
    held = room.hold()
    limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096") if engine.name == "podman" else ()
    volumes = (f"--volume={place}:/run/holdfast", f"--volume={place.parent}/code:/code")
    variables = ("--env=PYTHONPATH=/code", f"--env=SEEN={seen}")
    words = ("run", "--detach", "--network=host", *limits, *volumes, *variables, engine.tag)
    container = engine(*words, "sh", "/run/holdfast/enter.sh", *command).splitlines()[-1]
    try:
        wait_until(lambda: read_answer(room, "image").finished, what=f"it has answered: {engine('logs', container)}")
        answer = read_answer(room, "image")
        wait_until(lambda: room.open_gate("no"), what="it is at its gate")
        assert engine("wait", container) == "125", "the command never ran"
    finally:
        engine("rm", "--force", container)
        for descriptor in held:
            os.close(descriptor)
    return answer.refusal.message if answer.refusal is not None else ""
