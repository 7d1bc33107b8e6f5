"""The conformance suite of platforms, on the real thing: this machine, a box without a link, and a box behind sshd."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.core.job.job_hash import hash_job
from holdfast.model import wire
from holdfast.model.errors import Taken, UsageError
from holdfast.model.job import JobSpec
from holdfast.model.order import Order
from holdfast.model.place import Place
from holdfast.model.record import record, replace
from holdfast.model.run import Ended, Running
from holdfast.platforms.local.platform import LocalPlatform
from holdfast.platforms.ssh.platform import SshPlatform
from holdfast.transfer.box import Box
from holdfast.transport.local import LocalTransport
from holdfast.transport.ssh.transport import SshTransport
from tests.agent.killing import is_busy
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.model.place import BoxFacts
    from holdfast.platforms.base import Platform
    from holdfast.transport.base import Transport
    from tests.sshd import Sshd

pytestmark = pytest.mark.contract

_NUMBERS = itertools.count(int.from_bytes(os.urandom(2), "big") % 0xF000)


@pytest.fixture
def run_id() -> str:
    """One that no other test has: boxes are shared by all of them, as real ones are."""
    return f"20261122-104501-job-{next(_NUMBERS):04x}"


@pytest.fixture(scope="module")
def known_boxes() -> dict[str, BoxFacts]:
    """What was measured of a box, by its runs root: it gets the bundle once."""
    return {}


@record
class Conforming:
    """A platform, and its runs root as it is seen from here."""

    platform: Platform
    root: str

    def ended(self, run_id: str) -> int:
        """The exit code, once the run is over and nothing of it is left."""
        path = Path(self.root, run_id, "attempts/1/exit.json")
        wait_until(path.exists, what=f"{run_id} is over")
        wait_until(lambda: not is_busy(f"{self.root}/{run_id}"), what=f"nothing of {run_id} is left")
        return int(json.loads(path.read_text())["exit_code"])

    def output(self, run_id: str) -> str:
        """What the job wrote."""
        return Path(self.root, run_id, "attempts/1/output.log").read_text()

    def list_runs(self) -> list[str]:
        """The ids of all runs there."""
        return [name for name in os.listdir(self.root) if not name.startswith(".")] if os.path.isdir(self.root) else []


def _make_local(request: pytest.FixtureRequest) -> Conforming:
    root = f"{request.getfixturevalue('tmp_path')}/runs"
    return Conforming(LocalPlatform(root), root)


def _make_without_link(request: pytest.FixtureRequest) -> Conforming:
    root = f"{request.getfixturevalue('tmp_path_factory').getbasetemp()}/near-runs"
    return _make_box(request, Place("near", root=root), LocalTransport(), root)


def _make_ssh(request: pytest.FixtureRequest) -> Conforming:
    sshd: Sshd = request.getfixturevalue("ssh_desk")
    root = f"{sshd.home('box')}/platform-runs"
    place = Place("gpu1", host=sshd.alias("box"), root=root)
    return _make_box(request, place, SshTransport(place), root)


def _make_box(request: pytest.FixtureRequest, place: Place, transport: Transport, root: str) -> Conforming:
    known: dict[str, BoxFacts] = request.getfixturevalue("known_boxes")
    box = Box(place, transport, facts=known.get(root), remember=lambda facts: known.update({root: facts}))
    return Conforming(SshPlatform(box), root)


MAKERS: dict[str, Callable[[pytest.FixtureRequest], Conforming]] = {
    "local": _make_local,
    "box": _make_without_link,
    "ssh": _make_ssh,
}


@pytest.fixture(params=list(MAKERS))
def conforming(request: pytest.FixtureRequest, isolated_environment: dict[str, str]) -> Iterator[Conforming]:
    """Each platform in turn; its runs are over in the end."""
    assert isolated_environment
    made = MAKERS[request.param](request)
    yield made
    for name in made.list_runs():
        made.ended(name)


def _order(run_id: str, *command: str, by: str = "", desk: str = "") -> Order:
    job = JobSpec("job", command, ".")
    return Order(run_id, job, hash_job(job), "0123456789abcdef", by=by, desk=desk)


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-19", "LOC-01", "BSSH-02")
def test_an_order_is_taken_and_runs_detached_to_its_end(conforming: Conforming, run_id: str) -> None:
    answer = conforming.platform.submit(_order(run_id, "sh", "-c", "pwd; exit 5", by="anna", desk="laptop"))
    assert (answer.ref.run_id, answer.ref.fresh, answer.problem) == (run_id, True, None)
    assert answer.ref.run_dir == f"{conforming.root}/{run_id}"
    assert conforming.ended(run_id) == 5
    assert conforming.output(run_id) == f"{conforming.root}/{run_id}/work\n"
    assert json.loads(Path(conforming.root, run_id, wire.RUN).read_text())["ordered_by"] == "anna@laptop"


@pytest.mark.slow
@pytest.mark.requirement("BSSH-03")
def test_a_start_is_proven_there(conforming: Conforming, run_id: str) -> None:
    answer = conforming.platform.submit(_order(run_id, "sh", "-c", "sleep 5"), prove_s=0)
    assert answer.started is not None
    assert isinstance(answer.started.state, Running)


@pytest.mark.slow
@pytest.mark.requirement("BSSH-03")
def test_an_end_within_the_look_is_said_with_its_code(conforming: Conforming, run_id: str) -> None:
    answer = conforming.platform.submit(_order(run_id, "sh", "-c", "sleep 1; exit 9"), prove_s=20)
    assert answer.started is not None
    assert isinstance(answer.started.state, Ended)
    assert (answer.started.exit_code, answer.started.state.refusal) == (9, None)


@pytest.mark.slow
def test_a_start_that_fails_is_said_with_its_reason(conforming: Conforming, run_id: str) -> None:
    answer = conforming.platform.submit(_order(run_id, "/no/such/program"), prove_s=0)
    assert answer.started is not None
    assert isinstance(answer.started.state, Ended)
    assert answer.started.state.refusal is not None
    assert (answer.started.exit_code, "/no/such/program" in answer.started.state.refusal.message) == (78, True)


@pytest.mark.slow
def test_the_same_order_is_the_same_run(conforming: Conforming, run_id: str) -> None:
    order = _order(run_id, "sh", "-c", "echo once; exit 3")
    first = conforming.platform.submit(order)
    again = conforming.platform.submit(order, prove_s=0)
    assert (again.ref, again.problem) == (replace(first.ref, fresh=False), None)
    assert conforming.ended(run_id) == 3
    assert conforming.output(run_id) == "once\n"
    with pytest.raises(Taken, match="another job"):
        conforming.platform.submit(_order(run_id, "false"))


@pytest.mark.slow
def test_an_order_that_cannot_be_taken_leaves_nothing(conforming: Conforming, run_id: str) -> None:
    with pytest.raises(UsageError, match="secret"):
        conforming.platform.submit(_order(run_id, "true", "--password=hunter2hunter2"))
    assert run_id not in conforming.list_runs()
