"""Who leaves the priority to the box is nice where somebody else would feel it, and only there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.supervise import priority
from holdfast.agent.supervise.priority import choose_priority
from holdfast.core.job.job_hash import hash_job
from holdfast.core.queue.job_hasher import JobHasher
from holdfast.core.rules.rules import Rules
from holdfast.host.process.processes import find_other_accounts
from holdfast.model import wire
from holdfast.model.job import JobSpec, Priority

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("ETIQ-01")]


def add_process(root: Path, pid: int, uid: int, seconds: int) -> None:
    """A process as proc(5) tells of it: its owner, and its user time."""
    directory = root / "proc" / str(pid)
    directory.mkdir(parents=True)
    ticks = seconds * os.sysconf("SC_CLK_TCK")
    fields = " ".join(["R", *["0"] * 10, str(ticks), *["0"] * 30])
    (directory / "stat").write_text(f"{pid} (a ) b) {fields}\n", encoding="ascii")
    os.chown(directory, uid, uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs files of other accounts")
def test_people_who_work_here_are_told_from_those_who_only_logged_in(tmp_path: Path) -> None:
    add_process(tmp_path, 1, 0, 5000)
    add_process(tmp_path, 20, 33, 5000)
    add_process(tmp_path, 30, 65534, 5000)
    add_process(tmp_path, 40, 1000, 3)
    assert find_other_accounts(str(tmp_path)) == ()
    add_process(tmp_path, 41, 1000, 61)
    add_process(tmp_path, 42, 1001, 61)
    assert find_other_accounts(str(tmp_path)) == (1000, 1001)


def test_the_choice_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[int, ...] | None] = {"others": ()}
    monkeypatch.setattr(priority, "find_other_accounts", lambda: seen["others"])
    assert choose_priority(Priority.NORMAL, Rules(sources=("r",))).priority is Priority.NORMAL
    assert choose_priority(Priority.AUTO, Rules()).priority is Priority.NORMAL
    assert choose_priority(Priority.AUTO, Rules(sources=("r",))).why == "this box has rules"
    seen["others"] = (54321,)
    chosen = choose_priority(Priority.AUTO, Rules())
    assert (chosen.priority, chosen.why) == (Priority.LOW, "other accounts work here: 54321")
    seen["others"] = None
    assert choose_priority(Priority.AUTO, Rules()).priority is Priority.LOW


def test_how_nice_a_job_is_does_not_make_it_another_one() -> None:
    auto, low, normal = (
        JobSpec("x", ("x",), "/", priority=it) for it in (Priority.AUTO, Priority.LOW, Priority.NORMAL)
    )
    assert hash_job(auto) == hash_job(low) == hash_job(normal)
    assert JobHasher(wire.encode(auto)).hash({}) == hash_job(low)
