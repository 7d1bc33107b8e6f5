"""Short-lived children: whatever one does, an answer or the reason why there is none comes in time."""

from __future__ import annotations

import os

import pytest

from holdfast.host.process import children
from holdfast.host.process.children import BoundedChild, read_children
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.process


def ask(words: str, within_s: float = LIMIT_S) -> BoundedChild:
    child = BoundedChild(("sh", "-c", words), os.environ, 1 << 20)
    read_children([child], within_s)
    return child


def test_a_child_that_ends_is_read_to_its_end() -> None:
    child = ask("echo said; exit 3")
    assert (child.code, bytes(child.data)) == (3, b"said\n")


def test_a_child_that_closes_its_output_and_goes_on_is_waited_for_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "LEAVES_WITHIN_S", 0.1)
    child = ask("exec >&- 2>&-; exec sleep 1000")
    assert child.code == -9
    assert child.describe("it") == "it closed its output and did not end"


def test_a_child_that_cannot_be_killed_now_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "KILL_PATIENCE_S", 0.0)
    monkeypatch.setattr(BoundedChild, "_reap", lambda _: False)
    child = BoundedChild(("sleep", "1000"), os.environ, 1 << 20)
    read_children([child], 0.05)
    assert child.code is None
    assert child.describe("it") == "it was not done within 0.05 s"
    wait_until(lambda: os.waitpid(child._pid, os.WNOHANG)[0], what="whoever reaps our children finds it dead")
