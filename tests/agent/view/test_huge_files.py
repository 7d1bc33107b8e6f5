"""A job, or another account, can fill the files of a run with anything: readers stay bounded and say what they left."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.stop import stop_run
from holdfast.agent.patrol.patrol import run_patrol
from holdfast.agent.view import observe
from holdfast.agent.view.live.logs import MOST_LINES, read_logs
from holdfast.agent.view.live.tail import find_last_lines
from holdfast.agent.view.page.diagnosis import diagnose_run
from holdfast.agent.view.page.dossier import read_dossier
from holdfast.diagnosis.ended.driver_xids import read_heard
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.run import Outcome
from tests.host.families import become
from tests.rundirs import ended, make_run, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process

ROOM_BYTES = 512 * 1024**2
FILLED_BYTES = 96 * 1024**2
"""As lines it would take some gigabytes."""
EVENT = b'{"seq": 1, "utc": "2026-11-20T10:00:00.000Z", "monotonic_s": 1.0, "event": "ended", "data": {}}\n'


def run_in_little_room(act: Callable[[], object]) -> None:
    """In a child whose address space may grow by half a gigabyte."""

    def bounded() -> None:
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, used + ROOM_BYTES))
        act()

    assert os.waitpid(become(bounded), 0)[1] == 0


def fill(path: str, piece: bytes, end: bytes = b"") -> None:
    write(path, piece * (FILLED_BYTES // len(piece)) + end)


@pytest.fixture
def failed(tmp_path: Path) -> str:
    """A run that failed and that nobody has judged yet: whoever looks reads all that there is."""
    return make_run(tmp_path / "runs", state=ended(Outcome.FAILED, 1))


@pytest.mark.slow
def test_events_filled_with_newlines_do_not_stop_a_look(failed: str) -> None:
    path = f"{failed}/attempts/1/{wire.EVENTS}"
    fill(path, b"\n", EVENT)

    def look() -> None:
        found = read_dossier(failed, None)
        assert [event["event"] for event in found.events] == ["ended"]
        assert ["last 16" in item.reason for item in found.unreadable] == [True]
        assert read_heard(path) == ()
        assert diagnose_run(failed, None, deep=False, tell=lambda _: None).verdict is not None
        assert stop_run(failed, force=False, reason="", wait_s=0.0, tell=lambda _: None).already_ended
        assert len(run_patrol([os.path.dirname(failed)]).seen) == 1

    run_in_little_room(look)


@pytest.mark.slow
def test_output_filled_with_newlines_does_not_stop_a_look(failed: str) -> None:
    fill(f"{failed}/attempts/1/{wire.OUTPUT}", b"\n", b"Traceback\nlast words\n")

    def look() -> None:
        (log,) = read_logs(failed, (1,), wire.OUTPUT, None).attempts
        assert (len(log.lines), log.lines[-1]) == (MOST_LINES, "last words")
        assert log.left_out_bytes == FILLED_BYTES + len(b"Traceback\nlast words\n") - sum(
            len(line) + 1 for line in log.lines
        )
        (log,) = read_logs(failed, (1,), wire.OUTPUT, 2).attempts
        assert (log.lines, log.left_out_bytes) == (("Traceback", "last words"), 0)
        assert find_last_lines(log.path, 100_000) == FILLED_BYTES + 21 - 100_000 - 19
        assert diagnose_run(failed, None, deep=False, tell=lambda _: None).verdict is not None

    run_in_little_room(look)


def test_records_that_are_too_large_are_named_and_not_parsed(failed: str) -> None:
    names = (wire.HEARTBEAT, wire.MANIFEST, wire.STATUS, wire.STOP, wire.VERDICT, wire.PREFLIGHT)
    for name in names:
        write(f"{failed}/attempts/1/{name}", b"[" * 1000)
        os.truncate(f"{failed}/attempts/1/{name}", FILLED_BYTES)

    def look() -> None:
        view = observe.observe_run(failed)
        assert view.condition == "failed"
        too_large = {os.path.basename(item.path) for item in view.unreadable if "larger than" in item.reason}
        assert too_large == set(names[:3])
        assert read_dossier(failed, None).condition == "failed"

    run_in_little_room(look)


def test_only_whole_lines_of_the_end_are_taken_and_empty_ones_are_not(tmp_path: Path) -> None:
    path = str(tmp_path / "lines")
    write(path, b"one\n\ntwo\n\n\nthree\ntorn")
    assert files.read_last_lines(path) == [b"one", b"two", b"three"]
    assert files.read_last_lines(path, 14) == [b"three"]
    write(path, b"x\n" * (files.MOST_LINES + 10))
    assert len(files.read_last_lines(path)) == files.MOST_LINES - 1
    write(path, b"")
    assert files.read_last_lines(path) == []
