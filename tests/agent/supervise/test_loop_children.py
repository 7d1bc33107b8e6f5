"""Children beside the supervisor's loop: each is heard of once, as a value or in words; an abandoned one never."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.supervise.container import client_watch
from holdfast.agent.supervise.loop import LISTENED, Loop
from holdfast.host.process.processes import identify, read_stat
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def loop() -> Iterator[Loop]:
    """A true loop; afterwards this process has its signals back."""
    before = {number: signal.getsignal(number) for number in LISTENED}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    made = Loop(lambda _: None)
    write_end = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    yield made
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for descriptor in [*made._calls, write_end]:
        os.close(descriptor)


def turn(loop: Loop, until: Callable[[], object]) -> None:
    """Let the loop go on until something is so, for `LIMIT_S` at most."""
    end = time.monotonic() + LIMIT_S
    while not until():
        assert time.monotonic() < end
        loop.timers.arm("turn", 0.05, lambda: None)
        loop.run_once()


def wait_for_ever() -> None:
    signal.pause()


def test_a_child_answers_with_a_value(loop: Loop, no_leaks: None) -> None:
    heard: list[object] = []
    child = loop.run_child(lambda: {"x": [1, "y" * 200_000]}, heard.append, heard.append)
    assert (child.under_way, len(loop.helpers)) == (True, 1)
    turn(loop, lambda: heard)
    assert heard == [{"x": [1, "y" * 200_000]}]
    assert (child.under_way, loop.helpers) == (False, set())
    child.abandon()


def test_the_child_is_over_when_its_value_is_told_so_that_the_next_may_begin(loop: Loop, no_leaks: None) -> None:
    heard: list[object] = []

    def go_on(value: object) -> None:
        heard.append((value, first.under_way))
        loop.run_child(lambda: 2, heard.append, heard.append)

    first = loop.run_child(lambda: 1, go_on, heard.append)
    turn(loop, lambda: len(heard) == 2)
    assert heard == [(1, False), 2]


def test_a_child_that_raises_or_is_killed_fails_in_words(loop: Loop, no_leaks: None) -> None:
    heard: list[str] = []
    loop.run_child(lambda: dict[str, int]()["x"], pytest.fail, heard.append)
    turn(loop, lambda: heard)
    assert heard == ["KeyError: 'x'"]
    loop.run_child(wait_for_ever, pytest.fail, heard.append, within_s=LIMIT_S)
    (pid,) = loop.helpers
    os.kill(pid, signal.SIGKILL)
    turn(loop, lambda: len(heard) == 2)
    assert "killed" in heard[1]


def test_a_child_that_hangs_is_given_up_in_time_and_killed(loop: Loop, no_leaks: None) -> None:
    heard: list[str] = []
    child = loop.run_child(wait_for_ever, pytest.fail, heard.append, within_s=0.1)
    (pid,) = loop.helpers
    turn(loop, lambda: heard)
    assert heard == ["no answer within 0.1 s"]
    assert (child.under_way, loop.helpers, read_stat(pid)) == (False, set(), None)


def test_an_abandoned_child_is_killed_and_never_heard_of(loop: Loop, no_leaks: None) -> None:
    heard: list[object] = []
    child = loop.run_child(wait_for_ever, heard.append, heard.append, within_s=0.1)
    (pid,) = loop.helpers
    child.abandon()
    child.abandon()
    assert (child.under_way, loop.helpers, read_stat(pid)) == (False, set(), None)
    loop.run_child(lambda: "later", heard.append, heard.append)
    turn(loop, lambda: heard)
    end = time.monotonic() + 0.15
    turn(loop, lambda: time.monotonic() > end)
    assert heard == ["later"]


def test_a_client_that_stays_when_all_inside_have_ended_is_told_of_until_it_leaves(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_watch, "LEAVES_WITHIN_S", 0.01)
    told: list[bool] = []
    first = subprocess.Popen(["sleep", "1000"])
    emptied: list[bool] = []
    watch = client_watch.ClientWatch(loop, lambda: told.append(first.poll() is not None), lambda: emptied.append(True))
    init = identify(first.pid)
    assert init is not None
    watch.begin(init)
    watch.begin(init)
    first.kill()
    turn(loop, lambda: len(told) > 1)
    assert (all(told), emptied) == (True, [True])
    watch.end()
    assert not loop.timers.is_armed("client")
