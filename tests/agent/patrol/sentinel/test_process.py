"""A sentinel that is killed between what it waited for and its message, or whose message nobody takes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.messages.tries import MOST_TRIES, Undelivered, find_pause_s
from holdfast.agent.patrol.reconcile import KEPT_S, Repair, reconcile
from holdfast.agent.patrol.sentinel import process, records
from holdfast.agent.patrol.sentinel.wait import parse_condition
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.record import replace
from tests.agent.messages.endpoints import make_program
from tests.leaks import list_children
from tests.rundirs import ended, make_run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.requirement("MON-03", "MON-17")]

RUN_ID = "20261120-100000-over-0a1b"


class _Told:
    """A run that is over, and a sentinel for its end that has a program told."""

    def __init__(self, directory: Path) -> None:
        self.root, self.heard = str(directory / "runs"), directory / "heard"
        self.run_dir = make_run(self.root, RUN_ID, ended())
        self.hook = make_program(directory / "hook", f"cat >> {self.heard}; echo >> {self.heard}")

    def watch(self, command: str) -> None:
        """Be that sentinel, in another process, until it ends."""
        child = os.fork()
        if not child:
            condition = parse_condition("ended")
            process.keep_watch(self.run_dir, condition, 60.0, command, detached=True, say=lambda _: None)
            os._exit(0)
        os.waitpid(child, 0)

    def read(self) -> records.SentinelRecord:
        found = records.read(records.path_of(RUN_ID, "ended"))
        assert found is not None
        return found

    def repair(self) -> tuple[Repair, ...]:
        """Reconcile, and wait until nothing is owed any more."""
        done = reconcile([self.root]).repairs
        wait_until(lambda: self.read().outcome and self.read().untold is None, what="it is told")
        return done

    def count(self) -> int:
        return len(self.heard.read_text(encoding="utf-8").splitlines()) if self.heard.exists() else 0


@pytest.fixture
def told(tmp_path: Path, isolated_environment: dict[str, str]) -> Iterator[_Told]:
    before = list_children()
    yield _Told(tmp_path)
    # A sentinel that was begun anew is a child of ours, and ends once it has told.
    for pid in list_children() - before:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("killed_at", "times"),
    [((records, "finish", 1), 1), ((process, "_tell", 1), 1), ((records, "finish", 2), 2)],
    ids=["before its outcome is recorded", "before it is sent", "taken and not recorded"],
)
def test_one_that_is_killed_before_it_told_is_begun_anew(
    told: _Told, monkeypatch: pytest.MonkeyPatch, killed_at: tuple[object, str, int], times: int
) -> None:
    module, name, at = killed_at
    calls, real = [], getattr(module, name)

    def die(*words: object) -> object:
        calls.append(words)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*words)

    with monkeypatch.context() as patched:
        patched.setattr(module, name, die)
        told.watch(told.hook)
    (words,) = records.list_untold().values()
    assert words.startswith(f"the sentinel of {RUN_ID} for ended: ")
    (repair,) = told.repair()
    assert (repair.kind.value, repair.done) == ("sentinel", True)
    assert told.count() == times
    assert records.list_untold() == {}
    assert reconcile([told.root]).repairs == ()


def test_what_nobody_takes_is_told_later_and_seen_meanwhile(told: _Told, monkeypatch: pytest.MonkeyPatch) -> None:
    os.rename(told.hook, f"{told.hook}.away")
    told.watch(told.hook)
    (words,) = records.list_untold().values()
    assert "nobody was told: " in words
    assert reconcile([told.root]).repairs == (), "not before the pause is over"
    os.rename(f"{told.hook}.away", told.hook)
    later = clock.epoch_s() + find_pause_s(1) + 1
    monkeypatch.setattr(clock, "epoch_s", lambda: later)
    assert len(told.repair()) == 1
    assert told.count() == 1


def test_a_secret_of_its_command_is_not_kept_and_a_person_is_told(told: _Told) -> None:
    told.watch("false --api-key 0123456789abcdefXYZ")
    assert "0123456789" not in str(told.read())
    earlier = told.read().untold
    assert earlier is not None
    assert records.list_untold()


@pytest.mark.parametrize("tries", [0, -5])
def test_a_damaged_count_of_tries_holds_nothing_up(told: _Told, tries: int) -> None:
    told.watch("false")
    path = records.path_of(RUN_ID, "ended")
    files.commit(path, wire.to_bytes(replace(told.read(), untold=Undelivered("ended", tries, clock.epoch_s()))))
    assert reconcile([told.root]).repairs == ()


@pytest.mark.parametrize("ended", [True, False], ids=["told nobody", "killed"])
@pytest.mark.parametrize("given_up", ["tries", "secret"])
def test_what_cannot_be_told_is_said_so_and_not_for_ever(
    told: _Told, monkeypatch: pytest.MonkeyPatch, given_up: str, ended: bool
) -> None:
    told.watch("false --api-key 0123456789abcdefXYZ")
    record = told.read()
    untold = Undelivered("ended", MOST_TRIES if given_up == "tries" else 1, clock.epoch_s(), "it says no")
    if given_up == "tries":
        record = replace(record, notify_command="false")
    record = replace(record, untold=untold) if ended else replace(record, outcome="", ended_at="", untold=untold)
    files.commit(records.path_of(RUN_ID, "ended"), wire.to_bytes(record))
    (words,) = records.list_untold().values()
    assert words.endswith("it is not tried again: arm it anew")
    later = clock.epoch_s() + 60.0 + KEPT_S + 1
    monkeypatch.setattr(clock, "epoch_s", lambda: later)
    (repair,) = reconcile([told.root]).repairs
    assert (repair.kind.value, repair.done) == ("record", True)
    assert records.list_untold() == {}
