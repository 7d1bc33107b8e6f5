"""Whether a machine is gone: only its provider's 404 or a terminal state says so, within a limit."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from holdfast.desk.teardown import gone
from holdfast.desk.teardown.gone import check_gone, read_state
from holdfast.desk.teardown.last_check import read_check
from holdfast.model.errors import PreflightFailed
from holdfast.model.place import Place, Rent
from holdfast.model.profile import EndVerb
from holdfast.model.record import replace
from tests.desk.teardown.gates import approval
from tests.status_endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.requirement("VRFY-09")]
DESTROYED = approval()


def at(endpoint: Endpoint) -> Place:
    return Place("gpu1", rent=Rent(status_url=endpoint.url))


@pytest.fixture
def endpoint(isolated_environment: dict[str, str]) -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.end()


def test_it_is_asked_until_it_is_gone_and_that_is_kept(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, b'{"desiredStatus": "RUNNING"}'), (500, b"oops"), (404, b"")]
    told: list[str] = []
    found = check_gone(at(endpoint), DESTROYED, 30, tell=told.append, pause_s=0.01)
    assert (found.state, found.seen) == ("gone", "the status page answers 404")
    assert read_check(Place("gpu1")) == found
    assert ["RUNNING" in told[0], "500" in told[1]] == [True, True]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ((500, b"gone"), "unknown"),
        ((403, b"terminated"), "unknown"),
        ((200, b"\0\xff\x1b[31mterminated\x1b[0m"), "unknown"),
        ((200, b'{"status": "terminated"}'), "gone"),
        ((200, b'{"status": "running"}'), "there"),
        ((200, b"<html>deleted</html>"), "unknown"),
        ((410, b""), "gone"),
    ],
)
def test_what_an_answer_means(endpoint: Endpoint, answer: tuple[int, bytes], state: str) -> None:
    endpoint.answers = [answer]
    assert check_gone(at(endpoint), DESTROYED, 0.0).state == state


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ('{"pods": [{"status": "terminated"}, {"status": "hibernating"}]}', "unknown"),
        ('{"status": "success", "pod": {"state": "terminated"}}', "gone"),
        ('{"pods": [' + '{"status": "deleted"},' * 150 + '{"status": "running"}]}', "there"),
        ('{"a":' * 9 + '{"status": "running"}' + "}" * 8 + ', "status": "deleted"}', "there"),
        ("[" * 100_000, "unknown"),
    ],
)
def test_one_machine_that_may_bill_is_enough(answer: str, state: str) -> None:
    assert read_state(answer).state == state


def test_an_answer_that_only_drips_is_none(
    monkeypatch: pytest.MonkeyPatch, isolated_environment: dict[str, str]
) -> None:
    monkeypatch.setattr(gone, "ASK_S", 0.2)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            link, _ = server.accept()
            with link, suppress(OSError):
                link.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not over.wait(0.05):
                    link.sendall(b" ")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        place = Place("gpu1", rent=Rent(status_url=f"http://127.0.0.1:{server.getsockname()[1]}/"))
        found = check_gone(place, DESTROYED, 0.0)
        over.set()
        thread.join()
    assert (found.state, "within 0.2 s" in found.seen) == ("unknown", True)


@pytest.mark.parametrize("url", ["http://host:abc/", "http://[::1"])
def test_an_address_that_is_none_is_said(url: str, isolated_environment: dict[str, str]) -> None:
    assert check_gone(Place("gpu1", rent=Rent(status_url=url)), DESTROYED, 0.0).state == "unknown"


@pytest.mark.parametrize(
    ("name", "stops_meter", "irreversible", "state"),
    [
        ("hibernate", True, False, "stopped"),  # as AutoDL's power-off: it can be taken back
        ("retire", False, True, "stopped"),  # as RunPod's stop: final for a disk, and the machine bills on
        ("one-off-destroy", True, True, "gone"),
        ("shut-and-delete", None, True, "gone"),  # whether its meter stops is not known
    ],
)
def test_whether_stopped_is_enough_is_a_fact_of_the_verb_and_not_in_its_name(
    endpoint: Endpoint, name: str, stops_meter: bool | None, irreversible: bool, state: str
) -> None:
    verb = EndVerb(name, "", stops_meter, irreversible)
    endpoint.answers = [(200, b'{"status": "stopped"}'), (404, b"")]
    assert check_gone(at(endpoint), approval(verb), 30, pause_s=0.01).state == state


def test_without_an_approval_only_gone_is_gone(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, b'{"status": "stopped"}'), (404, b"")]
    assert check_gone(at(endpoint), None, 30, pause_s=0.01).state == "gone"


def test_what_was_said_of_another_machine_of_this_name_does_not_count(endpoint: Endpoint) -> None:
    endpoint.answers = [(404, b"")]
    before = replace(at(endpoint), host="root@203.0.113.7", port=41022)
    check_gone(before, DESTROYED, 0.0)
    assert read_check(before) is not None
    assert read_check(replace(before, port=41023)) is None


def test_a_page_that_hangs_and_one_that_is_not_there_tell_nothing(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gone, "ASK_S", 0.2)
    found = check_gone(at(endpoint), DESTROYED, 0.0)
    assert (found.state, found.seen) == ("unknown", "the status page gave no whole answer within 0.2 s")
    nobody = Place("gpu1", rent=Rent(status_url="http://127.0.0.1:1/pods/7"))
    assert check_gone(nobody, DESTROYED, 0.0).state == "unknown"
    assert check_gone(Place("gpu1", rent=Rent(status_url="file:///etc/hosts")), DESTROYED, 0.0).state == "unknown"


def test_what_could_not_be_told_takes_nothing_back(endpoint: Endpoint) -> None:
    endpoint.answers = [(404, b"")]
    check_gone(at(endpoint), DESTROYED, 0.0)
    endpoint.answers = [(500, b"")]
    assert check_gone(at(endpoint), DESTROYED, 0.0).state == "unknown"
    kept = read_check(Place("gpu1"))
    assert kept is not None
    assert kept.state == "gone"


def command(code: str) -> Place:
    return Place("gpu1", rent=Rent(status_command=(sys.executable, "-c", code)))


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("print('terminated')", "gone"),
        ("import sys; sys.exit('Error: pod 7 not found')", "gone"),
        ("print('running')", "there"),
        ("import sys; sys.exit('network is down')", "unknown"),
        ("import sys; sys.exit('host not found: api.example')", "unknown"),
        ("import sys; print('sh: providerctl: not found'); sys.exit(127)", "unknown"),
        ("import sys; sys.exit('./pod-status.sh: line 3: providerctl: command not found')", "unknown"),
        ("import sys; sys.exit('no pod: exec: providerctl: executable file not found in $PATH')", "unknown"),
        ("print('it will be deleted tomorrow')", "unknown"),
    ],
)
def test_a_command_of_the_users_own(isolated_environment: dict[str, str], code: str, state: str) -> None:
    assert check_gone(command(code), DESTROYED, 0.0).state == state


def test_a_command_that_hangs_is_ended_with_what_it_started(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gone, "ASK_S", 0.5)
    hangs = "import subprocess, time; subprocess.Popen(['sleep', '300']); time.sleep(300)"
    assert check_gone(command(hangs), DESTROYED, 0.0).state == "unknown"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('{"actual_status": "exited", "intended_status": "stopped"}', "stopped"),
        ('{"actual_status": "running", "intended_status": "stopped"}', "there"),
        ('[{"status": "terminated"}, {"status": "active"}]', "there"),  # several machines: none is known to be it
        ('{"data": {"status": "active"}}', "there"),
        ('{"status": "hibernating"}', "unknown"),
        ('[{"status": "terminated"}, {"status": "rebooting"}]', "unknown"),
        ('{"status": {"name": "running"}, "state": "terminated"}', "there"),
        ('{"State": {"Code": 48, "Name": "terminated"}}', "gone"),
        ('{"status": {"phase": 4}, "state": "terminated"}', "unknown"),
        ('{"status": "success", "data": {"state": "terminated"}}', "gone"),
        ("[]", "unknown"),
        ("", "unknown"),
        ("status: TERMINATED", "gone"),
        ("terminating", "there"),
        ("[" * 100_000, "unknown"),
    ],
)
def test_a_state_is_read_from_what_providers_answer(text: str, state: str) -> None:
    assert read_state(text).state == state


def test_a_place_that_nobody_can_be_asked_about_is_refused() -> None:
    with pytest.raises(PreflightFailed, match="ssh does not reach is not gone") as caught:
        check_gone(Place("gpu1", rent=Rent(rate=1.0)), DESTROYED, 0.0)
    assert "holdfast place rm gpu1" in caught.value.hint
