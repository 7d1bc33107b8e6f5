"""Waiting at places whose links end: the wait goes on, is bounded, and says nothing false of the runs."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import Any

import pytest

from holdfast.desk.route.frames import PIN, WAITED, build_pin
from holdfast.desk.runs import wait
from holdfast.desk.runs.wait import PlaceWaits, Wait, WaitedPlace, join_codes
from holdfast.model.errors import CutOff, Refused, Unreachable
from tests.desk.runs.sightings import place

pytestmark = pytest.mark.files


class Code:
    """A command there that ended with `code`, and says nothing but `out` on standard output: notes are elsewhere."""

    def __init__(self, code: int, out: bytes = b"") -> None:
        self.code, self.out = code, out


class Box:
    """Answers its next line of `script`: an exit code, an error, or None: it waits until the follower is woken."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[list[str]] = []

    def follow(self, argv: Any, *, out: Any, err: Any, wake_fd: Any = None, woken: Any = None, env: Any = None) -> int:
        self.asked.append(list(argv))
        said = self.script.pop(0)
        if isinstance(said, tuple):
            said, text = said
            out(text)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Code):
            out(said.out)
            return said.code
        if said is None:
            select.select([wake_fd], [], [])
            assert woken()
            return -1
        out(b"done: 1 of 1 done\x1b[2J\n")
        err(b"holdfast: a note\n")
        assert isinstance(said, int)
        return said


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(wait, "FIRST_PAUSE_S", 0.01)
    return []


def begin(boxes: dict[str, Box], told: list[str], deadline: float | None = None) -> PlaceWaits:
    waits = [Wait(place(name), ("--", "digits")) for name in boxes]
    return PlaceWaits(waits, deadline=deadline, open_box=lambda asked: boxes[asked.name], tell=told.append)


def test_each_place_waits_with_its_own_wait(told: list[str]) -> None:
    boxes = {"gpu1": Box(0), "gpu2": Box(3)}
    with begin(boxes, told) as waiting:
        found = waiting.collect()
    assert found[0] == WaitedPlace("gpu1", 0, "done: 1 of 1 done\\x1b[2J\n", "holdfast: a note\n")
    assert [item.exit_code for item in found] == [0, 3]
    assert boxes["gpu1"].asked == [["wait", "--", "digits"]]


@pytest.mark.gotcha("U17")
def test_a_link_that_ends_is_made_again_and_said_once(told: list[str]) -> None:
    boxes = {"gpu1": Box(CutOff("cut"), Unreachable("no route"), Unreachable("no route"), 0)}
    with begin(boxes, told) as waiting:
        (found,) = waiting.collect()
    assert (found.exit_code, found.reason) == (0, "")
    assert told == ["gpu1 does not answer (cut); what is waited for goes on, and so does the wait"]


def test_a_wait_that_is_killed_there_is_no_end_of_the_run(told: list[str]) -> None:
    killed = Box(Code(137), Code(137), 0)
    with begin({"gpu1": killed}, told) as waiting:
        (found,) = waiting.collect()
    assert (found.exit_code, len(killed.asked)) == (0, 3)
    (words,) = told
    assert words.startswith("gpu1 does not answer (what waited there was ended: 137); what is waited for goes on")


@pytest.mark.parametrize("out", [WAITED, b"{}\n" + WAITED, b"x" * wait.MOST_BYTES + b"\n" + WAITED])
def test_the_code_of_a_wait_that_came_to_its_end_is_the_runs(told: list[str], out: bytes) -> None:
    box = Box(Code(143, out))
    with begin({"gpu1": box}, told) as waiting:
        (found,) = waiting.collect()
    assert (found.exit_code, len(box.asked), told) == (143, 1, [])
    assert found.out == out[: wait.MOST_BYTES].removesuffix(WAITED).decode()


def test_out_of_reach_for_too_long_is_69_and_no_end(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "GIVE_UP_S", 0.05)
    with begin({"gpu1": Box(*[Unreachable("no route")] * 100)}, told) as waiting:
        (found,) = waiting.collect()
    assert (found.exit_code, found.reason) == (69, "no route")


def test_an_address_that_takes_long_to_fail_is_not_a_link_that_held(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "STEADY_S", 0.0)
    monkeypatch.setattr(wait, "GIVE_UP_S", 0.05)
    with begin({"gpu1": Box(CutOff("cut"), *[Unreachable("black hole")] * 100)}, told) as waiting:
        (found,) = waiting.collect()
    assert (found.exit_code, found.reason) == (69, "black hole")
    assert len(told) == 1


def test_after_a_cut_the_same_run_is_waited_for_though_a_newer_one_has_its_name(told: list[str]) -> None:
    run_id = "20261120-104501-digits-3fa2"
    lines = build_pin("digits", run_id) + PIN + b"[[[ junk\n"
    boxes = {"gpu1": Box((CutOff("cut"), lines), (Unreachable("no route"), b""), (0, build_pin(run_id, run_id)))}
    with begin(boxes, told) as waiting:
        (found,) = waiting.collect()
    assert [asked[-1] for asked in boxes["gpu1"].asked] == ["digits", run_id, run_id]
    assert found.out == "done: 1 of 1 done\\x1b[2J\n"


def test_who_is_not_let_in_is_not_asked_again(told: list[str]) -> None:
    boxes = {"gpu1": Box(Refused("the key", hint="holdfast place login gpu1"))}
    with begin(boxes, told) as waiting:
        (found,) = waiting.collect()
    assert (found.exit_code, found.reason, len(boxes["gpu1"].asked)) == (77, "the key; holdfast place login gpu1", 1)


def test_the_time_is_up_while_a_place_is_out_of_reach(told: list[str]) -> None:
    boxes = {"gpu1": Box(*[Unreachable("no route")] * 1000)}
    with begin(boxes, told, deadline=time.monotonic() + 0.2) as waiting:
        (found,) = waiting.collect()
    assert found.exit_code == 124
    assert boxes["gpu1"].asked[0] == ["wait", "--timeout", "1s", "--", "digits"]


def test_an_interrupt_leaves_the_places_alone(told: list[str]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt), begin({"gpu1": Box(None), "gpu2": Box(None)}, told):
        raise KeyboardInterrupt
    assert len(os.listdir("/proc/self/fd")) == before


def test_ctrl_c_ends_the_commands_at_the_places_before_the_wait_is_left(told: list[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    waits, ended = threading.Event(), threading.Event()

    class Slow(Box):
        def follow(self, argv: Any, **kwargs: Any) -> int:
            waits.wait(0.05)  # until the main thread waits, where it matters
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            select.select([kwargs["wake_fd"]], [], [])
            waits.wait(0.3)  # what it takes to end the client of ssh
            ended.set()
            return -1

    try:
        with pytest.raises(KeyboardInterrupt), begin({"gpu1": Slow()}, told) as waiting:
            waiting.collect()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()


def test_a_fault_of_ours_is_not_silence(told: list[str]) -> None:
    with begin({"gpu1": Box(ZeroDivisionError())}, told) as waiting, pytest.raises(ZeroDivisionError):
        waiting.collect()


@pytest.mark.parametrize(
    ("codes", "joined"),
    [([], 0), ([0], 0), ([3], 3), ([0, 0], 0), ([0, 3], 1), ([69, 3], 69), ([69, 124, 1], 124), ([77, 0], 1)],
)
def test_one_code_of_several(codes: list[int], joined: int) -> None:
    assert join_codes(codes) == joined
