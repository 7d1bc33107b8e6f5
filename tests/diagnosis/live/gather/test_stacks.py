"""Python stacks asked for by the training library's private signal, and only where that is safe."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.diagnosis.live.gather.look import take_snapshot
from holdfast.diagnosis.live.gather.stacks import CollectedStacks, collect_stacks
from holdfast.diagnosis.python_stacks import parse_dump
from holdfast.host.process.processes import read_stat
from tests.diagnosis.live.bench import behaving, explain, look, stand_still
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.live.gather.target import LiveTarget

pytestmark = [pytest.mark.process, pytest.mark.requirement("DIAG-05", "B-43")]


def ask(target: LiveTarget, directory: Path, *, limit_s: float = 0.3) -> CollectedStacks:
    answer = collect_stacks(
        take_snapshot(target.list_pids()).processes, (str(directory / "stacks.json"),), limit_s=limit_s
    )
    assert answer.value is not None, answer.unread
    return answer.value


def change_record(directory: Path, **values: object) -> None:
    path = directory / "stacks.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def is_alive(target: LiveTarget) -> bool:
    stat = read_stat(target.roots[0].pid)
    return stat is not None and stat.state not in "ZX"


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "function"), [("deadlock", "deadlock"), ("busy", "busy"), ("pipe", "pipe")])
def test_a_hung_process_is_asked_twice_and_names_its_function(tmp_path: Path, mode: str, function: str) -> None:
    with behaving(f"asked:{mode}", tmp_path) as target:
        asked = ask(target, tmp_path)
        assert is_alive(target)
    dumps = asked.dumps[target.roots[0].pid]
    assert len(dumps) == 2
    assert [dump.main[0].function for dump in dumps] == [function, function]
    assert not asked.refused


@pytest.mark.slow
def test_the_verdict_names_the_frame_in_which_a_process_spins(tmp_path: Path) -> None:
    with behaving("asked:busy", tmp_path) as target:
        stand_still(tmp_path)
        report = look(target)
    assert report.verdict.kind.value == "busy_no_progress", explain(report)
    assert any("both stacks are in busy" in clue.text for clue in report.verdict.evidence_for), explain(report)


def test_without_a_record_nobody_is_signalled(tmp_path: Path) -> None:
    with behaving("pipe", tmp_path) as target:
        answer = collect_stacks(take_snapshot(target.list_pids()).processes, ())
        assert answer.value is None
        assert "record" in answer.unread
        assert is_alive(target)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGKILL, 0, 65])
def test_a_record_with_a_signal_that_has_a_meaning_is_refused(tmp_path: Path, number: int) -> None:
    with behaving("asked:pipe", tmp_path) as target:
        change_record(tmp_path, signal=int(number))
        asked = ask(target, tmp_path)
        assert is_alive(target)
    assert not asked.dumps
    assert "no private one" in asked.refused[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a record to another account")
def test_a_record_of_another_account_than_the_process_is_refused(tmp_path: Path) -> None:
    with behaving("asked:pipe", tmp_path) as target:
        os.chown(tmp_path / "stacks.json", os.getuid() + 1, -1)
        asked = ask(target, tmp_path)
        assert is_alive(target)
        assert not (tmp_path / "stacks.txt").read_text()
    assert not asked.dumps
    assert "no living process" in asked.refused[0]


def test_a_process_that_does_not_handle_the_signal_now_is_not_sent_it(tmp_path: Path) -> None:
    with behaving("asked:pipe", tmp_path) as target:
        # As after an exec: the record stands, the handler is gone. This signal's default action would kill.
        change_record(tmp_path, signal=int(signal.SIGRTMAX))
        asked = ask(target, tmp_path)
        assert is_alive(target)
    assert not asked.dumps
    assert "does not handle signal" in asked.refused[0]


WRONG: dict[str, dict[str, Any]] = {
    "another start time": {"start_ticks": 1},
    "another namespace": {"pid_namespace": 1},
    "another boot": {"boot_id": "0"},
    "another pid": {"pid": 1},
    "no number": {"signal": "x"},
    "no signal": {"signal": 0},
    "a signal beyond all": {"signal": 4000},
}


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG.keys())
def test_a_record_that_is_not_of_this_very_process_asks_nobody(tmp_path: Path, values: dict[str, Any]) -> None:
    with behaving("asked:pipe", tmp_path) as target:
        change_record(tmp_path, **values)
        asked = ask(target, tmp_path)
        assert is_alive(target)
        assert not (tmp_path / "stacks.txt").read_text()
    assert not asked.dumps
    assert asked.refused


def test_a_stacks_file_elsewhere_is_not_followed(tmp_path: Path) -> None:
    with behaving("asked:pipe", tmp_path) as target:
        change_record(tmp_path, stacks="../../etc/passwd")
        asked = ask(target, tmp_path)
    assert not asked.dumps
    assert f"names another file than {tmp_path}/stacks.txt" in asked.refused[0]


def test_a_stopped_process_is_not_asked(tmp_path: Path) -> None:
    with behaving("asked:pipe", tmp_path) as target:
        pid = target.roots[0].pid
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: (stat := read_stat(pid)) is not None and stat.state == "T")
        asked = ask(target, tmp_path)
    assert not asked.dumps
    assert "state T" in asked.refused[0]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xff", b'{"signal": 45}'])
def test_a_record_that_cannot_be_read_asks_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "stacks.json").write_bytes(content)
    answer = collect_stacks((), (str(tmp_path / "stacks.json"),), times=1)
    assert answer.value is not None
    assert answer.value.refused


TEXT = """Thread 0x00007f0d8 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/u/my code.py", line 12 in feed

Current thread 0x00007f0d9 [python] (most recent call first):
  File "/home/u/train.py", line ??? in <genexpr>
  File "/home/u/train.py", line 9 in <module>
  ...
"""


def test_the_text_of_faulthandler_is_taken_apart() -> None:
    dump = parse_dump(7, TEXT)
    assert len(dump.threads) == 2
    assert dump.threads[0][1].file == "/home/u/my code.py"
    assert dump.top == "<genexpr> (/home/u/train.py:0)"
    assert parse_dump(7, "garbage\n").threads == ()
